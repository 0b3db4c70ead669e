"""Columns that are computed from records: where each value comes from, and which type it has.

`resolved` finds the types as soon as the fields of the record are known, and refuses columns that no record can fill. The
workers compute the values (`firn_spark.worker.projections`).
"""

import difflib
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import cast

from firn import member_paths
from firn.member_paths import Path
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, ProjectedColumn, Projection, RecordSchema
from firn.tables import renames, rows, types
from firn.tables.types import Primitive, Struct, Type

PLACE = "spec.schema.columns"
HEADER = "header:"
BYTES = frozenset({"key", "value"})
"""Sources that are bytes of the Kafka record, as headers are."""
FORMS = {
    "boolean": r"true|false",
    "int": r"-?[0-9]+",
    "long": r"-?[0-9]+",
    "float": r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?",
    "double": r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?",
    "decimal": r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?",
    "date": r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "time": r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?",
    "timestamp": r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?",
    "timestamptz": r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)",
    "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
}
"""Form of a text that becomes a value of the type, as a regular expression of Python and of RE2."""
FINER = r"\.[0-9]{6}0*[1-9]"
"""Digits of a time below the microsecond that are not all zeros."""
FAR_ZONE = "[+-](?:(?:19|[2-9][0-9])(?::?[0-9]{2})?|18:?(?:0[1-9]|[1-9][0-9])|[0-9]{2}:?[6-9][0-9])"
"""Zone at the end of a text that does not exist: it is more than 18 hours from UTC, or has more than 59 minutes."""
_TEXTS = frozenset({"string", "binary", *FORMS})
_INTEGERS = frozenset({"int", "long", "float", "double", "decimal", "string", "timestamp", "timestamptz"})
_TIMES = ("timestamp", "timestamptz")
_CASTS: dict[str, frozenset[str]] = {
    "string": _TEXTS,
    "binary": _TEXTS,
    "boolean": frozenset({"string"}),
    "int": _INTEGERS | {"date"},
    "long": _INTEGERS,
    "float": frozenset({"double", "int", "long"}),
    "double": frozenset({"int", "long"}),
    "decimal": frozenset({"decimal", "double", "int", "long", "string"}),
    "date": frozenset({"string"}),
    "timestamp": frozenset({"date", "long"}),
    "timestamptz": frozenset({"date", "long"}),
    "uuid": frozenset({"string"}),
    "fixed": frozenset({"binary"}),
}
"""Types that values of a type can become. A value becomes the same value, the nearest double or the day of a time; or its record
is bad."""
_CONSTANTS = (
    "string", "boolean", "int", "long", "double", "decimal", "date", "time", "timestamp", "timestamptz",
)  # fmt: skip
_READ: dict[str, Callable[[str], object]] = {
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamptz": datetime.fromisoformat,
}
_TAKES = {"Mask": ("string",), "Sha256": ("string", "binary", "int", "long")}
"""Types that a function takes. Its result is a string."""
_MOST_NAMES = 20


def resolved(schema: RecordSchema) -> RecordSchema:
    """Return the schema with the types of its projected columns, if its fields are known.

    Raises InvalidSpecError (BadSchema) that names the column.
    """
    projection = schema.projection
    if projection is None or (schema.has_found_columns and not schema.fields):
        return schema
    _check_names(projection)
    columns = tuple(
        column.model_copy(update={"type": str(_column_type(column, schema))}) for column in projection.columns
    )
    whole = schema.model_copy(update={"projection": projection.model_copy(update={"columns": columns})})
    _check_others(whole)
    return whole


def quoted_name(field: Column) -> str:
    """Return why a field cannot become a column if the cause is its name, or that of a member. Empty: the names can be those of columns."""
    if not member_paths.NAME.fullmatch(field.name):
        return (
            f"field {field.name} cannot become a column, because a column has letters, digits and _, and does not begin with a digit; read"
            f" it with an entry of {PLACE} that has from: {member_paths.shown((field.name,))}"
        )
    if name := types.quoted_member(types.parse(field.type)):
        return (
            f"field {field.name} cannot become a column, because its member {name} has a name that no column can have; read its members with"
            f" entries of {PLACE}"
        )
    return ""


def lacks(schema: RecordSchema) -> bool:
    """Return whether the projection reads a field that the schema does not have."""
    return not reads(schema) <= {field.name for field in schema.fields}


def applied(schema: RecordSchema, projection: Projection | None) -> RecordSchema:
    """Return the schema with the columns of a spec in place of those that it has. Raises as `resolved`."""
    if schema.projection is None and projection is None:
        return schema
    return resolved(schema.model_copy(update={"projection": projection}))


def reads(schema: RecordSchema) -> frozenset[str]:
    """Return the fields of the record that the projection reads."""
    columns = schema.projection.columns if schema.projection is not None else ()
    paths = (source_path(column, schema) for column in columns if column.path)
    return frozenset(path[0] for path in paths)


def source_path(column: ProjectedColumn, schema: RecordSchema) -> Path:
    """Return the field that a column reads, and the members of structs on the way to the value.

    A schema of producers may have renamed a field, so a source may have the earlier name.
    """
    present = renames.has_path(schema.fields, column.path)
    return column.path if present else renames.moved(column.path, schema.renames)


def word(kind: Type) -> str:
    """Return the name of a type without its arguments, such as decimal."""
    return re.split(r"\W", str(kind), maxsplit=1)[0]


def can_convert(kind: Type, wanted: Type) -> bool:
    """Return whether ``type`` of a column that reads values of ``kind`` can be ``wanted``."""
    return word(wanted) in _CASTS.get(word(kind), ()) and "<" not in str(wanted)


def source_type(column: ProjectedColumn, schema: RecordSchema) -> Type:
    """Return the type of what a column reads. Raises InvalidSpecError (BadSchema) if records do not have it."""
    if column.constant is not None:
        return Primitive("string")
    if column.source in BYTES or column.source.startswith(HEADER):
        return Primitive("binary")
    path = source_path(column, schema)
    members = {field.name: types.parse(field.type) for field in schema.fields}
    kind: Type | None = None
    for depth, name in enumerate(path):
        before = member_paths.shown(path[:depth])
        if kind is not None:
            if not isinstance(kind, Struct):
                raise _bad(column, f"{before} has the type {kind}; only members of a struct can become columns")
            members = dict(kind.fields)
        if name not in members:
            raise _bad(column, f"{before} has no field {_label(name)}; {_choice(name, list(members))}")
        kind = members[name]
    assert kind is not None
    return kind


def is_bytes(column: ProjectedColumn) -> bool:
    """Return whether a column reads bytes of Kafka that are text, unless the column is binary."""
    return column.source in BYTES or column.source.startswith(HEADER)


def _column_type(column: ProjectedColumn, schema: RecordSchema) -> Type:
    kind = _type(column, schema)
    if name := types.quoted_member(kind):
        raise _bad(
            column,
            f"{column.source} has the member {_label(name)}, and no column can have this name; list columns that read the members of"
            f" {column.source}",
        )
    return kind


def _type(column: ProjectedColumn, schema: RecordSchema) -> Type:
    kind = source_type(column, schema)
    wanted = _parsed(column) if column.cast else None
    if column.constant is not None:
        wanted = wanted or kind
        _check_constant(column, wanted)
        return wanted
    if column.epoch is not None and not _has_epoch(word(kind), word(wanted or kind)):
        raise _bad(
            column,
            "epoch is for integers that become timestamp or timestamptz, and for these times if they become long; remove epoch",
        )
    if column.function is not None:
        return _result(column, kind, wanted)
    if wanted is None and is_bytes(column):
        wanted = Primitive("string")
    if wanted is None or wanted == kind:
        return kind
    if not can_convert(kind, wanted):
        can = ", ".join(sorted(_CASTS.get(word(kind), ())))
        step = f"choose one of {can}, or remove type" if can else "remove type"
        raise _bad(column, f"{column.source} has the type {kind}, which cannot become {wanted}; {step}")
    return wanted


def _has_epoch(before: str, after: str) -> bool:
    """Return whether a conversion needs the unit in which an integer counts from 1970."""
    return (before in ("int", "long") and after in _TIMES) or (before in _TIMES and after == "long")


def _result(column: ProjectedColumn, kind: Type, wanted: Type | None) -> Type:
    assert column.function is not None
    takes = _TAKES[column.function]
    if word(kind) not in takes and not is_bytes(column):
        raise _bad(
            column,
            f"{column.function} takes {' or '.join(takes)}, and {column.source} has the type {kind}; remove with, or read another field",
        )
    if wanted not in (None, Primitive("string")):
        raise _bad(column, f"{column.function} gives string, and the type is {wanted}; remove type")
    return Primitive("string")


def _parsed(column: ProjectedColumn) -> Type:
    try:
        return types.parse(column.cast)
    except InvalidSpecError as error:
        raise _bad(column, str(error)) from error


def _check_constant(column: ProjectedColumn, kind: Type) -> None:
    """Check that the text of a constant is a value of its type."""
    text, name = column.constant or "", word(kind)
    if name not in _CONSTANTS:
        raise _bad(column, f"a constant cannot have the type {kind}; choose one of {', '.join(_CONSTANTS)}")
    fits = name == "string" or re.fullmatch(FORMS[name], text) is not None
    if fits and name in ("int", "long"):
        highest = 2 ** (31 if name == "int" else 63)
        fits = len(text) <= 20 and -highest <= int(text) < highest
    elif fits and name == "double":
        fits = abs(float(text)) != float("inf")
    elif fits and name in _READ:
        fits = _is_time(name, text)
    elif isinstance(kind, types.Decimal) and fits:
        fits = exact_decimal(text, kind) is not None
    if not fits:
        raise _bad(
            column, f"the constant {text[:50]!r} is not a value of the type {kind}; correct it, or set type: string"
        )


def _is_time(name: str, text: str) -> bool:
    """Return whether a text with the form of a date or time exists, and has a year from 1 to 9999 in UTC and no more than microseconds."""
    try:
        moment = _READ[name](text.upper())
        if name == "timestamptz":
            cast(datetime, moment).astimezone(UTC)
    except (ValueError, OverflowError):
        return False
    far = name == "timestamptz" and re.search(f"(?:{FAR_ZONE})$", text) is not None
    return not far and re.search(FINER, text) is None


def exact_decimal(text: str, kind: types.Decimal) -> Decimal | None:
    """Return the value of a text that has the form of decimals; None if the type does not have this value.

    Arithmetic of `Decimal` would round to the precision of its context.
    """
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    kept = "".join(map(str, digits)).rstrip("0")
    exponent += len(digits) - len(kept)
    if not kept:
        return Decimal(0)
    if exponent < -kind.scale or len(kept) + exponent + kind.scale > kind.precision:
        return None
    return Decimal((sign, tuple(map(int, kept)), exponent))


def _check_names(projection: Projection) -> None:
    seen: dict[str, str] = {}
    for column in projection.columns:
        first = seen.setdefault(column.name.lower(), column.name)
        if first != column.name:
            raise _bad(
                column, f"differs only in case from column {first}, and query engines ignore case; rename one of them"
            )
        if column.name.startswith("_kafka"):
            raise _bad(column, "names that start with _kafka are reserved for Kafka's columns; rename the column")
    if len(seen) < len(projection.columns):
        names = [column.name for column in projection.columns]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidSpecError(
            f"{PLACE}: two columns have the name {twice}; rename one of them", reason=Reason.BAD_SCHEMA
        )


def _check_others(schema: RecordSchema) -> None:
    """Check the fields that become columns beside those of the projection."""
    assert schema.projection is not None
    others = rows.other_columns(schema)
    folded = {field.name.lower(): field.name for field in others}
    for field in others:
        if problem := quoted_name(field):
            raise InvalidSpecError(f"{PLACE}: with otherFields: Keep, {problem}", reason=Reason.BAD_SCHEMA)
    for column in schema.projection.columns:
        other = folded.get(column.name.lower())
        if other is not None:
            raise _bad(
                column,
                f"field {other} becomes a column with this name, because otherFields is Keep; rename this column",
            )
    count = len(others) + len(schema.projection.columns)
    if count > types.MOST_COLUMNS:
        raise InvalidSpecError(
            f"{PLACE}: the table would have {count} columns with otherFields: Keep, more than {types.MOST_COLUMNS}; set otherFields: Drop",
            reason=Reason.BAD_SCHEMA,
        )


def _choice(name: str, names: list[str]) -> str:
    similar = difflib.get_close_matches(name, names, n=1)
    if similar:
        return f"did you mean {_label(similar[0])}?"
    if not names:
        return "the record has no fields; read key, value or header:NAME"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"choose one of {', '.join(map(_label, names[:_MOST_NAMES]))}{more}"


def _label(name: str) -> str:
    """Return a name as a source has it behind the path before."""
    return member_paths.step(name).removeprefix(".")


def _bad(column: ProjectedColumn, problem: str) -> InvalidSpecError:
    return InvalidSpecError(f"{PLACE}: {column.name}: {problem}", reason=Reason.BAD_SCHEMA)
