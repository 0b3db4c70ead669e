"""Decisions about DeadLetterReplays, without I/O."""
