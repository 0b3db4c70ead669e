"""The meaning of a Protobuf record: decodes one value at a time, strictly.

This is the reference. `firn_spark.worker.formats.protobuf.rows` is faster, and may only answer if its answer is the same.

- The last value of a field counts, and the last entry of a map's key. Messages of one field are merged, and a member of a
  oneof replaces the others (Protobuf documentation, "Encoding", "Last One Wins").
- The message of a group ends with the tag of its end. It has no length before it.
- Fields that the schema does not have are skipped, with well-formed groups.
- A known field has the wire type of its type. Parsers of Protobuf skip it otherwise, but then a value is lost.
- A number is in the range of its type. Parsers of Protobuf cut off bits otherwise.
- Texts are UTF-8. Numbers take ten bytes at most.
- A number of an enum without a name becomes a text of digits.
- A Timestamp has a year from 1 to 9999, and less than a second in ``nanos``, of which the microseconds count.
  In a column of nanoseconds, all of them count, and their number since 1970 has to fit 64 bits.
- The items of a field take memory in proportion to their bytes (`limits.most_items`).
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firn.decoders import protobuf_limits as limits
from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.schemas import protobuf
from firn.schemas.protobuf import Enum, Field, Map, Message, Repeated, Scalar

VARINT, WORD64, LENGTH, START, END, WORD32 = range(6)
"""Wire types."""
_PACKS = {
    "fixed32": (WORD32, "<I"), "sfixed32": (WORD32, "<i"), "float": (WORD32, "<f"),
    "fixed64": (WORD64, "<Q"), "sfixed64": (WORD64, "<q"), "double": (WORD64, "<d"),
}  # fmt: skip
_SIZES = {WORD64: 8, WORD32: 4}
_MOST_TAG_BYTES = 5
_MOST_TAG = 2**32 - 1


class Bytes:
    """The bytes of a record, and the place of the next value in them. ``before`` counts the bytes before the record."""

    def __init__(self, data: bytes, before: int = 0) -> None:
        self.data = data
        self.at = 0
        self._before = before

    def take(self, size: int, end: int) -> bytes:
        """Return the next ``size`` bytes. Raises BadRecordError if they go beyond ``end``."""
        if size > end - self.at:
            raise self.short(end)
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self, end: int) -> int:
        """Return the next variable-length number, which has no sign."""
        begun, bits = self.at, 0
        for shift in range(0, 70, 7):
            byte = self.take(1, end)[0]
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                if bits >= 2**64:
                    break
                return bits
        raise self.bad(begun, "a number has more than 64 bits")

    def tag(self, end: int) -> tuple[int, int]:
        """Return the next field number and wire type."""
        begun = self.at
        tag = self.varint(end)
        if not 8 <= tag <= _MOST_TAG or self.at - begun > _MOST_TAG_BYTES:
            raise self.bad(begun, f"the tag {tag} has no field number")
        return tag >> 3, tag & 7

    def length(self, end: int) -> int:
        """Return the place behind the bytes that follow their length."""
        size = self.varint(end)
        if size > end - self.at:
            raise self.short(end)
        return self.at + size

    def bad(self, begun: int, problem: str, code: Code = Code.INVALID_PROTOBUF) -> BadRecordError:
        """Return the error for the bytes from ``begun`` on."""
        return BadRecordError(code, Stage.DECODE, f"byte {self._before + begun}: {problem}")

    def short(self, end: int) -> BadRecordError:
        """Return the error for a value that goes beyond ``end``."""
        problem = f"byte {self._before + end}: a message or a packed field ends too early"
        if end == len(self.data):
            problem = "the value ends too early"
        return BadRecordError(Code.INVALID_PROTOBUF, Stage.DECODE, problem)


Take = Callable[[Bytes, int], Any]
"""Reads a value up to an end, and returns it as Arrow takes it."""


def _taker(node: Scalar | Enum) -> tuple[int, Take]:
    """Return the wire type of single values, and the function that reads one."""
    match node:
        case Enum():
            return VARINT, _enum(node)
        case Scalar("bool"):
            return VARINT, lambda data, end: data.varint(end) != 0
        case Scalar("string"):
            return LENGTH, _text
        case Scalar("bytes"):
            return LENGTH, lambda data, end: data.take(data.length(end) - data.at, end)
        case Scalar(kind) if kind in _PACKS:
            wire, form = _PACKS[kind]
            return wire, lambda data, end: struct.unpack(form, data.take(_SIZES[wire], end))[0]
    return VARINT, _integer(node)


def _integer(node: Scalar | Enum) -> Take:
    least, most = limits.number_range(node)
    kind = node.kind if isinstance(node, Scalar) else node.name

    def take(data: Bytes, end: int) -> int:
        number = data.varint(end)
        if kind.startswith("sint"):
            number = (number >> 1) ^ -(number & 1)
        elif least < 0 and number >= 2**63:
            number -= 2**64
        if not least <= number <= most:
            raise BadRecordError(Code.OUT_OF_RANGE, Stage.SCHEMA, f"expected {kind}, found {number}")
        return number

    return take


def _enum(node: Enum) -> Take:
    names, take = dict(node.symbols), _integer(node)

    def named(data: Bytes, end: int) -> str:
        number = take(data, end)
        return names.get(number, str(number))

    return named


def _text(data: Bytes, end: int) -> str:
    stop = data.length(end)
    begun = data.at
    try:
        return data.take(stop - begun, end).decode()
    except UnicodeDecodeError as error:
        raise data.bad(begun + error.start, error.reason, Code.INVALID_UTF8) from None


State = dict[int | str, Any]
"""Values of a message by field number, as they were read so far. The name of a oneof has the number of its member that is set."""


@dataclass(slots=True)
class _Items:
    """Items of a field, and the number of their bytes with the tags. An item is a value, or the `State` of a message."""

    found: list[Any]
    size: int = 0


class _FieldReader:
    """Reads one field of a message."""

    def __init__(self, field: Field) -> None:
        self.name = field.name
        self._field = field
        node = field.type
        self.repeated = isinstance(node, Repeated | Map)
        self._item: Scalar | Enum | Message
        if isinstance(node, Repeated):
            self._item = node.item
        else:
            self._item = node.entry if isinstance(node, Map) else node
        self._memory = limits.memory(self._item)
        self._message: _MessageReader | None = None
        if isinstance(self._item, Message):
            self._message = _MessageReader(self._item)
            self._wire = START if field.group else LENGTH
        else:
            self._wire, self._take = _taker(self._item)

    def read(self, data: Bytes, wire: int, end: int, state: State) -> None:
        """Read a value into ``state``. ``data`` is behind its tag."""
        number = self._field.number
        packed = self._message is None and self.repeated and wire == LENGTH and self._wire != LENGTH
        if wire != self._wire and not packed:
            raise data.bad(
                data.at,
                f"the field has wire type {wire}, and its type needs {self._wire}; the producer used another schema",
            )
        if not self.repeated:
            state[number] = self._single(data, end, state.get(number))
            return
        items = state.setdefault(number, _Items([]))
        stop = data.length(end) if packed else end
        while True:
            if packed and data.at == stop:
                return
            try:
                items.found.append(self._single(data, stop, None))
            except BadRecordError as error:
                raise error.within(f"[{len(items.found)}]") from None
            if not packed:
                return

    def _single(self, data: Bytes, end: int, known: State | None) -> Any:
        if self._message is None:
            return self._take(data, end)
        state = {} if known is None else known
        if self._field.group:
            self._message.read(data, end, state, self._field.number)
        else:
            self._message.read(data, data.length(end), state)
        return state

    def value(self, state: State) -> Any:
        """Return the value as Arrow takes it. Raises BadRecordError."""
        field, raw = self._field, state.get(self._field.number)
        if self.repeated:
            return self._list(raw or _Items([]))
        if raw is None:
            if field.required:
                raise BadRecordError(Code.MISSING_REQUIRED, Stage.SCHEMA, "the required field is missing")
            return None if field.default is None else self._default()
        return raw if self._message is None else self._message.value(raw)

    def _default(self) -> Any:
        default = self._field.default
        match self._item:
            case Message():
                assert self._message is not None
                return self._message.value({})
            case Enum(symbols=symbols):
                return next((name for number, name in symbols if number == default), str(default))
            case Scalar("bool"):
                return bool(default)
        return default

    def _list(self, items: _Items) -> list[Any]:
        needed = len(items.found) * self._memory
        if needed > limits.MEMORY_PER_BYTE * items.size + limits.MEMORY:
            raise BadRecordError(
                Code.OUT_OF_RANGE,
                Stage.SCHEMA,
                f"{len(items.found)} items in {items.size} bytes would take {needed} bytes of memory",
            )
        if self._message is None:
            return items.found
        made: list[Any] = []
        for state in items.found:
            try:
                made.append(self._message.value(state))
            except BadRecordError as error:
                raise error.within(f"[{len(made)}]") from None
        if isinstance(self._field.type, Map):
            # The last entry of a key counts.
            return list({entry["key"]: entry["value"] for entry in made}.items())
        return made


class _MessageReader:
    """Reads messages of one type."""

    def __init__(self, message: Message) -> None:
        self._node = message
        self._fields = {each.number: _FieldReader(each) for each in message.fields}
        self._oneofs = {each.number: each.oneof for each in message.fields if each.oneof} | dict(message.others)

    def read(self, data: Bytes, end: int, state: State, group: int = 0) -> None:
        """Read the fields up to ``end`` into ``state``, which may have fields of the same message already.

        The message of a ``group``, which is the number of its field, ends with the tag of its end.
        """
        while data.at < end:
            begun = data.at
            number, wire = data.tag(end)
            if wire == END and number == group:
                return
            field, oneof = self._fields.get(number), self._oneofs.get(number)
            if oneof:
                # The member of the oneof that is set so far.
                rival = state.setdefault(oneof, number)
                if rival != number:
                    state.pop(rival, None)
                    state[oneof] = number
            if field is None:
                _skip(data, begun, number, wire, end)
                continue
            try:
                field.read(data, wire, end, state)
            except BadRecordError as error:
                raise error.within(f".{field.name}") from None
            if field.repeated:
                state[number].size += data.at - begun
        if group:
            raise data.short(end)

    def value(self, state: State) -> Any:
        """Return the message as Arrow takes it. Raises BadRecordError."""
        if protobuf.is_timestamp(self._node):
            return _moment(state.get(1, 0), state.get(2, 0), self._node.nanoseconds)
        if (wrapped := protobuf.wrapped_field(self._node)) is not None:
            return self._fields[wrapped.number].value(state)
        values = {}
        for field in self._fields.values():
            try:
                values[field.name] = field.value(state)
            except BadRecordError as error:
                raise error.within(f".{field.name}") from None
        return values


def _moment(seconds: int, nanos: int, nanoseconds: bool) -> int:
    """Return a time since 1970, in microseconds or in nanoseconds."""
    for name, number, (least, most) in (("seconds", seconds, limits.SECONDS), ("nanos", nanos, limits.NANOS)):
        if not least <= number <= most:
            raise BadRecordError(
                Code.OUT_OF_RANGE, Stage.SCHEMA, f"expected {name} from {least} to {most}, found {number}"
            )
    if not nanoseconds:
        return seconds * 1_000_000 + nanos // 1000
    moment = seconds * 1_000_000_000 + nanos
    if not -(2**63) < moment < 2**63:
        raise BadRecordError(
            Code.OUT_OF_RANGE,
            Stage.SCHEMA,
            f"expected timestamptz_ns, found {seconds} s: nanoseconds from 1970 exceed 64 bits",
        )
    return moment


def _skip(data: Bytes, begun: int, number: int, wire: int, end: int) -> None:
    """Skip the value of a field that the schema does not have. Groups may be inside each other."""
    groups: list[int] = []
    while True:
        match wire:
            case 0:
                data.varint(end)
            case 1 | 5:
                data.take(_SIZES[wire], end)
            case 2:
                data.at = data.length(end)
            case 3 if len(groups) < limits.MOST_GROUPS:
                groups.append(number)
            case 3:
                raise data.bad(begun, f"more than {limits.MOST_GROUPS} groups are inside each other")
            case 4 if groups and groups[-1] == number:
                groups.pop()
            case 4:
                raise data.bad(begun, f"a group with the field number {number} ends, and did not begin")
            case _:
                raise data.bad(begun, f"the wire type {wire} does not exist")
        if not groups:
            return
        begun = data.at
        number, wire = data.tag(end)


def skip_indexes(data: Bytes, expected: Sequence[int], message: str) -> None:
    """Skip the message indexes that follow the id of a schema. They have to be those of ``message``: ``expected``, if it has any.

    Source: "Wire format" of Confluent Schema Registry.
    """
    begun = data.at
    indexes = read_indexes(data)
    if expected and indexes != [*expected]:
        raise data.bad(
            begun,
            f"the message indexes are {indexes[:8]}, and the table has columns for {message}; schema.message chooses another message",
        )


def read_indexes(data: Bytes) -> list[int]:
    """Return the message indexes that follow the id of a schema, and skip them. Raises BadRecordError."""
    begun, end = data.at, len(data.data)
    count = _index(data, begun, end)
    if count > end - data.at:
        raise data.short(end)
    return [_index(data, begun, end) for _ in range(count)] or [0]


def _index(data: Bytes, begun: int, end: int) -> int:
    number = data.varint(end)
    if number & 1:
        raise data.bad(begun, "a message index is negative")
    return number >> 1


class RecordReader:
    """Reads whole records. ``indexed``: message indexes precede each, and ``expected`` are those of `skip_indexes`."""

    def __init__(self, message: Message, *, indexed: bool = False, expected: Sequence[int] = ()) -> None:
        self._message = _MessageReader(message)
        self._indexed = indexed
        self._expected, self._name = expected, message.name

    def read(self, value: bytes | None, before: int = 0) -> Mapping[str, Any]:
        """Return the values of a record by field; none for null. ``before`` counts the bytes before it. Raises BadRecordError.

        A record without any byte has the defaults of all fields.
        """
        if value is None:
            return {}
        data, state = Bytes(value, before), State()
        if self._indexed:
            skip_indexes(data, self._expected, self._name)
        self._message.read(data, len(value), state)
        values: Mapping[str, Any] = self._message.value(state)
        return values
