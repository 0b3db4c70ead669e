"""Limits that the fast and the strict Protobuf decoder share."""

from typing import Any

from firn.schemas import protobuf
from firn.schemas.protobuf import Enum, Map, Message, Node, Repeated, Scalar

_RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "sint32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
_WIDTHS = {
    "bool": 2,
    "int32": 5,
    "sint32": 5,
    "sfixed32": 5,
    "float": 5,
    "string": 5,
    "bytes": 5,
    "uint64": 17,
    "fixed64": 17,
}
_LEAST = {"fixed32": 4, "sfixed32": 4, "float": 4, "fixed64": 8, "sfixed64": 8, "double": 8, "string": 2, "bytes": 2}
SECONDS = (-62_135_596_800, 253_402_300_799)
"""Seconds of a Timestamp: the years 1 to 9999."""
SECONDS_OF_NANOSECONDS = (-9_223_372_036, 9_223_372_035)
"""Seconds of which all nanoseconds fit 64 bits."""
NANOS = (0, 999_999_999)
MOST_GROUPS = 100
"""Most groups inside each other, in fields that the schema does not have."""
MEMORY_PER_BYTE, MEMORY = 100, 1 << 20
"""Bytes of memory that the items of one field may take: so many for each of their encoded bytes, and some more. A message
or a group without any field takes two bytes, and memory for each of its columns."""
CALL_MEMORY = 64 << 20
"""Bytes of memory that the columns of one call of the decoder should take at most."""
_PLACES = 24
"""Bytes of memory for the places of an item while it is decoded."""


def number_range(node: Scalar | Enum) -> tuple[int, int]:
    """Return the least and the greatest number of a type."""
    return _RANGES["int32"] if isinstance(node, Enum) else _RANGES.get(node.kind, (-(2**63), 2**63 - 1))


def memory(node: Node) -> int:
    """Return the bytes of memory of a value, without texts and without items of repeated fields and maps."""
    match node:
        case Scalar(kind):
            return _WIDTHS.get(kind, 9)
        case Enum(symbols=symbols):
            return 5 + max(11, *(len(name) for _, name in symbols))
        case Repeated() | Map():
            return 5
        case Message(fields=fields):
            return 1 + sum(memory(each.type) + _default_size(each) for each in fields)


def _default_size(field: protobuf.Field) -> int:
    return len(field.default) if isinstance(field.default, str | bytes) else 0


def most_items(item: Node, encoded_bytes: Any) -> Any:
    """Return how many items of a type a field of so many encoded bytes may have. The bytes include the tags.

    For an array of numpy with the bytes of many values, return an array.
    """
    return (MEMORY_PER_BYTE * encoded_bytes + MEMORY) // memory(item)


def growth(node: Node) -> int:
    """Return the bytes of memory for an encoded byte, in the worst part of a value. A part is the items of a field."""
    match node:
        case Repeated(item):
            return max(_item(item), growth(item))
        case Map(entry):
            return max(_item(entry), growth(entry))
        case Message(fields=fields):
            parts = {id(each.type): each.type for each in fields}.values()
            return max((growth(part) for part in parts), default=1)
    return 1


def _item(item: Node) -> int:
    least = _LEAST.get(item.kind, 1) if isinstance(item, Scalar) else 1 if isinstance(item, Enum) else 2
    return -(-(memory(item) + _PLACES) // least)


def most_bytes(message: Message) -> int:
    """Return how many encoded bytes to decode at a time, so that their columns take about `CALL_MEMORY`."""
    return max(1, CALL_MEMORY // growth(message))


def row_bytes(message: Message) -> int:
    """Return the encoded bytes that take as much memory as a record without any field."""
    return -(-memory(message) // growth(message))
