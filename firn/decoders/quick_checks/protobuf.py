"""A quick check of Protobuf messages: it skips from field to field, and makes no Python objects of the values."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from firn.decoders import protobuf_limits as limits
from firn.decoders.quick_checks.places import DoubtError, Skip, counted, number, over, up_to_9_bytes, up_to_32_bits
from firn.schemas import protobuf
from firn.schemas.protobuf import Enum, Field, Map, Message, Node, Repeated, Scalar

_VARINT, _WORD64, _LENGTH, _WORD32 = 0, 1, 2, 5
_WORDS = {
    **dict.fromkeys(("fixed32", "sfixed32", "float"), (_WORD32, over(4))),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), (_WORD64, over(8))),
}
_FIRST_FRAMED = 6
"""Bytes before a message: a byte 0, the id of the schema, and a byte 0 that selects the first message."""


class ProtobufCheck:
    """Accepts messages of one type, without fields that are required. ``framed``: `_FIRST_FRAMED` bytes precede them."""

    slice_bytes = 16 << 10

    def __init__(self, message: Message, framed: bool) -> None:
        self._read = _message(message)
        self._framing = _FIRST_FRAMED if framed else 0
        heaviest = max((limits.memory(item) for item in _items(message)), default=0)
        self._most = None if heaviest <= limits.MEMORY_PER_BYTE else limits.MEMORY // heaviest
        """Most bytes of a value. An item takes one byte or more, so the items of shorter values take little memory."""

    def accepts(self, values: Sequence[bytes | None]) -> bool:
        """Return True only if the strict decoder accepts each value."""
        read, framing, most = self._read, self._framing, self._most
        try:
            for value in values:
                if value is None:
                    continue
                if framing and (value[0] or value[5]):
                    return False
                end = len(value)
                if most is not None and end > most:
                    return False
                read(value, framing, end)
        except (DoubtError, IndexError, UnicodeDecodeError):
            return False
        return True

    def learn(self, values: Sequence[bytes | None]) -> None:
        """Learn nothing, because the schema says all."""


def is_quick(message: Message) -> bool:
    """Return whether messages of a type may have a quick check: whether no field is required."""
    return not any(field.required or not all(map(is_quick, _inside(field.type))) for field in message.fields)


def _inside(node: Node) -> Iterator[Message]:
    match node:
        case Message():
            yield node
        case Map(entry):
            yield entry
        case Repeated(Message() as item):
            yield item


def _items(message: Message) -> Iterator[Node]:
    """Yield the types of the items of all repeated fields and maps."""
    for field in message.fields:
        match field.type:
            case Repeated(item):
                yield item
            case Map(entry):
                yield entry
        for inner in _inside(field.type):
            yield from _items(inner)


_Read = Callable[[bytes, int, int], None]
"""Checks a message between two places. Raises as `Skip` does."""


def _message(message: Message) -> _Read:
    fields: dict[int, Skip] = {}
    for field in message.fields:
        fields |= dict(_of_timestamp(field, message) if protobuf.is_timestamp(message) else _field(field))
    known = frozenset(field.number for field in message.fields)

    def read(data: bytes, at: int, end: int) -> None:
        while at < end:
            tag = data[at]
            at += 1
            if tag > 0x7F:
                # A second byte 0 is another form of a tag of one byte.
                second = data[at]
                at += 1
                if not 0 < second < 0x80:
                    raise DoubtError
                tag += (second << 7) - 0x80
            skip = fields.get(tag)
            at = skip(data, at) if skip is not None else _unknown(data, at, tag, known)
        if at != end:
            raise DoubtError

    return read


def _unknown(data: bytes, at: int, tag: int, known: frozenset[int]) -> int:
    """Skip a field that the message does not have. A known field with another wire type is wrong, and groups are rare."""
    if tag < 8 or tag >> 3 in known:
        raise DoubtError
    match tag & 7:
        case 0:
            return up_to_9_bytes(data, at)
        case 1:
            return at + 8
        case 2:
            return counted(data, at)
        case 5:
            return at + 4
    raise DoubtError


def _of_timestamp(field: Field, message: Message) -> Iterator[tuple[int, Skip]]:
    """Yield the tag of a field of a Timestamp, and the function that skips a number within its range."""
    seconds = limits.SECONDS_OF_NANOSECONDS if message.nanoseconds else limits.SECONDS
    yield field.number << 3 | _VARINT, _within(*(seconds if field.number == 1 else limits.NANOS))


def _field(field: Field) -> Iterator[tuple[int, Skip]]:
    """Yield tags of a field, and the functions that skip what follows. Groups are rare, so the quick check leaves them in doubt."""
    if field.group:
        return
    node = field.type
    repeated = isinstance(node, Repeated)
    item = node.item if isinstance(node, Repeated) else node.entry if isinstance(node, Map) else node
    if isinstance(item, Message):
        yield field.number << 3 | _LENGTH, _delimited(_message(item))
        return
    assert isinstance(item, Scalar | Enum)
    wire, skip = _single(item)
    yield field.number << 3 | wire, skip
    if repeated and wire != _LENGTH:
        yield field.number << 3 | _LENGTH, _delimited(_packed(skip))


def _delimited(read: _Read) -> Skip:
    def skip(data: bytes, at: int) -> int:
        size = data[at]
        at += 1
        if size > 0x7F:
            size, at = number(data, at - 1)
        end = at + size
        # A packed field would otherwise take as many steps as its length says.
        if end > len(data):
            raise DoubtError
        read(data, at, end)
        return end

    return skip


def _packed(skip: Skip) -> _Read:
    def read(data: bytes, at: int, end: int) -> None:
        while at < end:
            at = skip(data, at)
        if at != end:
            raise DoubtError

    return read


def _within(least: int, most: int) -> Skip:
    """Return the function that skips numbers from ``least`` to ``most``. Those of ten bytes, which are negative, are in doubt."""

    def skip(data: bytes, at: int) -> int:
        bits, at = number(data, at)
        if not least <= bits <= most:
            raise DoubtError
        return at

    return skip


def _single(node: Scalar | Enum) -> tuple[int, Skip]:
    """Return the wire type of single values, and the function that skips one."""
    if isinstance(node, Enum):
        return _VARINT, _int32
    if node.kind in _WORDS:
        return _WORDS[node.kind]
    if node.kind in ("string", "bytes"):
        return _LENGTH, _text if node.kind == "string" else counted
    return _VARINT, _VARINTS[node.kind]


_NEGATIVE_ENDS = frozenset(bytes([first, 0xFF, 0xFF, 0xFF, 0xFF, 0x01]) for first in range(0xF8, 0x100))
"""Bytes 5 to 10 of a number from -2^31 to -1. Such a number has the ten bytes of its 64 bits."""


def _int32(data: bytes, at: int) -> int:
    end = at
    while data[end] > 0x7F:
        end += 1
    size = end - at
    if size > 3 and (size > 4 or data[end] > 0x07) and (size != 9 or data[at + 4 : end + 1] not in _NEGATIVE_ENDS):
        raise DoubtError
    return end + 1


def _int64(data: bytes, at: int) -> int:
    end = at
    while data[end] > 0x7F:
        end += 1
    if end - at >= 9 and (end - at > 9 or data[end] > 1):
        raise DoubtError
    return end + 1


def _bool(data: bytes, at: int) -> int:
    if data[at] > 0x7F:
        raise DoubtError
    return at + 1


_VARINTS: Mapping[str, Skip] = {
    "bool": _bool, "int32": _int32, "uint32": up_to_32_bits, "sint32": up_to_32_bits, "int64": _int64, "uint64": _int64, "sint64": _int64,
}  # fmt: skip


def _text(data: bytes, at: int) -> int:
    size = data[at]
    at += 1
    if size > 0x7F:
        size, at = number(data, at - 1)
    end = at + size
    content = data[at:end]
    if not content.isascii():
        content.decode()
    return end
