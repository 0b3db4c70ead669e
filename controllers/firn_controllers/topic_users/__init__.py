"""Decisions about TopicUsers: checks, grants, rotations, changes in Kafka, status. No I/O."""
