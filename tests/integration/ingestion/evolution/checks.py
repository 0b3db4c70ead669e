"""Checks that each value is in the column of its field, and nowhere else."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn_spark.worker.fetched import Numbers
from tests.integration.ingestion.evolution import values
from tests.integration.ingestion.evolution.shape import PLACES, Version

_OWN = ("id", "schema_id", "partition", "offset")
_STRUCTS = ("inner", "items", "by_name")
WIDEST = {"integer": pa.int64(), "real": pa.float64()}
Found = list[tuple[str, pa.Array]]
"""Columns by name. Several may have the same one."""


def columns_of(rows: pa.Table, fields: Mapping[str, str]) -> dict[str, Found]:
    """Return the columns of rows by place. ``fields`` has the fields of columns that have another type than the first column."""
    whole = rows.combine_chunks()
    found: dict[str, Found] = {place: [] for place in PLACES}
    for name in whole.column_names:
        field = fields.get(name, name)
        column = whole[name].combine_chunks() if whole[name].num_chunks else pa.array([], whole[name].type)
        if field in _STRUCTS:
            _open(_single(column), field, found)
        elif name not in _OWN:
            found[""].append((field, column))
    return found


def _open(column: pa.StructArray, place: str, found: dict[str, Found]) -> None:
    for member, inside in zip((each.name for each in column.type), column.flatten(), strict=True):
        if pa.types.is_struct(inside.type):
            _open(inside, f"{place}.{member}", found)
        else:
            found[place].append((member, inside))


def _single(column: pa.Array) -> pa.StructArray:
    """Return the only item of each list or map; null without one."""
    if pa.types.is_struct(column.type):
        return column
    lengths = np.diff(column.offsets.to_numpy())
    assert lengths.max(initial=0) <= 1
    items = column.items if pa.types.is_map(column.type) else column.values
    places = pa.array(
        column.offsets.to_numpy()[:-1], mask=(lengths == 0) | ~column.is_valid().to_numpy(zero_copy_only=False)
    )
    return items.take(places)


class Checks:
    """Checks rows of a table. ``columns`` has the column of each name, and ``fields`` is that of `columns_of`."""

    def __init__(self, versions: Sequence[Version], columns: Mapping[str, int], fields: Mapping[str, str]) -> None:
        self.versions, self._columns, self._fields = versions, columns, fields

    def check(self, rows: pa.Table, written: Numbers) -> None:
        """Check the values of all columns of rows. ``written`` has the place of the version by the number of the row."""
        numbers = rows["id"].to_numpy()
        places = written[numbers]
        expected = np.array([version.number for version in self.versions])[places]
        assert np.array_equal(rows["schema_id"].to_numpy(), expected), "ids of schemas"
        found = columns_of(rows, self._fields)
        for place in PLACES:
            groups: dict[int, Found] = {}
            for name, array in found[place]:
                groups.setdefault(self._columns[name], []).append((name, array))
            for at in np.unique(places).tolist():
                own = np.flatnonzero(places == at)
                names = {field.column: name for name, field in self.versions[at].shape[place].items()}
                for column, arrays in groups.items():
                    parts = [(name, array.take(pa.array(own))) for name, array in arrays]
                    self._check(at, place, names.get(column), parts, numbers[own])

    def _check(self, at: int, place: str, name: str | None, parts: Found, numbers: Numbers) -> None:
        version = self.versions[at]
        family, content, nulls = "", np.empty(0), np.ones(len(numbers), bool)
        if name is not None:
            family = values.FAMILIES[version.kinds[version.shape[place][name].kind]]
            content, nulls = version.values(place, name, numbers)
        fit = [array for _, array in parts if family == values.family(array.type)]
        for _, array in parts:
            if not any(array is each for each in fit):
                assert array.null_count == len(array), self._shown(at, place, parts, numbers)
        if not fit:
            assert nulls.all(), self._shown(at, place, parts, numbers)
            return
        assert sum(len(array) - array.null_count for array in fit) == (~nulls).sum(), self._shown(
            at, place, parts, numbers
        )
        one = pc.call_function("coalesce", [array.cast(WIDEST.get(family, array.type)) for array in fit])
        wanted = values.array(content, nulls, one.type)
        if not one.equals(wanted):
            wrong = [row for row in range(len(one)) if one[row].as_py() != wanted[row].as_py()][:3]
            shown = ", ".join(f"row {numbers[row]} has {one[row]}, not {wanted[row]}" for row in wrong)
            raise AssertionError(f"{shown}: {self._shown(at, place, parts, numbers)}")

    def _shown(self, at: int, place: str, parts: Found, numbers: Numbers) -> str:
        columns = ", ".join(
            f"{name}: {array.type} with {len(array) - array.null_count} values" for name, array in parts
        )
        version = self.versions[at]
        return f"version {at} (schema {version.number}), place {place!r}, columns {columns}, rows {numbers[:5]}: {version.shape[place]}"

    def check_columns(self, rows: pa.Table, landed: Sequence[int], *, single: bool) -> None:
        """Check that a table has a column for each field of these versions, whatever names the field had.

        ``single``: there is only one such column.
        """
        for place, found in columns_of(rows, self._fields).items():
            columns = sorted(self._columns[name] for name, _ in found)
            wanted = {one.column for at in landed for one in self.versions[at].shape[place].values()}
            assert (columns if single else sorted(set(columns))) == sorted(wanted), place
            if not single and not place:
                families = [(self._columns[name], values.family(array.type)) for name, array in found]
                assert len(families) == len(set(families)), [(name, array.type) for name, array in found]
