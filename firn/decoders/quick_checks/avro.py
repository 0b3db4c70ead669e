"""A quick check of Avro values: it skips from field to field, and makes no Python objects of the values."""

import re
from collections.abc import Sequence

from firn.decoders import avro_limits as limits
from firn.decoders.quick_checks.places import (
    DoubtError,
    Skip,
    number,
    over,
    up_to_7_bytes,
    up_to_9_bytes,
    up_to_32_bits,
)
from firn.schemas.avro import Again, Array, DecimalBytes, Enum, FixedBytes, Map, Node, Passed, Record, Scalar, Union

_MOST_ITEMS = 1000
"""Most items of an array or map."""
_UUID = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_UUID_SIZE = 36


class AvroCheck:
    """Accepts values of a record. ``framing``: bytes before each value; the first one is 0."""

    slice_bytes = 16 << 10

    def __init__(self, record: Record, framing: int) -> None:
        self._fields = _skips(record)
        self._framing = framing

    def accepts(self, values: Sequence[bytes | None]) -> bool:
        """Return True only if the strict decoder accepts each value."""
        fields, framing = self._fields, self._framing
        try:
            for value in values:
                if value is None:
                    continue
                # An empty value is wrong even if all fields take no bytes.
                if len(value) <= framing or (framing and value[0]):
                    return False
                at = framing
                for skip in fields:
                    at = skip(value, at)
                if at != len(value):
                    return False
        except (DoubtError, IndexError, UnicodeDecodeError):
            return False
        return True

    def learn(self, values: Sequence[bytes | None]) -> None:
        """Learn nothing, because the schema says all."""


def _skip(node: Node) -> Skip:
    match node:
        case Scalar():
            return _scalar(node)
        case FixedBytes(size=size):
            return over(size)
        case DecimalBytes():
            return _decimal(node)
        case Enum(symbols=symbols):
            return _enum(len(symbols))
        case Array(items):
            return _array(items)
        case Map(values):
            return _map(values)
        case Union(branches):
            return _union(branches)
        case Record():
            return _record(_skips(node))
        case Again() | Passed():
            raise AssertionError("the gate judges all fields, and none contains itself")


def _skips(record: Record) -> tuple[Skip, ...]:
    """Return the functions that skip the fields of a record. Fields that take no bytes need none, and would cost time without a limit."""
    return tuple(_skip(field.type) for field in record.fields if _takes_bytes(field.type))


def _takes_bytes(node: Node) -> bool:
    if isinstance(node, Record):
        return any(_takes_bytes(field.type) for field in node.fields)
    return node != Scalar("null")


def _scalar(node: Scalar) -> Skip:
    match node:
        case Scalar("null"):
            return over(0)
        case Scalar("boolean"):
            return _boolean
        case Scalar("int" | "long"):
            return _integer(node)
        case Scalar("float"):
            return over(4)
        case Scalar("double"):
            return over(8)
        case Scalar("bytes"):
            return _bytes
        case Scalar("string", "uuid"):
            return _uuid
    return _text


def _integer(node: Scalar) -> Skip:
    least, most = limits.number_range(node)
    if (least, most) == (-(2**31), 2**31 - 1):
        return up_to_32_bits
    if (least, most) == (-(2**63), 2**63 - 1):
        return up_to_9_bytes
    if least < -(2**48) and most >= 2**48:
        return up_to_7_bytes

    def skip(data: bytes, at: int) -> int:
        bits, at = number(data, at)
        if not least <= (bits >> 1) ^ -(bits & 1) <= most:
            raise DoubtError
        return at

    return skip


def _boolean(data: bytes, at: int) -> int:
    if data[at] > 1:
        raise DoubtError
    return at + 1


def _enum(count: int) -> Skip:
    """Return the function that skips the number of a symbol. It is not negative, so its last bit is 0."""

    def skip(data: bytes, at: int) -> int:
        bits, at = number(data, at)
        if bits & 1 or bits >= 2 * count:
            raise DoubtError
        return at

    return skip


def _length(data: bytes, at: int) -> tuple[int, int]:
    bits = data[at]
    at += 1
    if bits > 0x7F:
        bits, at = number(data, at - 1)
    if bits & 1:
        raise DoubtError
    return bits >> 1, at


def _bytes(data: bytes, at: int) -> int:
    size, at = _length(data, at)
    return at + size


def _text(data: bytes, at: int) -> int:
    size = data[at]
    at += 1
    if size > 0x7F:
        size, at = number(data, at - 1)
    if size & 1:
        raise DoubtError
    end = at + (size >> 1)
    content = data[at:end]
    if not content.isascii():
        content.decode()
    return end


def _uuid(data: bytes, at: int) -> int:
    size, at = _length(data, at)
    if size != _UUID_SIZE or _UUID.fullmatch(data, at, at + size) is None:
        raise DoubtError
    return at + size


def _decimal(node: DecimalBytes) -> Skip:
    fixed, most = node.size, 10**node.precision

    def skip(data: bytes, at: int) -> int:
        size, at = (fixed, at) if fixed else _length(data, at)
        content = data[at : at + size]
        if not content or abs(int.from_bytes(content, "big", signed=True)) >= most:
            raise DoubtError
        return at + size

    return skip


def _union(branches: Sequence[Node]) -> Skip:
    skips = [_skip(branch) for branch in branches]
    if len(branches) == 2 and Scalar("null") in branches:
        return _nullable(skips[branches[0] == Scalar("null")], 2 * branches.index(Scalar("null")))

    def skip(data: bytes, at: int) -> int:
        bits, at = number(data, at)
        if bits & 1:
            raise DoubtError
        return skips[bits >> 1](data, at)

    return skip


def _nullable(skip_other: Skip, null: int) -> Skip:
    other = 2 - null

    def skip(data: bytes, at: int) -> int:
        branch = data[at]
        if branch == other:
            return skip_other(data, at + 1)
        if branch != null:
            raise DoubtError
        return at + 1

    return skip


def _record(skips: Sequence[Skip]) -> Skip:
    def skip(data: bytes, at: int) -> int:
        for each in skips:
            at = each(data, at)
        return at

    return skip


def _blocks(item: Skip, most: int) -> Skip:
    """Return the function that skips the blocks of an array or map with at most ``most`` items."""

    def skip(data: bytes, at: int) -> int:
        left = most
        while True:
            bits, at = number(data, at)
            if bits & 1:
                # A negative count: the size of the block in bytes follows.
                _, at = number(data, at)
                bits += 1
            count = bits >> 1
            if not count:
                return at
            if count > left or count > len(data) - at:
                raise DoubtError
            left -= count
            for _ in range(count):
                at = item(data, at)

    return skip


def _array(items: Node) -> Skip:
    return _blocks(_skip(items), min(_MOST_ITEMS, limits.most_items(items, 0)))


def _map(values: Node) -> Skip:
    """Return the function that skips maps of at most one entry, because keys of more would need a comparison."""
    value = _skip(values)
    return _blocks(lambda data, at: value(data, _text(data, at)), min(1, limits.most_items(values, 0)))
