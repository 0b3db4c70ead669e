"""Merges data files in Spark's Python workers, for compaction."""
