"""Kafka's admin side: topics, and the access of users."""
