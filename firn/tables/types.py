"""Iceberg's types in the form of ``spec.schema.fields[].type`` (Iceberg specification, "Schemas and Data Types").

Primitive names, ``decimal(P,S)``, ``fixed[L]``, ``list<T>``, ``map<K,V>``, ``struct<name: T, ...>``, nested up to `MAX_DEPTH`. A member of a record
may have a name that no column can have: ``struct<'order-id': T>``.
"""

import difflib
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firn import member_paths
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError

MAX_DEPTH = 16
MOST_DIGITS = 38
"""Most digits of a decimal."""
MOST_COLUMNS = 1000
"""Most columns of a table, without those of Kafka."""
NANOSECONDS = ("timestamp_ns", "timestamptz_ns")
"""Times in nanoseconds from 1970. Their range is 1677 to 2262."""
VARIANT = "variant"
"""Any JSON value, encoded by Parquet's specification ("Variant Binary Encoding")."""
NEW_IN_V3 = (*NANOSECONDS, VARIANT)
"""Types that only tables of format version 3 can have."""
PRIMITIVES = (
    "boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "string", "uuid", "binary", *NEW_IN_V3,
)  # fmt: skip
_UNREADABLE = ("time", *NANOSECONDS)


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type of `PRIMITIVES`."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal of 1..38 digits, ``scale`` of them after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"


@dataclass(frozen=True, slots=True)
class Fixed:
    """Bytes of a fixed length."""

    length: int

    def __str__(self) -> str:
        return f"fixed[{self.length}]"


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list; elements may be null."""

    element: "Type"

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map; keys are never null, values may be."""

    key: "Type"
    value: "Type"

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


@dataclass(frozen=True, slots=True)
class Struct:
    """Named members; each may be null."""

    fields: tuple[tuple[str, "Type"], ...]

    def __str__(self) -> str:
        return "struct<" + ", ".join(f"{member_paths.written(name)}: {kind}" for name, kind in self.fields) + ">"


Type = Primitive | Decimal | Fixed | ListOf | MapOf | Struct

_FOREIGN = {
    "bigint": "long", "smallint": "int", "tinyint": "int", "integer": "int", "bool": "boolean", "real": "float", "numeric": "decimal",
    "number": "decimal", "text": "string", "varchar": "string", "char": "string", "datetime": "timestamp", "timestamp_ntz": "timestamp",
    "bytes": "binary", "bytea": "binary", "array": "list", "row": "struct", "record": "struct",
}  # fmt: skip
"""Names of types in SQL, Spark and Avro, and Iceberg's names."""
_MEMBER = member_paths.NAME
_TOKEN = re.compile(rf"\s*({_MEMBER.pattern}|{member_paths.QUOTED}|[0-9]+|[<>(),:\[\]])")


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Type:
    """Parse a type. Raises InvalidSpecError (BadSchema) that names cause and place."""
    reader = _Reader(text)
    parsed = reader.type(1)
    reader.end()
    return parsed


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.start = 0
        """Position of the newest token."""

    def type(self, depth: int) -> Type:
        if depth > MAX_DEPTH:
            raise self.error(f"has more than {MAX_DEPTH} levels of nesting")
        word = self.next_token()
        name = word.lower()
        if name == "decimal":
            self.expect("(")
            precision = self.number()
            self.expect(",")
            scale = self.number()
            self.expect(")")
            if not 1 <= precision <= MOST_DIGITS or scale > precision:
                raise self.error(f"requires a precision of 1 to {MOST_DIGITS} and a scale of at most the precision")
            return Decimal(precision, scale)
        if name == "fixed":
            self.expect("[")
            length = self.number()
            self.expect("]")
            if not 1 <= length <= 1_048_576:
                raise self.error("requires a length of 1 to 1048576")
            return Fixed(length)
        if name == "list":
            self.expect("<")
            element = self.type(depth + 1)
            self.expect(">")
            return ListOf(element)
        if name == "map":
            self.expect("<")
            key = self.type(depth + 1)
            if has(key, VARIANT):
                raise self.error("a key of a map cannot be a variant")
            self.expect(",")
            value = self.type(depth + 1)
            self.expect(">")
            return MapOf(key, value)
        if name == "struct":
            return self.struct(depth)
        if name in PRIMITIVES:
            return Primitive(name)
        if meant := _similar(name):
            raise self.error(f"{word!r} is not a type; did you mean {meant}?")
        raise self.error(
            f"{word!r} is not a type: use {', '.join(PRIMITIVES)}, decimal(P,S), fixed[L], list<T>, map<K,V>, struct<a: T>"
        )

    def struct(self, depth: int) -> Struct:
        self.expect("<")
        fields: list[tuple[str, Type]] = []
        seen: set[str] = set()
        while True:
            name = self.next_token()
            if name.startswith("'"):
                name = member_paths.unquoted(name)
            elif not _MEMBER.fullmatch(name):
                raise self.error(
                    f"expected a member name, found {name!r}; put a name with other characters in single quotes"
                )
            if name.lower() in seen:
                raise self.error(f"has the member {name!r} twice; query engines ignore case, so rename one")
            seen.add(name.lower())
            self.expect(":")
            fields.append((name, self.type(depth + 1)))
            sign = self.next_token()
            if sign == ">":
                return Struct(tuple(fields))
            if sign != ",":
                raise self.error(f"expected ',' or '>', found {sign!r}")

    def next_token(self) -> str:
        match = _TOKEN.match(self.text, self.position)
        self.start = match.start(1) if match else self._next_character()
        if match is None:
            rest = self.text[self.position :].strip()
            if rest.startswith("'"):
                raise self.error(r"a name in single quotes is not empty, and has \' for ' and \\ for \; correct it")
            raise self.error("has an unexpected character" if rest else "ends too early")
        self.position = match.end()
        return match[1]

    def expect(self, sign: str) -> None:
        token = self.next_token()
        if token != sign:
            raise self.error(f"expected {sign!r}, found {token!r}")

    def number(self) -> int:
        token = self.next_token()
        if not token.isdigit() or len(token) > 9:
            raise self.error(f"expected a number of at most nine digits, found {token[:32]!r}")
        return int(token)

    def end(self) -> None:
        self.start = self._next_character()
        if self.start < len(self.text):
            raise self.error("has characters after its end")

    def _next_character(self) -> int:
        rest = self.text[self.position :]
        return self.position + len(rest) - len(rest.lstrip())

    def error(self, problem: str) -> InvalidSpecError:
        text = self.text if len(self.text) <= 100 else f"{self.text[:100]}..."
        return InvalidSpecError(f"type {text!r}, character {self.start + 1}: {problem}", reason=Reason.BAD_SCHEMA)


def of_table(text: str) -> Type:
    """Return the type of a table's column from the text of `of_json`. A type that no schema can have is a primitive of that name."""
    try:
        return parse(text)
    except InvalidSpecError:
        return Primitive(text)


def of_json(kind: Any) -> str:
    """Return a type of the JSON of Iceberg's specification (Appendix C) as a text. An unknown type keeps its name.

    Members of structs that no schema can have are left out, because of their type or name. Rows are null there.
    """
    if isinstance(kind, str):
        return str(parse(kind)) if _is_known(kind) else kind
    match kind["type"]:
        case "list":
            return f"list<{of_json(kind['element'])}>"
        case "map":
            return f"map<{of_json(kind['key'])}, {of_json(kind['value'])}>"
        case _:
            known = (field for field in kind["fields"] if _MEMBER.fullmatch(field["name"]) and _is_known(field["type"]))
            members = (f"{field['name']}: {of_json(field['type'])}" for field in known)
            return f"struct<{', '.join(members)}>"


def _is_known(kind: Any) -> bool:
    """Return whether a schema can have a type of Iceberg's JSON, perhaps without some members of structs."""
    if isinstance(kind, str):
        return kind in PRIMITIVES or kind.startswith(("decimal(", "fixed["))
    if kind["type"] == "struct":
        return any(_MEMBER.fullmatch(field["name"]) and _is_known(field["type"]) for field in kind["fields"])
    return all(_is_known(kind[part]) for part in ("element", "key", "value") if part in kind)


def at(members: Mapping[str, Type], path: Sequence[str]) -> Type | None:
    """Return the type of a field, or of a member of structs, by the names on the way to it; None if there is none."""
    first, *rest = path
    kind = members.get(first)
    for name in rest:
        kind = dict(kind.fields).get(name) if isinstance(kind, Struct) else None
    return kind


def has(kind: Type, *names: str) -> str:
    """Return the first of the primitive types ``names`` that ``kind`` is or has in it; an empty text if there is none."""
    match kind:
        case Primitive(name):
            return name if name in names else ""
        case Struct(fields):
            return next((found for _, member in fields if (found := has(member, *names))), "")
        case ListOf(element):
            return has(element, *names)
        case MapOf(key, value):
            return has(key, *names) or has(value, *names)
    return ""


def quoted_member(kind: Type) -> str | None:
    """Return the first name of a member inside ``kind`` that no column can have; None if there is none."""
    match kind:
        case Struct(fields):
            own = next((name for name, _ in fields if not _MEMBER.fullmatch(name)), None)
            return own or next((found for _, member in fields if (found := quoted_member(member))), None)
        case ListOf(element):
            return quoted_member(element)
        case MapOf(key, value):
            return quoted_member(key) or quoted_member(value)
    return None


def unreadable(kind: Type) -> str:
    """Return the type inside ``kind`` because of which Spark refuses the whole table; an empty text if there is none."""
    return has(kind, *_UNREADABLE)


def _similar(name: str) -> str:
    """Return the type that has this name in another system, or one with a similar name; empty if there is none."""
    similar = difflib.get_close_matches(name, (*PRIMITIVES, "decimal", "fixed", "list", "map", "struct"), n=1)
    return _FOREIGN.get(name) or (similar[0] if similar else "")
