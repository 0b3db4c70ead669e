"""Conversion of arrays to another type. A value becomes the same value of the new type, or its record is bad.

Arrow converts whole arrays. If it refuses one, the halves are converted until the values that do not fit are found.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.decoders.bad_records import Code
from firn.decoders.json_limits import EPOCHS, FIRST_MICROSECOND, LAST_MICROSECOND, MAX_MICROSECONDS
from firn.model.jobs import Epoch
from firn.schemas.projections import FAR_ZONE, FINER, FORMS, exact_decimal, word
from firn.tables import types
from firn.tables.types import Primitive, Type
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Numbers

FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""Days since 1970 of the first day of the year 1, and of the last day of the year 9999."""
_STRING, _BINARY = Primitive("string"), Primitive("binary")
_TIMES = frozenset({"time", "timestamp", "timestamptz"})
Bad = dict[int, Code]
"""Index of a value that has no equal of the new type -> the cause."""


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion of values of ``before`` to ``after``. ``epoch`` is the unit of integers that become times.

    ``truncate``: times lose their digits below the microsecond. Otherwise, such a value is bad.
    """

    before: Type
    after: Type
    epoch: Epoch = "ms"
    truncate: bool = False

    def apply(self, array: pa.Array) -> tuple[pa.Array, Bad]:
        """Return the converted values, null where a value has no equal, and these places."""
        if self.before == self.after:
            return array, {}
        if self.before == _BINARY:
            texts, bad = _converted(array, lambda part: part.cast(pa.string()), pa.string(), Code.INVALID_UTF8)
            return self._of_texts(texts, bad)
        if self.before == _STRING:
            return self._of_texts(array, {})
        return self._of_values(array)

    def _of_texts(self, array: pa.Array, bad: Bad) -> tuple[pa.Array, Bad]:
        kind, name = arrow_types.arrow_type(self.after), word(self.after)
        if self.after == _STRING:
            return array, bad
        if self.after == _BINARY:
            return array.cast(pa.binary()), bad
        form = pc.MatchSubstringOptions(rf"\A(?:{FORMS[name]})\z")
        formed = pc.call_function("match_substring_regex", [array], form)
        array = _without(array, pc.call_function("invert", [formed]), Code.INVALID_FORMAT, bad)
        if name == "uuid":
            return _uuids(array), bad
        if isinstance(self.after, types.Decimal):
            return _decimals(array, self.after, kind, bad), bad
        if name in _TIMES:
            array = _in_micros(array, self.truncate, bad)
        if name == "time":  # Arrow reads no time without a date.
            array = pc.call_function("binary_join_element_wise", [pa.scalar("1970-01-01T"), array, pa.scalar("")])
            converted, beyond = _converted(array, _times_of_day, kind, Code.OUT_OF_RANGE)
        else:
            if name == "timestamptz":
                far = pc.call_function("match_substring_regex", [array], pc.MatchSubstringOptions(rf"(?:{FAR_ZONE})\z"))
                array = _without(array, far, Code.OUT_OF_RANGE, bad)
            converted, beyond = _converted(array, lambda part: part.cast(kind), kind, Code.OUT_OF_RANGE)
            converted = _without_other_years(converted, beyond)
        bad |= beyond
        if name in ("float", "double"):
            converted = _without(converted, pc.call_function("is_inf", [converted]), Code.OUT_OF_RANGE, bad)
        return converted, bad

    def _of_values(self, array: pa.Array) -> tuple[pa.Array, Bad]:
        kind, before, after = arrow_types.arrow_type(self.after), word(self.before), word(self.after)
        if after == "string" and before in ("decimal", "uuid"):
            return pa.array(map(_text, array.to_pylist()), pa.string(), size=len(array)), {}
        if before in ("int", "long") and after in ("timestamp", "timestamptz"):
            return _times(array, kind, self.epoch, self.truncate)
        if before in ("timestamp", "timestamptz") and after == "long":
            return _counts(array, self.epoch)
        if before == "int" and after == "date":
            return _dates(array)
        if before in ("int", "long", "decimal") and pa.types.is_decimal(kind):
            # Arrow refuses a precision that is too small for some integers, even if these fit. Its product of a decimal of 128 bits and
            # a power of ten can overflow in silence.
            code = Code.INEXACT if before == "decimal" else Code.OUT_OF_RANGE
            return _converted(array, lambda part: part.cast(_wide(kind)).cast(kind), kind, code)
        if before == "decimal" and after == "double":
            # Arrow divides two doubles, which is not always the nearest one.
            return array.cast(pa.string()).cast(kind), {}
        inexact = before in ("float", "double", "decimal")
        converted, bad = _converted(
            array, lambda part: part.cast(kind), kind, Code.INEXACT if inexact else Code.OUT_OF_RANGE
        )
        return _without_other_years(converted, bad) if after == "date" else converted, bad


def _converted(
    array: pa.Array, convert: Callable[[pa.Array], pa.Array], kind: pa.DataType, code: Code
) -> tuple[pa.Array, Bad]:
    """Convert an array, with null for each value that Arrow refuses to convert."""
    bad: Bad = {}
    parts: list[pa.Array] = []
    waiting = [(0, len(array))]
    while waiting:
        begin, end = waiting.pop()
        try:
            parts.append(convert(array.slice(begin, end - begin)))
        except pa.ArrowInvalid:
            if end - begin == 1:
                bad[begin] = code
                parts.append(pa.nulls(1, kind))
                continue
            middle = (begin + end) // 2
            waiting += [(middle, end), (begin, middle)]
    return (parts[0] if len(parts) == 1 else pa.concat_arrays(parts)), bad


def _without(array: pa.Array, wrong: pa.Array, code: Code, bad: Bad) -> pa.Array:
    """Return the array with null for wrong values, and add these to ``bad``."""
    wrong = wrong.fill_null(False)
    places: Numbers = np.flatnonzero(wrong.to_numpy(zero_copy_only=False))
    if not len(places):
        return array
    bad.update(dict.fromkeys(places.tolist(), code))
    return pc.call_function("if_else", [wrong, pa.scalar(None, array.type), array])


def _without_other_years(array: pa.Array, bad: Bad) -> pa.Array:
    """Return dates or timestamps of the years 1 to 9999 (in UTC), with null for others. Return arrays of other types as they are."""
    if pa.types.is_date32(array.type):
        kind, first, last = pa.int32(), FIRST_DAY, LAST_DAY
    elif pa.types.is_timestamp(array.type):
        kind, first, last = pa.int64(), FIRST_MICROSECOND, LAST_MICROSECOND
    else:
        return array
    numbers = array.cast(kind)
    early = pc.call_function("less", [numbers, pa.scalar(first, kind)])
    late = pc.call_function("greater", [numbers, pa.scalar(last, kind)])
    return _without(array, pc.call_function("or", [early, late]), Code.OUT_OF_RANGE, bad)


def _wide(kind: pa.Decimal128Type) -> pa.Decimal256Type:
    """Return a type that has all numbers of 38 digits with the scale of a type."""
    return pa.decimal256(76, kind.scale)


def _decimals(array: pa.Array, after: types.Decimal, kind: pa.Decimal128Type, bad: Bad) -> pa.Array:
    """Return texts as decimals. Arrow reads those of at most `types.MOST_DIGITS` characters without an exponent.

    Beyond, it can return another number without an error.
    """
    long = pc.call_function(
        "greater", [pc.call_function("binary_length", [array]), pa.scalar(types.MOST_DIGITS, pa.int32())]
    )
    powers = pc.call_function("match_substring_regex", [array], pc.MatchSubstringOptions("[eE]"))
    rest = pc.call_function("or", [long, powers]).fill_null(False)
    usual = pc.call_function("if_else", [rest, pa.scalar(None, array.type), array])
    found, beyond = _converted(usual, lambda part: part.cast(_wide(kind)).cast(kind), kind, Code.OUT_OF_RANGE)
    bad |= beyond
    places: Numbers = np.flatnonzero(rest.to_numpy(zero_copy_only=False))
    if not len(places):
        return found
    values = {place: exact_decimal(array[place].as_py(), after) for place in places.tolist()}
    bad |= dict.fromkeys((place for place, value in values.items() if value is None), Code.OUT_OF_RANGE)
    others = pa.array((values.get(place) for place in range(len(array))), kind, size=len(array))
    return pc.call_function("if_else", [rest, others, found])


def _uuids(array: pa.Array) -> pa.Array:
    values = (None if text is None else bytes.fromhex(text.replace("-", "")) for text in array.to_pylist())
    return pa.array(values, pa.binary(16), size=len(array))


def _text(value: bytes | Decimal | None) -> str | None:
    # Arrow writes small decimals with an exponent.
    return str(UUID(bytes=value)) if isinstance(value, bytes) else None if value is None else format(value, "f")


def _in_micros(array: pa.Array, truncate: bool, bad: Bad) -> pa.Array:
    """Return texts of times as Arrow reads them: with capital letters, and with microseconds."""
    if not truncate:
        finer = pc.call_function("match_substring_regex", [array], pc.MatchSubstringOptions(FINER))
        array = _without(array, finer, Code.INEXACT, bad)
    cut = pc.ReplaceSubstringOptions(r"(\.[0-9]{6})[0-9]+", r"\1")
    return pc.call_function("ascii_upper", [pc.call_function("replace_substring_regex", [array], cut)])


def _times_of_day(array: pa.Array) -> pa.Array:
    return array.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.time64("us"))


def _counts(array: pa.Array, epoch: Epoch) -> tuple[pa.Array, Bad]:
    """Return times as numbers since 1970. A time between two numbers is bad."""
    factor, divisor = EPOCHS[epoch]
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    micros = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    limit = MAX_MICROSECONDS // divisor
    beyond, finer = (micros > limit) | (micros < -limit), micros % factor != 0
    bad = dict.fromkeys(np.flatnonzero(finer).tolist(), Code.INEXACT)
    bad |= dict.fromkeys(np.flatnonzero(beyond).tolist(), Code.OUT_OF_RANGE)
    wrong = beyond | finer
    return pa.array(np.where(wrong, 0, micros) // factor * divisor, pa.int64(), mask=wrong | ~valid), bad


def _dates(array: pa.Array) -> tuple[pa.Array, Bad]:
    """Return numbers of days since 1970 as dates of the years 1 to 9999."""
    bad: Bad = {}
    return _without_other_years(array.cast(pa.date32()), bad), bad


def _times(array: pa.Array, kind: pa.DataType, epoch: Epoch, truncate: bool) -> tuple[pa.Array, Bad]:
    factor, divisor = EPOCHS[epoch]
    bad: Bad = {}
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    numbers = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    limit = MAX_MICROSECONDS // factor
    beyond, finer = (numbers > limit) | (numbers < -limit), (numbers % divisor != 0) & (not truncate)
    bad |= dict.fromkeys(np.flatnonzero(finer).tolist(), Code.INEXACT)
    bad |= dict.fromkeys(np.flatnonzero(beyond).tolist(), Code.OUT_OF_RANGE)
    wrong = beyond | finer
    micros = np.where(wrong, 0, numbers) // divisor * factor
    return pa.array(micros, pa.int64(), mask=wrong | ~valid).cast(kind), bad
