"""The meaning of an Avro record: decodes one value at a time, strictly.

This is the reference. `firn_spark.worker.formats.avro.rows` is faster, and may only answer if its answer is the same.

- Texts are UTF-8, and booleans one byte 0 or 1. Lengths are not negative, and numbers take ten bytes at most.
- The value ends where the last field ends.
- An int has 32 bits. Times of day are shorter than a day, and dates have years from 1 to 9999. Milliseconds become
  microseconds, and a time beyond 64 bits is out of range.
- A decimal has one byte at least and no more digits than its type. A UUID has the form 8-4-4-4-12.
- The decoder passes over a field that no column reads. Its bytes need not be valid in all details.
- A map has no key twice. The items of an array or map take memory in proportion to their bytes (`limits.most_items`).
"""

import re
import struct
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

from firn.decoders import avro_limits as limits
from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.schemas import avro
from firn.schemas.avro import Again, Array, DecimalBytes, Enum, FixedBytes, Map, Node, Record, Scalar, Union

MOST_EMPTY = 100_000
"""Most values without bytes in a row. Without this limit, a record that always contains itself would never end."""
_CONTEXT = Context(prec=60)
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


class Bytes:
    """The bytes of a record, and the place of the next value in them. ``before`` counts the bytes before the record."""

    def __init__(self, data: bytes, before: int = 0) -> None:
        self.data = data
        self.at = 0
        self._before = before

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes. Raises BadRecordError if there are fewer."""
        if size > len(self.data) - self.at:
            raise BadRecordError(Code.INVALID_AVRO, Stage.DECODE, "the value ends too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self) -> int:
        """Return the next variable-length number."""
        begun, bits = self.at, 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                if bits >= 2**64:
                    break
                return (bits >> 1) ^ -(bits & 1)
        raise self.bad(begun, "a number has more than 64 bits")

    def counted(self) -> bytes:
        """Return the next bytes, which follow their length."""
        begun = self.at
        size = self.number()
        if size < 0:
            raise self.bad(begun, f"the length {size} is negative")
        return self.take(size)

    def bad(self, begun: int, problem: str, code: Code = Code.INVALID_AVRO) -> BadRecordError:
        """Return the error for the bytes from ``begun`` on."""
        return BadRecordError(code, Stage.DECODE, f"byte {self._before + begun}: {problem}")


Decode = Callable[[Bytes], Any]
"""Reads a value, and returns it as Arrow takes it."""


def decoder(node: Node) -> Decode:
    """Return the function that reads values of a type. A type without a column has the value None."""
    decode = _decoder(node)
    return decode if avro.column_type(node) is not None else _passed_over(decode)


def _passed_over(decode: Decode) -> Decode:
    def decoded(data: Bytes) -> None:
        decode(data)

    return decoded


def _decoder(node: Node) -> Decode:
    match node:
        case Scalar():
            return _scalar(node)
        case FixedBytes(size=size):
            return lambda data: data.take(size)
        case DecimalBytes():
            return _decimal(node)
        case Enum(symbols=symbols):
            return _enum(symbols)
        case Array(items):
            return _list(items)
        case Map(values):
            return _map(values)
        case Union():
            return _union(node)
        case Record(fields=fields):
            return _record(fields)
        case Again():
            raise AssertionError(f"a column reads {node.name}, which contains itself")


def _passing(node: Node) -> Decode:
    """Return the function that passes over values of a type, also of one that contains itself."""

    def decode(data: Bytes) -> None:
        waiting, at, empty = [iter((node,))], data.at, 0
        while waiting:
            inner = next(waiting[-1], None)
            if inner is None:
                waiting.pop()
                continue
            parts = _pass(data, inner)
            if parts is not None:
                waiting.append(parts)
            empty = empty + 1 if data.at == at else 0
            if empty > MOST_EMPTY:
                raise data.bad(at, "the value contains itself without an end")
            at = data.at

    return decode


def _pass(data: Bytes, node: Node) -> Iterator[Node] | None:
    """Pass over a value without parts, else return the types of the parts that follow."""
    match node:
        case Again():
            return iter((node.record,))
        case Record(fields=fields):
            return (each.type for each in fields)
        case Union(branches):
            begun, number = data.at, data.number()
            if not 0 <= number < len(branches):
                raise data.bad(begun, f"the union has no branch {number}, only {len(branches)}")
            return iter((branches[number],))
        case Array(item) | Map(item):
            return _passed_items(data, item, with_keys=isinstance(node, Map))
        case Scalar("int" | "long") | Enum():
            data.number()
        case Scalar("string" | "bytes") | DecimalBytes(size=0):
            data.counted()
        case FixedBytes(size=size) | DecimalBytes(size=size):
            data.take(size)
        case Scalar(kind):
            data.take(_SIZES[kind])
    return None


def _passed_items(data: Bytes, item: Node, *, with_keys: bool) -> Iterator[Node]:
    while left := data.number():
        if left < 0:
            data.counted()  # a block that names its bytes
            continue
        if left > len(data.data) - data.at:
            raise BadRecordError(Code.INVALID_AVRO, Stage.DECODE, "the value ends too early")
        for _ in range(left):
            if with_keys:
                data.counted()
            yield item


def _scalar(node: Scalar) -> Decode:
    match node:
        case Scalar("null"):
            return lambda data: None
        case Scalar("boolean"):
            return _boolean
        case Scalar("int" | "long"):
            return _integer(node)
        case Scalar("float"):
            return lambda data: struct.unpack("<f", data.take(4))[0]
        case Scalar("double"):
            return lambda data: struct.unpack("<d", data.take(8))[0]
        case Scalar("bytes"):
            return Bytes.counted
        case Scalar("string", logical):
            return _uuid if logical == "uuid" else _text
    raise AssertionError(node)


def _boolean(data: Bytes) -> bool:
    byte = data.take(1)[0]
    if byte > 1:
        raise data.bad(data.at - 1, f"{byte} is not a boolean")
    return byte == 1


def _integer(node: Scalar) -> Decode:
    least, most = limits.number_range(node)
    factor, meaning = 1000 if node.logical in limits.MILLIS else 1, node.logical or node.kind

    def decode(data: Bytes) -> int:
        number = data.number()
        if not least <= number <= most:
            raise BadRecordError(Code.OUT_OF_RANGE, Stage.SCHEMA, f"expected {meaning}, found {number}")
        return number * factor

    return decode


def _text(data: Bytes) -> str:
    content = data.counted()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise data.bad(data.at - len(content) + error.start, error.reason, Code.INVALID_UTF8) from None


def _uuid(data: Bytes) -> bytes:
    text = _text(data)
    if not _UUID.fullmatch(text):
        raise BadRecordError(Code.INVALID_FORMAT, Stage.SCHEMA, f"expected uuid, found string {text[:48]!r}")
    return uuid.UUID(text).bytes


def _decimal(node: DecimalBytes) -> Decode:
    def decode(data: Bytes) -> Decimal:
        content = data.take(node.size) if node.size else data.counted()
        if not content:
            raise data.bad(data.at, "a decimal has no bytes")
        number = int.from_bytes(content, "big", signed=True)
        if abs(number) >= 10**node.precision:
            raise BadRecordError(Code.OUT_OF_RANGE, Stage.SCHEMA, f"the number has more than {node.precision} digits")
        return Decimal(number).scaleb(-node.scale, _CONTEXT)

    return decode


def _enum(symbols: Sequence[str]) -> Decode:
    def decode(data: Bytes) -> str:
        begun = data.at
        number = data.number()
        if not 0 <= number < len(symbols):
            raise data.bad(begun, f"the enum has no symbol {number}, only {len(symbols)}")
        return symbols[number]

    return decode


def _blocks(data: Bytes, item: Node) -> Iterator[int]:
    """Yield the number of each item of an array or map."""
    begun, place = data.at, 0
    while True:
        left = data.number()
        if left < 0:
            left = -left
            data.number()
        if left == 0:
            break
        if left > len(data.data) - data.at:
            raise BadRecordError(Code.INVALID_AVRO, Stage.DECODE, "the value ends too early")
        for _ in range(left):
            yield place
            place += 1
    if place > limits.most_items(item, data.at - begun):
        raise BadRecordError(
            Code.OUT_OF_RANGE,
            Stage.SCHEMA,
            f"{place} items in {data.at - begun} bytes would take {place * limits.memory(item)} bytes of memory",
        )


def _list(items: Node) -> Decode:
    item = decoder(items)

    def decode(data: Bytes) -> list[Any]:
        found = []
        for place in _blocks(data, items):
            try:
                found.append(item(data))
            except BadRecordError as error:
                raise error.within(f"[{place}]") from None
        return found

    return decode


def _map(values: Node) -> Decode:
    value = decoder(values)

    def decode(data: Bytes) -> list[tuple[str, Any]]:
        found: dict[str, Any] = {}
        for _ in _blocks(data, values):
            key = _text(data)
            if key in found:
                raise BadRecordError(Code.DUPLICATE_KEY, Stage.SCHEMA, f"the key {key[:48]!r} occurs twice")
            try:
                found[key] = value(data)
            except BadRecordError as error:
                raise error.within(f"[{key!r}]", from_record=True) from None
        return list(found.items())

    return decode


def _union(node: Union) -> Decode:
    members = avro.members(node)
    names = iter(name for name, _ in members)
    branches = [(None if branch == Scalar("null") else next(names), decoder(branch)) for branch in node.branches]

    def decode(data: Bytes) -> Any:
        begun = data.at
        number = data.number()
        if not 0 <= number < len(branches):
            raise data.bad(begun, f"the union has no branch {number}, only {len(branches)}")
        name, branch = branches[number]
        value = branch(data)
        return value if name is None or len(members) == 1 else {name: value}

    return decode


def _record(fields: Sequence[avro.Field], passed: Collection[str] = ()) -> Decode:
    readers = [(each.name, _passing(each.type) if each.name in passed else decoder(each.type)) for each in fields]

    def decode(data: Bytes) -> dict[str, Any]:
        values = {}
        for name, read in readers:
            try:
                values[name] = read(data)
            except BadRecordError as error:
                raise error.within(f".{name}") from None
        return values

    return decode


class RecordReader:
    """Reads whole records, and passes over the fields ``passed``."""

    def __init__(self, record: Record, passed: Collection[str] = ()) -> None:
        self._decode = _record(record.fields, passed)

    def read(self, value: bytes | None, before: int = 0) -> Mapping[str, Any]:
        """Return the values of a record by field; none for null. ``before`` counts the bytes before it. Raises BadRecordError."""
        if value is None:
            return {}
        if not value:
            raise BadRecordError(Code.EMPTY_PAYLOAD, Stage.DECODE, "the value is empty")
        data = Bytes(value, before)
        values: Mapping[str, Any] = self._decode(data)
        if data.at != len(value):
            surplus = len(value) - data.at
            raise data.bad(data.at, f"{surplus} bytes follow the last field; the producer used another schema")
        return values
