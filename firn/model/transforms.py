"""Partition and sort terms as users write them: ``month(time_hour)``, ``bucket(8, carrier)``, ``time_hour desc nulls last``
(Iceberg spec, "Partition Transforms" and "Sort Orders")."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from firn.model import types
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column

Transform = Literal["identity", "bucket", "truncate", "year", "month", "day", "hour", "void"]
_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_CALL = re.compile(rf"([a-z]+)\s*\(\s*(?:([0-9]+)\s*,\s*)?({_NAME})\s*(?:,\s*([0-9]+)\s*)?\)")
_COLUMN = re.compile(_NAME)
_SORT = re.compile(r"(.+?)(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?", re.IGNORECASE)
_PLURAL = {"years": "year", "months": "month", "days": "day", "hours": "hour"}
WITH_ARGUMENT = frozenset({"bucket", "truncate"})
_OF_TIME = frozenset({"year", "month", "day", "hour"})
_DAYS = frozenset({"date", "timestamp", "timestamptz"})
_APPLIES: dict[str, frozenset[str]] = {
    "bucket": _DAYS | {"int", "long", "decimal", "time", "string", "uuid", "fixed", "binary"},
    "truncate": frozenset({"int", "long", "decimal", "string", "binary"}),
    "year": _DAYS,
    "month": _DAYS,
    "day": _DAYS,
    "hour": _DAYS - {"date"},
}
"""Types that a transform takes (Iceberg spec, "Partition Transforms"); identity and void take every single value."""


@dataclass(frozen=True, slots=True)
class PartitionTerm:
    """A transform of a column; ``argument`` is the number of buckets or the width, else None."""

    transform: Transform
    column: str
    argument: int | None = None

    @property
    def field_name(self) -> str:
        """The partition field's name, as Spark and Iceberg's Java API derive it."""
        base = self.column
        match self.transform:
            case "identity":
                return base
            case "bucket" | "truncate":
                return f"{base}_{'bucket' if self.transform == 'bucket' else 'trunc'}"
            case "void":
                return f"{base}_null"
            case other:
                return f"{base}_{other}"

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        return f"{self.transform}({f'{self.argument}, ' if self.argument is not None else ''}{self.column})"


@dataclass(frozen=True, slots=True)
class SortTerm:
    """A column or transform to sort by."""

    term: PartitionTerm
    descending: bool
    nulls_first: bool


def parse(text: str) -> PartitionTerm:
    """The partition term in ``text``. Raises InvalidSpecError (BadTransform)."""
    words = text.strip()
    if _COLUMN.fullmatch(words):
        return PartitionTerm("identity", words)
    call = _CALL.fullmatch(words)
    if call is None:
        raise _error(text, "write a column, or a transform such as month(column) or bucket(8, column)")
    name = _PLURAL.get(call[1], call[1])
    if call[2] and call[4]:
        raise _error(text, "one number is enough")
    number = call[2] or call[4]
    if name not in ("identity", "bucket", "truncate", "year", "month", "day", "hour", "void"):
        raise _error(text, f"{name!r} is not one of identity, bucket, truncate, year, month, day, hour, void")
    if (name in WITH_ARGUMENT) != (number is not None):
        raise _error(text, f"{name} {'needs a number' if number is None else 'takes no number'}")
    if number is not None and not (len(number) <= 10 and 1 <= int(number) <= 2**31 - 1):
        raise _error(text, "the number has to be at least 1 and fit 32 bits")
    return PartitionTerm(name, call[3], int(number) if number else None)  # type: ignore[arg-type]


def parse_sort(text: str) -> SortTerm:
    """The sort term in ``text``; ascending puts nulls first unless said, descending last. Raises InvalidSpecError (BadTransform)."""
    match = _SORT.fullmatch(text.strip())
    if match is None:
        raise _error(text, "write a column, then asc or desc, then nulls first or nulls last")
    descending = (match[2] or "asc").lower() == "desc"
    nulls = (match[3] or ("last" if descending else "first")).lower()
    return SortTerm(parse(match[1]), descending, nulls == "first")


def check(partition_by: Sequence[str], sort_by: Sequence[str], columns: Sequence[Column]) -> None:
    """Whether a table with these columns can be partitioned and sorted so. Raises InvalidSpecError (BadTransform, UnknownColumn)."""
    said: dict[tuple[str, str], PartitionTerm] = {}
    for text in partition_by:
        term = parse(text)
        _applied(term, columns)
        key = (term.column, "time" if term.transform in _OF_TIME else f"{term.transform}{term.argument}")
        if key in said:
            raise _error(text, f"says the same of {term.column} as {str(said[key])!r}; keep one of them")
        said[key] = term
    for text in sort_by:
        _applied(parse_sort(text).term, columns)


def _applied(term: PartitionTerm, columns: Sequence[Column]) -> None:
    """Find the term's column, a dotted path through structs, and see that the transform takes its type."""
    first, *members = term.column.split(".")
    known = {column.name: types.parse(column.type) for column in columns}
    if first not in known:
        raise _unknown(term, f"there is no column {first!r}; columns are {', '.join(known)}")
    kind = known[first]
    for member in members:
        if not isinstance(kind, types.Struct):
            raise _error(str(term), f"there is nothing to name inside a {kind}; members of structs only")
        inside = dict(kind.fields)
        if member not in inside:
            raise _unknown(term, f"there is no member {member!r}; members are {', '.join(inside)}")
        kind = inside[member]
    match kind:
        case types.Primitive(name):
            family = name
        case types.Decimal():
            family = "decimal"
        case types.Fixed():
            family = "fixed"
        case _:
            raise _error(str(term), f"{term.column} is a {kind}; only single values can be used")
    if family not in _APPLIES.get(term.transform, {family}):
        raise _error(str(term), f"{term.transform} does not apply to {term.column}, a {kind}")


def _unknown(term: PartitionTerm, problem: str) -> InvalidSpecError:
    return InvalidSpecError(f"{str(term)!r}: {problem}", reason=Reason.UNKNOWN_COLUMN)


def _error(text: str, problem: str) -> InvalidSpecError:
    return InvalidSpecError(f"{text!r}: {problem}", reason=Reason.BAD_TRANSFORM)
