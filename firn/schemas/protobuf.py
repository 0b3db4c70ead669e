"""Protobuf schemas: the messages of descriptors, checked, and as columns of a table.

Source: Protobuf documentation, "Encoding", "Language Guide (proto 2)", "Language Guide (proto 3)", "Field Presence",
"Feature Settings for Editions". `parse` refuses what has no columns: messages that contain themselves, types that are too
large or too deep, and fields whose names differ only in case.
"""

import base64
import difflib
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from firn.member_paths import Path
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, RecordSchema, Rename, SchemaFormat
from firn.schemas import descriptors
from firn.schemas.descriptors import Declarations, EnumDeclaration, FieldDeclaration, MessageDeclaration
from firn.tables import rows, types
from firn.tables.types import Decimal, ListOf, MapOf, Primitive, Struct, Type

MOST_TYPES = 10_000
"""Most types of a schema with all its parts. A type counts each time that it is used."""
MOST_NAME = 128
"""Longest name of a field, in characters."""
_COLUMNS: dict[str, Type] = {
    "int32": Primitive("int"),
    "sint32": Primitive("int"),
    "sfixed32": Primitive("int"),
    "uint32": Primitive("long"),
    "fixed32": Primitive("long"),
    "int64": Primitive("long"),
    "sint64": Primitive("long"),
    "sfixed64": Primitive("long"),
    "uint64": Decimal(20, 0),
    "fixed64": Decimal(20, 0),
    "float": Primitive("float"),
    "double": Primitive("double"),
    "bool": Primitive("boolean"),
    "string": Primitive("string"),
    "bytes": Primitive("binary"),
}
_WIDER = frozenset({("int32", "int64"), ("sint32", "sint64"), ("uint32", "int64")})
"""Changes of a scalar type after which all earlier values are the same."""
_WRAPPERS = {
    f"google.protobuf.{name}Value": kind
    for name, kind in (
        ("Bool", "bool"), ("Bytes", "bytes"), ("Double", "double"), ("Float", "float"), ("Int32", "int32"),
        ("Int64", "int64"), ("String", "string"), ("UInt32", "uint32"), ("UInt64", "uint64"),
    )
}  # fmt: skip
STRING_VALUE = "google.protobuf.StringValue"
_WELL_KNOWN = "google.protobuf."
"""Messages with these names may have a column of their own kind, such as a time."""
_WHOLE: frozenset[Path] = frozenset({()})
"""Paths of all members of a field."""
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", '"': b'"', "'": b"'", "\\": b"\\"}
Default = int | float | str | bytes


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number, a text or bytes. ``kind`` is the name of the type in .proto texts."""

    kind: str


@dataclass(frozen=True, slots=True)
class Enum:
    """A value that is one of several numbers with names. ``first`` is the number that the text declares first."""

    name: str
    symbols: tuple[tuple[int, str], ...]
    first: int


@dataclass(frozen=True, slots=True)
class Repeated:
    """Items of one type."""

    item: "Scalar | Enum | Message"


@dataclass(frozen=True, slots=True)
class Map:
    """Values by key. ``entry`` is the message with both, the fields 1 and 2."""

    entry: "Message"

    @property
    def key(self) -> "Node":
        """Return the type of keys."""
        return self.entry.fields[0].type

    @property
    def value(self) -> "Node":
        """Return the type of values."""
        return self.entry.fields[1].type


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message.

    An absent field is null if ``default`` is None, else it has this value; a message in a map has the default ``b""``. A
    ``required`` field is never absent. At most one field of a ``oneof`` is present. The messages of a ``group`` end with a tag,
    and have no length before them.
    """

    number: int
    name: str
    type: "Node"
    default: Default | None = None
    required: bool = False
    oneof: str = ""
    group: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A message with its fields, in the order of the text. ``nanoseconds``: the column of a Timestamp keeps them.

    ``others`` are the numbers of members of a ``oneof`` that are not read, with the name of the oneof. A value of such a member
    clears the members that are.
    """

    name: str
    fields: tuple[Field, ...]
    nanoseconds: bool = False
    others: tuple[tuple[int, str], ...] = ()

    def only(self, fields: Iterable[Field]) -> "Message":
        """Return the message with only these fields of it, which may have other types."""
        kept = tuple(fields)
        numbers, oneofs = {each.number for each in kept}, {each.oneof for each in kept if each.oneof}
        members = (*self.others, *((each.number, each.oneof) for each in self.fields if each.number not in numbers))
        return replace(self, fields=kept, others=tuple(each for each in members if each[1] in oneofs))


Node = Scalar | Enum | Repeated | Map | Message
TIMESTAMP = Message(
    "google.protobuf.Timestamp",
    (Field(1, "seconds", Scalar("int64"), default=0), Field(2, "nanos", Scalar("int32"), default=0)),
)
"""The well-known type for times. Another message of this name is an ordinary message."""
TIMESTAMP_NS = replace(TIMESTAMP, nanoseconds=True)


def parse(
    data: bytes,
    message: str = "",
    *,
    found: str = "",
    nanoseconds: bool = False,
    read: Collection[str] | None = None,
    paths: Collection[Path] | None = None,
) -> Message:
    """Return a message of serialized descriptors: ``message``, else ``found`` as in `message_name`.

    ``nanoseconds``: the columns of times keep them. ``read`` are the names of the fields that have columns, if not all have them. The
    message lacks other fields that cannot become columns, and decoders skip them as they skip unknown fields. If there are ``paths``, the
    message has only the fields and members at these paths.
    Raises InvalidSpecError (BadSchema) with cause and place.
    """
    declared = descriptors.read(data)
    name = _name(declared, message, found)
    if not name:
        raise _bad_schema("the text has no message; declare one")
    if name not in declared.messages or declared.messages[name].map_entry:
        raise _bad_schema(f"the text has no message {name}; set schema.message to {_choices(declared, name)}")
    parser = _Parser(declared, nanoseconds, read)
    if paths is not None:
        return parser.part(declared.messages[name], "", 1, frozenset(paths))
    parsed = parser.message(declared.messages[name], "", 1)
    if read is None and not columns(parsed):
        raise _bad_schema(f"message {name} has no field that can become a column; add a field")
    return parsed


def message_of(schema: RecordSchema, *, whole: bool = False) -> Message:
    """Return the message of a contract's schema, with the fields that columns read, or with all. Raises InvalidSpecError (BadSchema)."""
    read = rows.read_fields(schema)
    message = parse(
        _content(schema),
        schema.message,
        found=schema.found_message,
        nanoseconds=schema.nanoseconds,
        read=read,
        paths=None if whole else rows.read_members(schema),
    )
    for rename in schema.renames:
        message = _renamed(message, rename.old_path, rename.name)
    if read is None or whole:
        return message
    return message.only(each for each in message.fields if each.name in read)


def message_name(schema: RecordSchema) -> str:
    """Return the full name of the message of values; empty if the text has none. Raises InvalidSpecError (BadSchema).

    Without ``message``, it is ``found_message``. A text whose only outer message has another name has renamed it.
    """
    return _name(descriptors.read(_content(schema)), schema.message, schema.found_message)


def with_found_message(schema: RecordSchema, before: RecordSchema | None = None) -> RecordSchema:
    """Return a schema that names the message of its values, so that a text with another first message does not change it.

    It is the message of ``before``, the schema of an earlier text, if there is one. Raises InvalidSpecError (BadSchema).
    """
    if schema.format is not SchemaFormat.PROTOBUF or schema.message:
        return schema
    found = schema.found_message
    if before is not None and before.format is SchemaFormat.PROTOBUF:
        found = before.found_message or message_name(before)
    known = schema.model_copy(update={"found_message": found})
    return known.model_copy(update={"found_message": message_name(known)})


def _name(declared: Declarations, message: str, found: str) -> str:
    if message or not found or declared.indexes.get(found):
        return message.removeprefix(".") or found or declared.first
    if len(declared.own) != 1 or not _is_renamed(declared, found):
        raise _bad_schema(
            f"the text has no message {found}, whose fields are the columns of the table; restore the message, or set schema.message (for keys"
            f" schema.key.message) to {_choices(declared, found)}"
        )
    return declared.first


def _is_renamed(declared: Declarations, found: str) -> bool:
    """Return whether the only outer message of a text can be ``found`` under another name: neither is inside the other."""
    inside = {name.rpartition(".")[2] for name in declared.indexes if name != declared.first}
    return found.rpartition(".")[2] not in inside and not found.startswith(f"{declared.first}.")


def _content(schema: RecordSchema) -> bytes:
    try:
        return base64.b64decode(schema.descriptors, validate=True)
    except ValueError as error:
        raise _bad_schema(f"the descriptors of the contract are damaged: {error}") from None


def indexes_of(schema: RecordSchema) -> tuple[int, ...]:
    """Return the message indexes that serializers write for the schema's message. Raises InvalidSpecError (BadSchema).

    Source: "Wire format" of Confluent Schema Registry.
    """
    declared = descriptors.read(_content(schema))
    name = _name(declared, schema.message, schema.found_message)
    if not declared.indexes.get(name):
        raise _bad_schema(f"the text has no message {name}; set schema.message to {_choices(declared, name)}")
    return declared.indexes[name]


def changed_indexes(old: RecordSchema, new: RecordSchema, option: str) -> list[str]:
    """Return the reason why values with the message indexes of ``old`` would be bad records in ``new``; empty if there is none.

    ``option`` is the field of the spec that names the message. Values of such a schema may have any indexes. Raises InvalidSpecError
    (BadSchema).
    """
    if not old.framing == new.framing == "Registry" or new.message:
        return []
    before, after = list(indexes_of(old)), list(indexes_of(new))
    if before == after:
        return []
    name = message_name(new)
    return [
        f"the indexes of message {name} cannot change from {before} to {after}, because records with the earlier indexes would become bad"
        f" records; declare other messages below it, or set {option}: {name}, which accepts all indexes"
    ]


def lacks_message(schema: RecordSchema) -> bool:
    """Return whether the schema names a message that its own text does not have. Raises InvalidSpecError (BadSchema)."""
    return bool(schema.message) and not descriptors.read(_content(schema)).indexes.get(schema.message)


def _renamed(message: Message, path: Sequence[str], name: str) -> Message:
    """Return a message in which a field has its later name, unless another field has it."""
    present = {each.name for each in message.fields}
    if path[0] not in present or (len(path) == 1 and name in present):
        return message
    return replace(message, fields=tuple(_renamed_field(each, path, name) for each in message.fields))


def _renamed_field(each: Field, path: Sequence[str], name: str) -> Field:
    if each.name != path[0]:
        return each
    if len(path) == 1:
        return replace(each, name=name)
    match each.type, path[1:]:
        case Repeated(Message() as item), ["element", *rest] if rest:
            return replace(each, type=Repeated(_renamed(item, rest, name)))
        case Map(entry), ["value", *rest] if rest and isinstance(entry.fields[1].type, Message):
            value = replace(entry.fields[1], type=_renamed(entry.fields[1].type, rest, name))
            return replace(each, type=Map(replace(entry, fields=(entry.fields[0], value))))
        case Message() as inside, rest if not is_timestamp(inside) and wrapped_field(inside) is None:
            return replace(each, type=_renamed(inside, rest, name))
    return each


def _choices(declared: Declarations, name: str) -> str:
    names = declared.own
    similar = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or list(names[:3])
    ends = [each for each in names if each.endswith(f".{name}")]
    return " or ".join(ends or similar) or "a message of the text"


def columns(message: Message) -> tuple[Column, ...]:
    """Return the columns of a message's fields. Messages without fields have none."""
    kinds = ((each, column_type(each.type)) for each in message.fields)
    return tuple(Column(name=each.name, type=str(kind)) for each, kind in kinds if kind is not None)


def column_type(node: Node) -> Type | None:
    """Return the type of a column for values of ``node``, or None for messages without fields."""
    match node:
        case Scalar(kind):
            return _COLUMNS[kind]
        case Enum():
            return Primitive("string")
        case Repeated(item):
            element = column_type(item)
            return None if element is None else ListOf(element)
        case Map():
            key, value = column_type(node.key), column_type(node.value)
            return None if key is None or value is None else MapOf(key, value)
        case Message(fields=fields):
            if is_timestamp(node):
                return Primitive("timestamptz_ns" if node.nanoseconds else "timestamptz")
            if (wrapped := wrapped_field(node)) is not None:
                return column_type(wrapped.type)
            members = ((each.name, column_type(each.type)) for each in fields)
            present = tuple((name, kind) for name, kind in members if kind is not None)
            return Struct(present) if present else None


def is_timestamp(node: Node) -> bool:
    """Return whether a type is the well-known type Timestamp."""
    return node in (TIMESTAMP, TIMESTAMP_NS)


def wrapped_field(message: Message) -> Field | None:
    """Return the field of a well-known wrapper, such as StringValue. Return None for other messages."""
    kind = _WRAPPERS.get(message.name)
    if kind is None or len(message.fields) != 1:
        return None
    value = message.fields[0]
    return value if (value.number, value.type) == (1, Scalar(kind)) else None


def changes(old: Message, new: Message) -> list[str]:
    """List the reasons why values of ``old`` do not have the same meaning in ``new``. The number identifies a field.

    Types of columns are not compared: `firn.tables.evolution` does this.
    """
    return list(dict.fromkeys(_changes(old, new, "")))


def _changes(old: Message, new: Message, path: str) -> Iterator[str]:
    numbers = {each.number: each for each in new.fields}
    names = {each.name: each for each in new.fields}
    known = {each.number: each for each in old.fields}
    for before in old.fields:
        place = f"{path}{before.name}"
        moved = names.get(before.name)
        after = numbers.get(before.number)
        if moved is not None and moved.number != before.number:
            yield f"field {place} cannot change its number from {before.number} to {moved.number}"
        elif after is not None:
            yield from _type_changes(before.type, after.type, place)
            if before.group != after.group and type(before.type) is type(after.type):
                yield f"field {place} cannot change between a message and a group, which has another encoding"
    for after in new.fields:
        earlier = known.get(after.number)
        if after.required and not (earlier is not None and earlier.required):
            yield f"field {path}{after.name} cannot become required, because earlier records may lack it"
    yield from _joined_fields(old, new, path)


def renames(old: Message, new: Message) -> tuple[Rename, ...]:
    """Return the fields that have another name in ``new``, those of a message before those of the messages in it.

    The path of a field inside a message has the new name of that message. ``new`` may be ``old`` under another name.
    """
    return tuple(_renames(old, new, ""))


def _renames(old: Node, new: Node, path: str) -> Iterator[Rename]:
    match old, new:
        case Repeated(before), Repeated(after):
            yield from _renames(before, after, f"{path}element.")
        case Map(), Map():
            yield from _renames(old.value, new.value, f"{path}value.")
        case Message(fields=before), Message(fields=after):
            numbers = {each.number: each for each in before}
            for each in after:
                earlier = numbers.get(each.number)
                if earlier is None:
                    continue
                if earlier.name != each.name and not list(_type_changes(earlier.type, each.type, "")):
                    yield Rename(old=path + earlier.name, new=path + each.name, by_schema=True)
                yield from _renames(earlier.type, each.type, f"{path}{each.name}.")


def check_names(old: Message, new: Message, place: str, read: Collection[str] | None = None) -> None:
    """Check that no field of ``new`` has the number of one field of ``old``, and the name of another.

    Columns belong to fields by their names, so its values would be in the wrong column. ``place`` names ``new`` in the error. ``new``
    may be ``old`` under another name. ``read`` are the names of the fields that have columns, if not all have them. Raises
    InvalidSpecError (BadSchema).
    """
    for found in _exchanged(old, new, "", read):
        raise exchanged(place, *found)


def exchanged(place: str, field: str, number: int, other: str, before: Collection[int]) -> InvalidSpecError:
    """Return the error about a field at ``place`` that has the ``number`` of the field ``other``, and had the numbers ``before``."""
    numbers = " or ".join(map(str, sorted(before)))
    return _bad_schema(
        f"{place}: field {field} has the number {number} of field {other}, but a field {field} had the number {numbers}; give it a name"
        " that no field had, or a new number"
    )


def _exchanged(
    old: Node, new: Node, path: str, read: Collection[str] | None = None
) -> Iterator[tuple[str, int, str, tuple[int]]]:
    """Yield the fields that have the number of one field, and the name of another, with the arguments of `exchanged`."""
    match old, new:
        case Repeated(before), Repeated(after):
            yield from _exchanged(before, after, f"{path}element.")
        case Map(), Map():
            yield from _exchanged(old.value, new.value, f"{path}value.")
        case Message(), Message(fields=after):
            for now, earlier, other in _other_names(old, new, read):
                yield path + now.name, now.number, path + earlier.name, (other.number,)
            numbers = {each.number: each for each in old.fields}
            for each in after:
                if each.number in numbers:
                    yield from _exchanged(numbers[each.number].type, each.type, f"{path}{each.name}.")


def _other_names(old: Message, new: Message, read: Collection[str] | None) -> Iterator[tuple[Field, Field, Field]]:
    """Yield the fields of ``new`` with the number of a field of ``old``, and the name of another, with these two."""
    names, numbers = {each.name: each for each in old.fields}, {each.number: each for each in old.fields}
    for each in new.fields:
        earlier, other = numbers.get(each.number), names.get(each.name)
        if earlier is None or other is None or other is earlier:
            continue
        if read is None or not {each.name, earlier.name}.isdisjoint(read):
            yield each, earlier, other


def _joined_fields(old: Message, new: Message, path: str) -> Iterator[str]:
    """Yield the fields that one earlier record may have together, and that exclude each other now."""
    before = {each.number: each for each in old.fields}
    members: dict[str, Field] = {}
    for after in new.fields:
        earlier = before.get(after.number)
        if not after.oneof or earlier is None:
            continue
        other = members.setdefault(after.oneof, earlier)
        if other is not earlier and (not earlier.oneof or other.oneof != earlier.oneof):
            yield (
                f"fields {path}{other.name} and {path}{earlier.name} cannot be members of oneof {after.oneof}, because earlier"
                " records may have both"
            )


def _type_changes(old: Node, new: Node, place: str) -> Iterator[str]:
    match old, new:
        case (Repeated(a), Repeated(b)):
            yield from _type_changes(a, b, place)
        case (Map(), Map()):
            yield from _type_changes(old.key, new.key, f"{place}.key")
            yield from _type_changes(old.value, new.value, f"{place}.value")
        case (Message(), Message()):
            if (old.name in _WRAPPERS or new.name in _WRAPPERS) and old.name != new.name:
                yield f"field {place} cannot change from {old.name} to {new.name}, which has other values"
            else:
                yield from _changes(old, new, f"{place}.")
        case (Enum(), Enum()):
            later = dict(new.symbols)
            for number, name in old.symbols:
                if later.get(number) != name:
                    yield f"field {place}: value {number} of the enum cannot change its name {name}, or be removed"
        case (Scalar(a), Scalar(b)):
            if a != b and (a, b) not in _WIDER:
                yield f"field {place} cannot change from {a} to {b}: earlier values may be others, or out of range"
        case _:
            yield f"field {place} cannot change from {_shown(old)} to {_shown(new)}, which has another encoding"


def _shown(node: Node) -> str:
    match node:
        case Scalar(kind):
            return kind
        case Enum(name=name) | Message(name=name):
            return name
        case Repeated(item):
            return f"repeated {_shown(item)}"
        case Map():
            return f"map<{_shown(node.key)}, {_shown(node.value)}>"


@dataclass(frozen=True, slots=True)
class _Extent:
    """The size of a type: levels of its column, and types with those inside it."""

    levels: int
    types: int


def _oneof(field: FieldDeclaration, message: MessageDeclaration) -> str:
    """Return the name of the oneof of a field; empty without one, also for ``optional`` in proto3."""
    return message.oneofs[field.oneof] if field.oneof >= 0 and not field.proto3_optional else ""


@dataclass(slots=True)
class _Parser:
    """Parses messages, each once. A message is None while the parser reads its fields."""

    declared: Declarations
    nanoseconds: bool = False
    read: Collection[str] | None = None
    """The names of the fields of the record that have columns; None if all have them."""
    messages: dict[str, Message | None] = field(default_factory=dict)
    extents: dict[str, _Extent] = field(default_factory=dict)

    def message(self, declared: MessageDeclaration, path: str, level: int) -> Message:
        """Parse the message at ``path``."""
        name = declared.name
        if name in self.messages:
            known = self.messages[name]
            if known is None:
                problem = f"type {name} contains itself, and a table has no recursive columns"
                step = f"list the columns without field {path.split('.')[1]} in schema.columns, with otherFields: Drop, or use schema.raw: Binary"
                raise _bad(path, f"{problem}; {step}")
            return known
        if declared.edition > descriptors.EDITION_2024:
            raise _bad(path, f'type {name} is declared with an edition after 2024; use edition = "2024"')
        if level > types.MAX_DEPTH + 1:
            raise _bad(path, f"the column has more than {types.MAX_DEPTH} levels of nesting")
        self.messages[name] = None
        fields: list[Field] = []
        extents: list[_Extent] = []
        seen: dict[str, str] = {}
        others: list[tuple[int, str]] = []
        for each in declared.fields:
            if not path and not self._can_be_column(each, declared, level):
                others.append((each.number, _oneof(each, declared)))
                continue
            made = self._field(each, declared, path, level)
            is_read = path or self.read is None or made.name in self.read
            other = seen.setdefault(made.name.lower(), made.name) if is_read else made.name
            if other != made.name:
                raise _bad(
                    path,
                    f"message {name} has the fields {other} and {made.name}; query engines ignore case, so rename one",
                )
            extent = self._extent(made.type)
            if extent.levels > types.MAX_DEPTH:
                raise _bad(f"{path}.{made.name}", f"the column has more than {types.MAX_DEPTH} levels of nesting")
            fields.append(made)
            extents.append(extent)
        made_message = Message(name, tuple(fields), others=tuple(others)).only(fields)
        if self.nanoseconds and is_timestamp(made_message):
            made_message = TIMESTAMP_NS
        leaf = is_timestamp(made_message) or wrapped_field(made_message) is not None
        self.extents[name] = _Extent(
            1 if leaf else 1 + max((each.levels for each in extents), default=0),
            1 + sum(each.types for each in extents),
        )
        if self.extents[name].types > MOST_TYPES:
            raise _bad(path, f"message {name} has more than {MOST_TYPES} types, if each use of a type counts")
        self.messages[name] = made_message
        return made_message

    def part(self, declared: MessageDeclaration, path: str, level: int, paths: frozenset[Path]) -> Message:
        """Parse only the fields of a message that are on ``paths``, and the members in them.

        A message inside itself is followed as far as a path goes.
        """
        fields: list[Field] = []
        others: list[tuple[int, str]] = []
        for each in declared.fields:
            inner = frozenset(rest[1:] for rest in paths if rest[0] == each.name)
            if inner:
                fields.append(self._field(each, declared, path, level, inner))
            else:
                others.append((each.number, _oneof(each, declared)))
        return Message(declared.name, tuple(fields), others=tuple(others)).only(fields)

    def _can_be_column(self, field: FieldDeclaration, message: MessageDeclaration, level: int) -> bool:
        """Return whether a field of the record is read, or could be read."""
        if self.read is None or field.name in self.read:
            return True
        try:
            extent = self._extent(self._field(field, message, "", level).type)
        except InvalidSpecError:
            # The messages that were begun are not known to contain themselves.
            self.messages = {name: each for name, each in self.messages.items() if each or name == message.name}
            return False
        return extent.levels <= types.MAX_DEPTH

    def _field(
        self,
        declared: FieldDeclaration,
        message: MessageDeclaration,
        path: str,
        level: int,
        paths: frozenset[Path] = _WHOLE,
    ) -> Field:
        place = f"{path}.{declared.name}"
        if len(declared.name) > MOST_NAME:
            raise _bad(path, f"the name {declared.name[:40]}... has more than {MOST_NAME} characters; rename the field")
        node = self._node(declared, place, level, paths)
        repeated = isinstance(node, Repeated | Map)
        oneof = _oneof(declared, message)
        implicit = message.map_entry or (declared.implicit and declared.oneof < 0 and not isinstance(node, Message))
        default: Default | None = None
        if declared.default is not None and not oneof:
            default = self._explicit(node, declared)
        elif implicit and not repeated:
            default = _zero(node)
        return Field(
            declared.number,
            declared.name,
            node,
            default=default,
            required=declared.label == descriptors.REQUIRED,
            oneof=oneof,
            group=declared.type == descriptors.GROUP and not message.map_entry and not isinstance(node, Map),
        )

    def _node(self, declared: FieldDeclaration, place: str, level: int, paths: frozenset[Path]) -> Node:
        single = self._single(declared, place, level, paths)
        if declared.label != descriptors.REPEATED:
            return single
        if isinstance(single, Message) and self.declared.messages[single.name].map_entry:
            return Map(single)
        assert not isinstance(single, Repeated | Map)
        return Repeated(single)

    def _single(
        self, declared: FieldDeclaration, place: str, level: int, paths: frozenset[Path]
    ) -> "Scalar | Enum | Message":
        kind = descriptors.PACKED_TYPES.get(declared.type) or descriptors.TEXT_TYPES.get(declared.type)
        if kind is not None:
            return Scalar(kind)
        if declared.type == descriptors.ENUM and declared.type_name in self.declared.enums:
            return _enum(self.declared.enums[declared.type_name])
        if declared.type in (descriptors.MESSAGE, descriptors.GROUP) and declared.type_name in self.declared.messages:
            inside = self.declared.messages[declared.type_name]
            is_single = declared.label != descriptors.REPEATED and not inside.name.startswith(_WELL_KNOWN)
            if is_single and () not in paths:
                return self.part(inside, place, level + 1, paths)
            return self.message(inside, place, level + 1)
        raise _bad(place, f"type {declared.type_name or declared.type} is not known")

    def _explicit(self, node: Node, declared: FieldDeclaration) -> Default:
        """Return the default that a field declares (``FieldDescriptorProto.default_value``)."""
        text = declared.default or ""
        match node:
            case Enum(first=first):
                values = self.declared.enums[declared.type_name].values
                return next((number for number, name in values if name == text), first)
            case Scalar("string"):
                return text
            case Scalar("bytes"):
                return _unescaped(text)
            case Scalar("float"):
                packed: float = struct.unpack("<f", struct.pack("<f", float(text)))[0]
                return packed
            case Scalar("double"):
                return float(text)
            case Scalar("bool"):
                return int(text == "true")
        return int(text)

    def _extent(self, node: Node) -> _Extent:
        match node:
            case Message(name):
                return self.extents[name]
            case Repeated(item):
                extent = self._extent(item)
                return _Extent(1 + extent.levels, 1 + extent.types)
            case Map():
                value = self._extent(node.value)
                return _Extent(1 + value.levels, 2 + value.types)
        return _Extent(1, 1)


def _enum(declared: EnumDeclaration) -> Enum:
    symbols: dict[int, str] = {}
    for number, name in declared.values:
        symbols.setdefault(number, name)  # an alias
    return Enum(declared.name, tuple(sorted(symbols.items())), declared.values[0][0])


def _zero(node: Node) -> Default:
    """Return the value of an absent field without presence."""
    match node:
        case Scalar("string"):
            return ""
        case Scalar("float" | "double"):
            return 0.0
        case Scalar("bytes") | Message():
            return b""
        case Enum(first=first):
            return first
    return 0


def _unescaped(text: str) -> bytes:
    """Return the bytes that protoc wrote with escapes as in C."""
    content, at = bytearray(), 0
    while at < len(text):
        if text[at] != "\\":
            content += text[at].encode()
            at += 1
        elif text[at + 1] in _ESCAPES:
            content += _ESCAPES[text[at + 1]]
            at += 2
        else:
            content.append(int(text[at + 1 : at + 4], 8))
            at += 4
    return bytes(content)


def _bad_schema(problem: str) -> InvalidSpecError:
    return InvalidSpecError(problem, reason=Reason.BAD_SCHEMA)


def _bad(path: str, problem: str) -> InvalidSpecError:
    return InvalidSpecError(f"field {path[1:]}: {problem}" if path else problem, reason=Reason.BAD_SCHEMA)
