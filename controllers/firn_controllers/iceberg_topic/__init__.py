"""Decisions about an IcebergTopic: which check refuses it, which steps it needs, its status. Pure."""
