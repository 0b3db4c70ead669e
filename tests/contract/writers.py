"""Write the metadata of real tables. The data files exist by name only, because measuring debt reads none."""

import contextlib
import itertools
from collections.abc import Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, NestedField, StringType

from firn.model.jobs import TableTarget

RECORDS = 100
SCHEMA = Schema(NestedField(1, "n", IntegerType()), NestedField(2, "text", StringType()))
SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "n"))


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Deletes(_FastAppendFiles):
    """Add a commit of delete files, which PyIceberg cannot write."""

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        return _DeleteManifest(spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression)


class CatalogWriters:
    """Writers over a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._numbers = itertools.count()

    def create(self, target: TableTarget) -> str:
        with contextlib.suppress(NamespaceAlreadyExistsError):
            self.catalog.create_namespace(target.namespace)
        table = self.catalog.create_table(
            (target.namespace, target.name), SCHEMA, partition_spec=SPEC, properties={"format-version": "2"}
        )
        return str(table.metadata.table_uuid)

    def snapshots(self, target: TableTarget) -> int:
        return len(self.load(target).metadata.snapshots)

    def append(self, target: TableTarget, sizes: Sequence[int], partition: int = 0) -> None:
        table = self.load(target)
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
            for size in sizes:
                update.append_data_file(self.file(table, size, partition))

    def replace(self, target: TableTarget, sizes: Sequence[int]) -> None:
        table = self.load(target)
        old = [task.file for task in table.scan().plan_files()]
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
            for file in old:
                update.delete_data_file(file)
            for size in sizes:
                update.append_data_file(self.file(table, size, 0))

    def delete_rows(self, target: TableTarget, rows: int) -> None:
        table = self.load(target)
        file = self.file(table, 1000, 0, DataFileContent.POSITION_DELETES, rows)
        with (
            table.transaction() as transaction,
            _Deletes(Operation.DELETE, transaction=transaction, io=table.io) as update,
        ):
            update.append_data_file(file)

    def drop(self, target: TableTarget) -> None:
        self.catalog.drop_table((target.namespace, target.name))

    def load(self, target: TableTarget) -> Table:
        return self.catalog.load_table((target.namespace, target.name))

    def file(
        self,
        table: Table,
        size: int,
        partition: int,
        content: DataFileContent = DataFileContent.DATA,
        records: int = RECORDS,
    ) -> DataFile:
        file = DataFile.from_args(
            content=content,
            file_path=f"{table.location()}/data/{next(self._numbers)}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(partition),
            record_count=records,
            file_size_in_bytes=size,
            column_sizes={1: size, 2: size},
            value_counts={1: records, 2: records},
            null_value_counts={1: 0, 2: 0},
            nan_value_counts={},
            lower_bounds={1: b"\0\0\0\0", 2: b"a"},
            upper_bounds={1: b"\0\0\0\0", 2: b"z"},
            key_metadata=None,
            split_offsets=[4],
            equality_ids=None,
            sort_order_id=None,
        )
        file.spec_id = table.spec().spec_id
        return file
