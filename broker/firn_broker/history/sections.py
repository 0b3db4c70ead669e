"""Record sections: what follows the header of a record batch, encoded from columns.

The bytes of a record follow from its offset, time, key, value and headers, if its producer wrote them as Kafka's clients do:
shortest varints, and no attributes. `heads` tells by a checksum whether a producer did. Source: ``DefaultRecord.java``.

::

    length varint | attributes i8 | timestamp delta varint | offset delta varint | length of the key varint, key |
    length of the value varint, value | number of headers varint, then for each its name and its value, each with its length

A varint is signed (zigzag), and -1 is the length of null."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Numbers = np.ndarray[Any, np.dtype[Any]]
"""An array of numpy."""
_LONGEST = 10
"""Bytes of the longest varint of 64 bits."""
_NO_HEADERS = pa.scalar(b"\x00")
HEADERS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one partition in the order of their offsets.

    ``offsets`` and ``times`` (milliseconds since 1970) are int64. ``keys`` and ``values`` are binary arrays of Arrow, ``headers``
    is one of type `HEADERS`; a record without headers may have null. Before values are rendered, they are an array of structs.
    """

    offsets: Numbers
    times: Numbers
    keys: pa.Array
    values: pa.Array
    headers: pa.Array

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """Return the bytes in memory."""
        arrays = (self.offsets, self.times, self.keys, self.values, self.headers)
        return sum(int(array.nbytes) for array in arrays)

    def slice(self, start: int, end: int) -> "Records":
        """Return the records with the numbers ``start`` to ``end - 1``. Their bytes are not copied."""
        return Records(
            self.offsets[start:end],
            self.times[start:end],
            self.keys.slice(start, end - start),
            self.values.slice(start, end - start),
            self.headers.slice(start, end - start),
        )

    def select(self, indices: Numbers) -> "Records":
        """Return the records at ``indices``."""
        taken = pa.array(indices)
        return Records(
            self.offsets[indices],
            self.times[indices],
            self.keys.take(taken),
            self.values.take(taken),
            self.headers.take(taken),
        )


def encode(records: Records, time_deltas: Numbers, offset_deltas: Numbers) -> tuple[memoryview, Numbers]:
    """Return the bytes of all records, one after the other, and the place of each, with the end of the last one.

    The deltas are those to the header of the record's batch. All records together have less than 2 GiB."""
    if not len(records):
        return memoryview(b""), np.zeros(1, np.int64)
    key_lengths, value_lengths = _lengths(records.keys), _lengths(records.values)
    headers = _headers(records.headers)
    times, offsets = _varints(time_deltas), _varints(offset_deltas)
    key_sizes, value_sizes = _varints(key_lengths), _varints(value_lengths)
    rest = 1 + times.sizes + offsets.sizes + key_sizes.sizes + value_sizes.sizes
    rest += np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0)
    rest += 1 if isinstance(headers, pa.Scalar) else _sizes(headers)
    attributes = _Varints(np.zeros((len(records), 1), np.uint8), np.ones(len(records), np.int64))
    heads = _joined(_varints(rest), attributes, times, offsets, key_sizes)
    whole = _side_by_side(heads, records.keys, _joined(value_sizes), records.values, headers)
    places = _edges(whole)
    return memoryview(whole.buffers()[2]).cast("B")[places[0] : places[-1]], places - places[0]


@dataclass(frozen=True, slots=True)
class _Varints:
    """Varints in the rows of a matrix of bytes, and the number of bytes of each."""

    bytes: Numbers
    sizes: Numbers


def _varints(numbers: Numbers) -> _Varints:
    wide = numbers.astype(np.int64)
    left = ((wide << 1) ^ (wide >> 63)).view(np.uint64)
    columns, sizes = [], np.ones(len(left), np.int64)
    for _ in range(_LONGEST):
        column = (left & np.uint64(0x7F)).astype(np.uint8)
        left = left >> np.uint64(7)
        more = left > 0
        columns.append(column | (more.astype(np.uint8) << np.uint8(7)))
        if not more.any():
            break
        sizes += more
    return _Varints(np.stack(columns, axis=1), sizes)


def _joined(*parts: _Varints) -> pa.Array:
    """Return a binary array whose values are the varints of each row."""
    matrix = np.concatenate([part.bytes for part in parts], axis=1)
    wanted = np.concatenate([np.arange(part.bytes.shape[1]) < part.sizes[:, np.newaxis] for part in parts], axis=1)
    return _binary(np.ascontiguousarray(matrix[wanted]), sum(part.sizes for part in parts))


def _binary(data: Numbers, sizes: Any) -> pa.Array:
    edges = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=edges[1:])
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(edges), pa.py_buffer(data)])


def _side_by_side(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """Return the values of each row one after the other, without null."""
    some = [part for part in parts if isinstance(part, pa.Scalar) or part.null_count < len(part)]
    options = pc.JoinOptions(null_handling="replace", null_replacement="")
    return pc.call_function("binary_join_element_wise", [*some, pa.scalar(b"")], options)


def _lengths(array: pa.Array) -> Numbers:
    """Return the number of bytes of each value, -1 for null."""
    if array.null_count == len(array):
        return np.full(len(array), -1, np.int64)
    lengths = _sizes(array)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths


def _edges(array: pa.Array) -> Numbers:
    """Return the places of the values in the buffer of a binary array."""
    places = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    return cast(Numbers, places.astype(np.int64))


def _sizes(array: pa.Array) -> Numbers:
    return np.diff(_edges(array))


def _headers(array: pa.Array) -> pa.Array | pa.Scalar:
    """Return the bytes of each record's headers, with their number in front; one value for all if no record has any."""
    counts = pc.call_function("list_value_length", [array]).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not counts.any():
        return _NO_HEADERS
    entries = array.flatten()
    names, values = entries.field(0), entries.field(1)
    each = _side_by_side(_joined(_varints(_lengths(names))), names, _joined(_varints(_lengths(values))), values)
    # The entries of a record lie next to each other.
    edges = _edges(each)[np.concatenate([[0], np.cumsum(counts)])]
    buffers = [None, pa.py_buffer(edges.astype(np.int32)), each.buffers()[2]]
    return _side_by_side(_joined(_varints(counts)), pa.Array.from_buffers(pa.binary(), len(counts), buffers))
