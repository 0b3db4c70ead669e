"""Read and write the primitive types of Kafka's protocol.

Kafka's types, by name: protocol guide, "Protocol Primitive Types". *Flexible* versions have compact lengths (unsigned
varint of length plus one) and tagged fields; the older ones have lengths of 2 or 4 bytes, -1 for null."""

import struct
from uuid import UUID

_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_F64 = struct.Struct(">d")

ELEMENTS = 20_000
"""Elements of all arrays (topics, partitions, groups, tagged fields) of one request. Each becomes an object, even if it
has few bytes."""


class MalformedError(Exception):
    """The bytes are not the message that they claim to be, so the connection has to be closed."""


class Cursor:
    """A position in ``data`` that moves as fields are read. Each read raises `MalformedError` if the bytes end too
    early."""

    __slots__ = ("data", "elements", "end", "flexible", "limit", "place")

    def __init__(self, data: memoryview, place: int, *, flexible: bool, limit: int = ELEMENTS) -> None:
        """Read ``data`` from ``place`` on. Its arrays may have ``limit`` elements together."""
        self.data = data
        self.place = place
        self.end = len(data)
        self.elements = 0
        self.limit = limit
        self.flexible = flexible

    def _advance(self, size: int) -> int:
        start = self.place
        if size < 0 or start + size > self.end:
            raise MalformedError(
                f"the field at byte {start} has a size of {size} bytes, but the data ends at byte {self.end}"
            )
        self.place = start + size
        return start

    def i8(self) -> int:
        """Read an int8."""
        value: int = _I8.unpack_from(self.data, self._advance(1))[0]
        return value

    def i16(self) -> int:
        """Read an int16."""
        value: int = _I16.unpack_from(self.data, self._advance(2))[0]
        return value

    def i32(self) -> int:
        """Read an int32."""
        value: int = _I32.unpack_from(self.data, self._advance(4))[0]
        return value

    def i64(self) -> int:
        """Read an int64."""
        value: int = _I64.unpack_from(self.data, self._advance(8))[0]
        return value

    def f64(self) -> float:
        """Read a float64."""
        value: float = _F64.unpack_from(self.data, self._advance(8))[0]
        return value

    def uuid(self) -> UUID:
        """Read a uuid."""
        start = self._advance(16)
        return UUID(bytes=bytes(self.data[start : start + 16]))

    def varint(self) -> int:
        """Read an unsigned varint of at most 5 bytes."""
        value = shift = 0
        while shift < 35:
            byte = self.data[self._advance(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise MalformedError("a varint is longer than 5 bytes")

    def _length(self, wide: bool) -> int:
        if self.flexible:
            return self.varint() - 1
        return self.i32() if wide else self.i16()

    def string(self) -> str | None:
        """Read a string or compact string; None for null."""
        size = self._length(wide=False)
        if size < 0:
            return None
        start = self._advance(size)
        try:
            return str(self.data[start : start + size], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedError("a string is not UTF-8") from error

    def view(self) -> memoryview | None:
        """Read bytes or records as a view of the frame; None for null."""
        size = self._length(wide=True)
        if size < 0:
            return None
        start = self._advance(size)
        return self.data[start : start + size]

    def count(self) -> int:
        """Read the length of an array; 0 for null. The bound holds for the whole request, so a false length costs
        nothing."""
        return self.nullable_count() or 0

    def nullable_count(self) -> int | None:
        """Read the length of an array; None for null. Each element has one byte at least."""
        size = self._length(wide=True)
        if size < 0:
            return None
        self._count(size)
        return size

    def _count(self, size: int) -> None:
        self.elements += size
        if size > self.end - self.place or self.elements > self.limit:
            raise MalformedError(
                f"an array claims {size} elements, but {self.end - self.place} bytes are left; "
                f"or the message has {self.elements} elements, more than {self.limit}"
            )

    def tag_count(self) -> int:
        """Read the number of tagged fields."""
        size = self.varint()
        self._count(size)
        return size

    def take(self, size: int) -> memoryview:
        """Read bytes as a view of the frame."""
        start = self._advance(size)
        return self.data[start : start + size]

    def skip(self, size: int) -> None:
        """Skip bytes."""
        self._advance(size)

    def tags(self) -> None:
        """Skip the tagged fields."""
        if self.flexible:
            for _ in range(self.tag_count()):
                self.varint()
                self._advance(self.varint())


def varint(value: int) -> bytes:
    """Write an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str | None, *, flexible: bool) -> bytes:
    """Write a string or compact string."""
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    encoded = text.encode()
    return (varint(len(encoded) + 1) if flexible else _I16.pack(len(encoded))) + encoded


def array(count: int, *, flexible: bool) -> bytes:
    """Write the length of an array of ``count`` elements."""
    return varint(count + 1) if flexible else _I32.pack(count)
