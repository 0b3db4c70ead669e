"""Apache Kafka brokers (KRaft): their configuration, their volumes and their metadata version."""
