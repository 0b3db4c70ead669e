"""Limits that the compiled JSON decoder shares with the strict one."""

from firn.decoders.json_limits import (
    EPOCHS,
    FIRST_MICROSECOND,
    LAST_MICROSECOND,
    MAX_DEPTH,
    MAX_MICROSECONDS,
    MAX_VARIANT_BYTES,
    MAX_ZONE_MINUTES,
)

__all__ = [
    "EPOCHS",
    "FIRST_MICROSECOND",
    "LAST_MICROSECOND",
    "MAX_DEPTH",
    "MAX_MICROSECONDS",
    "MAX_VARIANT_BYTES",
    "MAX_ZONE_MINUTES",
]
