"""Gives the batches of history objects back to the WAL, in a process of its own."""
