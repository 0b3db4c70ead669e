"""Bounds that both ways to decode JSON share."""

MAX_DEPTH = 64
"""How deep arrays and objects of a record may nest, the record being the first level."""

MAX_MILLISECONDS = (2**63 - 1) // 1000
"""The latest time in milliseconds since 1970 that 64 bits of microseconds hold; the earliest is its negative."""

MAX_ZONE_MINUTES = 18 * 60
"""How far a zone may be from UTC, as in Java's ZoneOffset."""
