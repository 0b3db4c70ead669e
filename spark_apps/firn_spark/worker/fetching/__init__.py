"""Reads committed records from Kafka brokers without an object for each record."""
