"""The ingestion application of a group: one driver pod that lands the records of many topics."""
