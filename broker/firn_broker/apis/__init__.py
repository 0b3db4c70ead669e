"""The APIs of the Kafka protocol, with a module for each: its versions, its behaviour, and the parts that are left
out."""
