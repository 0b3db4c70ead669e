"""The command line tool ``firn``."""
