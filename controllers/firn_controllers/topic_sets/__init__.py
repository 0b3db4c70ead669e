"""Decisions about TopicSets: which topics match, the IcebergTopic of each, and the status."""
