"""Durations in the form of every field of the API: a number and a unit, such as ``5s`` or ``7d``."""

import re
from datetime import timedelta

PATTERN = r"^[1-9][0-9]*(ms|s|m|h|d)$"
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHAPE = re.compile(r"([1-9][0-9]*)(ms|s|m|h|d)")


def milliseconds(text: str) -> int:
    """Return the milliseconds of ``text``. Raises ValueError that names the text and the valid form."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write a number and a unit of ms, s, m, h or d, such as 60s")
    return int(match[1]) * _UNIT_MS[match[2]]


def parse(text: str) -> timedelta:
    """Return ``text`` as a timedelta. Raises ValueError like `milliseconds`."""
    try:
        return timedelta(milliseconds=milliseconds(text))
    except OverflowError as error:
        raise ValueError(f"{text!r} is too long: write a shorter duration") from error
