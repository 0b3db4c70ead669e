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
from firn.schemas.avro import Again, Array, DecimalBytes, Enum, FixedBytes, Map, Node, Passed, Record, Scalar, Union

MOST_LEVELS = 10_000
"""Most records, arrays and maps inside each other of which the decoder has to read more parts, in a field over which it passes. Only
types that contain themselves can have more, because a schema has at most `firn.schemas.avro.MOST_TYPES` types."""
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
        case Passed(inner):
            return _Passing([inner]).decoder(inner)
        case Again():
            raise AssertionError(f"a column reads {node.name}, which contains itself")


class _Fields:
    """The fields of a record, over which the decoder passes one after the other."""

    __slots__ = ("_fields", "_place", "ended")

    def __init__(self, fields: Sequence[Node]) -> None:
        self._fields = fields
        self._place = 0
        self.ended = False

    def next(self, data: Bytes) -> Node:
        """Return the type of the next field. ``ended`` is True after the last one."""
        self._place += 1
        self.ended = self._place == len(self._fields)
        return self._fields[self._place - 1]


class _Items:
    """The items of an array or map, over which the decoder passes one after the other."""

    __slots__ = ("_item", "_left", "_with_keys", "ended")

    def __init__(self, item: Node, *, with_keys: bool) -> None:
        self._item = item
        self._with_keys = with_keys
        self._left = 0
        self.ended = False

    def next(self, data: Bytes) -> Node | None:
        """Return the type of the next item. After the last one, return None, and ``ended`` is True."""
        while not self._left:
            left = data.number()
            if left == 0:
                self.ended = True
                return None
            if left < 0:
                data.counted()  # a block that names its bytes
                continue
            if left > len(data.data) - data.at:
                raise BadRecordError(Code.INVALID_AVRO, Stage.DECODE, "the value ends too early")
            self._left = left
        self._left -= 1
        if self._with_keys:
            data.counted()
        return self._item


class _Passing:
    """Passes over values, also of types that contain themselves, in time in proportion to their bytes.

    It omits fields without bytes, and takes a record with one other field as this field. So each record has two bytes at least.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Prepare the types ``nodes`` and those inside them."""
        records = _records(nodes)
        self._fields: dict[int, tuple[Node, ...]] = {}
        for each in records:
            fields = [self._short(field.type) for field in each.fields]
            self._fields[id(each)] = tuple(field for field in fields if self._has_bytes(field))
        self._finite: set[int] = set()
        known = -1
        while known < len(self._finite):
            known = len(self._finite)
            self._finite.update(id(each) for each in records if all(self._can_end(field.type) for field in each.fields))

    def decoder(self, node: Node) -> Decode:
        """Return the function that passes over values of a type."""

        def decode(data: Bytes) -> None:
            waiting: list[_Fields | _Items] = []
            inner: Node | None = node
            while inner is not None:
                found = self._pass(data, inner)
                if isinstance(found, (_Fields, _Items)):
                    if len(waiting) == MOST_LEVELS:
                        raise BadRecordError(Code.TOO_DEEP, Stage.DECODE, f"nested more than {MOST_LEVELS} levels deep")
                    waiting.append(found)
                    found = None
                inner = found
                while waiting and inner is None:
                    inner = waiting[-1].next(data)
                    # Without its last field, a record waits for nothing. So a long list in this field takes no memory.
                    if waiting[-1].ended:
                        waiting.pop()

        return decode

    def _pass(self, data: Bytes, node: Node) -> Node | _Fields | _Items | None:
        """Pass over a value without parts. Else return its parts, or the type of its only part."""
        match node:
            case Again():
                return node.record
            case Passed(inner):
                return inner
            case Record():
                if id(node) not in self._finite:
                    raise data.bad(data.at, "the value contains itself without an end")
                fields = self._fields[id(node)]
                return _Fields(fields) if len(fields) > 1 else next(iter(fields), None)
            case Union(branches):
                begun, number = data.at, data.number()
                if not 0 <= number < len(branches):
                    raise data.bad(begun, f"the union has no branch {number}, only {len(branches)}")
                return branches[number]
            case Array(item) | Map(item):
                return _Items(item, with_keys=isinstance(node, Map))
            case Scalar("int" | "long") | Enum():
                data.number()
            case Scalar("string" | "bytes") | DecimalBytes(size=0):
                data.counted()
            case FixedBytes(size=size) | DecimalBytes(size=size):
                data.take(size)
            case Scalar(kind):
                data.take(_SIZES[kind])
        return None

    def _short(self, node: Node) -> Node:
        fields = self._fields.get(id(node), ())
        return fields[0] if len(fields) == 1 else node

    def _has_bytes(self, node: Node) -> bool:
        """Return whether values have bytes. A record that is not prepared yet contains itself, so it has some, or no end."""
        return node != Scalar("null") and self._fields.get(id(node)) != ()

    def _can_end(self, node: Node) -> bool:
        """Return whether a value can have an end, as far as ``_finite`` is known."""
        match node:
            case Record():
                return id(node) in self._finite
            case Again():
                return id(node.record) in self._finite
            case Union(branches):
                return any(map(self._can_end, branches))
        return True


def _records(nodes: Sequence[Node]) -> Sequence[Record]:
    """Return the records in types, each after the records inside it if these do not contain it."""
    found: list[Record] = []
    seen: set[int] = set()
    waiting = [(node, False) for node in nodes]
    while waiting:
        node, entered = waiting.pop()
        if isinstance(node, Again):
            node = node.record
        if entered and isinstance(node, Record):
            found.append(node)
        if id(node) in seen:
            continue
        seen.add(id(node))
        waiting.append((node, True))
        waiting.extend((part, False) for part in avro.parts(node))
    return found


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
        case Scalar("bytes", "as-string"):
            return _text
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
            if limits.is_limited_by_column(node):
                kind = avro.column_type(node)
                raise BadRecordError(Code.INEXACT, Stage.SCHEMA, f"a column of type {kind} would round {number}")
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
    passing = _Passing([each.type for each in fields if each.name in passed])
    readers = [
        (each.name, passing.decoder(each.type) if each.name in passed else decoder(each.type)) for each in fields
    ]

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
