"""The exchanges that authenticate a connection."""
