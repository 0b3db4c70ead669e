"""The coordinator's data in PostgreSQL or SQLite, and Kafka's rules of idempotence for it."""
