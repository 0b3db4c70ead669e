"""Limits that the compiled and the strict JSON decoder share."""

MAX_DEPTH = 64
"""Most levels of arrays and objects in a record; the record itself is the first level."""

MAX_MILLISECONDS = (2**63 - 1) // 1000
"""The latest time in milliseconds since 1970 that fits 64 bits of microseconds. The earliest is its negative."""

MAX_ZONE_MINUTES = 18 * 60
"""Largest offset of a zone from UTC, as in Java's ZoneOffset."""
