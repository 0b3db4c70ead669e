"""Certificates of brokers: the names in them, and when to replace them."""
