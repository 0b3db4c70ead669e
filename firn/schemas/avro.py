"""Avro schemas: parsed, checked, and as columns of a table.

Source: Avro specification 1.12, "Schema Declaration", "Names", "Logical Types". `parse` refuses a schema that the
specification allows only if it has no columns: recursive types, arrays whose elements take no bytes, types that are too
large or too deep, and fields whose names differ only in case. In a field that no column reads, it refuses only types that
are too large, and arrays whose elements take no bytes. It ignores logical types that it does not know, as the
specification demands, and also those with invalid attributes.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from firn.member_paths import Path
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, Rename
from firn.tables import types
from firn.tables.types import Decimal, Fixed, ListOf, MapOf, Primitive, Struct, Type
from firn.texts import without_surrogates

MOST_TEXT = 1 << 20
"""Largest schema, in characters."""
MOST_TYPES = 10_000
"""Most types of a schema with all its parts. A type counts each time that it is used."""
MOST_NAME, MOST_DOC = 128, 1024
"""Longest name of a field and longest comment of a column, in characters."""
MOST_LEVELS = 64
"""Most levels of a schema's JSON, in objects and lists of types."""
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""A name of a field or a type, which can be the name of a column."""
_SYMBOL = re.compile(r"[^\W\d]\w*")
"""A symbol. Letters of all languages count, as in Avro's Java library up to version 1.12."""
_COLUMNS: Mapping[str, str] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL: Mapping[tuple[str, str], str] = {
    ("int", "date"): "date",
    ("int", "time-millis"): "time",
    ("long", "time-micros"): "time",
    ("long", "timestamp-millis"): "timestamptz",
    ("long", "timestamp-micros"): "timestamptz",
    ("long", "local-timestamp-millis"): "timestamp",
    ("long", "local-timestamp-micros"): "timestamp",
    ("string", "uuid"): "uuid",
    ("long", "timestamp-nanos"): "timestamptz_ns",
    ("long", "local-timestamp-nanos"): "timestamp_ns",
}
"""Primitive type and logical type -> column."""
_NANOSECONDS = frozenset({"timestamp-nanos", "local-timestamp-nanos"})
"""Logical types that are longs unless the topic keeps nanoseconds: tables of format version 2 have no such times."""
_AS_COLUMN: Mapping[tuple[str, str], str] = {
    ("long", "as-double"): "double",
    ("bytes", "as-string"): "string",
}
"""Primitive type and mark of `read_as` -> column. No schema has these marks."""
_WITH_LOGICAL = {**_LOGICAL, **_AS_COLUMN}


WHOLE = "value"
"""The column of a schema that is no record."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A primitive type. ``logical`` is a logical type of `_LOGICAL`, or a mark of `read_as`, else empty."""

    kind: str
    logical: str = ""


@dataclass(frozen=True, slots=True)
class FixedBytes:
    """Bytes of one length. ``uuid`` if they are the 16 bytes of a UUID."""

    name: str
    size: int
    uuid: bool = False


@dataclass(frozen=True, slots=True)
class DecimalBytes:
    """An unscaled number, big-endian: a fixed of ``size`` bytes, or bytes of any length if ``size`` is 0."""

    precision: int
    scale: int
    size: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Enum:
    """A value that is one of several symbols."""

    name: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """Elements of one type."""

    items: "Node"


@dataclass(frozen=True, slots=True)
class Map:
    """Values of one type by text."""

    values: "Node"


@dataclass(frozen=True, slots=True)
class Union:
    """A value of one of the branches."""

    branches: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record."""

    name: str
    type: "Node"
    doc: str | None = None
    aliases: tuple[str, ...] = ()
    """Earlier names of the field."""


@dataclass(frozen=True, slots=True)
class Record:
    """Fields in the order in which they are written."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Again:
    """A use of a record inside itself. Only fields that no column reads can have it. ``found`` gets the record after its fields are parsed."""

    name: str
    found: list[Record] = field(default_factory=list, compare=False, repr=False)

    @property
    def record(self) -> Record:
        """Return the record."""
        return self.found[0]


@dataclass(frozen=True, slots=True)
class Passed:
    """A type that has no column, because only other members of its record are read. Decoders pass over its values."""

    node: "Node"


Node = Scalar | FixedBytes | DecimalBytes | Enum | Array | Map | Union | Record | Again | Passed
_Named = FixedBytes | DecimalBytes | Enum | Record


def parse(
    text: str,
    references: Iterable[str] = (),
    *,
    nanoseconds: bool = False,
    read: Collection[str] | None = None,
    paths: Collection[Path] | None = None,
) -> Record:
    """Parse the schema of record values or keys. Raises InvalidSpecError (BadSchema) with cause and place.

    A schema of one value (`_is_single`) becomes a record with the field `WHOLE`, because both have the same bytes. ``references`` are schemas whose
    types the schema uses. ``nanoseconds``: times in nanoseconds are no longs. ``read`` are the names of the fields that have
    columns, if not all have them. ``paths`` are those of the members in these fields, if not all members have columns.
    """
    parser = _Parser(nanoseconds, judges=read is None)
    for reference in references:
        parser.node(_document(reference), "", "", 1)
    parsed = parser.node(_document(text), "", "", 1)
    if _is_single(parsed):
        parsed = Record("", (Field(WHOLE, parsed),))
    if not isinstance(parsed, Record):
        raise _bad_schema(
            "the schema is null or bytes, or a union with bytes, and serializers write such bytes without their length; use raw, or key.columns:"
            " Binary"
        )
    if read is not None and paths is not None:
        part = _only(parsed, frozenset(paths))
        assert isinstance(part, Record)
        parser.judge_part(part)
        parsed = part
    elif read is not None:
        parser.judge(parsed, read)
    elif not columns(parsed):
        raise _bad_schema("the record has no field that can become a column; add a field with a type other than null")
    return parsed


def _is_single(node: Node) -> bool:
    """Return whether a schema that is no record becomes one column, such as a text or a union of records.

    Bytes do not count: if they are the whole schema, serializers of Confluent write them without their length.
    """
    match node:
        case Scalar(kind):
            return kind not in ("null", "bytes")
        case DecimalBytes(size=size):
            return size > 0
        case Union(branches):
            others = [branch for branch in branches if branch != Scalar("null")]
            return bool(others) and all(isinstance(branch, Record) or _is_single(branch) for branch in others)
        case FixedBytes() | Enum() | Array() | Map():
            return True
    return False


def _only(node: Node, paths: frozenset[Path]) -> Node:
    """Return a type of which only the members at ``paths`` have columns. A type inside itself is followed as far as a path goes."""
    if () in paths:
        return node
    match node:
        case Again():
            return _only(node.record, paths)
        case Record(fields=fields):
            return replace(
                node, fields=tuple(replace(each, type=_part(each.type, each.name, paths)) for each in fields)
            )
        case Union(branches):
            named = members(node)
            if len(named) == 1:
                return Union(tuple(_only(branch, paths) for branch in branches))
            names = {id(branch): name for name, branch in named}
            return Union(
                tuple(_part(branch, names[id(branch)], paths) if id(branch) in names else branch for branch in branches)
            )
    return node


def _part(node: Node, name: str, paths: frozenset[Path]) -> Node:
    inner = frozenset(path[1:] for path in paths if path[0] == name)
    return _only(node, inner) if inner else Passed(node)


def full_names(text: str) -> dict[tuple[int, ...], str]:
    """Return the full name of the record of a schema, or those of the branches of its union by their numbers.

    A name is empty for another type. A text that is no schema has no names.
    """
    try:
        value, level = _document(text), 0
    except InvalidSpecError:
        return {}
    while isinstance(value, dict) and isinstance(value.get("type"), (dict, list)) and level < MOST_LEVELS:
        value, level = value["type"], level + 1
    if isinstance(value, list):
        return {(number,): _full_name(branch) for number, branch in enumerate(value)}
    return {(): _full_name(value)}


def _full_name(value: Any) -> str:
    if isinstance(value, str):  # the type of a reference
        return "" if value in PRIMITIVES else value
    if not isinstance(value, dict) or value.get("type") not in ("record", "error"):
        return ""
    name, space = value.get("name"), value.get("namespace")
    if not isinstance(name, str):
        return ""
    return f"{space}.{name}" if "." not in name and space and isinstance(space, str) else name


def _document(text: str) -> Any:
    if len(text) > MOST_TEXT:
        raise _bad_schema(f"the schema has {len(text)} characters; the most are {MOST_TEXT}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad_schema(f"the schema is not JSON: {error}") from None


def renamed(record: Record, renames: Sequence[Rename]) -> Record:
    """Return a record whose fields have their later names. A field keeps its name if another one has the later name."""
    for rename in renames:
        node = _renamed(record, rename.old_path, rename.name)
        assert isinstance(node, Record)
        record = node
    return record


def _renamed(node: Node, path: Sequence[str], name: str) -> Node:
    match node:
        case Record(fields=fields):
            present = {each.name for each in fields}
            if path[0] not in present or (len(path) == 1 and name in present):
                return node
            return replace(node, fields=tuple(_renamed_field(each, path, name) for each in fields))
        case Array(items) if path[0] == "element" and len(path) > 1:
            return Array(_renamed(items, path[1:], name))
        case Map(values) if path[0] == "value" and len(path) > 1:
            return Map(_renamed(values, path[1:], name))
        case Union(branches):
            named = members(node)
            if len(named) == 1:
                return Union(tuple(_renamed(branch, path, name) for branch in branches))
            inside = next((branch for each, branch in named if each == path[0]), None)
            if inside is not None and len(path) > 1:
                later = _renamed(inside, path[1:], name)
                return Union(tuple(later if branch is inside else branch for branch in branches))
    return node


def _renamed_field(each: Field, path: Sequence[str], name: str) -> Field:
    if each.name != path[0]:
        return each
    return replace(each, name=name) if len(path) == 1 else replace(each, type=_renamed(each.type, path[1:], name))


def read_as(node: Node, column: Type) -> Node:
    """Return the type with a mark at each part that the column has as another type, such as ``as-double`` at a long for a double.

    The decoders refuse values of such a part that the column cannot have exactly (`firn.decoders.avro_limits`).
    """
    match node, column:
        case Scalar(kind, ""), Primitive(name) if (kind, f"as-{name}") in _AS_COLUMN:
            return Scalar(kind, f"as-{name}")
        case Array(items), ListOf(element):
            return Array(read_as(items, element))
        case Map(values), MapOf(_, value):
            return Map(read_as(values, value))
        case Record(fields=fields), Struct(inside):
            types = dict(inside)
            return replace(
                node,
                fields=tuple(
                    replace(each, type=read_as(each.type, types[each.name])) if each.name in types else each
                    for each in fields
                ),
            )
        case Union(branches), _:
            named, inner = members(node), dict(column.fields) if isinstance(column, Struct) else {}
            if len(named) == 1:
                inner = {name: column for name, _ in named}
            later = {id(branch): read_as(branch, inner[name]) for name, branch in named if name in inner}
            return Union(tuple(later.get(id(branch), branch) for branch in branches))
    return node


def aliases(record: Record) -> tuple[Rename, ...]:
    """Return the renames that the aliases of fields name, those of a record before those of the records in it.

    The path of a field inside a record has the present name of that record.
    """
    return tuple(_aliases(record, ""))


def _aliases(node: Node, path: str) -> Iterator[Rename]:
    match node:
        case Record(fields=fields):
            present = {each.name for each in fields}
            for each in fields:
                for alias in each.aliases:
                    if alias not in present:
                        yield Rename(old=path + alias, new=path + each.name, by_schema=True)
                yield from _aliases(each.type, f"{path}{each.name}.")
        case Array(items):
            yield from _aliases(items, f"{path}element.")
        case Map(values):
            yield from _aliases(values, f"{path}value.")
        case Union():
            named = members(node)
            for name, branch in named:
                yield from _aliases(branch, path if len(named) == 1 else f"{path}{name}.")


def read_fields(record: Record, read: Collection[str] | None) -> list[Field]:
    """Return the fields with one of these names, present or earlier; all fields for None."""
    return [each for each in record.fields if read is None or not {each.name, *each.aliases}.isdisjoint(read)]


def columns(record: Record, read: Collection[str] | None = None) -> tuple[Column, ...]:
    """Return the columns of the fields of `read_fields`. A field that is always null has none."""
    kinds = ((each, column_type(each.type)) for each in read_fields(record, read))
    return tuple(Column(name=each.name, type=str(kind), doc=each.doc) for each, kind in kinds if kind is not None)


def column_type(node: Node) -> Type | None:
    """Return the type of a column for values of ``node``, or None if they are always null.

    A union of null and one other type is that type. Any other union is a struct with a member for each branch, of which
    one is not null.
    """
    match node:
        case Scalar("null") | Again() | Passed():
            return None
        case Scalar(kind, logical):
            return Primitive(_WITH_LOGICAL[kind, logical] if logical else _COLUMNS[kind])
        case FixedBytes(size=size, uuid=uuid):
            return Primitive("uuid") if uuid else Fixed(size)
        case DecimalBytes(precision, scale):
            return Decimal(precision, scale)
        case Enum():
            return Primitive("string")
        case Array(items):
            element = column_type(items)
            return None if element is None else ListOf(element)
        case Map(values):
            value = column_type(values)
            return None if value is None else MapOf(Primitive("string"), value)
        case Union():
            branches = members(node)
            if not branches:
                return None
            if len(branches) == 1:
                return column_type(branches[0][1])
            return _struct((name, column_type(branch)) for name, branch in branches)
        case Record(fields=fields):
            return _struct((each.name, column_type(each.type)) for each in fields)


def _struct(parts: Iterable[tuple[str, Type | None]]) -> Type | None:
    present = tuple((name, kind) for name, kind in parts if kind is not None)
    return Struct(present) if present else None


def members(union: Union) -> list[tuple[str, Node]]:
    """Return the branches that are not null, with the names of their members in a struct."""
    branches = [branch for branch in union.branches if branch != Scalar("null")]
    names = [_identity(branch).rpartition(".")[2] for branch in branches]
    if len({name.lower() for name in names}) < len(names):
        # Not the number of the branch, which another schema may give to another type.
        names = [re.sub(r"^(?=[0-9])|[^A-Za-z0-9_]", "_", _identity(branch)) for branch in branches]
    if len({name.lower() for name in names}) < len(names):
        names = [f"{name}_{number}" for number, name in enumerate(names)]
    return list(zip(names, branches, strict=True))


def parts(node: Node) -> tuple[Node, ...]:
    """Return the types directly inside a type."""
    match node:
        case Array(part) | Map(part) | Passed(part):
            return (part,)
        case Union(branches):
            return branches
        case Record(fields=fields):
            return tuple(each.type for each in fields)
    return ()


@dataclass(frozen=True, slots=True)
class _Extent:
    """The size of a type: levels of its column, types with those inside it, and whether values take no bytes."""

    levels: int
    types: int
    empty: bool


@dataclass(slots=True)
class _Parser:
    """Parses the types of a schema. It knows each named type by its full name; None while it reads the fields of the type."""

    nanoseconds: bool = False
    judges: bool = True
    """False if `judge` checks the types of some fields later."""
    inside: dict[str, Again] = field(default_factory=dict)
    """Records inside themselves."""
    named: dict[str, "_Named | None"] = field(default_factory=dict)
    extents: dict[str, _Extent] = field(default_factory=dict)
    """Extents of records by full name. A record may be used many times, and so may the records in it."""

    def judge(self, record: Record, read: Collection[str]) -> None:
        """Check that the fields that are read can become columns. Raises InvalidSpecError (BadSchema)."""
        fields, judged = read_fields(record, read), set[int]()
        self._check_names(record.name, fields, "")
        for each in fields:
            if self._extent(each.type).levels > types.MAX_DEPTH:
                raise _bad(f".{each.name}", f"the column has more than {types.MAX_DEPTH} levels of nesting")
            self._judge(each.type, f".{each.name}", judged)

    def judge_part(self, record: Record) -> None:
        """Check that the members of a record can become columns that are not passed over. Raises InvalidSpecError (BadSchema)."""
        judged = set[int]()
        for each in record.fields:
            self._judge(each.type, f".{each.name}", judged)

    def _judge(self, node: Node, path: str, judged: set[int]) -> None:
        if id(node) in judged or isinstance(node, Passed):
            return
        judged.add(id(node))
        if isinstance(node, Again):
            raise _bad(
                path,
                f"type {node.name} contains itself, and a table has no recursive columns; remove the columns that read it from schema.columns, or"
                " use schema.raw: Binary",
            )
        if isinstance(node, Record):
            self._check_names(node.name, [each for each in node.fields if not isinstance(each.type, Passed)], path)
            for each in node.fields:
                self._judge(each.type, f"{path}.{each.name}", judged)
            return
        for part in parts(node):
            self._judge(part, path, judged)

    @staticmethod
    def _check_names(record: str, fields: Iterable[Field], path: str) -> None:
        seen: dict[str, str] = {}
        for each in fields:
            other = seen.setdefault(each.name.lower(), each.name)
            if other != each.name:
                problem = f"has the fields {other} and {each.name}; query engines ignore case, so rename one"
                raise _bad(path, f"record {record} {problem}")

    def node(self, value: Any, space: str, path: str, level: int) -> Node:
        """Parse the schema at ``path``. ``space`` is the namespace of names without one."""
        if level > MOST_LEVELS:
            raise _bad(path, f"the schema nests more than {MOST_LEVELS} levels deep; declare its types side by side")
        match value:
            case str():
                return Scalar(value) if value in PRIMITIVES else self._reference(value, space, path)
            case list():
                return self._union(value, space, path, level)
            case dict() if isinstance(value.get("type"), (dict, list)):
                return self.node(value["type"], space, path, level + 1)
            case {"type": str(kind)}:
                return self._declared(kind, value, space, path, level)
            case dict():
                raise _bad(path, 'the type is an object without "type"; write {"type": ...}')
            case _:
                raise _bad(path, f"a type is a name, an object or a list, not {_shown(value)}")

    def _declared(self, kind: str, value: Mapping[str, Any], space: str, path: str, level: int) -> Node:
        match kind:
            case "record" | "error":
                return self._record(value, space, path, level)
            case "enum":
                return self._enum(value, space, path)
            case "fixed":
                return self._fixed(value, space, path)
            case "array":
                return self._array(value, space, path, level)
            case "map":
                if "values" not in value:
                    raise _bad(path, 'a map has to name the type of its values: "values"')
                return Map(self.node(value["values"], space, f"{path}.values", level + 1))
            case "bytes" if (digits := _decimal(value)) is not None:
                return DecimalBytes(*digits)
            case _ if kind in PRIMITIVES:
                logical = value.get("logicalType")
                known = isinstance(logical, str) and (kind, logical) in _LOGICAL
                return Scalar(kind, str(logical) if known and self._keeps(str(logical)) else "")
        return self._reference(kind, space, path)

    def _keeps(self, logical: str) -> bool:
        return self.nanoseconds or logical not in _NANOSECONDS

    def _reference(self, name: str, space: str, path: str) -> Node:
        full = name if "." in name or not space else f"{space}.{name}"
        for each in (full, name):
            if each in self.named:
                known = self.named[each]
                if known is None and not self.judges:
                    return self.inside.setdefault(each, Again(each))
                if known is None:
                    raise _bad(
                        path,
                        f"type {each} contains itself, and a table has no recursive columns; list the columns without this field in schema.columns,"
                        " with otherFields: Drop,"
                        " or use schema.raw: Binary",
                    )
                return known
        raise _bad(
            path,
            f"type {_shown(full)} is not known; declare it before its first use, or use one of {', '.join(PRIMITIVES)}",
        )

    def _union(self, value: list[Any], space: str, path: str, level: int) -> Node:
        if not value:
            raise _bad(path, "a union has at least one branch")
        branches = []
        for number, branch in enumerate(value):
            if isinstance(branch, list):
                raise _bad(path, "a union cannot have a union as a branch")
            branches.append(self.node(branch, space, f"{path}[{number}]", level + 1))
        seen: set[str] = set()
        for kind in map(_identity, branches):
            if kind in seen:
                raise _bad(path, f"a union cannot have two branches of type {kind}")
            seen.add(kind)
        return Union(tuple(branches))

    def _array(self, value: Mapping[str, Any], space: str, path: str, level: int) -> Node:
        if "items" not in value:
            raise _bad(path, 'an array has to name the type of its elements: "items"')
        items = self.node(value["items"], space, f"{path}.items", level + 1)
        if self._extent(items).empty:
            # A few bytes could claim any number of elements.
            raise _bad(
                path, "the elements of the array take no bytes, so nothing limits their number; give them a field"
            )
        return Array(items)

    def _record(self, value: Mapping[str, Any], space: str, path: str, level: int) -> Record:
        name, inner = self._declare(value, space, path)
        declared = value.get("fields")
        if not isinstance(declared, list):
            raise _bad(path, f'record {name} has no list of fields: "fields"')
        fields: list[Field] = []
        extents: list[_Extent] = []
        seen: dict[str, str] = {}
        for each in declared:
            made = self._field(each, inner, path, level)
            other = seen.setdefault(made.name.lower() if self.judges else made.name, made.name)
            if other != made.name:
                problem = f"has the fields {other} and {made.name}; query engines ignore case, so rename one"
                raise _bad(path, f"record {name} {problem}")
            if len(seen) == len(fields):
                raise _bad(path, f"record {name} has the field {made.name} twice")
            extent = self._extent(made.type)
            if self.judges and extent.levels > types.MAX_DEPTH:
                raise _bad(f"{path}.{made.name}", f"the column has more than {types.MAX_DEPTH} levels of nesting")
            fields.append(made)
            extents.append(extent)
        self.extents[name] = _Extent(
            1 + max((each.levels for each in extents), default=0),
            1 + sum(each.types for each in extents),
            all(each.empty for each in extents),
        )
        if self.extents[name].types > MOST_TYPES:
            raise _bad(path, f"record {name} has more than {MOST_TYPES} types, if each use of a type counts")
        record = Record(name, tuple(fields))
        self.named[name] = record
        if name in self.inside:
            self.inside[name].found.append(record)
        return record

    def _field(self, value: Any, space: str, path: str, level: int) -> Field:
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MOST_NAME:
            rule = f"a field needs a name of at most {MOST_NAME} letters, digits and _"
            raise _bad(path, f"{rule}, not {_shown(name)}")
        place = f"{path}.{name}"
        if "type" not in value:
            raise _bad(place, 'the field has no "type"; write its type')
        doc = value.get("doc")
        comment = without_surrogates(doc)[:MOST_DOC] if isinstance(doc, str) else None
        named = value.get("aliases")
        known = [each for each in named if isinstance(each, str)] if isinstance(named, list) else []
        earlier = tuple(each for each in dict.fromkeys(known) if _NAME.fullmatch(each) and len(each) <= MOST_NAME)
        return Field(name, self.node(value["type"], space, place, level + 1), comment, earlier)

    def _enum(self, value: Mapping[str, Any], space: str, path: str) -> Enum:
        name, _ = self._declare(value, space, path)
        symbols, default = value.get("symbols"), value.get("default")
        if not isinstance(symbols, list) or not symbols:
            raise _bad(path, f'enum {name} has no list of symbols: "symbols"')
        for symbol in symbols:
            if not isinstance(symbol, str) or not _SYMBOL.fullmatch(symbol):
                raise _bad(path, f"a symbol of enum {name} has letters, digits and _, not {_shown(symbol)}")
        if len(set(symbols)) < len(symbols):
            raise _bad(path, f"enum {name} has a symbol twice; remove one")
        if default is not None and default not in symbols:
            raise _bad(path, f"the default of enum {name} is not one of its symbols")
        enum = Enum(name, tuple(symbols))
        self.named[name] = enum
        return enum

    def _fixed(self, value: Mapping[str, Any], space: str, path: str) -> Node:
        name, _ = self._declare(value, space, path)
        size = value.get("size")
        if type(size) is not int or not 1 <= size <= 1_048_576:
            raise _bad(path, f'fixed {name} needs a size of 1 to 1048576 bytes: "size"')
        digits = _decimal(value)
        made: FixedBytes | DecimalBytes
        if digits is not None and digits[0] <= _most_digits(size):
            made = DecimalBytes(*digits, size=size, name=name)
        else:
            made = FixedBytes(name, size, value.get("logicalType") == "uuid" and size == 16)
        self.named[name] = made
        return made

    def _declare(self, value: Mapping[str, Any], space: str, path: str) -> tuple[str, str]:
        """Return the full name of a new type, and the namespace of the names inside it."""
        name, own = value.get("name"), value.get("namespace")
        parts = name.split(".") if isinstance(name, str) else []
        if not all(parts) or not parts or not _NAME.fullmatch(parts[-1]) or len(parts[-1]) > MOST_NAME:
            raise _bad(path, f"a {value['type']} needs a name of letters, digits and _, not {_shown(name)}")
        if len(parts) == 1:
            own = space if own is None else own
            # Only dots count. Java's library also writes namespaces such as com.my-company, and com.x.Outer$ for nested classes.
            if not isinstance(own, str) or not all(own.split(".") if own else ()):
                raise _bad(path, f"the namespace of {name} has names with dots between them, not {_shown(own)}")
            name = f"{own}.{name}" if own else name
        if name in PRIMITIVES:
            raise _bad(path, f"{name} is the name of a primitive type; choose another one")
        if name in self.named:
            raise _bad(path, f"type {name} is declared twice; use its name the second time")
        self.named[str(name)] = None
        return str(name), str(name).rpartition(".")[0]

    def _extent(self, node: Node) -> _Extent:
        match node:
            case Record(name):
                return self.extents[name]
            case Array(inner) | Map(inner):
                extent = self._extent(inner)
                return _Extent(1 + extent.levels, 1 + extent.types, empty=False)
            case Union(branches):
                extents = [self._extent(branch) for branch in branches]
                # A union of several types is a struct.
                level = len(members(node)) > 1
                return _Extent(
                    level + max(each.levels for each in extents), 1 + sum(each.types for each in extents), empty=False
                )
        return _Extent(1, 1, node == Scalar("null"))


def _identity(branch: Node) -> str:
    """Return the name that distinguishes a branch from the others of its union."""
    match branch:
        case Scalar(kind):
            return kind
        case Array():
            return "array"
        case Map():
            return "map"
        case DecimalBytes(name=""):
            return "bytes"
        case FixedBytes(name=name) | DecimalBytes(name=name) | Enum(name=name) | Record(name=name) | Again(name=name):
            return name
        case Passed(inner):
            return _identity(inner)
        case Union():
            raise AssertionError("a union has no union as a branch")


def _decimal(value: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return precision and scale of a valid decimal of at most 38 digits, else None: then it is bytes."""
    precision, scale = value.get("precision"), value.get("scale", 0)
    if value.get("logicalType") != "decimal" or type(precision) is not int or type(scale) is not int:
        return None
    return (precision, scale) if 1 <= precision <= 38 and 0 <= scale <= precision else None


def _most_digits(size: int) -> int:
    """Return the number of digits that always fit in so many bytes with a sign."""
    return len(str(2 ** (8 * size - 1) - 1)) - 1 if size <= 16 else 38


def _shown(value: Any) -> str:
    """Return a value as JSON, or its beginning."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _bad_schema(problem: str) -> InvalidSpecError:
    return InvalidSpecError(problem, reason=Reason.BAD_SCHEMA)


def _bad(path: str, problem: str) -> InvalidSpecError:
    return InvalidSpecError(f"field {path[1:]}: {problem}" if path else problem, reason=Reason.BAD_SCHEMA)
