"""Iceberg's manifest lists and manifests, reduced to the few fields that maintenance debt is made of.

PyIceberg's own reader creates objects for the bounds and counts of every column, which is most of the work, and does not
know all fields of format version 3. This module selects the fields that it needs from the schema of a file, and the
decoder skips the rest.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import OptionReader, Reader, StructReader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.typedef import Record
from pyiceberg.types import StringType, StructType

from firn.tables.compaction import DataFile
from firn.tables.deletes import DeleteFile

_LIST = {500: "path", 501: "length", 502: "spec", 517: "content", 515: "sequence"}
_ENTRY = {0: "status", 3: "sequence", 4: "written", 2: "file"}
_DATA = {102: "partition", 103: "records", 104: "bytes", 100: "path"}
_DELETES = {**_DATA, 134: "content", 125: "lower", 128: "upper", 143: "target"}
_DELETED = 2
_ADDED = 1
_EQUALITY = 2
_PATH_COLUMN = 2147483546
"""Field id of ``file_path`` in position delete files. If its bounds are equal, all deletes are of one file."""

Fields = Mapping[int, str]


@dataclass(frozen=True, slots=True)
class IcebergManifest:
    """A manifest as a manifest list names it."""

    path: str
    length: int
    spec_id: int
    deletes: bool
    sequence: int


def read_list(io: FileIO, path: str) -> list[IcebergManifest]:
    """Return the manifests of a snapshot. Raises FileNotFoundError."""
    return [
        IcebergManifest(
            path=record["path"],
            length=record["length"],
            spec_id=record["spec"],
            deletes=record.get("content") == 1,
            sequence=record.get("sequence") or 0,
        )
        for record in _records(io, path, _LIST, {})
    ]


def read_data(io: FileIO, manifest: IcebergManifest) -> Iterator[DataFile]:
    """Yield the live data files of a manifest. ``written`` is a sequence number. Raises FileNotFoundError."""
    for entry, file in _entries(io, manifest, _DATA):
        yield DataFile(
            path=file["path"],
            bytes=file["bytes"],
            records=file["records"],
            partition=_partition_text(file["partition"]),
            spec_id=manifest.spec_id,
            added_ms=0,
            written=_sequence(entry["written"], entry, manifest),
            sequence=_sequence(entry["sequence"], entry, manifest),
        )


def read_deletes(io: FileIO, manifest: IcebergManifest, unpartitioned: frozenset[int]) -> Iterator[DeleteFile]:
    """Yield the live delete files and vectors of a manifest. Raises FileNotFoundError.

    ``unpartitioned``: ids of specs without fields. ``written`` is a sequence number.
    """
    for entry, file in _entries(io, manifest, _DELETES):
        equality = file["content"] == _EQUALITY
        yield DeleteFile(
            records=file["records"],
            sequence=_sequence(entry["sequence"], entry, manifest),
            spec_id=manifest.spec_id,
            partition=_partition_text(file["partition"]),
            equality=equality,
            everywhere=equality and manifest.spec_id in unpartitioned,
            target=None if equality else _target(file),
            written=_sequence(entry["written"], entry, manifest),
        )


def _entries(io: FileIO, manifest: IcebergManifest, fields: Fields) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for entry in _records(io, manifest.path, _ENTRY, {2: fields}):
        if entry["status"] != _DELETED:
            yield {"sequence": None, "written": None, **entry}, entry["file"]


def _sequence(sequence: int | None, entry: Mapping[str, Any], manifest: IcebergManifest) -> int:
    """Return a sequence number with Iceberg's inheritance: that of the manifest for its own entries, else 0."""
    if sequence is None:
        return manifest.sequence if entry["status"] == _ADDED else 0
    return sequence


def _partition_text(partition: Any) -> str:
    return repr(tuple(partition._data)) if partition is not None else "()"


def _target(file: Mapping[str, Any]) -> str | None:
    if (target := file.get("target")) is not None:
        return str(target)
    lower, upper = ((file.get(bound) or {}).get(_PATH_COLUMN) for bound in ("lower", "upper"))
    if lower is not None and lower == upper:
        return str(from_bytes(StringType(), lower))
    return None


_HEADER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def _records(io: FileIO, path: str, fields: Fields, nested: Mapping[int, Fields]) -> Iterator[dict[str, Any]]:
    """Yield the records of an Avro file, with the selected fields that it has, by the names in ``fields``."""
    with io.new_input(path).open() as stream:
        decoder = new_decoder(stream.read())
    header: AvroFileHeader = _HEADER.read(decoder)
    reader, names, inner = _plan(header.meta["avro.schema"], tuple(fields.items()), _frozen(nested))
    codec = header.compression_codec()
    while True:
        try:
            count = decoder.read_int()
        except EOFError:
            return
        block = decoder.read_bytes()
        records = new_decoder(codec.decompress(block) if codec else block)
        for _ in range(count):
            record = dict(zip(names, reader.read(records)._data, strict=True))
            for name, parts in inner:
                record[name] = dict(zip(parts, record[name]._data, strict=True))
            yield record
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError(f"{path}: the file is corrupt: a block does not end with the file's sync marker")


_Pairs = tuple[tuple[int, str], ...]


def _frozen(nested: Mapping[int, Fields]) -> tuple[tuple[int, _Pairs], ...]:
    return tuple((number, tuple(fields.items())) for number, fields in nested.items())


@lru_cache(maxsize=512)
def _plan(
    text: str, fields: _Pairs, nested: tuple[tuple[int, _Pairs], ...]
) -> tuple[Reader, tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]:
    """Return the reader of files with one Avro schema, and the names of its fields. A table's manifests share one."""
    schema = AvroFileHeader(b"", {"avro.schema": text}, b"").get_schema()
    inner: list[tuple[str, tuple[str, ...]]] = []
    parts: dict[int, Reader] = {}
    selected = dict(fields)
    for number, members in nested:
        kind = schema.find_field(number).field_type
        assert isinstance(kind, StructType)
        parts[number], names = _struct(kind, dict(members), {})
        inner.append((selected[number], names))
    reader, names = _struct(schema.as_struct(), selected, parts)
    return reader, names, tuple(inner)


def _struct(kind: StructType, fields: Fields, parts: Mapping[int, Reader]) -> tuple[Reader, tuple[str, ...]]:
    """Return a reader of the selected fields, and their names in its order.

    PyIceberg's own resolution of a schema with fewer fields fails if a list is left out.
    """
    readers: list[tuple[int | None, Reader]] = []
    names: list[str] = []
    for field in kind.fields:
        reader = parts.get(field.field_id) or construct_reader(field.field_type)
        position = None
        if field.field_id in fields:
            position = len(names)
            names.append(fields[field.field_id])
        readers.append((position, reader if field.required else OptionReader(reader)))
    return StructReader(tuple(readers), Record, kind), tuple(names)
