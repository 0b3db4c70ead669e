"""Code that runs in Spark's Python workers. It imports neither pyspark nor py4j."""
