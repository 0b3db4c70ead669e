"""The parts of a shape: objects, arrays, maps and scalars, each with the text around the values of columns."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import pyarrow as pa

from firn_broker.history.shapes.reals import Places, Reals
from firn_broker.history.shapes.scalars import Base64, Decimals, Plain, Uuids
from firn_broker.history.shapes.strings import Strings
from firn_broker.history.shapes.times import Clock, Epochs

NULL = "null"
COMMA = ","
"""The separator if none is known."""


class Form(Protocol):
    """How a writer spells the values of a column."""

    @property
    def quoted(self) -> bool:
        """Return whether the texts stand between quotes."""
        ...

    def texts(self, values: pa.Array) -> pa.Array:
        """Return the text of each value as binary, null for null. Raises ArrowException and ValueError."""
        ...


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that was always null."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object: the ``name`` with the colon, and the id of the ``field`` with its values.

    ``omitted``: whether the writer leaves the member out if it is null, or writes null."""

    name: str
    field: int
    omitted: bool
    value: "Node"


@dataclass(frozen=True, slots=True)
class Object:
    """An object with its members in their order. A ``separator`` of None is not known, because there were no two members.
    The same is so in arrays and maps."""

    open: str
    separator: str | None
    close: str
    members: Sequence[Member]


@dataclass(frozen=True, slots=True)
class Array:
    """An array of values."""

    open: str
    separator: str | None
    close: str
    element: "Node"


@dataclass(frozen=True, slots=True)
class Entries:
    """An object whose members are the entries of a map. ``colon`` is what stands between a quoted ``key`` and its value."""

    open: str
    separator: str | None
    close: str
    key: Form
    colon: str
    value: "Node"


Node = Object | Array | Entries | Unknown | Form
_KINDS: dict[str, Any] = {
    each.__name__.lower(): each
    for each in (
        Unknown, Member, Object, Array, Entries, Plain, Decimals, Base64, Uuids, Strings, Reals, Places, Epochs, Clock,
    )
}  # fmt: skip


def described(node: Any) -> Any:
    """Return a shape, or a part of one, as values of JSON: ``[kind, fields...]``; a list of parts as ``[[kind, fields...], ...]``."""
    if isinstance(node, list | tuple):
        return [described(each) for each in node]
    kind = type(node).__name__.lower()
    if kind not in _KINDS:
        return node
    return [kind, *(described(getattr(node, each.name)) for each in fields(node))]


def parsed(description: Any) -> Any:
    """Return what `described` was given. Raises KeyError, TypeError, IndexError and ValueError for anything else."""
    if not isinstance(description, list):
        return description
    if description and isinstance(description[0], str):
        return _KINDS[description[0]](*map(parsed, description[1:]))
    return tuple(map(parsed, description))


def shapes_of(descriptions: Any) -> tuple[Object, ...]:
    """Return the shapes with these descriptions. Raises KeyError, TypeError, IndexError and ValueError."""
    found = parsed(descriptions)
    if not all(isinstance(each, Object) for each in found):
        raise ValueError("a shape is no object")
    return tuple(found)


def fields_of(shapes: Sequence[Object]) -> tuple[int, ...]:
    """Return the ids of the columns of a table that shapes need."""
    return tuple(sorted({member.field for shape in shapes for member in shape.members}))
