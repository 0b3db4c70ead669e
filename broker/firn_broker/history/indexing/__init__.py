"""Replaces batches in WAL objects by rows of a table, in a process of its own."""
