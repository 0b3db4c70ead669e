"""Merges data files in Spark tasks without Spark's rows."""
