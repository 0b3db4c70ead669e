"""Iceberg catalogs, tables and their files, with PyIceberg."""
