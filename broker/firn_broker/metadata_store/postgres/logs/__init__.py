"""Logs of partitions in PostgreSQL: lookups, commits and merges."""
