"""The shape of a schema: its fields by place. What the formats have in common, and the interface of a format."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from firn_spark.worker.fetched import Numbers
from tests.integration.ingestion.evolution import values

PLACES = ("", "inner", "inner.deep", "items", "by_name")
"""The record, a record in it and one in that, the only item of a list, and the only value of a map."""
KEY = "k"
"""The only key of the map."""
Encode = Callable[[dict[str, Any]], bytes]


@dataclass(frozen=True)
class Field:
    """A field. ``column`` is its column, whatever name it has. The others are for formats that know them.

    ``number`` identifies a field in Protobuf. ``presence`` is optional, implicit or required. At most one field of a place that
    is ``chosen`` has a value.
    """

    column: int
    kind: str
    number: int = 0
    presence: str = "optional"
    chosen: bool = False


Fields = Mapping[str, Field]
Shape = Mapping[str, Fields]
"""The fields by place."""


@dataclass(frozen=True)
class Rendered:
    """A schema as its registry takes it. ``encode`` returns the bytes after the id. Absent ``zeros`` have the value 0."""

    text: Any
    encode: Encode
    zeros: Callable[[Field], bool] = field(default=lambda _: False)


class Format(Protocol):
    """A format of schemas."""

    name: str
    """The value of `SchemaFormat`."""
    message: str
    kinds: Mapping[str, str]
    """The kinds of fields, and those of their values."""
    changes: tuple[str, ...]
    """The kinds of changes. Those that are listed twice are made twice as often."""

    def render(self, shape: Shape, columns: Mapping[str, int], pick: random.Random) -> Rendered:
        """Return a schema with this shape. ``columns`` has the column of each name, also of earlier names."""


@dataclass(frozen=True)
class Version:
    """A version of a schema: its id in the registry, and its fields. The table cannot hold the values of a ``refused`` one."""

    number: int
    shape: Shape
    rendered: Rendered
    kinds: Mapping[str, str]
    refused: bool = False

    def values(self, place: str, name: str, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Return the values of a field in the rows with these numbers, and which of them are null."""
        fields = self.shape[place]
        one = fields[name]
        kind = self.kinds[one.kind]
        content, nulls = values.generated(numbers, one.column, kind)
        if one.chosen:
            rivals = [each for each, other in fields.items() if other.chosen]
            nulls = nulls | (numbers % len(rivals) != rivals.index(name))
        elif self.rendered.zeros(one):
            zero = values.zero(kind)
            content = np.array(
                [zero if gone else value for value, gone in zip(content.tolist(), nulls, strict=True)], content.dtype
            )
            nulls = np.zeros(len(nulls), bool)
        return content, nulls

    def records(self, numbers: Numbers) -> list[tuple[int, bytes]]:
        """Return the numbers of rows with their records."""
        found = {
            place: {name: values.listed(*self.values(place, name, numbers)) for name in fields}
            for place, fields in self.shape.items()
        }
        made = []
        for at, number in enumerate(numbers.tolist()):
            part = {place: {name: items[at] for name, items in fields.items()} for place, fields in found.items()}
            inner = {**part["inner"], "deep": part["inner.deep"]}
            content = {
                "id": number,
                **part[""],
                "inner": inner,
                "items": [part["items"]],
                "by_name": {KEY: part["by_name"]},
            }
            made.append((number, b"\0" + self.number.to_bytes(4) + self.rendered.encode(content)))
        return made
