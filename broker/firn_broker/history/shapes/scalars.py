"""Texts of integers, booleans, dates, decimals, bytes and UUIDs."""

import base64
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn_broker.history.sections import Numbers
from firn_broker.history.shapes.joining import with_nulls

WIDEST = 38
"""Digits of the widest decimal of Iceberg."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Values as Arrow writes them: integers and booleans, and dates as ``quoted`` ``YYYY-MM-DD``."""

    quoted: bool = False

    def texts(self, values: pa.Array) -> pa.Array:
        """Return the text of each value."""
        return pc.cast(values, pa.string()).cast(pa.binary())


@dataclass(frozen=True, slots=True)
class Decimals:
    """Decimals with all digits of their scale, or without zeros at the end, as numbers or ``quoted``."""

    trimmed: bool
    quoted: bool

    def texts(self, values: pa.Array) -> pa.Array:
        """Return the text of each value."""
        wide = pc.cast(values, pa.decimal128(WIDEST, values.type.scale))
        texts = pc.cast(wide, pa.string())
        if self.trimmed and values.type.scale > 0:
            texts = pc.call_function("utf8_rtrim", [texts], pc.TrimOptions("0"))
            texts = pc.call_function("utf8_rtrim", [texts], pc.TrimOptions("."))
        return texts.cast(pa.binary())


@dataclass(frozen=True, slots=True)
class Base64:
    """Bytes in base64 with padding (RFC 4648, section 4)."""

    quoted: ClassVar[bool] = True

    def texts(self, values: pa.Array) -> pa.Array:
        """Return the text of each value."""
        texts = [None if value is None else base64.b64encode(value) for value in values.to_pylist()]
        return pa.array(texts, pa.binary())


@dataclass(frozen=True, slots=True)
class Uuids:
    """UUIDs with small or large letters."""

    upper: bool
    quoted: ClassVar[bool] = True

    def texts(self, values: pa.Array) -> pa.Array:
        """Return the text of each value."""
        stored = (values.storage if isinstance(values, pa.ExtensionArray) else values).fill_null(bytes(16))
        data = np.frombuffer(stored.buffers()[1], np.uint8)[16 * stored.offset : 16 * (stored.offset + len(stored))]
        digits = np.frombuffer(b"0123456789ABCDEF" if self.upper else b"0123456789abcdef", np.uint8)
        hexadecimal = np.stack([digits[data >> 4], digits[data & 15]], axis=1).reshape(-1, 32)
        return matrix(np.insert(hexadecimal, [8, 12, 16, 20], ord("-"), axis=1), values)


def matrix(texts: Numbers, values: pa.Array) -> pa.Array:
    """Return the rows of a matrix of bytes as texts, null where ``values`` are null."""
    count, width = texts.shape
    edges = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(np.ascontiguousarray(texts))]
    found = pa.Array.from_buffers(pa.binary(), count, buffers)
    return with_nulls(found, values)


def data_of(texts: pa.Array) -> Numbers:
    """Return the bytes of all values of a binary or string array, one after the other."""
    _, places, data = texts.buffers()
    if data is None or not len(texts):
        return np.zeros(0, np.uint8)
    edges = np.frombuffer(places, np.int32)
    first, end = edges[texts.offset], edges[texts.offset + len(texts)]
    found: Numbers = np.frombuffer(data, np.uint8)[first:end]
    return found
