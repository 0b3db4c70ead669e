"""The brokers of a profile: a fleet that the operator runs (`kafka` or `diskless`), or an existing Kafka that it only checks."""
