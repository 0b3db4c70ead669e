"""The parts of a status that the report of an ingestion driver decides."""
