"""The ingestion driver: the process that serves the topics of one group."""
