"""Finds the shapes of a JSON text: those that give it back from its row."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pyarrow as pa

from firn.driver_requests.landed_offsets import RECORD
from firn_broker.history.shapes import times
from firn_broker.history.shapes.reals import LAYOUTS, Places, Reals
from firn_broker.history.shapes.rendering import ID, members_of
from firn_broker.history.shapes.scalars import Base64, Decimals, Plain, Uuids
from firn_broker.history.shapes.shape import NULL, Array, Entries, Form, Member, Node, Object, Unknown
from firn_broker.history.shapes.strings import STYLES, Strings
from firn_broker.history.shapes.times import Clock, Epochs
from firn_broker.history.shapes.tokens import IrregularError, Listed, Named, Token, Value, split

Names = Mapping[tuple[int, str], int]
"""The ids of columns by the id of the column that has them, and the name of the member of an object."""
_SEEN = 8
"""Items of a list that a shape is found from."""
_CLOCK = re.compile(r"(?:\d{4}-\d\d-\d\d(.))?\d\d:\d\d(?::\d\d(?:\.(\d+))?)?(Z|z|[+-](\d\d):?(\d\d)?)?")


def find(data: bytes, row: pa.StructArray, names: Names, known: Sequence[Object]) -> Iterator[Object]:
    """Yield shapes that fit the only row of ``row``: at first those that ``known`` shapes become with this text.

    Writers differ in the text of strings and numbers. A text may not show which one it is from, so there may be several shapes."""
    try:
        text = split(data)
    except IrregularError:
        return
    found, tried = set[Object](), dict[tuple[int, Form], bool]()
    for hint in (*known, None):
        for style, layout in product(STYLES, LAYOUTS):
            try:
                shape = _Finder(names, style, layout, tried).object(text, row, RECORD, hint)
                if hint is not None:
                    shape = _merged(hint, shape)
            except (IrregularError, pa.ArrowException):
                continue
            if shape not in found:
                found.add(shape)
                yield shape


def _merged(old: Any, new: Any) -> Any:
    """Return the shape, or the part of one, that has the members of both. Raises IrregularError if there is none."""
    if isinstance(old, Unknown) or isinstance(new, Unknown):
        return new if isinstance(old, Unknown) else old
    if type(old) is not type(new) or not isinstance(old, Object | Array | Entries):
        return new
    separator = old.separator if new.separator is None else new.separator
    brackets = {"open": new.open, "separator": separator, "close": new.close}
    match old:
        case Array():
            return Array(**brackets, element=_merged(old.element, new.element))
        case Entries():
            return Entries(**brackets, key=new.key, colon=new.colon, value=_merged(old.value, new.value))
    return Object(**brackets, members=_members(old.members, new.members))


def _members(old: Sequence[Member], new: Sequence[Member]) -> tuple[Member, ...]:
    """Return the members of both in one order. A member that only one of them has may be left out."""
    earlier, later = {each.field: each for each in old}, {each.field: each for each in new}
    shared = [each.field for each in old if each.field in later]
    if shared != [each.field for each in new if each.field in earlier]:
        raise IrregularError("members have another order")
    found, waiting = list[Member](), list(old)
    for each in new:
        if each.field not in earlier:
            found.append(replace(each, omitted=True))
            continue
        while waiting[0].field != each.field:
            found.append(replace(waiting.pop(0), omitted=True))
        before = waiting.pop(0)
        null = isinstance(each.value, Unknown)
        omitted = before.omitted and not null
        found.append(Member(each.name, each.field, omitted, _merged(before.value, each.value)))
    return (*found, *(replace(each, omitted=True) for each in waiting))


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finds the shape of a text if its writer has a style and a layout."""

    names: Names
    style: Strings
    layout: Reals
    tried: dict[tuple[int, Form], bool]
    """The results of earlier attempts: a form gives a token with this identity, or does not."""

    def object(self, text: Listed, row: pa.StructArray, parent: int, hint: Any) -> Object:
        """Return the shape of an object whose columns are those of the only row. Raises IrregularError."""
        places, members, hints = members_of(row.type), list[Member](), dict[int, Any]()
        if isinstance(hint, Object):
            hints = {each.field: each.value for each in hint.members}
        for item in text.named:
            field = self.names.get((parent, item.name))
            if field is None or field not in places:
                raise IrregularError(f"no column has the member {item.name}")
            value = self.node(item.value, row.field(places[field]), field, hints.get(field))
            members.append(Member(item.quoted + item.colon, field, False, value))
        nulls = any(isinstance(each.value, Unknown) for each in members)
        if not nulls and len(members) < len(places):
            members = [replace(each, omitted=True) for each in members]
        return Object(text.open, text.separator, text.close, tuple(members))

    def node(self, text: Value, value: pa.Array, field: int, hint: Any) -> Node:
        """Return the shape of the only value of a column. Raises IrregularError."""
        kind = value.type
        if value.null_count:
            if text != Token(NULL):
                raise IrregularError("a value of the text is null in the row")
            return Unknown()
        if isinstance(text, Token):
            return self._scalar(text, value, hint)
        if text.open.startswith("{") and pa.types.is_struct(kind):
            return self.object(text, value, field, hint)
        if text.open.startswith("[") and pa.types.is_list(kind):
            return self._array(text, value, hint)
        if text.open.startswith("{") and pa.types.is_map(kind):
            return self._entries(text, value, hint)
        raise IrregularError(f"a column of {kind} is another value in the text")

    def _array(self, text: Listed, value: pa.Array, hint: Any) -> Array:
        element = hint.element if isinstance(hint, Array) else Unknown()
        first, field = _first(text, value), _id(value.type.value_field)
        for place, item in enumerate(text.items[:_SEEN], first):
            assert not isinstance(item, Named)
            element = _merged(element, self.node(item, value.values.slice(place, 1), field, element))
        return Array(text.open, text.separator, text.close, element)

    def _entries(self, text: Listed, value: pa.Array, hint: Any) -> Entries:
        known = hint if isinstance(hint, Entries) else None
        node, colon = (known.value, known.colon) if known is not None else (Unknown(), ":")
        key: Form = self.style if pa.types.is_string(value.type.key_type) else Plain()
        first, field = _first(text, value), _id(value.type.item_field)
        for place, item in enumerate(text.named[:_SEEN], first):
            colon = item.colon
            node = _merged(node, self.node(item.value, value.items.slice(place, 1), field, node))
        return Entries(text.open, text.separator, text.close, key, colon, node)

    def _scalar(self, token: Token, value: pa.Array, hint: Any) -> Form:
        quoted = token.text.startswith('"')
        text = token.text[1:-1] if quoted else token.text
        known: list[Form] = [] if hint is None or isinstance(hint, Object | Array | Entries | Unknown) else [hint]
        for form in (*known, *self._forms(text, value.type, quoted)):
            key = id(token), form
            if key not in self.tried:
                self.tried[key] = form.quoted == quoted and _gives(form, value, text.encode())
            if self.tried[key]:
                return form
        raise IrregularError(f"no form gives {text[:40]}")

    def _forms(self, text: str, kind: Any, quoted: bool) -> Iterator[Form]:
        """Yield the forms that a text of a type may have."""
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
            yield Plain()
        elif pa.types.is_floating(kind):
            single = pa.types.is_float32(kind)
            yield replace(self.layout, single=single)
            # The column may have had 32 bits before. And some languages have numbers of 64 bits only.
            yield replace(self.layout, single=not single)
            yield Places(len(text.partition(".")[2]))
        elif pa.types.is_string(kind):
            yield self.style
        elif pa.types.is_decimal(kind):
            yield Decimals(False, quoted)
            yield Decimals(True, quoted)
        elif pa.types.is_date(kind):
            yield Plain(True)
        elif pa.types.is_timestamp(kind) and not quoted:
            yield from map(Epochs, times.UNITS)
        elif pa.types.is_timestamp(kind) or pa.types.is_time(kind):
            yield from _clocks(text)
        elif kind == pa.binary(16) or isinstance(kind, pa.UuidType):
            yield from (Uuids(False), Uuids(True), Base64())
        elif pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
            yield Base64()


def _first(text: Listed, value: pa.Array) -> int:
    """Return the place of the first item of the only list or map. Raises IrregularError if another client has changed the items."""
    first, end = value.offsets.to_pylist()
    if end - first != len(text.items):
        raise IrregularError(f"the text has {len(text.items)} items, and the row {end - first}")
    return int(first)


def _gives(form: Form, value: pa.Array, text: bytes) -> bool:
    try:
        return bool(form.texts(value)[0].as_py() == text)
    except (pa.ArrowException, ValueError):
        return False


def _clocks(text: str) -> Iterator[Clock]:
    """Yield the forms that a time may have."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        return
    separator, digits, suffix, hours, minutes = found.groups(default="")
    zone = (int(hours or 0) * 60 + int(minutes or 0)) * (-1 if suffix.startswith("-") else 1)
    yield Clock(separator, times.FIXED, len(digits), suffix, zone)
    for fraction in (times.THREES, times.SIXES, times.TRIMMED, times.JAVA):
        yield Clock(separator, fraction, 0, suffix, zone)


def _id(field: Any) -> int:
    return int((field.metadata or {}).get(ID, RECORD))
