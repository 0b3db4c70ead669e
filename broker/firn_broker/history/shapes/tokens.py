"""JSON texts as their writers wrote them: each scalar, name and separator as it stands there."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from firn.decoders.json_limits import MAX_DEPTH
from firn.records.values import FRAMING

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s,:\[\]{}"]+', re.DOTALL)
_SPACE = re.compile(r"[ \t\n\r]*")
_CLOSING = {"{": "}", "[": "]"}


class IrregularError(ValueError):
    """A text that no shape describes."""


@dataclass(frozen=True, slots=True)
class Token:
    """A string, a number, true, false or null."""

    text: str


@dataclass(frozen=True, slots=True)
class Named:
    """A member: its ``name``, the text of the name with its quotes, what stands between it and the value, and the value."""

    name: str
    quoted: str
    colon: str
    value: "Value"


@dataclass(frozen=True, slots=True)
class Listed:
    """An object with ``Named`` items, or an array. ``separator`` is None if there are fewer than two items."""

    open: str
    separator: str | None
    close: str
    items: Sequence["Named | Value"]

    @property
    def named(self) -> list[Named]:
        """Return the members of an object."""
        return [item for item in self.items if isinstance(item, Named)]


Value = Token | Listed


def bytes_as_text(data: bytes) -> str:
    """Return bytes as a text that `text_as_bytes` turns back."""
    return data.decode("ascii", "surrogateescape")


def text_as_bytes(text: str) -> bytes:
    """Return the bytes of a text in UTF-8, and those of `bytes_as_text`."""
    return text.encode("utf-8", "surrogateescape")


def split(data: bytes) -> Listed:
    """Split the text of an object, perhaps behind the id of a schema.

    Raises IrregularError for anything else, and for white space that changes in a list."""
    size = FRAMING if data[:1] == b"\0" else 0
    try:
        text = bytes_as_text(data[:size]) + data[size:].decode()
    except UnicodeDecodeError as error:
        raise IrregularError(str(error)) from None
    start = _space(text, size)
    if text[start : start + 1] != "{":
        raise IrregularError("the text is no object")
    found, place = _value(text, start, 0)
    end = _space(text, place)
    if end != len(text) or not isinstance(found, Listed):
        raise IrregularError("there is more behind the object")
    return Listed(text[:start] + found.open, found.separator, found.close + text[place:], found.items)


def _value(text: str, place: int, depth: int) -> tuple[Value, int]:
    opening = text[place : place + 1]
    if opening in _CLOSING:
        return _listed(text, place, depth)
    found = _TOKEN.match(text, place)
    if found is None:
        raise IrregularError(f"no value at character {place}")
    return Token(found[0]), found.end()


def _listed(text: str, start: int, depth: int) -> tuple[Listed, int]:
    if depth >= MAX_DEPTH:
        raise IrregularError(f"more than {MAX_DEPTH} levels")
    closing, place = _CLOSING[text[start]], _space(text, start + 1)
    opening, separators, items = text[start:place], set[str](), list["Named | Value"]()
    if text[place : place + 1] == closing:
        return Listed(opening, None, closing, ()), place + 1
    while True:
        item, place = _named(text, place, depth) if closing == "}" else _value(text, place, depth + 1)
        items.append(item)
        after = _space(text, place)
        sign, following = text[after : after + 1], _space(text, after + 1)
        if sign == closing:
            close = text[place : after + 1]
            if len(separators) > 1:
                raise IrregularError("the white space between items changes")
            return Listed(opening, min(separators, default=None), close, items), after + 1
        if sign != ",":
            raise IrregularError(f"no comma at character {after}")
        separators.add(text[place:following])
        place = following


def _named(text: str, start: int, depth: int) -> tuple[Named, int]:
    name = _TOKEN.match(text, start)
    if name is None or not name[0].startswith('"'):
        raise IrregularError(f"no name at character {start}")
    colon = _space(text, name.end())
    place = _space(text, colon + 1)
    if text[colon : colon + 1] != ":":
        raise IrregularError(f"no colon at character {colon}")
    value, end = _value(text, place, depth + 1)
    try:
        return Named(json.loads(name[0]), name[0], text[name.end() : place], value), end
    except ValueError as error:
        raise IrregularError(str(error)) from None


def _space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found is not None else place
