"""Run other systems that land Kafka topics in Iceberg tables, and compare Firn with them."""
