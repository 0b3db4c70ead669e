"""The formats of record values, each a package."""
