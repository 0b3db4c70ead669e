"""Limits that the compiled and the strict JSON decoder share."""

MAX_DEPTH = 64
"""Most levels of arrays and objects in a record; the record itself is the first level."""

EPOCHS = {"s": (1_000_000, 1), "ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}
"""Unit of integer times -> factor and divisor that make microseconds of it."""

EPOCHS_OF_NANOSECONDS = {"s": (1_000_000_000, 1), "ms": (1_000_000, 1), "us": (1000, 1), "ns": (1, 1)}
"""Unit of integer times -> factor and divisor that make nanoseconds of it."""

MAX_MICROSECONDS = 2**63 - 1
"""The latest time in microseconds since 1970. The earliest is its negative."""

FIRST_MICROSECOND, LAST_MICROSECOND = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Microseconds since 1970 of the first and the last time in the years 1 to 9999. Readers in Python have no other times."""

MAX_ZONE_MINUTES = 18 * 60
"""Largest offset of a zone from UTC, as in Java's ZoneOffset."""

MAX_VARIANT_BYTES = 16 * 1024 * 1024
"""Most bytes of a variant that Spark 4.0 reads."""
