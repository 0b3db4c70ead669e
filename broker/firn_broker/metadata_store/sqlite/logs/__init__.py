"""Logs of partitions in SQLite: lookups, commits and merges."""
