"""Avro: record values in the binary encoding, by the schema of their writer."""
