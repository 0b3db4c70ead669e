"""Maintenance runs: compaction and retention of tables, one process a run."""
