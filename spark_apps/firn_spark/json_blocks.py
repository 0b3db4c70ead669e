"""The fast way from JSON records to Arrow columns: a block of records at a time, compiled.

One kernel serves every schema: fields are data (names, kinds) to it. It walks the bytes of a record once, checks that they are
JSON, and leaves for each field a number, or the place of a text. It *vouches* for a record only where its answer is that of
`firn_spark.json_values`; in every other case and in every doubt, bad records included, it does not, and the caller asks there.
So this module knows no error, only doubt.

Fields of kinds that it has no code for (lists, maps, structs, binaries, ...) are found, checked for being JSON, and their bytes
given to `firn_spark.json_values` value by value.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from firn.model import types
from firn.model.jobs import Column
from firn_spark import arrow_types, json_kernel
from firn_spark.json_values import BadRecordError, ValueReader

_KINDS = {
    "boolean": json_kernel.BOOLEAN,
    "int": json_kernel.INT,
    "long": json_kernel.LONG,
    "float": json_kernel.FLOAT,
    "double": json_kernel.DOUBLE,
    "string": json_kernel.STRING,
    "date": json_kernel.DATE,
    "time": json_kernel.TIME,
    "timestamp": json_kernel.TIMESTAMP,
    "timestamptz": json_kernel.TIMESTAMPTZ,
}
_Array = np.ndarray[Any, np.dtype[Any]]


def _powers() -> _Array:
    """The first 128 bits of each power of ten in two halves: rounded down, but up from 10**-27 to 10**-1, where the product with
    a number may come out whole (Lemire, "Number Parsing at a Gigabyte per Second", 2021)."""
    found = []
    for power in range(json_kernel.MIN_POWER, json_kernel.MAX_POWER + 1):
        number = 10**power if power >= 0 else (1 << 1400) // 10**-power
        surplus = number.bit_length() - 128
        number = number >> surplus if surplus >= 0 else number << -surplus
        number += -27 <= power < 0
        found.append((number >> 64, number & (2**64 - 1)))
    return np.array(found, np.uint64)


_POWERS = _powers()
_NAME_BYTES = 1024


class BlockDecoder:
    """Decodes blocks of JSON records by one schema."""

    def __init__(self, fields: Sequence[Column], *, refuse_unknown: bool) -> None:
        """Raises InvalidSpecError where a type is none."""
        kinds = [types.parse(field.type) for field in fields]
        self._types = [arrow_types.arrow_type(kind) for kind in kinds]
        self._kinds = np.array([_kind(kind) for kind in kinds], np.int64)
        self._precisions = np.array(
            [kind.precision if isinstance(kind, types.Decimal) else 0 for kind in kinds], np.int64
        )
        self._scales = np.array([kind.scale if isinstance(kind, types.Decimal) else 0 for kind in kinds], np.int64)
        self._required = np.array([field.required for field in fields], bool)
        names = [field.name.encode() for field in fields]
        self._names = np.frombuffer(b"".join(names) or b"\0", np.uint8)
        self._starts = np.cumsum([0, *(len(name) for name in names)]).astype(np.int64)
        self._refuse_unknown = refuse_unknown
        self._readers = {
            place: ValueReader.of(kind, refuse_unknown=refuse_unknown)
            for place, kind in enumerate(kinds)
            if self._kinds[place] == json_kernel.OPAQUE
        }
        # Such names stand in JSON with escapes; the kernel compares bytes.
        self._usable = bool(fields) and not any(
            b'"' in name or b"\\" in name or min(name, default=32) < 32 for name in names
        )

    def decode(self, records: pa.BinaryArray) -> tuple[list[pa.Array], _Array]:
        """The columns, and for each record whether they hold for it; where they do not they are null."""
        count = len(records)
        if not self._usable:
            return [pa.nulls(count, kind) for kind in self._types], np.zeros(count, bool)
        data, offsets, present = _buffers(records)
        shape = (len(self._types), count)
        values, lengths = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        width = len(self._types)
        following, seen = np.append(np.arange(width), 0), np.full(width, -1, np.int64)
        scratch = np.empty(_NAME_BYTES, np.uint8)
        valid, vouched = np.zeros(shape, np.uint8), np.zeros(count, bool)
        json_kernel.read_records(
            data, offsets, present, self._names, self._starts, self._kinds, self._precisions, self._scales, self._required,
            self._refuse_unknown, _POWERS, following, seen, scratch, values, lengths, valid, vouched,
        )  # fmt: skip
        opaque = {
            place: self._read(reader, data, values[place], lengths[place], valid[place], vouched)
            for place, reader in self._readers.items()
        }
        for place in np.flatnonzero(self._kinds == json_kernel.FLOAT):
            with np.errstate(over="ignore"):
                vouched &= np.isfinite(values[place].view(np.float64).astype(np.float32)) | (valid[place] == 0)
        doubted = None if vouched.all() else ~vouched
        columns = []
        for place, kind in enumerate(self._types):
            if place in opaque:
                found = opaque[place]
                if doubted is not None:
                    found = [None if doubt else value for doubt, value in zip(doubted, found, strict=True)]
                columns.append(pa.array(found, kind, size=count))
                continue
            if doubted is not None:
                valid[place][doubted] = 0
            columns.append(_array(self._kinds[place], kind, data, values[place], lengths[place], valid[place]))
        return columns, vouched

    @staticmethod
    def _read(
        reader: ValueReader, data: _Array, firsts: _Array, lengths: _Array, valid: _Array, vouched: _Array
    ) -> list[object]:
        """Values of a field that the kernel found but did not read; a bad one ends the vouching for its record."""
        found: list[object] = [None] * len(valid)
        view = memoryview(data)  # type: ignore[arg-type]
        rows = np.flatnonzero(valid)
        for row, first, length in zip(rows.tolist(), firsts[rows].tolist(), lengths[rows].tolist(), strict=True):
            try:
                found[row] = reader.read(bytes(view[first : first + length]))
            except BadRecordError:
                vouched[row] = False
        return found


def _kind(kind: types.Type) -> int:
    match kind:
        case types.Primitive(name) if name in _KINDS:
            return _KINDS[name]
        case types.Decimal():
            return json_kernel.DECIMAL
        case _:
            return json_kernel.OPAQUE


def _buffers(records: pa.BinaryArray) -> tuple[_Array, _Array, _Array]:
    """A binary array's bytes, its offsets and which records are there, without a copy."""
    count = len(records)
    _, offsets, data = records.buffers()
    places = (
        _read_only(offsets, np.int32)[records.offset : records.offset + count + 1] if count else np.zeros(1, np.int32)
    )
    places.setflags(write=False)
    present = np.ones(count, bool)
    if records.null_count:
        present[:] = records.is_valid().to_numpy(zero_copy_only=False)
    return _read_only(data, np.uint8), places, present


def _read_only(buffer: pa.Buffer | None, kind: Any) -> _Array:
    """A buffer's numbers; read-only whatever it is, as the kernel is compiled for that."""
    found: _Array = np.frombuffer(buffer, kind) if buffer is not None and buffer.size else np.zeros(0, kind)
    found.setflags(write=False)
    return found


def _array(kind: int, type_: pa.DataType, data: _Array, values: _Array, lengths: _Array, valid: _Array) -> pa.Array:
    count = len(valid)
    nulls = count - int(valid.sum())
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    if kind == json_kernel.STRING:
        places = np.empty(count + 1, np.int32)
        total = int(np.abs(lengths[valid == 1]).sum())
        if total >= 2**31:
            raise ValueError("a batch has 2 GiB of text in one column: read smaller batches")
        out = np.empty(total, np.uint8)
        size = json_kernel.copy_texts(data, values, lengths, valid, places, out)
        return pa.Array.from_buffers(type_, count, [bitmap, pa.py_buffer(places), pa.py_buffer(out[:size])], nulls)
    if kind == json_kernel.BOOLEAN:
        content = np.packbits(values != 0, bitorder="little")
    elif kind in (json_kernel.INT, json_kernel.DATE):
        content = values.astype(np.int32)
    elif kind == json_kernel.FLOAT:
        with np.errstate(over="ignore"):  # of values that are not vouched for
            content = values.view(np.float64).astype(np.float32)
    elif kind == json_kernel.DECIMAL:
        content = np.empty((count, 2), np.int64)
        content[:, 0] = values
        content[:, 1] = values >> 63
    else:
        content = np.ascontiguousarray(values)
    return pa.Array.from_buffers(type_, count, [bitmap, pa.py_buffer(content)], nulls)
