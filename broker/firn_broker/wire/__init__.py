"""Bytes of the Kafka protocol: framing, headers, record batches, and the two messages that are too hot for objects. No I/O."""
