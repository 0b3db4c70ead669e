"""Texts of times and timestamps."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.decoders.json_limits import FIRST_MICROSECOND, LAST_MICROSECOND
from firn_broker.history.sections import Numbers
from firn_broker.history.shapes.joining import placed
from firn_broker.history.shapes.scalars import data_of, matrix

_TIMES = {"s": pa.time32("s"), "ms": pa.time32("ms"), "us": pa.time64("us"), "ns": pa.time64("ns")}
UNITS = ("s", "ms", "us", "ns")
DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
FIXED, TRIMMED, THREES, SIXES, JAVA = "fixed", "trimmed", "threes", "sixes", "java"
"""Digits behind the second: always as many; without zeros at the end; 0, 3, 6 or 9 as needed; 0 or 6 as needed; as `THREES`, and
without a second that is 0 (``LocalDateTime`` of Java)."""
_MINUTE = 60
_NO_SECOND = -1


@dataclass(frozen=True, slots=True)
class Epochs:
    """Timestamps as integers since 1970 in a unit."""

    unit: str
    quoted: ClassVar[bool] = False

    def texts(self, values: pa.Array) -> pa.Array:
        """Return the text of each value."""
        counted = pc.cast(values, pa.timestamp(self.unit, values.type.tz), safe=False)
        return counted.view(pa.int64()).cast(pa.string()).cast(pa.binary())


@dataclass(frozen=True, slots=True)
class Clock:
    """Times of day, and timestamps with a ``separator`` between date and time (``""``: times of day).

    ``fraction`` is one of `FIXED`, `TRIMMED`, `THREES`, `SIXES` and `JAVA`, with ``digits`` behind the second if it is `FIXED`. ``suffix``
    is the zone as the writer spells it, ``minutes`` its distance from UTC.
    """

    separator: str
    fraction: str
    digits: int = 0
    suffix: str = ""
    minutes: int = 0
    quoted: ClassVar[bool] = True

    def texts(self, values: pa.Array) -> pa.Array:
        """Return the text of each value."""
        unit = values.type.unit
        numbers: Numbers = values.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        if self.minutes:
            numbers = numbers + self.minutes * _MINUTE * 10 ** DIGITS[unit]
        if self.separator:
            # Years have 4 digits. No text is one of another year.
            seconds = numbers // 10 ** DIGITS[unit]
            inside = (seconds >= FIRST_MICROSECOND // 10**6) & (seconds <= LAST_MICROSECOND // 10**6)
            numbers = np.where(inside, numbers, 0)
        if self.fraction == FIXED:
            return self._written(numbers, unit, self.digits, values)
        needed = _digits(numbers, DIGITS[unit])
        if self.fraction in (THREES, JAVA):
            needed = (needed + 2) // 3 * 3
        elif self.fraction == SIXES:
            needed = np.where(needed > 0, np.maximum(needed, 6), 0)
        if self.fraction == JAVA:
            needed = np.where(numbers % (_MINUTE * 10 ** DIGITS[unit]) == 0, _NO_SECOND, needed)
        found = pa.nulls(len(values), pa.binary())
        for digits in np.unique(needed).tolist():
            chosen = needed == digits
            if chosen.all():
                return self._written(numbers, unit, digits, values)
            some = self._written(numbers[chosen], unit, digits, values.filter(pa.array(chosen)))
            found = placed(found, chosen, some)
        return found

    def _written(self, numbers: Numbers, unit: str, digits: int, values: pa.Array) -> pa.Array:
        """Return the texts of times with so many digits behind the second, null where ``values`` are null."""
        shown = next((name for name in UNITS if digits <= DIGITS[name] <= DIGITS[unit]), unit)
        kind = pa.timestamp(shown) if self.separator else _TIMES[shown]
        coarser = numbers // 10 ** (DIGITS[unit] - DIGITS[shown])
        texts = pa.array(coarser.astype(np.int32) if kind.bit_width == 32 else coarser).view(kind).cast(pa.string())
        written = data_of(texts).reshape(len(texts), -1)
        second = len("YYYY-MM-DD hh:mm:ss") if self.separator else len("hh:mm:ss")
        end = second + {_NO_SECOND: -len(":ss"), 0: 0}.get(digits, digits + 1)
        zeros = "0" * (digits - DIGITS[shown])
        ending = _repeated(zeros + self.suffix, len(texts))
        found = np.concatenate([written[:, :end], ending], axis=1)
        if self.separator:
            found[:, len("YYYY-MM-DD")] = ord(self.separator)
        return matrix(found, values)


def _digits(numbers: Numbers, most: int) -> Numbers:
    """Return the digits behind the second that times with ``most`` digits need."""
    rest, needed = numbers % 10**most, np.full(len(numbers), most, np.int64)
    for digits in range(most):
        needed -= rest % 10 ** (digits + 1) == 0
    return needed


def _repeated(text: str, rows: int) -> Numbers:
    return np.tile(np.frombuffer(text.encode(), np.uint8), (rows, 1))
