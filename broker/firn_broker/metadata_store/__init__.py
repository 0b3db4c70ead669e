"""The coordinator: metadata of all topics and groups in PostgreSQL or SQLite, and Kafka's rules of idempotence."""
