"""Iceberg tables as Arrow datasets, into which DuckDB pushes the columns and the filters of a statement."""
