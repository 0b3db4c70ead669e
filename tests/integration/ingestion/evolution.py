"""A schema that changes at random, and the values of its columns, which depend on the number of the row and on the column only.

So a test needs no list of the values that it wrote, and compares millions of rows column by column.
"""

import io
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from firn_spark.worker.fetched import Numbers

WIDER = {"int": "long", "float": "double"}
TEXTS = np.array(["", "größe", "größe" * 2, "größe" * 3], object)


def generated(numbers: Numbers, column: int, kind: str) -> tuple[Numbers, Numbers]:
    """Return the values of a column in the rows with these numbers, and which of them are null instead: a fifth."""
    mixed = (numbers.astype(np.uint64) + np.uint64(column << 40)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    nulls, part = mixed % np.uint64(5) == 0, (mixed >> np.uint64(8)).astype(np.int64)
    return _content(part, kind), nulls


def _content(part: Numbers, kind: str) -> Numbers:
    found: Numbers
    match kind:
        case "int":
            found = part % 2**32 - 2**31
        case "long":
            found = (part - 2**55) * 100
        case "float":
            found = (part % 2001 - 1000) / 4  # exact in four bytes
        case "double":
            found = part / 2**56
        case "boolean":
            found = part % 2 == 1
        case _:
            found = TEXTS[part % len(TEXTS)]
    return found


def listed(numbers: Numbers, column: int, kind: str) -> list[Any]:
    """Return the values of a column as a list."""
    found, nulls = generated(numbers, column, kind)
    items = found.astype(object)
    items[nulls] = None
    made: list[Any] = items.tolist()
    return made


@dataclass(frozen=True)
class Version:
    """A version of the schema: its id in the registry, as fastavro takes it, and the kinds of its fields."""

    number: int
    parsed: Any
    fields: Mapping[str, str]
    inner: Mapping[str, str]


class Evolution:
    """A schema that changes step by step. Each version has the fields of a record and of a record in it."""

    def __init__(self, pick: random.Random) -> None:
        self._pick = pick
        self._made = 0
        self.columns: dict[str, int] = {}
        """The column of each name, also of earlier names."""
        self.fields: dict[str, str] = {}
        self.inner: dict[str, str] = {}
        for fields in (self.fields, self.inner):
            self._add(fields)

    def step(self) -> None:
        """Add, drop, widen or rename a field, or change the order of the fields."""
        fields = self._pick.choice((self.fields, self.inner))
        change = self._pick.choice(("add", "add", "drop", "widen", "order", "rename"))
        if change == "add" or len(fields) < 2:
            self._add(fields)
        elif change == "drop":
            del fields[self._pick.choice(sorted(fields))]
        elif change == "widen":
            for name in [name for name, kind in fields.items() if kind in WIDER][:1]:
                fields[name] = WIDER[fields[name]]
        elif change == "rename":
            name, later = self._pick.choice(sorted(fields)), self._name()
            self.columns[later] = self.columns[name]
            self._order(fields, {later if each == name else each: kind for each, kind in fields.items()})
        else:
            names = list(fields)
            self._pick.shuffle(names)
            self._order(fields, {name: fields[name] for name in names})

    @staticmethod
    def _order(fields: dict[str, str], ordered: dict[str, str]) -> None:
        fields.clear()
        fields.update(ordered)

    def _name(self) -> str:
        self._made += 1
        return f"f{self._made}"

    def _add(self, fields: dict[str, str]) -> None:
        name = self._name()
        self.columns[name] = self._made
        fields[name] = self._pick.choice(("int", "long", "float", "double", "string", "boolean"))

    def schema(self) -> dict[str, Any]:
        """Return the present version."""

        def declared(fields: dict[str, str]) -> list[Any]:
            return [{"name": name, "type": ["null", kind], "aliases": earlier(name)} for name, kind in fields.items()]

        def earlier(name: str) -> list[str]:
            return [each for each, column in self.columns.items() if column == self.columns[name] and each != name]

        inner = {"type": "record", "name": "Inner", "fields": declared(self.inner)}
        fields = [{"name": "id", "type": "long"}, *declared(self.fields), {"name": "inner", "type": inner}]
        return {"type": "record", "name": "Outer", "fields": fields}

    def version(self, number: int) -> Version:
        """Return the present version, whose id in the registry is ``number``."""
        return Version(number, fastavro.parse_schema(self.schema()), dict(self.fields), dict(self.inner))

    def records(self, version: Version, numbers: Numbers) -> Iterator[tuple[int, bytes]]:
        """Yield the numbers of rows with their records in a version."""
        fields, inner = (
            {name: listed(numbers, self.columns[name], kind) for name, kind in each.items()}
            for each in (version.fields, version.inner)
        )
        for at, number in enumerate(numbers.tolist()):
            content = {name: found[at] for name, found in fields.items()}
            inside = {name: found[at] for name, found in inner.items()}
            yield number, framed(version.number, version.parsed, {"id": number, **content, "inner": inside})

    def check(self, rows: pa.Table, versions: Sequence[Version], written_with: Numbers) -> None:
        """Check the values of all columns of rows. ``written_with`` has the place in ``versions`` by the number of the row."""
        numbers = rows["id"].to_numpy()
        places = written_with[numbers]
        expected = np.array([version.number for version in versions])[places]
        assert np.array_equal(rows["schema_id"].to_numpy(), expected), "ids of schemas"
        outer, inner = arrays_of(rows)
        for arrays, fields in (
            (outer, [version.fields for version in versions]),
            (inner, [version.inner for version in versions]),
        ):
            kinds = [{self.columns[name]: kind for name, kind in each.items()} for each in fields]
            for name, found in arrays.items():
                self._check(
                    name, found, numbers, np.array([each.get(self.columns[name], "") for each in kinds])[places]
                )

    def _check(self, name: str, found: pa.Array, numbers: Numbers, kinds: Numbers) -> None:
        for kind in np.unique(kinds).tolist():
            places = np.flatnonzero(kinds == kind)
            part = found.take(pa.array(places))
            wanted = pa.nulls(len(places), part.type)
            if kind:
                content, nulls = generated(numbers[places], self.columns[name], kind)
                wanted = pa.array(content, part.type, mask=nulls)
            if not part.equals(wanted):
                wrong = [at for at in range(len(part)) if part[at].as_py() != wanted[at].as_py()][:3]
                raise AssertionError(
                    f"column {name} of kind {kind or 'none'}: "
                    + ", ".join(f"row {numbers[places[at]]} has {part[at]}, not {wanted[at]}" for at in wrong)
                )

    def check_columns(self, rows: pa.Table, versions: Sequence[Version]) -> None:
        """Check that a table has one column for each field of these versions, whatever names the field had."""
        outer, inner = arrays_of(rows)
        for arrays, fields in (
            (outer, [version.fields for version in versions]),
            (inner, [version.inner for version in versions]),
        ):
            assert sorted(self.columns[name] for name in arrays) == sorted(
                {self.columns[name] for each in fields for name in each}
            )


def arrays_of(rows: pa.Table) -> tuple[dict[str, pa.Array], dict[str, pa.Array]]:
    """Return the columns of a table of rows, and those in its struct."""
    whole = rows.combine_chunks()
    inner = whole["inner"].combine_chunks()
    own = ("id", "inner", "schema_id", "partition", "offset")
    outer = {name: whole[name].combine_chunks() for name in whole.column_names if name not in own}
    return outer, dict(zip((field.name for field in inner.type), inner.flatten(), strict=True))


def framed(schema_id: int, schema: Any, content: dict[str, Any]) -> bytes:
    """Return a value with the id of its schema in front."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, content)
    return b"\0" + schema_id.to_bytes(4) + buffer.getvalue()
