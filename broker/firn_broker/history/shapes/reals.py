"""Texts of floating-point numbers: the shortest digits that name a number, as writers of JSON lay them out."""

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn_broker.history.sections import Numbers
from firn_broker.history.shapes.joining import Join, placed, with_nulls
from firn_broker.history.shapes.scalars import WIDEST

_ARROW = (-6, 10)
"""The exponents of the numbers that Arrow writes without an exponent: from the first one to the one before the second."""
_EXACT = 2.0**53


@dataclass(frozen=True, slots=True)
class Reals:
    """Numbers with the shortest digits.

    A number whose first digit stands for 10 to a power from ``low`` to ``high - 1`` has no exponent. ``point``: whether a whole
    number ends with ``.0``, ``mantissa_point`` the same in front of an exponent. ``mark``: what stands before an exponent, ``plus``
    whether a positive exponent has a sign, and ``digits`` its fewest digits. ``zero``: the text of the negative zero.
    ``single``: whether the writer has numbers of 32 bits.
    """

    low: int
    high: int
    point: bool
    mantissa_point: bool
    mark: str
    plus: bool
    digits: int
    zero: str
    single: bool = False
    quoted: ClassVar[bool] = False

    def texts(self, values: pa.Array) -> pa.Array:
        """Return the text of each value."""
        numbers = pc.cast(values, pa.float32() if self.single else pa.float64(), safe=False)
        texts = pc.cast(numbers, pa.string())
        plain = numbers.fill_null(1).to_numpy(zero_copy_only=False)
        sizes = np.abs(plain)
        low, high = max(self.low, _ARROW[0]), min(self.high, _ARROW[1])
        ordinary = (sizes >= plain.dtype.type(10.0**low)) & (sizes < plain.dtype.type(10.0**high))
        ordinary |= (sizes == 0) & ~np.signbit(plain)
        if not ordinary.all():
            written = [self._text(text) for text in texts.filter(pa.array(~ordinary)).to_pylist()]
            texts = placed(texts, ~ordinary, pa.array(written, pa.string()))
        if not self.point:
            return texts.cast(pa.binary())
        join = Join(len(values))
        join.column(texts.cast(pa.binary()))
        join.add(b".0", ordinary & (plain == np.floor(plain)))
        return with_nulls(join.texts(), values)

    def _text(self, text: str) -> str:
        """Return the text of a number of which Arrow has the shortest digits."""
        if text in ("nan", "inf", "-inf"):
            return text
        sign, digits, power = Decimal(self._nearest(text) if self.mantissa_point else text).as_tuple()
        assert isinstance(power, int)
        shown = "".join(map(str, digits)).rstrip("0")
        if not shown:
            return self.zero if sign else "0.0" if self.point else "0"
        exponent = len(digits) + power - 1
        minus = "-" if sign else ""
        if not self.low <= exponent < self.high:
            rest = shown[1:] or ("0" if self.mantissa_point else "")
            plus = "-" if exponent < 0 else "+" if self.plus else ""
            return f"{minus}{shown[0]}{'.' if rest else ''}{rest}{self.mark}{plus}{abs(exponent):0{self.digits}}"
        if exponent < 0:
            return f"{minus}0.{'0' * (-exponent - 1)}{shown}"
        before = shown[: exponent + 1].ljust(exponent + 1, "0")
        after = shown[exponent + 1 :] or ("0" if self.point else "")
        return f"{minus}{before}{'.' if after else ''}{after}"

    def _nearest(self, text: str) -> str:
        """Return the two digits that are nearest to a number if they name it. Java prefers them to one digit: 4.9E-324 to 5E-324."""
        kind = np.float32 if self.single else np.float64
        number = kind(text)
        nearest = f"{float(number):.1e}"
        return nearest if kind(nearest) == number else text


@dataclass(frozen=True, slots=True)
class Places:
    """Numbers with always ``places`` digits behind the point."""

    places: int
    quoted: ClassVar[bool] = False

    def texts(self, values: pa.Array) -> pa.Array:
        """Return the text of each value. Numbers that need more digits than 53 bits have are not exact."""
        numbers: Numbers = pc.cast(values, pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
        units = np.rint(numbers * 10.0**self.places)
        units = np.where(np.abs(units) < _EXACT, units, 0).astype(np.int64)
        wide = pa.array(units).cast(pa.decimal128(WIDEST, 0))
        scaled = pa.Array.from_buffers(pa.decimal128(WIDEST, self.places), len(wide), wide.buffers())
        texts = scaled.cast(pa.string()).cast(pa.binary())
        return with_nulls(texts, values)


PYTHON = Reals(-4, 16, True, False, "e", True, 2, "-0.0")
RUST = Reals(-5, 16, True, False, "e", False, 1, "-0.0")
JAVA = Reals(-3, 7, True, True, "E", False, 1, "-0.0")
JAVASCRIPT = Reals(-6, 21, False, False, "e", True, 1, "0")
GO = Reals(-6, 21, False, False, "e", True, 1, "-0")
DOTNET = Reals(-5, 15, False, False, "E", True, 2, "-0")
"""Sources: ``float_repr_style`` of CPython, crate ``ryu``, ``Double.toString`` since JDK 19, ECMA-262 ``Number::toString``,
``encoding/json`` of Go, and ``Utf8Formatter`` of .NET."""
LAYOUTS = (PYTHON, RUST, JAVA, JAVASCRIPT, GO, DOTNET)
