"""Protobuf texts, in which the number identifies a field. Syntax, places of messages and their names change too."""

import base64
import random
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from firn import protoc
from tests.integration.ingestion.evolution import values
from tests.integration.ingestion.evolution.shape import Encode, Field, Fields, Rendered, Shape

KINDS = {
    "int32": "int", "sint32": "int", "sfixed32": "int", "uint32": "uint", "fixed32": "uint",
    "int64": "long", "sint64": "long", "sfixed64": "long", "uint64": "ulong", "fixed64": "ulong",
    "float": "float", "double": "double", "bool": "boolean", "string": "string", "bytes": "bytes", "Symbol": "symbol",
    "google.protobuf.Int64Value": "long", "google.protobuf.StringValue": "string", "google.protobuf.Timestamp": "moment",
}  # fmt: skip
HEADS = {"proto2": 'syntax = "proto2";', "proto3": 'syntax = "proto3";', "edition": 'edition = "2023";'}
IMPORTS = 'import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";'
SYMBOLS = "enum Symbol { C0 = 0; C1 = 1; C2 = 2; C3 = 3; }"
OTHER = "message Other { int32 id = 1; }"
NAMES = {"inner": "Inner", "inner.deep": "Deep", "items": "Item", "by_name": "Named"}


def presence(one: Field, syntax: str) -> str:
    """Return the presence of a field: not each syntax has all."""
    if one.chosen or one.kind.startswith("google."):
        return "optional"
    absent = {"proto2": "implicit", "proto3": "required"}.get(syntax)
    return "optional" if one.presence == absent else one.presence


def _declared(name: str, one: Field, syntax: str) -> str:
    way = presence(one, syntax)
    before, after = "", ""
    if syntax == "edition":
        after = {
            "implicit": " [features.field_presence = IMPLICIT]",
            "required": " [features.field_presence = LEGACY_REQUIRED]",
        }.get(way, "")
    elif not one.chosen:
        before = "" if way == "implicit" else f"{way} "
    return f"{before}{one.kind} {name} = {one.number}{after};"


def _body(fields: Fields, syntax: str, pick: random.Random) -> str:
    chosen = [_declared(name, one, syntax) for name, one in fields.items() if one.chosen]
    lines = [_declared(name, one, syntax) for name, one in fields.items() if not one.chosen]
    if chosen:
        lines.insert(pick.randrange(len(lines) + 1), f"oneof choice {{ {' '.join(chosen)} }}")
    return " ".join(lines)


class Protobuf:
    """Implements `Format`."""

    name: str = "Protobuf"
    message: str = "shop.Outer"
    kinds: Mapping[str, str] = KINDS
    changes: tuple[str, ...] = ("add", "add", "drop", "alter", "order", "rename", "rename", "presence", "presence")

    def render(self, shape: Shape, columns: Mapping[str, int], pick: random.Random) -> Rendered:
        """Implement `Format.render`."""
        syntax = pick.choice(list(HEADS))
        label = "optional " if syntax == "proto2" else ""
        types = {place: f"{name}{pick.choice(('', '2'))}" for place, name in NAMES.items()}
        own = f"{label}{types['inner']} inner = 2; repeated {types['items']} items = 3; map<string, {types['by_name']}> by_name = 4;"
        frames = {"": f"{label}int64 id = 1; {own}", "inner": f"{label}{types['inner.deep']} deep = 1;"}
        bodies = {place: f"{frames.get(place, '')} {_body(fields, syntax, pick)}" for place, fields in shape.items()}
        messages = {place: f"message {types[place]} {{ {body} }}" for place, body in bodies.items() if place}
        inside = pick.random() < 0.5
        outer = f"message Outer {{ {SYMBOLS if inside else ''} {' '.join(messages.values()) if inside else ''} {bodies['']} }}"
        parts = [outer, OTHER.replace("int32", f"{label}int32"), *(() if inside else (SYMBOLS, *messages.values()))]
        pick.shuffle(parts)
        text = f"{HEADS[syntax]} package shop; {IMPORTS} {' '.join(parts)}"
        files = descriptor_pb2.FileDescriptorSet.FromString(protoc.descriptors(text, ())).file
        # Apicurio Registry does not take texts with an edition.
        in_base64 = syntax == "edition" or pick.random() < 0.3
        registered = base64.standard_b64encode(files[-1].SerializeToString()).decode() if in_base64 else text
        return Rendered(registered, _encoder(files, shape, syntax), lambda one: presence(one, syntax) != "optional")


def _encoder(files: Sequence[Any], shape: Shape, syntax: str) -> Encode:
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(Protobuf.message))
    at = [each.name for each in files[-1].message_type].index("Outer")
    indexes = b"\0" if at == 0 else bytes([2, at * 2])

    def fill(message: Any, content: Mapping[str, Any], place: str) -> None:
        for name, one in shape[place].items():
            value = content[name]
            if value is None and presence(one, syntax) == "required":
                value = values.zero(KINDS[one.kind])
            if value is None:
                continue
            if one.kind == "google.protobuf.Timestamp":
                getattr(message, name).FromMicroseconds(value)
            elif one.kind.startswith("google."):
                getattr(message, name).value = value
                getattr(message, name).SetInParent()
            else:
                if one.kind == "Symbol":
                    value = int(value[1:])
                setattr(message, name, value)

    def encode(content: dict[str, Any]) -> bytes:
        record = kind(id=content["id"])
        fill(record, content, "")
        fill(record.inner, content["inner"], "inner")
        fill(record.inner.deep, content["inner"]["deep"], "inner.deep")
        for one in content["items"]:
            fill(record.items.add(), one, "items")
        for key, one in content["by_name"].items():
            fill(record.by_name[key], one, "by_name")
        record.inner.SetInParent()
        record.inner.deep.SetInParent()
        found: bytes = indexes + record.SerializeToString()
        return found

    return encode
