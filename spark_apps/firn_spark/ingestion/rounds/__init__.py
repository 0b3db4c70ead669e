"""A round: topics are prepared and planned, one Spark job reads and writes their records, and the driver commits."""
