"""One round: topics are prepared, planned, read and written by one Spark job, and committed."""
