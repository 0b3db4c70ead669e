"""The coordinator of a fleet: a PostgreSQL schema that all brokers share."""
