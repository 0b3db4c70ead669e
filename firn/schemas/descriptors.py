"""The descriptors of a Protobuf schema, as protoc writes them: its messages and enums, by their full names.

Source: ``google/protobuf/descriptor.proto``. The bytes come from protoc, which the operator and drivers run. Tasks need
no Protobuf library, because this module reads the few members that columns depend on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError

PACKED_TYPES: Mapping[int, str] = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool", 13: "uint32",
    15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64",
}  # fmt: skip
"""Types of numbers, by their number in ``FieldDescriptorProto.Type``."""
TEXT_TYPES: Mapping[int, str] = {9: "string", 12: "bytes"}
GROUP, MESSAGE, ENUM = 10, 11, 14
REQUIRED, REPEATED = 2, 3
"""Labels that change the meaning of a field (``FieldDescriptorProto.Label``)."""
_EXPLICIT, _IMPLICIT, _LEGACY_REQUIRED = 1, 2, 3
"""Values of ``FeatureSet.FieldPresence``."""
_DELIMITED = 2
"""The value of ``FeatureSet.MessageEncoding`` for messages with the encoding of groups."""
EDITION_2024 = 1001
"""The last edition whose features are known (``Edition``)."""


@dataclass(frozen=True, slots=True)
class FieldDeclaration:
    """A declared field. ``oneof`` is the number of its oneof in the message, -1 for none.

    ``implicit``: a field that is no message and in no oneof has no presence. ``label`` and ``type`` are those of proto2 for
    features of an edition: `REQUIRED` and `GROUP`.
    """

    name: str = ""
    number: int = 0
    label: int = 1
    type: int = 0
    type_name: str = ""
    default: str | None = None
    oneof: int = -1
    proto3_optional: bool = False
    implicit: bool = False


@dataclass(frozen=True, slots=True)
class MessageDeclaration:
    """A declared message. ``edition`` is the number of its edition, 0 in proto2 and proto3."""

    name: str
    edition: int
    fields: tuple[FieldDeclaration, ...]
    oneofs: tuple[str, ...] = ()
    map_entry: bool = False


@dataclass(frozen=True, slots=True)
class EnumDeclaration:
    """A declared enum: numbers and names of its values, in the order of the text."""

    name: str
    values: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class Declarations:
    """All declared types by full name. ``first`` is the first message of the last file, which is the schema's own."""

    messages: dict[str, MessageDeclaration] = field(default_factory=dict)
    enums: dict[str, EnumDeclaration] = field(default_factory=dict)
    first: str = ""
    own: tuple[str, ...] = ()
    """The outer messages of the last file, in the order of the text."""
    indexes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Messages of the last file, by full name: the place of the outer message in the text, and that of each message inside it."""


class _Message:
    """The members of an encoded message, by field number."""

    def __init__(self, data: bytes) -> None:
        self._members: dict[int, list[int | bytes]] = {}
        for number, value in _members(data):
            self._members.setdefault(number, []).append(value)

    def integer(self, number: int, default: int = 0) -> int:
        value = self._members.get(number, [default])[-1]
        return value if isinstance(value, int) else default

    def text(self, number: int) -> str:
        return self.optional(number) or ""

    def optional(self, number: int) -> str | None:
        found = self.all(number)
        return found[-1].decode("utf-8", "replace") if found else None

    def all(self, number: int) -> list[bytes]:
        return [value for value in self._members.get(number, ()) if isinstance(value, bytes)]

    def message(self, number: int) -> "_Message":
        """Return a message in a field, without members if the field is absent. Messages of one field are merged."""
        return _Message(b"".join(self.all(number)))


@dataclass(frozen=True, slots=True)
class _Features:
    """The features of a field that change its meaning or its encoding. Those of the file are the default."""

    presence: int
    delimited: bool = False

    def changed(self, features: _Message) -> "_Features":
        """Return the features with those that a ``FeatureSet`` has."""
        encoding = features.integer(5, _DELIMITED if self.delimited else 1)
        return _Features(features.integer(1, self.presence), encoding == _DELIMITED)


def read(data: bytes) -> Declarations:
    """Read a serialized ``FileDescriptorSet``. Raises InvalidSpecError (BadSchema) for bytes that are none."""
    found = Declarations()
    for content in _Message(data).all(1):
        _add_file(found, _Message(content))
    return found


def _add_file(found: Declarations, file: _Message) -> None:
    package, syntax = file.text(2), file.text(12) or "proto2"
    prefix = f"{package}." if package else ""
    features = _Features(_IMPLICIT if syntax == "proto3" else _EXPLICIT).changed(file.message(8).message(50))
    for content in file.all(5):
        _add_enum(found, prefix, _Message(content))
    indexes: dict[str, tuple[int, ...]] = {}
    waiting: list[tuple[str, _Message, tuple[int, ...]]] = [
        (prefix, _Message(content), (place,)) for place, content in enumerate(file.all(4))
    ]
    own = [prefix + message.text(1) for _, message, _ in waiting]
    while waiting:
        outer, message, path = waiting.pop()
        name = outer + message.text(1)
        indexes[name] = path
        found.messages[name] = MessageDeclaration(
            name,
            file.integer(14),
            tuple(_field(_Message(content), features) for content in message.all(2)),
            tuple(_Message(content).text(1) for content in message.all(8)),
            _is_map_entry(message),
        )
        for content in message.all(4):
            _add_enum(found, f"{name}.", _Message(content))
        nested = [_Message(content) for content in message.all(3)]
        # The text has no entries of maps. protoc adds them.
        declared = [each for each in nested if not _is_map_entry(each)]
        waiting += [(f"{name}.", each, (*path, place)) for place, each in enumerate(declared)]
        waiting += [(f"{name}.", each, ()) for each in nested if _is_map_entry(each)]
    found.own, found.indexes = tuple(own), indexes
    found.first = own[0] if own else ""


def _is_map_entry(message: _Message) -> bool:
    return bool(message.message(7).integer(7))


def _add_enum(found: Declarations, prefix: str, enum: _Message) -> None:
    values = [_Message(content) for content in enum.all(2)]
    name = prefix + enum.text(1)
    found.enums[name] = EnumDeclaration(name, tuple((_signed(each.integer(2)), each.text(1)) for each in values))


def _field(declared: _Message, of_file: _Features) -> FieldDeclaration:
    features, kind = of_file.changed(declared.message(8).message(21)), declared.integer(5)
    return FieldDeclaration(
        name=declared.text(1),
        number=declared.integer(3),
        label=REQUIRED if features.presence == _LEGACY_REQUIRED else declared.integer(4, 1),
        type=GROUP if kind == MESSAGE and features.delimited else kind,
        type_name=declared.text(6).removeprefix("."),
        default=declared.optional(7),
        oneof=declared.integer(9, -1),
        proto3_optional=bool(declared.integer(17)),
        implicit=features.presence == _IMPLICIT,
    )


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _members(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield field numbers and values of an encoded message, without groups, which only custom options have."""
    at = groups = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 in (3, 4):
            groups += 1 if tag & 7 == 3 else -1
            continue
        size = {0: 0, 1: 8, 5: 4}.get(tag & 7, -1)
        if size == 0:
            number, at = _varint(data, at)
            if not groups:
                yield tag >> 3, number
            continue
        if tag & 7 == 2:
            size, at = _varint(data, at)
        if size < 0 or size > len(data) - at:
            raise _bad()
        if not groups:
            yield tag >> 3, data[at : at + size]
        at += size
    if groups:
        raise _bad()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise _bad()


def _bad() -> InvalidSpecError:
    return InvalidSpecError(
        "the descriptors of the schema are damaged; restart the operator, which writes them again",
        reason=Reason.BAD_SCHEMA,
    )
