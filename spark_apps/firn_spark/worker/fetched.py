"""Records as decoders take them: bytes that were fetched, and the places of keys, values and headers in them.

A decoder copies out of the bytes only what the table stores. `Fetched.from_arrow` makes this of an Arrow batch without copying:
the buffer of a binary array and its offsets are bytes and places already.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Numbers = np.ndarray[Any, np.dtype[Any]]
"""An array of numpy."""
NO_TIME = -1
"""The time of a record that has none, in Kafka's protocol and here."""
IDENTITY_BYTES = 16
"""Length of `Fetched.identity`."""
Identities = Mapping[int, Mapping[int, Collection[bytes]]]
"""Partition -> offset -> identities of records that had this offset."""
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class Places:
    """Values in a buffer: value ``i`` is ``data[firsts[i]:ends[i]]`` if ``present[i]``, else null. Places ascend.

    ``data`` is uint8 and read-only, ``firsts`` and ``ends`` are int64, ``present`` is bool.
    """

    data: Numbers
    firsts: Numbers
    ends: Numbers
    present: Numbers

    @classmethod
    def from_arrow(cls, array: pa.Array) -> "Places":
        """Return the places of a binary or string array's values in its own buffer."""
        count = len(array)
        _, offsets, data = array.buffers()
        edges = _read_only(offsets, np.int32)[array.offset :][: count + 1].astype(np.int64)
        if not count:
            edges = np.zeros(1, np.int64)  # an empty array may have no offsets
        present = np.ones(count, bool)
        if array.null_count:
            # The kernels are compiled for writable arrays.
            present[:] = array.is_valid().to_numpy(zero_copy_only=False)
        return cls(_read_only(data, np.uint8), edges[:count], edges[1:], present)

    def __len__(self) -> int:
        return len(self.firsts)

    def select(self, indices: Numbers) -> "Places":
        """Return the places at ``indices``, which ascend. The bytes stay where they are."""
        return Places(self.data, self.firsts[indices], self.ends[indices], self.present[indices])

    def lengths(self) -> Numbers:
        """Return the number of bytes of each value, 0 for null."""
        return cast(Numbers, (self.ends - self.firsts) * self.present)

    def value(self, index: int) -> bytes | None:
        """Copy a value into a Python object."""
        return self.data[self.firsts[index] : self.ends[index]].tobytes() if self.present[index] else None

    def to_list(self) -> list[bytes | None]:
        """Copy the values into Python objects."""
        view = memoryview(self.data)  # type: ignore[arg-type]
        places = zip(self.firsts.tolist(), self.ends.tolist(), self.present.tolist(), strict=True)
        return [bytes(view[first:end]) if there else None for first, end, there in places]

    def to_arrow(self, kind: pa.DataType | None = None) -> pa.Array:
        """Return the values as an array of type ``kind``, binary by default. Bytes are copied only if other bytes stand between values.

        ``kind`` may be string: the caller vouches that the values are UTF-8.
        """
        kind = pa.binary() if kind is None else kind
        if not len(self):
            return pa.array([], kind)
        if np.array_equal(self.firsts[1:], self.ends[:-1]):
            return self._array(kind, np.append(self.firsts, self.ends[-1]), self.present)
        # The bytes between values as values of their own: every second one is wanted.
        edges, wanted = np.empty(2 * len(self), np.int64), np.zeros(2 * len(self) - 1, bool)
        edges[::2], edges[1::2], wanted[::2] = self.firsts, self.ends, self.present
        array = self._array(kind, edges, wanted)
        return array.take(pa.array(np.arange(0, len(array), 2)))

    def _array(self, kind: pa.DataType, edges: Numbers, present: Numbers) -> pa.Array:
        first, end = int(edges[0]), int(edges[-1])
        if end - first >= 2**31:
            raise ValueError("a batch has 2 GiB of values in one column: read smaller batches")
        offsets = (edges - first).astype(np.int32)
        return pa.Array.from_buffers(
            kind, len(present), [_bitmap(present), pa.py_buffer(offsets), pa.py_buffer(self.data[first:end])]
        )


@dataclass(frozen=True, slots=True)
class HeaderPlaces:
    """The headers of records: those of record ``i`` are ``names`` and ``values`` from ``starts[i]`` to ``starts[i + 1]``.

    A record that is not ``present`` has null in place of a list of headers. Names are UTF-8.
    """

    starts: Numbers
    present: Numbers
    names: Places
    values: Places

    @classmethod
    def from_arrow(cls, array: pa.Array) -> "HeaderPlaces":
        """Return the places in a list array of structs with members ``key`` (string) and ``value`` (binary)."""
        array = _as(array, _HEADERS)
        starts = array.offsets.to_numpy().astype(np.int64)
        entries = array.values.slice(int(starts[0]), int(starts[-1] - starts[0]))
        present = array.is_valid().to_numpy(zero_copy_only=False)
        names, values = Places.from_arrow(entries.field(0)), Places.from_arrow(entries.field(1))
        return cls(starts - starts[0], present, names, values)

    @classmethod
    def none(cls, count: int) -> "HeaderPlaces":
        """Return null for each of ``count`` records."""
        empty = Places.from_arrow(pa.array([], pa.binary()))
        return cls(np.zeros(count + 1, np.int64), np.zeros(count, bool), empty, empty)

    def select(self, indices: Numbers) -> "HeaderPlaces":
        """Return the headers of the records at ``indices``, which ascend."""
        counts = np.diff(self.starts)[indices]
        starts = np.append(0, np.cumsum(counts))
        places = np.repeat(self.starts[:-1][indices] - starts[:-1], counts) + np.arange(starts[-1])
        return HeaderPlaces(starts, self.present[indices], self.names.select(places), self.values.select(places))

    def last(self, name: str) -> pa.Array:
        """Return the value of each record's last header with this name, null without one, as Kafka's ``lastHeader`` does."""
        named = pc.call_function("equal", [self.names.to_arrow(), pa.scalar(name.encode())])
        hits = np.flatnonzero(named.to_numpy(zero_copy_only=False))
        last = np.full(len(self.present), -1, np.int64)
        last[np.searchsorted(self.starts, hits, side="right") - 1] = hits
        found = last >= 0
        values = self.values.select(last[found]).to_arrow()
        places = np.cumsum(found) - 1
        return values.take(pa.array(places, pa.int64(), mask=~found))

    def to_arrow(self) -> pa.Array:
        """Return the headers as a list array of structs with members ``key`` and ``value``."""
        entries = pa.StructArray.from_arrays(
            [self.names.to_arrow(pa.string()), self.values.to_arrow()], fields=list(_HEADERS.value_type)
        )
        buffers = [_bitmap(self.present), pa.py_buffer(self.starts.astype(np.int32))]
        return pa.Array.from_buffers(_HEADERS, len(self.present), buffers, children=[entries])


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records of one topic. Those of one partition are in offset order; partitions may be interleaved.

    ``partitions`` and ``time_types`` are int32, ``offsets`` is int64, ``times`` is int64 milliseconds since 1970 or `NO_TIME`.
    ``time_types`` are Kafka's: 0 for CreateTime, 1 for LogAppendTime, -1 for none.
    """

    topic: str
    partitions: Numbers
    offsets: Numbers
    times: Numbers
    time_types: Numbers
    keys: Places
    values: Places
    headers: HeaderPlaces

    @classmethod
    def from_arrow(cls, topic: str, batch: pa.RecordBatch) -> "Fetched":
        """Return the records of a batch in Spark's Kafka columns, with ``timestamp`` or, in its place, ``timestamp_ms`` (int64)."""
        if "timestamp_ms" in batch.schema.names:
            times = _numbers(batch["timestamp_ms"], pa.int64())
        else:
            micros = _numbers(_as(batch["timestamp"], pa.timestamp("us", tz="UTC")).cast(pa.int64()), pa.int64())
            times = micros // 1000  # exact: Spark multiplied Kafka's milliseconds by 1000
        return cls(
            topic=topic,
            partitions=_numbers(batch["partition"], pa.int32()),
            offsets=_numbers(batch["offset"], pa.int64()),
            times=times,
            time_types=_numbers(batch["timestampType"], pa.int32()),
            keys=Places.from_arrow(_as(batch["key"], pa.binary())),
            values=Places.from_arrow(_as(batch["value"], pa.binary())),
            headers=HeaderPlaces.from_arrow(batch["headers"])
            if "headers" in batch.schema.names
            else HeaderPlaces.none(len(batch)),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def identity(self, index: int) -> bytes:
        """Return a digest that distinguishes a record from others that had its offset.

        The log can give an offset to another record after an unclean election. `firn_spark.tables.dead_letters` computes
        the same digest from a dead letter, in SQL.
        """
        key, value = self.keys.value(index), self.values.value(index)
        lengths = ":".join("" if part is None else str(len(part)) for part in (key, value))
        digest = hashlib.sha256(f"{self.times[index]}:{lengths}:".encode())
        digest.update(key or b"")
        digest.update(value or b"")
        return digest.digest()[:IDENTITY_BYTES]

    def select(self, indices: Numbers) -> "Fetched":
        """Return the records at ``indices``, which ascend. The bytes stay where they are."""
        return Fetched(
            self.topic,
            self.partitions[indices],
            self.offsets[indices],
            self.times[indices],
            self.time_types[indices],
            self.keys.select(indices),
            self.values.select(indices),
            self.headers.select(indices),
        )


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _numbers(array: pa.Array, kind: pa.DataType) -> Numbers:
    numbers: Numbers = _as(array, kind).to_numpy(zero_copy_only=False)
    return numbers


def _bitmap(present: Numbers) -> pa.Buffer | None:
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


def _read_only(buffer: pa.Buffer | None, kind: Any) -> Numbers:
    """Return a buffer's numbers, always read-only: compiled decoders are compiled for read-only arrays."""
    numbers: Numbers = np.frombuffer(buffer, kind) if buffer is not None and buffer.size else np.zeros(0, kind)
    numbers.setflags(write=False)
    return numbers
