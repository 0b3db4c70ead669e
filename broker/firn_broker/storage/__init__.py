"""Objects: where they are kept, and the format of the WAL objects that brokers write."""
