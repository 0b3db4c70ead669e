"""Whether a table's columns bear what is wanted of them: names, types, transforms."""

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column
from firn.tables import types
from firn.tables.transforms import PartitionTerm
from firn.tables.types import Decimal, Fixed, ListOf, MapOf, Primitive, Struct, Type

_BUCKETS = frozenset(
    {"int", "long", "date", "time", "timestamp", "timestamptz", "string", "uuid", "binary"}
)  # and decimal, fixed
_TRUNCATES = frozenset({"int", "long", "string", "binary"})  # and decimal


def column_type(path: str, columns: tuple[Column, ...]) -> Type:
    """The type of a column or of a member of a struct column. Raises InvalidSpecError (UnknownColumn)."""
    first, *rest = path.split(".")
    found = next((column for column in columns if column.name == first), None)
    if found is None:
        known = ", ".join(column.name for column in columns)
        raise InvalidSpecError(f"{path!r} is no column of the table, which has {known}", reason=Reason.UNKNOWN_COLUMN)
    kind = types.parse(found.type)
    for member in rest:
        if not isinstance(kind, Struct) or member not in dict(kind.fields):
            raise InvalidSpecError(
                f"{path!r} is no member of column {first} ({found.type})", reason=Reason.UNKNOWN_COLUMN
            )
        kind = dict(kind.fields)[member]
    return kind


def check_term(term: PartitionTerm, columns: tuple[Column, ...]) -> None:
    """Raises InvalidSpecError where the column is unknown, or the transform is not defined for its type
    (Iceberg spec, "Partition Transforms")."""
    kind = column_type(term.column, columns)
    nested = isinstance(kind, Struct | ListOf | MapOf)
    name = kind.name if isinstance(kind, Primitive) else ""
    match term.transform:
        case "identity" | "void":
            fits = not nested
        case "bucket":
            fits = name in _BUCKETS or isinstance(kind, Decimal | Fixed)
        case "truncate":
            fits = name in _TRUNCATES or isinstance(kind, Decimal)
        case "year" | "month" | "day":
            fits = name in ("date", "timestamp", "timestamptz")
        case "hour":
            fits = name in ("timestamp", "timestamptz")
    if not fits:
        raise InvalidSpecError(f"{term}: {term.transform} is not defined for {kind}", reason=Reason.BAD_TRANSFORM)
