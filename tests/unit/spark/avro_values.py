"""Random Avro schemas, and values of them as Arrow takes them, with their encoding."""

from __future__ import annotations

import random
import struct
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

from firn.schemas import avro
from firn.schemas.avro import Again, Array, DecimalBytes, Enum, FixedBytes, Map, Node, Passed, Record, Scalar, Union

LOGICAL = (
    ("int", "date"),
    ("int", "time-millis"),
    ("long", "time-micros"),
    ("long", "timestamp-millis"),
    ("long", "timestamp-micros"),
    ("long", "local-timestamp-millis"),
    ("long", "local-timestamp-micros"),
    ("string", "uuid"),
)
DAY_MILLIS = 86_400_000
TEXTS = ("", "a", "sensor-000017", "größe", "日本語のテキスト", "🦀🦀", "x" * 70)


class Schemas:
    """Makes schemas. ``plain``: without unions of several types. ``nulls``: with types whose values are always null."""

    def __init__(self, pick: random.Random, *, plain: bool = False, nulls: bool = True) -> None:
        self._pick = pick
        self._plain = plain
        self._primitives = [
            "boolean",
            "int",
            "long",
            "float",
            "double",
            "string",
            "bytes",
            *(["null"] if nulls else []),
        ]
        self._names = 0

    def record(self, depth: int = 0) -> dict[str, Any]:
        """Return a record of up to seven fields."""
        self._names += 1
        name = f"R{self._names}"
        fields = [
            {"name": f"f{number}", "type": self.any(depth + 1)}
            for number in range(self._pick.randint(1, 7 - 2 * depth))
        ]
        return {"type": "record", "name": name, "fields": fields}

    def any(self, depth: int) -> Any:
        """Return a type, which is often a union with null."""
        kind = self.one(depth)
        if kind == "null":
            return kind
        match self._pick.randrange(6):
            case 0 | 1:
                return ["null", kind]
            case 2:
                return [kind, "null"]
            case 3 if not self._plain:
                return self.union(depth)
        return kind

    def union(self, depth: int) -> Any:
        """Return a union of several types."""
        others = ["string", "long", self.record(depth + 1) if depth < 2 else "double", {"type": "map", "values": "int"}]
        chosen = self._pick.sample(others, self._pick.randint(1, 3))
        if self._pick.random() < 0.5:
            chosen.insert(self._pick.randint(0, len(chosen)), "null")
        return chosen

    def one(self, depth: int) -> Any:
        """Return a type that is no union."""
        pick = self._pick
        deep = depth < 3
        match pick.randrange(9 if deep else 5):
            case 0 | 1:
                return pick.choice(self._primitives)
            case 2:
                kind, logical = pick.choice(LOGICAL)
                return {"type": kind, "logicalType": logical}
            case 3:
                self._names += 1
                size = pick.choice([0, 1, 3, 8, 12, 16, 20])
                if pick.random() < 0.4:
                    return {"type": "fixed", "name": f"F{self._names}", "size": size or 5}
                most = 38 if not size else min(38, len(str(2 ** (8 * size - 1) - 1)) - 1)
                precision = pick.randint(1, most)
                made: dict[str, Any] = {
                    "logicalType": "decimal",
                    "precision": precision,
                    "scale": pick.randint(0, precision),
                }
                return made | (
                    {"type": "fixed", "name": f"D{self._names}", "size": size} if size else {"type": "bytes"}
                )
            case 4:
                self._names += 1
                return {
                    "type": "enum",
                    "name": f"E{self._names}",
                    "symbols": [f"S{n}" for n in range(pick.randint(1, 200))],
                }
            case 5 | 6:
                items = self.any(depth + 1)
                return {"type": "array", "items": "int" if empty(items) else items}
            case 7:
                return {"type": "map", "values": self.any(depth + 1)}
        return self.record(depth)


class Values:
    """Makes values of types, and encodes them."""

    def __init__(self, pick: random.Random) -> None:
        self._pick = pick

    def make(self, node: Node) -> tuple[Any, bytes]:
        """Return a value as Arrow takes it, and its encoding."""
        pick = self._pick
        match node:
            case Scalar():
                return self._scalar(node)
            case FixedBytes(size=size):
                content = pick.randbytes(size)
                return content, content
            case DecimalBytes():
                return self._decimal(node)
            case Enum(symbols=symbols):
                place = pick.randrange(len(symbols))
                return symbols[place], number(place)
            case Array(items):
                made = [self.make(items) for _ in range(pick.choice([0, 0, 1, 2, 5]))]
                return [value for value, _ in made], self._blocks([content for _, content in made])
            case Map(values):
                return self._map(values)
            case Union(branches):
                place = pick.randrange(len(branches))
                value, content = self.make(branches[place])
                members = avro.members(node)
                name = next((name for name, branch in members if branch is branches[place]), None)
                return value if name is None or len(members) == 1 else {name: value}, number(place) + content
            case Again():
                return self.make(node.record)
            case Passed(inner):
                return None, self.make(inner)[1]
            case Record(fields=fields):
                record = {each.name: self.make(each.type) for each in fields}
                return {name: value for name, (value, _) in record.items()}, b"".join(
                    content for _, content in record.values()
                )

    def _map(self, values: Node) -> tuple[Any, bytes]:
        keys = self._pick.sample(TEXTS, self._pick.choice([0, 0, 1, 2, 5]))
        made = [self.make(values) for _ in keys]
        contents = [
            number(len(key.encode())) + key.encode() + content for key, (_, content) in zip(keys, made, strict=True)
        ]
        return list(zip(keys, (value for value, _ in made), strict=True)), self._blocks(contents)

    def _scalar(self, node: Scalar) -> tuple[Any, bytes]:
        pick = self._pick
        match node:
            case Scalar("null"):
                return None, b""
            case Scalar("boolean"):
                flag = pick.random() < 0.5
                return flag, bytes([flag])
            case Scalar("int" | "long"):
                return self._integer(node)
            case Scalar("float"):
                packed = struct.pack("<f", pick.choice([0.0, -0.0, 1.5, pick.uniform(-1e30, 1e30), float("inf")]))
                return struct.unpack("<f", packed)[0], packed
            case Scalar("double"):
                value = pick.choice([0.0, -0.0, pick.random(), pick.uniform(-1e300, 1e300), float("-inf")])
                return value, struct.pack("<d", value)
            case Scalar("bytes"):
                content = pick.randbytes(pick.choice([0, 1, 7, 8, 9, 200]))
                return content, number(len(content)) + content
            case Scalar("string", logical):
                text = str(UUID(bytes=pick.randbytes(16))) if logical else pick.choice(TEXTS)
                content = text.encode()
                return UUID(text).bytes if logical else text, number(len(content)) + content
        raise AssertionError(node)

    def _integer(self, node: Scalar) -> tuple[int, bytes]:
        pick = self._pick
        match node.logical:
            case "time-millis":
                value, factor = pick.randrange(DAY_MILLIS), 1000
            case "time-micros":
                value, factor = pick.randrange(DAY_MILLIS * 1000), 1
            case "timestamp-millis" | "local-timestamp-millis":
                value, factor = pick.randrange(-(10**13), 10**14), 1000
            case "timestamp-micros" | "local-timestamp-micros":
                value, factor = pick.randrange(-(10**16), 10**17), 1
            case "date":
                value, factor = pick.randrange(-700_000, 2_900_000), 1
            case _:
                bits = 31 if node.kind == "int" else 63
                value, factor = (
                    pick.choice([0, -1, 1, 63, 64, -64, -65, 2**bits - 1, -(2**bits), pick.getrandbits(bits)]),
                    1,
                )
        return value * factor, number(value)

    def _decimal(self, node: DecimalBytes) -> tuple[Decimal, bytes]:
        pick = self._pick
        value = pick.choice(
            [0, 1, -1, 10**node.precision - 1, 1 - 10**node.precision, pick.randrange(10**node.precision)]
        )
        least = (value if value >= 0 else ~value).bit_length() // 8 + 1
        content = value.to_bytes(node.size or least, "big", signed=True)
        decimal = Decimal(value).scaleb(-node.scale, Context(prec=60))
        return decimal, content if node.size else number(len(content)) + content

    def _blocks(self, contents: list[bytes]) -> bytes:
        """Return items in blocks, some of which have their size."""
        blocks = []
        while contents:
            count = self._pick.randint(1, len(contents))
            block, contents = b"".join(contents[:count]), contents[count:]
            sized = self._pick.random() < 0.5
            blocks.append((number(-count) + number(len(block)) if sized else number(count)) + block)
        return b"".join(blocks) + b"\0"


def empty(declared: Any) -> bool:
    """Return whether values of a type take no bytes."""
    if isinstance(declared, dict) and declared["type"] == "record":
        return all(empty(each["type"]) for each in declared["fields"])
    return bool(declared == "null")


def number(value: int) -> bytes:
    """Return a number in zigzag form of variable length."""
    bits = (value << 1) ^ (value >> 63)
    content = bytearray()
    while bits > 0x7F:
        content.append(bits & 0x7F | 0x80)
        bits >>= 7
    return bytes([*content, bits])
