"""Checks of the rows that main lacks: their aggregates, from the metrics of data files or from the rows, and the verdicts."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType

from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, PublishCheck
from firn.model.progress import CheckResult
from firn.quality.aggregates import BoundCheck, bind_aggregates
from firn.quality.expressions import Aggregate
from firn.tables import types
from firn_spark.tables.branches.statistics import ColumnFigures, Figures
from firn_spark.worker.arrow_types import arrow_type
from firn_spark.worker.quality.kernels import kernel

Values = Mapping[str, Any]
"""Text of an aggregate -> its value."""


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    bound: BoundCheck


class Checks:
    """The checks of a topic, bound to its table."""

    def __init__(self, checks: Sequence[PublishCheck], columns: Mapping[str, str], schema: str) -> None:
        """``columns``: name -> type. ``schema``: Iceberg's JSON. Raises InvalidSpecError if a check does not fit the table."""
        known = [Column(name=name, type=kind) for name, kind in columns.items()]
        self._checks = [_bound(check, known) for check in checks]
        self._aggregates = {str(each): each for check in self._checks for each in check.bound.aggregates}
        table = Schema.model_validate_json(schema)
        self._ids = {
            str(each.column): table.find_field(str(each.column)).field_id
            for each in self._aggregates.values()
            if each.column is not None
        }
        self.fields: dict[int, IcebergType] = {id: table.find_type(id) for id in self._ids.values()}

    def values(self, figures: Figures) -> dict[str, Any] | None:
        """Return the aggregates of rows, None if the metrics do not have one of them."""
        found = {}
        for text, aggregate in self._aggregates.items():
            column = self._column(figures, aggregate)
            if column.nulls is None or (aggregate.function in ("min", "max") and not column.bounded):
                return None
            found[text] = _value(aggregate, figures.rows, column)
        return found

    def _column(self, figures: Figures, aggregate: Aggregate) -> ColumnFigures:
        if aggregate.column is None:
            return ColumnFigures()
        return figures.columns.get(self._ids[str(aggregate.column)], ColumnFigures())

    def read(self, spark: Any, table: Any, after: int | None, until: int) -> dict[str, Any]:
        """Return the aggregates of the rows that the snapshots after ``after`` up to ``until`` append, from the rows.

        Raises `JAVA_ERRORS`.
        """
        scan = table.newIncrementalAppendScan().toSnapshot(until)
        if after is not None:
            scan = scan.fromSnapshotExclusive(after)
        iceberg, group = spark._jvm.org.apache.iceberg, uuid.uuid4().hex
        cache, staged = iceberg.spark.SparkTableCache.get(), iceberg.spark.ScanTaskSetManager.get()
        planned = scan.planFiles()
        try:
            tasks = iceberg.relocated.com.google.common.collect.Lists.newArrayList(planned)
            cache.add(group, table)
            staged.stageTasks(table, group, tasks)
            frame = spark.read.format("iceberg").load(group)
            kinds = {text: kind for check in self._checks for text, kind in check.bound.types.items()}
            selected = [f"{_sql(each, kinds[text])} AS a{n}" for n, (text, each) in enumerate(self._aggregates.items())]
            row = frame.selectExpr(*selected).collect()[0]
        finally:
            planned.close()
            cache.remove(group)
            staged.removeTasks(table, group)
        return dict(zip(self._aggregates, row, strict=True))

    def judge(self, values: Values) -> tuple[CheckResult, ...]:
        """Return the result of each check. A check that is null passes, as in SQL."""
        return tuple(_judged(check, values) for check in self._checks)


def _bound(check: PublishCheck, columns: Sequence[Column]) -> _Check:
    try:
        return _Check(check.name, bind_aggregates(check.check, columns))
    except InvalidSpecError as error:
        raise InvalidSpecError(f"check {check.name} of publish: {error}", reason=error.reason) from None


def _judged(check: _Check, values: Values) -> CheckResult:
    columns = {text: pa.array([values[text]], arrow_type(kind)) for text, kind in check.bound.types.items()}
    verdict = kernel(check.bound.expression)(columns)
    passed = (verdict if isinstance(verdict, pa.Scalar) else verdict[0]).as_py() is not False
    shown = ", ".join(f"{text} = {_shown(columns[text][0])}" for text in columns)
    return CheckResult(name=check.name, passed=passed, values=shown)


def _shown(value: Any) -> str:
    found = value.as_py()
    return "null" if found is None else f"{found:.6g}" if isinstance(found, float) else str(found)


def _value(aggregate: Aggregate, rows: int, column: ColumnFigures) -> Any:
    assert column.nulls is not None
    match aggregate.function:
        case "count":
            return rows - column.nulls
        case "null_share":
            return column.nulls / rows if rows else None
        case "min":
            return column.low
        case "max":
            return column.high


def _sql(aggregate: Aggregate, kind: types.Type) -> str:
    if aggregate.column is None:
        return "count(*)"
    column = ".".join(f"`{part.replace('`', '``')}`" for part in aggregate.column.path)
    match aggregate.function:
        case "count":
            return f"count({column})"
        case "null_share":
            return f"count_if({column} is null) / count(*)"
    match str(kind):
        case "date":
            column = f"unix_date({column})"
        case "timestamptz":
            column = f"unix_micros({column})"
        case "timestamp":
            column = f"unix_micros(cast({column} AS timestamp))"
        case "float" | "double":
            column = f"if(isnan({column}), null, {column})"
    return f"{aggregate.function}({column})"
