"""An Iceberg table as an Arrow dataset. DuckDB asks it for the columns and the rows that a statement needs, each time that it scans the table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table

from firn.model.errors import InvalidSpecError
from firn_operator.cli.pushdown import filters


class Budget:
    """The bytes that the scans of one statement may read, together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.used = 0
        self.files = 0

    def spend(self, name: str, size: int) -> None:
        """Count a file of ``size`` bytes of table ``name``. Raises InvalidSpecError if it would exceed the budget."""
        if self.used + size > self._most:
            raise InvalidSpecError(
                f"table {name}: the statement reads more than {self._most:,} bytes of files, the limit of firn sql; select fewer columns, filter"
                " by a column whose values differ between files, such as a time, raise --max-bytes, or use an engine such as Spark"
            )
        self.used += size
        self.files += 1


class IcebergDataset(ds.Dataset):  # type: ignore[misc]
    """The current snapshot of a table, as the dataset that DuckDB expects: it has a schema, and creates scanners."""

    def __init__(self, name: str, table: Table, columns: Schema, budget: Budget) -> None:
        # The constructor of the base class refuses subclasses. DuckDB uses the methods below only.
        self._name, self._table, self._columns, self._budget = name, table, columns, budget
        self._schema = schema_to_pyarrow(columns, include_field_ids=False)
        self.failure: Exception | None = None
        """The error that ended a scan. DuckDB keeps only its text."""

    @property
    def schema(self) -> pa.Schema:
        """Return the readable columns."""
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> "_Scanner":
        """Return a scanner of these columns, with the rows for which ``filter`` holds."""
        names = list(columns) if columns is not None else self._schema.names
        return _Scanner(pa.schema([self._schema.field(name) for name in names]), self._batches(names, filter))

    def _batches(self, names: list[str], wanted: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        try:
            pushed: BooleanExpression = AlwaysTrue()
            if wanted is not None:
                node = filters.parse(wanted)
                pushed, wanted = filters.for_scan(node, self._columns), filters.exact(wanted, node, self._schema)
            scan = self._table.scan(row_filter=pushed, selected_fields=tuple(names))
            projection = scan.projection()
            reader = _Files(self._table.metadata, self._table.io, projection, scan.row_filter)
            schema = pa.schema([self._schema.field(name) for name in names])
            for task in scan.plan_files():
                self._budget.spend(self._name, _size(task, projection))
                for batch in reader.batches(task):
                    rows = batch.select(names).cast(schema)
                    yield rows if wanted is None else rows.filter(wanted)
        except Exception as error:
            self.failure = error
            raise


@dataclass(frozen=True, slots=True)
class _Scanner:
    """The part of Arrow's scanner that DuckDB uses. Arrow's own one reads ahead, even past a LIMIT."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the batches as a stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches)


class _Files(ArrowScan):
    """Reads files one after another. PyIceberg's own reader holds all batches of several files in memory."""

    def batches(self, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file. Only a file with deletes is in memory as a whole."""
        if task.delete_files:
            return self.to_record_batches([task])
        return self._record_batches_from_scan_tasks_and_deletes([task], {})


def _size(task: FileScanTask, projection: Schema) -> int:
    """Return the bytes of the columns in a file; those of the whole file if its sizes are unknown."""
    sizes = task.file.column_sizes
    if not sizes:
        return task.file.file_size_in_bytes
    return sum(sizes.get(field, 0) for field in projection.field_ids)
