"""Decisions about policies: when tables are due, which runs they need, what the runs did, both statuses. Pure."""
