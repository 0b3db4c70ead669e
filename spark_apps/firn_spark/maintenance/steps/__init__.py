"""The steps of a run on one table."""
