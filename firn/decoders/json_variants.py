"""JSON values as variants (Parquet specification, "Variant Binary Encoding", version 1), not shredded.

Numbers become the values that Spark's ``parse_json`` makes of them: an integer in the fewest bytes, a decimal of up to 38 digits if there
is no exponent, else a double.
"""

import functools
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from firn.decoders.bad_records import DETAIL_LIMIT, BadRecordError, Code, Stage
from firn.decoders.json_limits import MAX_VARIANT_BYTES
from firn.tables import types

_MOST_SHORT = 63
"""Most bytes of a text whose length is in its header."""
_OBJECT, _ARRAY, _SHORT_TEXT = 2, 3, 1
"""Basic types, the two low bits of a header."""
_NULL, _TRUE, _FALSE, _DOUBLE, _TEXT = (number << 2 for number in (0, 1, 2, 7, 16))
"""Headers of primitive types."""
_INTEGERS = ((1, 3), (2, 4), (4, 5), (8, 6))
"""Bytes of integers, and their primitive type."""
_DECIMALS = ((9, 4, 8), (18, 8, 9), (38, 16, 10))
"""Most digits of decimals, their bytes, and their primitive type."""
_VERSION, _SORTED = 1, 0x10


class Integer(str):
    """The text of a JSON number without fraction and exponent."""

    __slots__ = ()


class Fraction(str):
    """The text of a JSON number with a fraction or an exponent."""

    __slots__ = ()


class Object(list[tuple[str, Any]]):
    """The members of a JSON object, in order."""

    __slots__ = ()


def encoded(value: Any) -> dict[str, bytes]:
    """Return metadata and value of a parsed JSON value. Raises BadRecordError with the path below the value."""
    names: set[str] = set()
    _collect(value, names)
    # The order of code points is that of their bytes in UTF-8, which the specification demands.
    ordered = tuple(sorted(names))
    try:
        metadata = _metadata(ordered)
        data = _Encoder({name: number for number, name in enumerate(ordered)}).value(value)
    except UnicodeEncodeError as error:
        raise BadRecordError(
            Code.INVALID_UTF8, Stage.DECODE, f"character {error.start}: half of a surrogate pair"
        ) from None
    if len(metadata) + len(data) > MAX_VARIANT_BYTES:
        raise BadRecordError(
            Code.OUT_OF_RANGE,
            Stage.SCHEMA,
            f"a variant of {len(metadata) + len(data)} bytes, more than {MAX_VARIANT_BYTES}",
        )
    return {"metadata": metadata, "value": data}


def _collect(value: Any, names: set[str]) -> None:
    if type(value) is Object:
        for name, member in value:
            names.add(name)
            _collect(member, names)
    elif type(value) is list:
        for element in value:
            _collect(element, names)


@functools.lru_cache(maxsize=1024)
def _metadata(names: tuple[str, ...]) -> bytes:
    texts = [name.encode() for name in names]
    total = sum(map(len, texts))
    size = _bytes_of(max(total, len(texts)))
    header = _VERSION | _SORTED | (size - 1) << 6
    return bytes([header]) + len(texts).to_bytes(size, "little") + _offsets(texts, size) + b"".join(texts)


def _bytes_of(number: int) -> int:
    """Return the fewest bytes for a number from 0."""
    return max(1, (number.bit_length() + 7) // 8)


def _offsets(parts: Sequence[bytes], size: int) -> bytes:
    """Return the start of each part, and the end of the last one."""
    place, found = 0, [bytes(size)]
    for part in parts:
        place += len(part)
        found.append(place.to_bytes(size, "little"))
    return b"".join(found)


class _Encoder:
    """Encodes values whose names have these numbers in the metadata."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers
        self._size = _bytes_of(max(0, len(numbers) - 1))

    def value(self, value: Any) -> bytes:
        kind = type(value)
        if kind is str:
            return _text(value.encode())
        if kind is Integer or kind is Fraction:
            return _number(value, kind is Integer)
        if kind is Object:
            return self._object(value)
        if kind is list:
            return self._array(value)
        return bytes([_NULL if value is None else _TRUE if value else _FALSE])

    def _object(self, members: Object) -> bytes:
        found: dict[str, bytes] = {}
        for name, member in members:
            try:
                if name in found:
                    raise BadRecordError(Code.DUPLICATE_KEY, Stage.SCHEMA, "the field occurs twice")
                found[name] = self.value(member)
            except BadRecordError as error:
                raise error.within(f".{name[:DETAIL_LIMIT]}", from_record=True) from None
        names = sorted(found)
        parts = [found[name] for name in names]
        size = _bytes_of(sum(map(len, parts)))
        many = len(parts) > 255
        header = _OBJECT | (size - 1) << 2 | (self._size - 1) << 4 | many << 6
        numbers = b"".join(self._numbers[name].to_bytes(self._size, "little") for name in names)
        return bytes([header]) + _count(parts, many) + numbers + _offsets(parts, size) + b"".join(parts)

    def _array(self, elements: list[Any]) -> bytes:
        parts = []
        for position, element in enumerate(elements):
            try:
                parts.append(self.value(element))
            except BadRecordError as error:
                raise error.within(f"[{position}]") from None
        size = _bytes_of(sum(map(len, parts)))
        many = len(parts) > 255
        header = _ARRAY | (size - 1) << 2 | many << 4
        return bytes([header]) + _count(parts, many) + _offsets(parts, size) + b"".join(parts)


def _count(parts: Sequence[bytes], many: bool) -> bytes:
    return len(parts).to_bytes(4 if many else 1, "little")


def _text(text: bytes) -> bytes:
    if len(text) <= _MOST_SHORT:
        return bytes([_SHORT_TEXT | len(text) << 2]) + text
    return bytes([_TEXT]) + len(text).to_bytes(4, "little") + text


def _number(text: str, integral: bool) -> bytes:
    if integral and len(text) <= 20:  # JSON has no leading zeros
        number = int(text)
        for size, kind in _INTEGERS:
            if -(1 << (8 * size - 1)) <= number < 1 << (8 * size - 1):
                return bytes([kind << 2]) + number.to_bytes(size, "little", signed=True)
    if len(text) <= 2 * types.MOST_DIGITS and "e" not in text and "E" not in text:
        digits = Decimal(text).as_tuple()
        scale = len(text.partition(".")[2])
        places = max(len(digits.digits), scale)
        if places <= types.MOST_DIGITS:
            unscaled = int("".join(map(str, digits.digits))) * (-1 if digits.sign else 1)
            size, kind = next((size, kind) for most, size, kind in _DECIMALS if places <= most)
            return bytes([kind << 2, scale]) + unscaled.to_bytes(size, "little", signed=True)
    double = float(text)
    if double in (float("inf"), float("-inf")):
        raise BadRecordError(Code.OUT_OF_RANGE, Stage.SCHEMA, f"expected variant, found number {text[:48]}")
    return bytes([_DOUBLE]) + struct.pack("<d", double)
