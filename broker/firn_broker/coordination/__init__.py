"""Coordinators: who gives offsets to batches. One port, two implementations (SQLite embedded, PostgreSQL)."""
