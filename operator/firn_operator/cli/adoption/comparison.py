"""The columns of a connector's table against those that a topic derives from the schema of the values. No I/O.

The sink gives columns the types of Kafka Connect, which has fewer types than Avro, Protobuf and JSON Schema.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.schema import Schema

from firn import member_paths
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import RecordSchema, TableTarget
from firn.schemas import projections
from firn.tables import evolution, rows, types
from firn.tables.types import ListOf, MapOf, Struct, Type
from firn_operator.adapters.iceberg.evolution import layout, schema_fields, schema_steps

_OTHER_VALUES = frozenset({("string", "binary"), ("binary", "string"), ("timestamp", "long"), ("timestamptz", "long")})
"""Conversions, as (type in the schema, type in the table), that do not give the values of the sink. The sink converts between texts and
bytes by base64. A conversion of a time gives milliseconds, and the sink may have written another unit."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A field whose column in the table has another type or name. ``column`` takes its values."""

    field: str
    column: str
    problems: tuple[str, ...]
    """Each part of the column with its type in the table and in the schema. Empty if only the name differs."""
    kind: str = ""
    """The type of the column, if values can become it."""

    @property
    def is_new(self) -> bool:
        """Return whether the table gets the column."""
        return bool(self.problems) and not self.kind

    @property
    def entry(self) -> dict[str, str]:
        """Return the item of ``spec.schema.columns``."""
        return {
            "name": self.column,
            "from": member_paths.shown((self.field,)),
            **({"type": self.kind} if self.kind else {}),
        }


def conversions(table: Schema, found: RecordSchema, *, ignores_case: bool = False) -> tuple[Conversion, ...]:
    """Return the fields of a schema whose values the columns of the same names cannot hold as they are.

    With ``ignores_case``, also the fields whose columns have names that differ only in case.
    """
    present = _types(table)
    names = {name.lower(): name for name in present} if ignores_case else {}
    taken = {name.lower() for name in (*present, *(field.name for field in found.fields))}
    made = []
    for field in found.fields:
        column = field.name if field.name in present else names.get(field.name.lower(), field.name)
        kind, wanted = present.get(column), types.parse(field.type)
        if kind is None or evolution.merged(kind, wanted) is not None:
            if kind is not None and column != field.name:
                made.append(Conversion(field.name, column, ()))
            continue
        problems = tuple(_problems(column, kind, wanted))
        pair = (projections.word(wanted), projections.word(kind))
        if projections.can_convert(wanted, kind) and pair not in _OTHER_VALUES:
            made.append(Conversion(field.name, column, problems, str(kind)))
        else:
            number = next(n for n in range(2, len(taken) + 3) if f"{field.name}_v{n}".lower() not in taken)
            taken.add(f"{field.name}_v{number}".lower())
            made.append(Conversion(field.name, f"{field.name}_v{number}", problems))
    return tuple(made)


def changes(table: Schema, target: TableTarget, found: RecordSchema) -> tuple[str, ...]:
    """Return the changes of present columns. Raises InvalidSpecError that names the column if one is not allowed."""
    present = _types(table)
    wanted = layout(target, found)
    for column in wanted.columns:
        kind = present.get(column.name)
        if (
            column.name.startswith(rows.METADATA_COLUMN)
            and kind is not None
            and evolution.merged(kind, types.parse(column.type)) is None
        ):
            raise InvalidSpecError(
                f"table {target.identifier}: column {column.name} is {kind}, and ingestion writes {column.type} to a column of this name; rename"
                " the table's column first"
            )
    steps = (step.text for step in schema_steps(table, wanted, Reason.BAD_SCHEMA))
    return tuple(text for text in steps if not _adds(text, present))


def _adds(text: str, present: Mapping[str, Type]) -> bool:
    name, added, _ = text.removeprefix("column ").partition(" added: ")
    return bool(added) and "." not in name and name not in present


def _types(table: Schema) -> dict[str, Type]:
    return {field["name"]: types.of_table(types.of_json(field["type"])) for field in schema_fields(table)}


def _problems(path: str, present: Type, wanted: Type) -> Iterator[str]:
    match present, wanted:
        case Struct(before), Struct(after):
            members = dict(before)
            for name, kind in after:
                if name in members:
                    yield from _problems(f"{path}.{name}", members[name], kind)
        case ListOf(before), ListOf(after):
            yield from _problems(f"{path}.element", before, after)
        case MapOf(key, before), MapOf(other, after) if key == other:
            yield from _problems(f"{path}.value", before, after)
        case _ if evolution.merged(present, wanted) is None:
            yield f"{path} is {present} in the table and {wanted} in the schema"
