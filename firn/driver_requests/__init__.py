"""Contracts between drivers and the internal listener of diskless brokers."""
