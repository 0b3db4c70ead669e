"""Reading from Kafka: offsets for the driver, records for tasks."""
