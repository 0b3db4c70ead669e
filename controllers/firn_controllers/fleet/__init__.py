"""The brokers of a profile: a Kafka that the operator launches (KRaft), or one that exists and is only looked at."""
