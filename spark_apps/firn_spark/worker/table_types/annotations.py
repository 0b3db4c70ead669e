"""Marks the variants in the footer of a Parquet file.

Parquet's specification demands the logical type VARIANT on the group of a variant. pyarrow 24 writes the group without it. Iceberg's Java
library reads such a group by its field id, and other readers take it for a struct.
"""

import io
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import pyarrow.parquet as pq
from pyiceberg.schema import Schema, index_by_id

from firn_spark.worker.table_types.written import VariantType

_TRAILER = 8
"""Bytes after the footer: its length in four bytes, and ``PAR1``."""
_LOGICAL_TYPE = b"\x1c\x0c\x20\x13\x01\x00\x00"
"""Field 10 after field 9: the union LogicalType with VARIANT (16), of specification version 1 (parquet.thrift)."""
_SCHEMA = 2
"""Field of FileMetaData."""
_FIELD_ID, _LOGICAL = 9, 10
"""Fields of SchemaElement."""
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
"""Types of Thrift's compact protocol. Those between a byte and a double are varints."""


class Sink(io.RawIOBase):
    """The place of a Parquet file. It passes the file on, and marks variants in its footer."""

    def __init__(self, sink: Any, variants: frozenset[int]) -> None:
        super().__init__()
        self._sink = sink
        self._variants = variants
        self._end: list[bytes] | None = None
        """Parts of the end of the file, with the footer last, while the writer closes."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Pass data on, or hold them until the file is complete."""
        if self._end is None:
            self._sink.write(data)
        else:
            self._end.append(bytes(data))
        return memoryview(data).nbytes

    def tell(self) -> int:
        """Return the number of bytes so far."""
        held = sum(map(len, self._end or ()))
        return int(self._sink.tell()) + held

    def complete(self, writer: pq.ParquetWriter) -> None:
        """Close the writer, and pass on the end of the file."""
        self._end = []
        writer.close()
        end, self._end = b"".join(self._end), None
        length = int.from_bytes(end[-_TRAILER:-4], "little")
        footer = marked(end[-_TRAILER - length : -_TRAILER], self._variants)
        self._sink.write(end[: -_TRAILER - length] + footer + len(footer).to_bytes(4, "little") + end[-4:])

    def __enter__(self) -> Self:
        self._sink.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sink.__exit__(kind, error, trace)


def opened(sink: Any, schema: Schema) -> Any:
    """Return the place for a file of a table: ``sink`` itself if the table has no variants."""
    fields = index_by_id(schema)
    variants = frozenset(number for number, field in fields.items() if isinstance(field.field_type, VariantType))
    return Sink(sink, variants) if variants else sink


def complete(writer: pq.ParquetWriter, sink: Any) -> None:
    """Close the writer of a file at the place of `opened`. Raises OSError."""
    if isinstance(sink, Sink):
        sink.complete(writer)
    else:
        writer.close()


def marked(footer: bytes, variants: frozenset[int]) -> bytes:
    """Return a footer (FileMetaData) with the logical type VARIANT on the groups with these field ids."""
    places = [place for number, place in _unmarked(_Reader(footer)) if number in variants]
    parts = [footer[start:end] for start, end in zip([0, *places], [*places, len(footer)], strict=True)]
    return _LOGICAL_TYPE.join(parts)


def _unmarked(reader: "_Reader") -> Iterator[tuple[int, int]]:
    """Yield the field ids of schema elements without a logical type, and the places where one can be inserted."""
    for field, kind in reader.fields():
        if field != _SCHEMA:
            reader.skip(kind)
            continue
        size, _ = reader.list_header()
        for _ in range(size):
            found: tuple[int, int] | None = None
            for member, member_kind in reader.fields():
                if member == _FIELD_ID:
                    found = reader.integer(), reader.at
                else:
                    reader.skip(member_kind)
                    found = None if member == _LOGICAL else found
            if found is not None:
                yield found


class _Reader:
    """Reads Thrift's compact protocol, as far as a footer needs it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of the fields of a struct. The caller reads or skips each value before the next one."""
        number = 0
        while (header := self._byte()) & 0x0F != _STOP:
            number = number + (header >> 4) if header >> 4 else self.integer()
            yield number, header & 0x0F

    def list_header(self) -> tuple[int, int]:
        """Return the number of elements, and their type."""
        header = self._byte()
        return (self._varint() if header >> 4 == 15 else header >> 4), header & 0x0F

    def integer(self) -> int:
        """Return a signed number."""
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def skip(self, kind: int) -> None:
        """Pass a value of a field."""
        if kind in (_TRUE, _FALSE):
            return  # The type itself is the value.
        if kind == _STRUCT:
            for _, member in self.fields():
                self.skip(member)
        elif kind in (_LIST, _SET):
            size, element = self.list_header()
            for _ in range(size):
                self._skip_element(element)
        elif kind == _MAP:
            raise ValueError("a Parquet footer has no maps")
        elif kind == _BINARY:
            length = self._varint()
            self.at += length
        elif kind in (_BYTE, _DOUBLE):
            self.at += 1 if kind == _BYTE else 8
        else:
            self._varint()

    def _skip_element(self, kind: int) -> None:
        if kind in (_TRUE, _FALSE):
            self.at += 1
        else:
            self.skip(kind)

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
