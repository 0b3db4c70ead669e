"""History from tables: batches whose records lie in data files of an Iceberg table, rebuilt with the bytes that producers sent."""
