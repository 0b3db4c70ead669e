"""Partition and sort terms: ``month(time_hour)``, ``bucket(8, carrier)``, ``time_hour desc nulls last``.

Source: Iceberg specification, "Partition Transforms" and "Sort Orders".
"""

import re
from dataclasses import dataclass
from typing import Literal

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError

Transform = Literal["identity", "bucket", "truncate", "year", "month", "day", "hour", "void"]
_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_CALL = re.compile(rf"([a-z]+)\s*\(\s*(?:([0-9]+)\s*,\s*)?({_NAME})\s*(?:,\s*([0-9]+)\s*)?\)")
_COLUMN = re.compile(_NAME)
_SORT = re.compile(r"(.+?)(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?", re.IGNORECASE)
_PLURAL = {"years": "year", "months": "month", "days": "day", "hours": "hour"}
WITH_ARGUMENT = frozenset({"bucket", "truncate"})


@dataclass(frozen=True, slots=True)
class PartitionTerm:
    """A transform of a column; ``argument`` is the number of buckets or the width, else None."""

    transform: Transform
    column: str
    argument: int | None = None

    @property
    def field_name(self) -> str:
        """Return the name of the partition field, as Spark and Iceberg's Java API derive it."""
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

    def __str__(self) -> str:
        return f"{self.term} {'desc' if self.descending else 'asc'} nulls {'first' if self.nulls_first else 'last'}"


def parse(text: str) -> PartitionTerm:
    """Parse a partition term. Raises InvalidSpecError (BadTransform)."""
    words = text.strip()
    if _COLUMN.fullmatch(words):
        return PartitionTerm("identity", words)
    call = _CALL.fullmatch(words)
    if call is None:
        raise _error(text, "write a column, or a transform such as month(column) or bucket(8, column)")
    name = _PLURAL.get(call[1], call[1])
    if call[2] and call[4]:
        raise _error(text, "write only one number")
    number = call[2] or call[4]
    if name not in ("identity", "bucket", "truncate", "year", "month", "day", "hour", "void"):
        raise _error(text, f"{name!r} is not one of identity, bucket, truncate, year, month, day, hour, void")
    if (name in WITH_ARGUMENT) != (number is not None):
        raise _error(text, f"{name} {'requires a number' if number is None else 'takes no number'}")
    if number is not None and not (len(number) <= 10 and 1 <= int(number) <= 2**31 - 1):
        raise _error(text, "the number must be from 1 to 2147483647")
    return PartitionTerm(name, call[3], int(number) if number else None)  # type: ignore[arg-type]


def parse_sort(text: str) -> SortTerm:
    """Parse a sort term. By default nulls are first if ascending and last if descending. Raises InvalidSpecError (BadTransform)."""
    match = _SORT.fullmatch(text.strip())
    if match is None:
        raise _error(text, "write a column, then asc or desc, then nulls first or nulls last")
    descending = (match[2] or "asc").lower() == "desc"
    nulls = (match[3] or ("last" if descending else "first")).lower()
    return SortTerm(parse(match[1]), descending, nulls == "first")


def _error(text: str, problem: str) -> InvalidSpecError:
    return InvalidSpecError(f"{text!r}: {problem}", reason=Reason.BAD_TRANSFORM)
