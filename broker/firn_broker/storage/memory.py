"""Memory that Python does not clear, for bytes that overwrite all of it.

``bytearray(n)`` writes n zeros first, which costs as much as a copy of n bytes. The C function behind it does not
(``PyByteArray_FromStringAndSize`` without a string, https://docs.python.org/3/c-api/bytearray.html)."""

import ctypes
from collections.abc import Callable
from typing import cast

PAGE = 4096
"""Bytes of a page, and the alignment that direct writes need (O_DIRECT)."""

# A prototype of its own, because the one in ``ctypes.pythonapi`` belongs to every user of the module.
_make = cast(
    Callable[[None, int], bytearray],
    ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
        ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
    ),
)


def uncleared(size: int) -> bytearray:
    """Return ``size`` bytes with any content."""
    return _make(None, size)


def uncleared_pages(size: int) -> memoryview:
    """Return ``size`` bytes with any content, for which `whole_pages` returns pages."""
    padding = -size % PAGE
    memory = uncleared(size + padding + PAGE)
    start = -_address(memory) % PAGE
    # Otherwise a file could contain for a moment what was in memory before.
    memory[start + size : start + size + padding] = bytes(padding)
    return memoryview(memory)[start : start + size]


def whole_pages(data: memoryview) -> memoryview | None:
    """Return ``data`` with the bytes of its memory behind it, up to the end of the page. Return None unless ``data``
    begins at the start of a page and its memory has all bytes of the last one."""
    memory = data.obj
    if not data or type(memory) is not bytearray:
        return None
    start = ctypes.addressof(ctypes.c_char.from_buffer(data)) - _address(memory)
    end = start + len(data) + -len(data) % PAGE
    if (_address(memory) + start) % PAGE or end > len(memory):
        return None
    return memoryview(memory)[start:end]


def _address(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
