"""Kafka's bytes, shared by every process that reads them: protocol messages, record batches, and the records inside."""
