"""Checks columns that a spec names: the column exists, and its type suits the transform."""

import difflib

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column
from firn.tables import types
from firn.tables.transforms import PartitionTerm
from firn.tables.types import NANOSECONDS, VARIANT, Decimal, Fixed, ListOf, MapOf, Primitive, Struct, Type

_BUCKETS = frozenset({"int", "long", "date", "time", "timestamp", "timestamptz", "string", "uuid", "binary"})
"""Primitive types of bucket, beside decimal and fixed."""
_MOMENTS = frozenset({"timestamp", "timestamptz", *NANOSECONDS})
_TRUNCATES = frozenset({"int", "long", "string", "binary"})
"""Primitive types of truncate, beside decimal."""
_TAKES = {
    "identity": "a primitive type",
    "void": "a primitive type",
    "bucket": "int, long, decimal, date, time, timestamp, timestamptz, string, uuid, fixed or binary",
    "truncate": "int, long, decimal, string or binary",
    "year": "date or a timestamp",
    "month": "date or a timestamp",
    "day": "date or a timestamp",
    "hour": "a timestamp",
}


def column_type(path: str, columns: tuple[Column, ...]) -> Type:
    """Return the type of a column or of a member of a struct column. Raises InvalidSpecError (UnknownColumn)."""
    first, *rest = path.split(".")
    column = next((column for column in columns if column.name == first), None)
    if column is None:
        choice = [column.name for column in columns]
        message = f"{path!r} is not a column of the table; choose one of {', '.join(choice)}"
        if similar := difflib.get_close_matches(first, choice, n=1):
            message += f"; did you mean {similar[0]}?"
        raise InvalidSpecError(message, reason=Reason.UNKNOWN_COLUMN)
    kind = types.parse(column.type)
    for member in rest:
        if not isinstance(kind, Struct) or member not in dict(kind.fields):
            raise InvalidSpecError(
                f"{path!r} is not a member of column {first}, whose type is {column.type}", reason=Reason.UNKNOWN_COLUMN
            )
        kind = dict(kind.fields)[member]
    return kind


def is_float(path: str, columns: tuple[Column, ...]) -> bool:
    """Return whether the values of a column are floats or doubles. Raises InvalidSpecError (UnknownColumn)."""
    return column_type(path, columns) in (Primitive("float"), Primitive("double"))


def check_term(term: PartitionTerm, columns: tuple[Column, ...]) -> None:
    """Check a term by the Iceberg specification, "Partition Transforms".

    Raises InvalidSpecError: UnknownColumn, or BadTransform if the transform does not take the column's type.
    """
    kind = column_type(term.column, columns)
    nested = isinstance(kind, Struct | ListOf | MapOf)
    name = kind.name if isinstance(kind, Primitive) else ""
    match term.transform:
        case "identity" | "void":
            fits = not nested and name != VARIANT
        case "bucket":
            fits = name in _BUCKETS or isinstance(kind, Decimal | Fixed)
        case "truncate":
            fits = name in _TRUNCATES or isinstance(kind, Decimal)
        case "year" | "month" | "day":
            fits = name == "date" or name in _MOMENTS
        case "hour":
            fits = name in _MOMENTS
    if not fits:
        message = f"{term}: {term.transform} takes {_TAKES[term.transform]}, and {term.column} is {kind}"
        raise InvalidSpecError(message, reason=Reason.BAD_TRANSFORM)
