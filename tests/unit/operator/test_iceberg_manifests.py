"""Manifests of every format version, as other writers write them, of which only some fields are read."""

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV1,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, NestedField, StringType, TimestamptzType

from firn_operator.adapters.iceberg import iceberg_manifests
from firn_operator.adapters.iceberg.file_io import ObjectFileIO
from firn_operator.adapters.iceberg.iceberg_manifests import IcebergManifest

SCHEMA = Schema(
    NestedField(1, "at", TimestamptzType()),
    NestedField(2, "text", StringType()),
    NestedField(3, "price", DecimalType(9, 2)),
)
PLAIN = PartitionSpec()
SPEC = PartitionSpec(
    PartitionField(1, 1000, DayTransform(), "day"),
    PartitionField(2, 1001, IdentityTransform(), "text"),
    PartitionField(3, 1002, IdentityTransform(), "price"),
    spec_id=4,
)
PATH_COLUMN = 2147483546
IO = ObjectFileIO({})


class _Writer(ManifestWriterV2):
    """Writes manifests of version 2 and later, of data and of deletes."""

    def __init__(self, version: int, deletes: bool, *arguments: Any) -> None:
        self._number, self._deletes = version, deletes
        super().__init__(*arguments)

    @property
    def version(self) -> Any:
        return self._number

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        schema = self._with_partition(self.version)
        return AvroOutputFile(self._output_file, schema, "manifest_entry", schema, self._meta)

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES if self._deletes else ManifestContent.DATA


def shape(version: int) -> Any:
    """Return the version of the entry type: PyIceberg keeps entries of version 1 as version 2 until it writes them."""
    return max(version, 2)


def file(version: int, path: str, partition: Record, **changes: Any) -> DataFile:
    fields: dict[str, Any] = {
        "content": DataFileContent.DATA,
        "file_path": path,
        "file_format": FileFormat.PARQUET,
        "partition": partition,
        "record_count": 100,
        "file_size_in_bytes": 5000,
        "column_sizes": {1: 10, 2: 20},
        "value_counts": {1: 100, 2: 100},
        "null_value_counts": {1: 0, 2: 3},
        "nan_value_counts": {},
        "lower_bounds": {1: b"\0" * 8, 2: b"a"},
        "upper_bounds": {1: b"\7" * 8, 2: b"z"},
        "split_offsets": [4, 1000],
        "equality_ids": None,
        **changes,
    }
    return DataFile.from_args(_table_format_version=shape(version), **fields)


def entry(version: int, data: DataFile, status: ManifestEntryStatus = ManifestEntryStatus.ADDED, **changes: Any) -> Any:
    fields = {"snapshot_id": 7, "sequence_number": None, "file_sequence_number": None, **changes}
    return ManifestEntry.from_args(_table_format_version=shape(version), status=status, data_file=data, **fields)


def written(place: Path, version: int, spec: PartitionSpec, *entries: Any, deletes: bool = False) -> IcebergManifest:
    output = IO.new_output(str(place))
    if version == 1:
        writer: Any = ManifestWriterV1(spec, SCHEMA, output, 7, "deflate")
    else:
        writer = _Writer(version, deletes, spec, SCHEMA, output, 7, "deflate")
    with writer:
        for manifest_entry in entries:
            writer._writer.write_block([manifest_entry])
            writer._added_files += 1
            writer._min_sequence_number = 1
    return IcebergManifest(str(place), place.stat().st_size, spec.spec_id, deletes, 12)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_data_files_are_read_with_their_sequence_numbers(tmp_path: Path, version: int) -> None:
    there = Record(20_000, "x", None)
    manifest = written(
        tmp_path / "m.avro",
        version,
        SPEC,
        entry(version, file(version, "s3://a/new", there)),
        entry(version, file(version, "s3://a/gone", there), ManifestEntryStatus.DELETED),
        entry(
            version,
            file(version, "s3://a/old", Record(20_001, "x", None), file_size_in_bytes=9),
            ManifestEntryStatus.EXISTING,
            snapshot_id=3,
            **({} if version == 1 else {"sequence_number": 2, "file_sequence_number": 5}),
        ),
        entry(
            version,
            file(version, "s3://a/expired", there),
            ManifestEntryStatus.EXISTING,
            snapshot_id=1,
            **({} if version == 1 else {"sequence_number": 1, "file_sequence_number": 1}),
        ),
    )
    new, old, expired = iceberg_manifests.read_data(IO, manifest)
    assert [data_file.path for data_file in (new, old, expired)] == ["s3://a/new", "s3://a/old", "s3://a/expired"]
    assert (new.bytes, new.records, new.spec_id) == (5000, 100, 4)
    assert old.bytes == 9
    assert new.partition == expired.partition != old.partition
    if version > 1:
        assert [(data_file.sequence, data_file.written) for data_file in (new, old, expired)] == [
            (12, 12),
            (2, 5),
            (1, 1),
        ]


def test_delete_files_are_read_with_their_target(tmp_path: Path) -> None:
    there = Record(20_000, "x", None)
    bounds = {PATH_COLUMN: b"s3://a/one"}
    manifest = written(
        tmp_path / "d.avro",
        2,
        SPEC,
        entry(2, file(2, "d1", there, content=DataFileContent.POSITION_DELETES, record_count=5)),
        entry(
            2,
            file(2, "d2", there, content=DataFileContent.POSITION_DELETES, lower_bounds=bounds, upper_bounds=bounds),
            sequence_number=9,
        ),
        entry(2, file(2, "d3", there, content=DataFileContent.EQUALITY_DELETES, equality_ids=[2], record_count=2)),
        deletes=True,
    )
    wide, narrow, values = iceberg_manifests.read_deletes(IO, manifest, frozenset({0}))
    assert (wide.records, wide.sequence, wide.target, wide.equality, wide.everywhere) == (5, 12, None, False, False)
    assert (narrow.sequence, narrow.target) == (9, "s3://a/one")
    assert (values.records, values.equality, values.everywhere) == (2, True, False)
    assert wide.partition == repr((20_000, "x", None))


def test_equality_deletes_without_partitions_apply_everywhere(tmp_path: Path) -> None:
    data = file(2, "d", Record(), content=DataFileContent.EQUALITY_DELETES, equality_ids=[2])
    manifest = written(tmp_path / "d.avro", 2, PLAIN, entry(2, data), deletes=True)
    (values,) = iceberg_manifests.read_deletes(IO, manifest, frozenset({0}))
    assert values.everywhere


def test_deletion_vectors_are_read_with_their_target(tmp_path: Path) -> None:
    vector = file(
        3,
        "s3://a/vectors.puffin",
        Record(20_000, "x", None),
        content=DataFileContent.POSITION_DELETES,
        file_format=FileFormat.PUFFIN,
        record_count=41,
        lower_bounds=None,
        upper_bounds=None,
        referenced_data_file="s3://a/one",
        content_offset=4,
        content_size_in_bytes=40,
    )
    manifest = written(tmp_path / "v.avro", 3, SPEC, entry(3, vector), deletes=True)
    (read,) = iceberg_manifests.read_deletes(IO, manifest, frozenset())
    assert (read.records, read.target, read.equality, read.written) == (41, "s3://a/one", False, 12)


@pytest.mark.parametrize("version", [1, 2])
def test_manifest_lists_are_read(tmp_path: Path, version: int) -> None:
    class Kept(ManifestWriterV1 if version == 1 else ManifestWriterV2):  # type: ignore[misc]
        pass

    with Kept(SPEC, SCHEMA, IO.new_output(str(tmp_path / "m.avro")), 7, "deflate") as writer:
        writer.add(entry(version, file(version, "f", Record(1, "x", None))))
    place = str(tmp_path / "list.avro")
    with write_manifest_list(version, IO.new_output(place), 7, None, 12, "deflate") as listed:  # type: ignore[arg-type]
        listed.add_manifests([writer.to_manifest_file()])
    (read,) = iceberg_manifests.read_list(IO, place)
    assert read == IcebergManifest(
        str(tmp_path / "m.avro"), (tmp_path / "m.avro").stat().st_size, 4, False, 12 if version == 2 else 0
    )


def test_a_truncated_file_raises(tmp_path: Path) -> None:
    manifest = written(tmp_path / "m.avro", 2, PLAIN, entry(2, file(2, "f", Record())))
    content = (tmp_path / "m.avro").read_bytes()
    (tmp_path / "m.avro").write_bytes(content[:-3] + b"xyz")
    with pytest.raises(ValueError, match="does not end"):
        list(iceberg_manifests.read_data(IO, manifest))


def test_a_missing_file_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        iceberg_manifests.read_list(IO, str(tmp_path / "none.avro"))
