"""Columns of the table that are computed from decoded records."""
