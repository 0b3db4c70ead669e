"""The Spark applications: ingestion (and, later, maintenance)."""
