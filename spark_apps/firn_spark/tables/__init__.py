"""Iceberg tables through Iceberg's Java library: loading, changing, committing."""
