"""Random Protobuf schemas, and records of them that google.protobuf writes and reads."""

from __future__ import annotations

import base64
import random
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

from firn.model.jobs import RecordSchema
from firn.schemas import protobuf
from firn.schemas.protobuf import Enum, Field, Map, Message, Node, Repeated, Scalar

KINDS = (
    "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes", "uint32", "sfixed32",
    "sfixed64", "sint32", "sint64",
)  # fmt: skip
KEYS = ("int32", "uint64", "sint64", "fixed32", "bool", "string")
WELL_KNOWN = (
    "google.protobuf.Timestamp", "google.protobuf.StringValue", "google.protobuf.Int32Value",
    "google.protobuf.BoolValue", "google.protobuf.UInt64Value", "google.protobuf.DoubleValue",
)  # fmt: skip
TEXTS = ("", "a", "sensor-000017", "größe", "日本語のテキスト", "🦀🦀", "x" * 70)
DEFAULTS = {
    "string": "-",
    "bytes": "\\001x\\n",
    "bool": "true",
    "float": "1.5",
    "double": "-inf",
    "uint64": "18446744073709551615",
}
_PROTO = descriptor_pb2.FieldDescriptorProto
_FEATURES = descriptor_pb2.FeatureSet
_UNPACKED = (_PROTO.TYPE_STRING, _PROTO.TYPE_BYTES, _PROTO.TYPE_MESSAGE, _PROTO.TYPE_GROUP)


def kind_number(kind: str) -> int:
    number: int = _PROTO.Type.Value(f"TYPE_{kind.upper()}")
    return number


class Schema:
    """A schema of google.protobuf and of Firn. ``file`` is a ``FileDescriptorProto`` with the record as its first message."""

    def __init__(self, file: Any) -> None:
        self.file = file
        files = [
            descriptor_pb2.FileDescriptorProto.FromString(each.DESCRIPTOR.serialized_pb)
            for each in (timestamp_pb2, wrappers_pb2)
        ]
        self.descriptors: bytes = descriptor_pb2.FileDescriptorSet(file=[*files, file]).SerializeToString()
        self.message = protobuf.parse(self.descriptors)
        pool = descriptor_pool.DescriptorPool()
        for each in (*files, file):
            pool.AddSerializedFile(each.SerializeToString())
        self.peer: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(self.message.name))

    def record_schema(self, **changes: Any) -> RecordSchema:
        """Return the schema as in a contract."""
        text = base64.b64encode(self.descriptors).decode()
        return RecordSchema(format="Protobuf", descriptors=text, fields=protobuf.columns(self.message), **changes)


class Schemas:
    """Makes schemas of one syntax.

    ``known``: without types whose damaged values google.protobuf drops. It drops unknown numbers of an enum of proto2, and
    the entries of a map that have an unknown field.
    """

    def __init__(self, pick: random.Random, syntax: str, *, known: bool = False) -> None:
        self._pick = pick
        self._syntax = syntax
        self._known = known
        self._names = 0

    def make(self) -> Schema:
        """Return a schema whose first message has a field that every record has."""
        file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="t", syntax=self._syntax)
        if self._syntax == "editions":
            file.edition = descriptor_pb2.EDITION_2023
            self._features(file.options.features)
        file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
        file.enum_type.add(name="Color").value.extend(
            descriptor_pb2.EnumValueDescriptorProto(name=name, number=number)
            for name, number in (("NONE", 0), ("RED", 7), ("BELOW", -3))
        )
        self._message(file.message_type.add(), ".t", 0)
        return Schema(file)

    def _message(self, message: Any, outer: str, depth: int) -> str:
        """Fill a declaration. Return the full name of the message."""
        pick = self._pick
        self._names += 1
        message.name = f"M{self._names}"
        if depth == 0:
            message.name = "Record"
        count = pick.randint(1, 9 - 2 * depth)
        numbers = pick.sample([*range(1, 30), 100, 5_000, 2**29 - 1], count)
        if pick.random() < 0.4:
            message.oneof_decl.add(name="choice")
        for place, number in enumerate(numbers):
            field = message.field.add(name=f"f{place}", number=number, label=_PROTO.LABEL_OPTIONAL)
            self._field(message, field, f"{outer}.{message.name}", depth)
        chosen = sum(each.HasField("oneof_index") for each in message.field)
        if message.oneof_decl and not chosen:
            del message.oneof_decl[:]
        if self._syntax == "proto3":
            self._optional(message)
        return f"{outer}.{message.name}"

    def _optional(self, message: Any) -> None:
        """Give some fields of proto3 an explicit presence, which is a oneof of its own behind all others."""
        for each in message.field:
            singular = each.label == _PROTO.LABEL_OPTIONAL and each.type != _PROTO.TYPE_MESSAGE
            if singular and not each.HasField("oneof_index") and self._pick.random() < 0.3:
                each.proto3_optional = True
                each.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{each.name}")

    def _field(self, message: Any, field: Any, outer: str, depth: int) -> None:
        pick = self._pick
        shape = pick.randrange(8)
        if shape == 0 and depth < 3 and not self._known:
            self._map(message, field, outer, depth)
            return
        self._type(message, field, outer, depth)
        if self._syntax == "proto2" and field.type == _PROTO.TYPE_MESSAGE and pick.random() < 0.4:
            field.type = _PROTO.TYPE_GROUP
        if shape <= 2:
            field.label = _PROTO.LABEL_REPEATED
            if field.type not in _UNPACKED and pick.random() < 0.5:
                self._pack(field, pick.random() < 0.5)
        elif shape == 3 and len(message.oneof_decl):
            field.oneof_index = 0
        elif self._syntax == "proto2" and field.type not in (_PROTO.TYPE_MESSAGE, _PROTO.TYPE_GROUP):
            if shape == 4:
                kind = protobuf_kind(field)
                field.default_value = "RED" if kind == "enum" else DEFAULTS.get(kind, "3")
            elif shape == 5 and depth:
                field.label = _PROTO.LABEL_REQUIRED
        elif self._syntax == "editions":
            self._features(field.options.features, field)

    def _pack(self, field: Any, packed: bool) -> None:
        if self._syntax == "editions":
            field.options.features.repeated_field_encoding = _FEATURES.PACKED if packed else _FEATURES.EXPANDED
        else:
            field.options.packed = packed

    def _features(self, features: Any, field: Any = None) -> None:
        """Set some features of a file, or of a field that is neither repeated nor in a oneof."""
        is_message = field is not None and field.type == _PROTO.TYPE_MESSAGE
        if self._pick.random() < 0.5 and not is_message:
            presences = [_FEATURES.EXPLICIT, _FEATURES.IMPLICIT, _FEATURES.LEGACY_REQUIRED]
            features.field_presence = self._pick.choice(presences[: 2 if field is None else 3])
        if self._pick.random() < 0.5 and (field is None or is_message):
            features.message_encoding = self._pick.choice([_FEATURES.LENGTH_PREFIXED, _FEATURES.DELIMITED])

    def _type(self, message: Any, field: Any, outer: str, depth: int) -> None:
        pick = self._pick
        choice = pick.randrange(10)
        if choice == 0 and not (self._known and self._syntax == "proto2"):
            field.type, field.type_name = _PROTO.TYPE_ENUM, ".t.Color"
        elif choice == 1:
            field.type, field.type_name = _PROTO.TYPE_MESSAGE, f".{pick.choice(WELL_KNOWN)}"
        elif choice <= 3 and depth < 3:
            name = self._message(message.nested_type.add(), outer, depth + 1)
            field.type, field.type_name = _PROTO.TYPE_MESSAGE, name
        else:
            field.type = kind_number(pick.choice(KINDS))

    def _map(self, message: Any, field: Any, outer: str, depth: int) -> None:
        entry = message.nested_type.add(name=f"{field.name.capitalize()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_PROTO.LABEL_OPTIONAL, type=kind_number(self._pick.choice(KEYS)))
        value = entry.field.add(name="value", number=2, label=_PROTO.LABEL_OPTIONAL)
        self._type(message, value, outer, depth)
        field.label, field.type = _PROTO.LABEL_REPEATED, _PROTO.TYPE_MESSAGE
        field.type_name = f"{outer}.{entry.name}"


def protobuf_kind(field: Any) -> str:
    """Return the name of a field's type in .proto texts."""
    name: str = _PROTO.Type.Name(field.type)
    return name.removeprefix("TYPE_").lower()


class Values:
    """Fills messages of google.protobuf with random values."""

    def __init__(self, pick: random.Random) -> None:
        self._pick = pick

    def make(self, schema: Schema) -> bytes:
        """Return an encoded record."""
        record = schema.peer()
        self.fill(record, schema.message)
        content: bytes = record.SerializeToString()
        return content

    def fill(self, message: Any, node: Message) -> None:
        """Set some fields of a message, and all that are required."""
        if protobuf.is_timestamp(node):
            message.seconds, message.nanos = (
                self._pick.randrange(-62_135_596_800, 253_402_300_800),
                self._pick.randrange(10**9),
            )
            return
        for field in node.fields:
            if field.required or self._pick.random() < 0.7:
                self._set(message, field)

    def _set(self, message: Any, field: Field) -> None:
        pick = self._pick
        match field.type:
            case Message():
                getattr(message, field.name).SetInParent()
                self.fill(getattr(message, field.name), field.type)
            case Repeated(item):
                for _ in range(pick.choice([0, 1, 2, 5])):
                    if isinstance(item, Message):
                        self.fill(getattr(message, field.name).add(), item)
                    else:
                        getattr(message, field.name).append(self.scalar(item))
            case Map():
                for _ in range(pick.choice([0, 1, 2, 5])):
                    key = self.scalar(field.type.key)
                    if isinstance(field.type.value, Message):
                        self.fill(getattr(message, field.name)[key], field.type.value)
                    else:
                        getattr(message, field.name)[key] = self.scalar(field.type.value)
            case _:
                setattr(message, field.name, self.scalar(field.type))

    def scalar(self, node: Node) -> Any:
        """Return a value of a type without parts."""
        pick = self._pick
        match node:
            case Enum(symbols=symbols):
                return pick.choice(symbols)[0]
            case Scalar("bool"):
                return pick.random() < 0.5
            case Scalar("string"):
                return pick.choice(TEXTS)
            case Scalar("bytes"):
                return pick.randbytes(pick.choice([0, 1, 7, 8, 9, 200]))
            case Scalar("float" | "double"):
                return pick.choice([0.0, -0.0, 1.5, pick.uniform(-1e30, 1e30), float("inf"), float("nan")])
        assert isinstance(node, Scalar)
        signed = node.kind.startswith(("int", "sint", "sfixed"))
        bits = (32 if node.kind.endswith("32") else 64) - signed
        return pick.choice(
            [0, 1, 127, 128, 2**bits - 1, pick.getrandbits(bits), -(2**bits) if signed else 5, -1 if signed else 6]
        )


def of_peer(message: Any, node: Message) -> Any:
    """Return a message of google.protobuf as Arrow takes it."""
    if protobuf.is_timestamp(node):
        return message.seconds * 1_000_000 + message.nanos // 1000
    if (wrapped := protobuf.wrapped_field(node)) is not None:
        return _value(message, wrapped)
    return {field.name: _value(message, field) for field in node.fields}


def _value(message: Any, field: Field) -> Any:
    match field.type:
        case Repeated(item):
            return [_one(value, item) for value in getattr(message, field.name)]
        case Map():
            entries = getattr(message, field.name)
            return [(_one(key, field.type.key), _one(entries[key], field.type.value)) for key in entries]
    if field.default is None and not message.HasField(field.name):
        return None
    return _one(getattr(message, field.name), field.type)


def _one(value: Any, node: Node) -> Any:
    match node:
        case Message():
            return of_peer(value, node)
        case Enum(symbols=symbols):
            return dict(symbols).get(value, str(value))
    return value


def varint(value: int) -> bytes:
    """Return a number in the form of variable length."""
    value &= 2**64 - 1
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*content, value])


def tagged(number: int, wire: int, content: bytes) -> bytes:
    """Return a field with its tag. Bytes follow their length."""
    return varint(number << 3 | wire) + (varint(len(content)) if wire == 2 else b"") + content
