"""The Spark applications: ingestion drivers and maintenance runs."""
