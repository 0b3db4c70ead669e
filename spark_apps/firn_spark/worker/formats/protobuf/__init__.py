"""Protobuf: record values in the binary encoding, by the message that their schema names."""
