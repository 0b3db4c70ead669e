"""Durations as users write them: one number and one unit, such as ``5s`` or ``7d`` (design rule for every field of the API)."""

import re
from datetime import timedelta

PATTERN = r"^[1-9][0-9]*(ms|s|m|h|d)$"
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHAPE = re.compile(r"([1-9][0-9]*)(ms|s|m|h|d)")


def milliseconds(text: str) -> int:
    """Milliseconds of ``text``. Raises ValueError naming the text and the accepted form."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write one number and one unit of ms, s, m, h, d, such as 60s")
    return int(match[1]) * _UNIT_MS[match[2]]


def parse(text: str) -> timedelta:
    """``text`` as a timedelta. Raises ValueError as `milliseconds` does."""
    try:
        return timedelta(milliseconds=milliseconds(text))
    except OverflowError as error:
        raise ValueError(f"{text!r} is longer than time goes") from error
