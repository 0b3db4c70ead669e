"""Limits that the fast and the strict Avro decoder share."""

from typing import Any

from firn.schemas import avro
from firn.schemas.avro import Again, Array, DecimalBytes, Enum, FixedBytes, Map, Node, Passed, Record, Scalar, Union

_DAY_MILLIS = 86_400_000
_MAX_MILLIS = (2**63 - 1) // 1000
_RANGES = {
    "date": (-719_162, 2_932_896),  # years 1 to 9999
    "time-millis": (0, _DAY_MILLIS - 1),
    "time-micros": (0, _DAY_MILLIS * 1000 - 1),
    "timestamp-millis": (-_MAX_MILLIS, _MAX_MILLIS),
    "local-timestamp-millis": (-_MAX_MILLIS, _MAX_MILLIS),
}
_EXACT = {"as-double": 2**53}
"""Largest number up to which a column has all integers exactly, by the mark of `avro.read_as`."""
MILLIS = frozenset({"time-millis", "timestamp-millis", "local-timestamp-millis"})
"""Logical types whose numbers become microseconds."""
MEMORY_PER_BYTE, MEMORY = 100, 1 << 20
"""Bytes of memory that the items of one array or map may take: so many for each of their encoded bytes, and some more. An
item that is null takes one byte, and memory for each of its columns."""
CALL_MEMORY = 64 << 20
"""Bytes of memory that the columns of one call of the decoder should take at most."""


def number_range(node: Scalar) -> tuple[int, int]:
    """Return the least and the greatest number of an int or long."""
    bits = 31 if node.kind == "int" else 63
    if node.logical in _EXACT:
        return -_EXACT[node.logical], _EXACT[node.logical]
    return _RANGES.get(node.logical, (-(2**bits), 2**bits - 1))


def is_limited_by_column(node: Scalar) -> bool:
    """Return whether the column would round numbers beyond `number_range`."""
    return node.logical in _EXACT


def memory(node: Node) -> int:
    """Return the bytes of memory of a value, without texts and without items of arrays and maps."""
    match node:
        case Scalar("null") | Passed():
            return 0
        case Scalar("long" | "double"):
            return 9
        case FixedBytes(size=size):
            return size + 1
        case DecimalBytes():
            return 17
        case Enum(symbols=symbols):
            return 5 + max(map(len, symbols))
        case Scalar() | Array() | Map() | Again():
            return 5
        case Union():
            return 1 + sum(memory(branch) for _, branch in avro.members(node))
        case Record(fields=fields):
            return 1 + sum(memory(each.type) for each in fields)


def most_items(node: Node, encoded_bytes: Any) -> Any:
    """Return how many items of type ``node`` an array or map of so many encoded bytes may have.

    For an array of numpy with the bytes of many values, return an array.
    """
    return (MEMORY_PER_BYTE * encoded_bytes + MEMORY) // max(1, memory(node))


def most_bytes(record: Record) -> int:
    """Return how many encoded bytes to decode at a time, so that their columns take about `CALL_MEMORY`."""
    return max(1, CALL_MEMORY // _growth(record))


def _growth(node: Node) -> int:
    """Return the bytes of memory for an encoded byte, in the worst part of a value."""
    parts = () if isinstance(node, Passed) else avro.parts(node)
    inner = {id(part): _growth(part) for part in parts}.values()
    return max(memory(node) // max(1, _least_bytes(node)), 1, *inner)


def _least_bytes(node: Node) -> int:
    """Return the encoded bytes of the shortest value."""
    match node:
        case Scalar("null"):
            return 0
        case Scalar("float"):
            return 4
        case Scalar("double"):
            return 8
        case FixedBytes(size=size) | DecimalBytes(size=size) if size:
            return size
        case Record(fields=fields):
            return sum(_least_bytes(each.type) for each in fields)
        case Union(branches):
            return 1 + min(map(_least_bytes, branches))
    return 1
