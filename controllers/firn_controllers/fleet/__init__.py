"""The brokers of a profile: a fleet that the operator launches (`kafka` or `diskless`), or a Kafka that exists and is only looked at."""
