"""Functions that skip encoded numbers and texts. They take bytes and a place in them, and return the place behind the value.

They do not check that the place is within the bytes. The caller compares the last place with the end, because places only grow.
"""

from collections.abc import Callable

Skip = Callable[[bytes, int], int]
"""Returns the place behind a value. Raises DoubtError, IndexError or UnicodeDecodeError if the strict decoder has to decide."""


class DoubtError(Exception):
    """The strict decoder has to decide about a value."""


def number(data: bytes, at: int) -> tuple[int, int]:
    """Return a variable-length number without sign, and the place behind it."""
    bits = 0
    for shift in range(0, 63, 7):
        byte = data[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            return bits, at
    raise DoubtError


def up_to_9_bytes(data: bytes, at: int) -> int:
    """Skip a number of at most nine bytes, which has 63 bits."""
    end = at
    while data[end] > 0x7F:
        end += 1
    if end - at > 8:
        raise DoubtError
    return end + 1


def up_to_7_bytes(data: bytes, at: int) -> int:
    """Skip a number of at most seven bytes, which has 49 bits."""
    end = at
    while data[end] > 0x7F:
        end += 1
    if end - at > 6:
        raise DoubtError
    return end + 1


def up_to_32_bits(data: bytes, at: int) -> int:
    """Skip a number of at most 32 bits."""
    end = at
    while data[end] > 0x7F:
        end += 1
    if end - at >= 4 and (end - at > 4 or data[end] > 0x0F):
        raise DoubtError
    return end + 1


def counted(data: bytes, at: int) -> int:
    """Skip bytes that follow their number."""
    size, at = number(data, at)
    return at + size


def over(size: int) -> Skip:
    """Return the function that skips a fixed number of bytes."""
    return lambda data, at: at + size
