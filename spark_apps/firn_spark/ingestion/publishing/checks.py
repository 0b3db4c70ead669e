"""Checks of the rows that main lacks: their aggregates, from the metrics of data files or from the rows, and the verdicts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
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
from firn.tables.renames import FormerNames
from firn_spark.tables.branches.statistics import ColumnFigures, Figures
from firn_spark.tables.java_tables import staged
from firn_spark.worker.arrow_types import arrow_type
from firn_spark.worker.quality.kernels import kernel

Values = Mapping[str, Any]
"""Text of an aggregate -> its value."""


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    bound: BoundCheck


@dataclass(frozen=True, slots=True)
class _Read:
    """A column that is read from rows."""

    path: str
    """In Spark's SQL."""
    kind: types.Type | None
    """The type if a check uses the smallest or the largest value."""


class Checks:
    """The checks of a topic, bound to its table."""

    def __init__(self, checks: Sequence[PublishCheck], schema: str, former: FormerNames = MappingProxyType({})) -> None:
        """``schema``: that of the table in Iceberg's JSON. A check may use ``former`` names of columns, too.

        Raises InvalidSpecError if a check does not fit the table.
        """
        fields = _named(json.loads(schema)["fields"], former)
        columns = [
            Column(name=field["name"], type=types.of_json(field["type"])) for field in fields if _is_known(field)
        ]
        self._checks = [_bound(check, columns) for check in checks]
        self._aggregates = {str(each): each for check in self._checks for each in check.bound.aggregates}
        named = [each.column for each in self._aggregates.values() if each.column is not None]
        paths = {str(name): _fields(fields, name.path) for name in named}
        found = {name: path[-1] for name, path in paths.items()}
        self._ids = {name: int(field["id"]) for name, field in found.items()}
        self._paths = {name: [each["present"] for each in path] for name, path in paths.items()}
        # PyIceberg does not know all types of format version 3. Bounds are needed of other types only.
        leaves = {
            self._ids[name]: {
                "id": self._ids[name],
                "name": f"f{self._ids[name]}",
                "required": False,
                "type": field["type"],
            }
            for name, field in found.items()
            if isinstance(field["type"], str) and field["type"] not in types.NEW_IN_V3
        }
        table = Schema.model_validate({"type": "struct", "schema-id": 0, "fields": list(leaves.values())})
        self.fields: dict[int, IcebergType | None] = dict.fromkeys(self._ids.values())
        self.fields |= {id: table.find_type(id) for id in leaves}
        self.key = tuple(sorted((name, id, str(self.fields[id])) for name, id in self._ids.items()))
        """Identifies the columns and their types: figures that were read for other ones do not answer the checks."""

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

    def read(self, spark: Any, table: Any, after: int | None, until: int) -> Figures:
        """Return the figures of the rows that the snapshots after ``after`` up to ``until`` append, from the rows.

        Raises `JAVA_ERRORS`.
        """
        scan = table.newIncrementalAppendScan().toSnapshot(until)
        if after is not None:
            scan = scan.fromSnapshotExclusive(after)
        planned = scan.planFiles()
        try:
            tasks = spark._jvm.org.apache.iceberg.relocated.com.google.common.collect.Lists.newArrayList(planned)
            with staged(spark, table, tasks) as frame:
                row = frame.selectExpr(*self.sql()).collect()[0]
        finally:
            planned.close()
        rows, *values = row
        found, rest = {}, iter(values)
        for id, column in self._columns().items():
            nulls = rows - next(rest)
            low, high = (next(rest), next(rest)) if column.kind is not None else (None, None)
            found[id] = ColumnFigures(nulls, low, high, column.kind is not None)
        return Figures(rows, found)

    def sql(self) -> list[str]:
        """Return the figures in Spark's SQL, with the present names of columns: the number of rows, and for each column the number of
        values, the smallest and the largest one if a check uses them."""
        found = ["count(*)"]
        for column in self._columns().values():
            found.append(f"count({column.path})")
            if column.kind is not None:
                value = _comparable(column.path, column.kind)
                found += [f"min({value})", f"max({value})"]
        return [f"{text} AS a{number}" for number, text in enumerate(found)]

    def _columns(self) -> dict[int, "_Read"]:
        """Return the columns that the checks need, by field id."""
        kinds = {text: kind for check in self._checks for text, kind in check.bound.types.items()}
        found: dict[int, _Read] = {}
        for text, aggregate in self._aggregates.items():
            if aggregate.column is None:
                continue
            name = str(aggregate.column)
            path = ".".join(f"`{part.replace('`', '``')}`" for part in self._paths[name])
            bounded = aggregate.function in ("min", "max")
            before = found.get(self._ids[name])
            found[self._ids[name]] = _Read(path, kinds[text] if bounded else before.kind if before else None)
        return found

    def judge(self, values: Values) -> tuple[CheckResult, ...]:
        """Return the result of each check. A check that is null passes, as in SQL."""
        return tuple(_judged(check, values) for check in self._checks)


def _is_known(field: Mapping[str, Any]) -> bool:
    """Return whether the language of checks knows the type of a column in Iceberg's JSON."""
    try:
        types.parse(types.of_json(field["type"]))
    except InvalidSpecError:
        return False
    return True


def _named(fields: Sequence[Mapping[str, Any]], former: FormerNames) -> list[dict[str, Any]]:
    """Return fields in Iceberg's JSON with their ``present`` names, and again under each former name that no other field has."""
    taken = {field["name"] for field in fields}
    found: list[dict[str, Any]] = []
    for field in fields:
        kind = field["type"]
        if isinstance(kind, dict) and kind["type"] == "struct":
            kind = {**kind, "fields": _named(kind["fields"], former)}
        earlier = [name for name in former.get(int(field["id"]), ()) if name not in taken]
        taken.update(earlier)
        found += [{**field, "type": kind, "name": name, "present": field["name"]} for name in (field["name"], *earlier)]
    return found


def _fields(fields: Sequence[Mapping[str, Any]], path: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the column at ``path`` in Iceberg's JSON, or the columns of structs down to the member there."""
    found = next(field for field in fields if field["name"] == path[0])
    return [found] if len(path) == 1 else [found, *_fields(found["type"]["fields"], path[1:])]


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
    try:
        found = value.as_py()
    except (OverflowError, ValueError):
        return str(value.value)  # Python has no dates after the year 9999, and columns of times have
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


def _comparable(path: str, kind: types.Type) -> str:
    """Return a column in Spark's SQL as the metrics of files have its values: times as numbers, and no NaN."""
    match str(kind):
        case "date":
            return f"unix_date({path})"
        case "timestamptz":
            return f"unix_micros({path})"
        case "timestamp":
            return f"unix_micros(cast({path} AS timestamp))"
        case "float" | "double":
            return f"if(isnan({path}), null, {path})"
    return path
