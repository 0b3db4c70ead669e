"""A schema that changes step by step at random."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.integration.ingestion.evolution.shape import PLACES, Field, Format, Shape, Version
from tests.integration.ingestion.evolution.values import FAMILIES

FIRST_NUMBER = 10
TAKEN = frozenset({("real", "integer"), ("decimal", "integer"), ("bytes", "text")})
"""Families of columns, and other families of which a column takes some values."""


class Evolution:
    """A schema that changes at random. ``incompatible`` is the policy of the topic."""

    def __init__(self, one: Format, incompatible: str, pick: random.Random) -> None:
        self.format, self.incompatible, self._pick = one, incompatible, pick
        self._made = 0
        self.columns: dict[str, int] = {}
        """The column of each name, also of earlier names."""
        self._families: dict[int, str] = {}
        """The first family of each column."""
        self._retyped: dict[int, set[str]] = {}
        """The later families of each column."""
        self._numbers = dict.fromkeys(PLACES, FIRST_NUMBER)
        self._gone: dict[str, list[str]] = {place: [] for place in PLACES}
        """The last names of dropped fields."""
        self._changes = one.changes + (("retype", "retype") if incompatible == "NewColumn" else ())
        self.places: dict[str, dict[str, Field]] = {place: {} for place in PLACES}
        for place in PLACES:
            self._add(place)
            self._add(place)
        self._first = self._copy()

    def _copy(self) -> Shape:
        return {place: dict(fields) for place, fields in self.places.items()}

    def next(self, register: Callable[[Any], int]) -> Version:
        """Return the next version. With DeadLetter, one of six versions is one that the table cannot hold."""
        if self.incompatible == "DeadLetter" and self._pick.random() < 1 / 6 and (shape := self._refused()) is not None:
            return self._version(shape, register, refused=True)
        change = self._pick.choice(self._changes)
        getattr(self, f"_{change}")(self._pick.choice(PLACES))
        return self._version(self._copy(), register)

    def first(self, register: Callable[[Any], int]) -> Version:
        """Return the first version, whose columns the table has in any case."""
        return self._version(self._copy(), register)

    def _version(self, shape: Shape, register: Callable[[Any], int], *, refused: bool = False) -> Version:
        rendered = self.format.render(shape, self.columns, self._pick)
        return Version(register(rendered.text), shape, rendered, self.format.kinds, refused)

    def _refused(self) -> Shape | None:
        """Return the present shape with a change that the table cannot hold: a first field has another type."""
        shape = {place: dict(fields) for place, fields in self.places.items()}
        choices = [
            (place, name)
            for place, fields in shape.items()
            for name, one in fields.items()
            if any(first.column == one.column for first in self._first[place].values())
        ]
        if not choices:
            return None
        place, name = self._pick.choice(choices)
        one = shape[place][name]
        own = self._families[one.column]
        shape[place][name] = replace(one, kind=self._kind(lambda each: each != own and (own, each) not in TAKEN))
        return shape

    # Changes

    def _kind(self, fits: Callable[[str], bool] = lambda _: True) -> str:
        return self._pick.choice([kind for kind, value in self.format.kinds.items() if fits(FAMILIES[value])])

    def _name(self) -> str:
        self._made += 1
        return f"f{self._made}"

    def _add(self, place: str) -> None:
        """Add a new field, or a dropped one with a new number."""
        fields, gone = self.places[place], self._gone[place]
        if gone and self._pick.random() < 0.3:
            name = gone.pop(self._pick.randrange(len(gone)))
            family = self._families[self.columns[name]]
            kind = self._kind(lambda each: each == family)
        else:
            name, kind = self._name(), self._kind()
            self.columns[name] = self._made
            self._families[self._made] = FAMILIES[self.format.kinds[kind]]
        self._numbers[place] += 1
        fields[name] = Field(self.columns[name], kind, self._numbers[place])
        if "presence" in self._changes:
            fields[name] = self._present(fields[name])

    def _drop(self, place: str) -> None:
        fields = self.places[place]
        if len(fields) > 1:
            name = self._pick.choice(sorted(fields))
            del fields[name]
            self._gone[place].append(name)

    def _alter(self, place: str) -> None:
        """Give a field another type whose values the column can hold, such as int64 after int32."""
        fields = self.places[place]
        name = self._pick.choice(sorted(fields))
        family = FAMILIES[self.format.kinds[fields[name].kind]]
        fields[name] = replace(fields[name], kind=self._kind(lambda each: each == family))

    def _presence(self, place: str) -> None:
        """Let a field become optional or required, join the fields of which one has a value, or leave them."""
        fields = self.places[place]
        name = self._pick.choice(sorted(fields))
        fields[name] = self._present(fields[name])

    def _present(self, one: Field) -> Field:
        presence = self._pick.choice(("optional", "implicit", "required"))
        return replace(one, presence=presence, chosen=self._pick.random() < 0.3)

    def _order(self, place: str) -> None:
        names = list(self.places[place])
        self._pick.shuffle(names)
        self.places[place] = {name: self.places[place][name] for name in names}

    def _rename(self, place: str) -> None:
        """Give a field a new name, or an earlier one."""
        fields = self.places[place]
        name = self._pick.choice(sorted(fields))
        column = self.columns[name]
        earlier = [each for each, other in self.columns.items() if other == column and each != name]
        later = self._pick.choice(earlier) if earlier and self._pick.random() < 0.3 else self._name()
        self.columns[later] = column
        self.places[place] = {later if each == name else each: one for each, one in fields.items()}

    def _retype(self, place: str) -> None:
        """Give a field another type, whose values the column cannot hold."""
        fields = self.places[place]
        name = self._pick.choice(sorted(fields))
        one = fields[name]
        family, later = FAMILIES[self.format.kinds[one.kind]], self._retyped.setdefault(one.column, set())
        known = {self._families[one.column], *later}
        # The driver may read the schemas of two families in either order.
        apart = [each for each in FAMILIES.values() if not any({each, other} in map(set, TAKEN) for other in known)]
        fields[name] = replace(one, kind=self._kind(lambda each: each != family and each in apart))
        later.add(FAMILIES[self.format.kinds[fields[name].kind]])
