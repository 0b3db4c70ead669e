"""Apache Kafka brokers (KRaft): what they start from, what they keep, and how a newer version is finalised."""
