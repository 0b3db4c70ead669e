"""The writing of a connection: answers in full, or over TLS in pieces.

TLS encrypts what it gets at once, and keeps the encrypted bytes until the client takes them. The event loop reports neither
their number nor their end. In pieces, an answer takes little memory, stays in the processor's cache, and the client
decrypts its beginning while the broker encrypts the rest."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

SMALL = 1 << 16
"""Bytes of an answer that may be unsent while the next answer is written."""
PIECE = 1 << 17
"""Bytes of an answer that TLS gets at a time: whole TLS records, which have 16 KiB."""


class Output:
    """Writes the answers of a connection, one after the other."""

    def __init__(self, now: float) -> None:
        self._transport: Any = None
        self._encrypts = False
        self._pieces: Iterator[bytes | memoryview] = iter(())
        self._left = 0
        """Bytes of the answer that the transport does not have yet."""
        self._open = True
        """True unless the transport has to send before it takes more."""
        self.ready = asyncio.Event()
        """Set if the next answer may be written."""
        self.ready.set()
        self._unsent = 0
        """Unsent bytes of the answer when the client last took some."""
        self.moved = now
        """When the client last took some of them, in seconds of the event loop."""

    def connect(self, transport: Any) -> None:
        """Begin with a transport."""
        self._transport = transport
        self._encrypts = transport.get_extra_info("ssl_object") is not None
        # The next answer is written when this one is sent, because unsent answers keep blocks of the log in memory.
        transport.set_write_buffer_limits(high=SMALL, low=0)

    def pause(self) -> None:
        """Write nothing until the transport has sent what it has."""
        self._open = False
        self.ready.clear()

    def resume(self) -> None:
        """Write again."""
        self._open = True
        self._continue()

    def drop(self) -> None:
        """Forget the rest of the answer, because the connection is lost."""
        self._pieces, self._left = iter(()), 0
        self.ready.set()

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` bytes can be written without a pause."""
        return self.ready.is_set() and bool(self._transport.get_write_buffer_size() + size <= SMALL)

    def send(self, buffers: list[bytes | memoryview], size: int, now: float, *, last: bool) -> None:
        """Write an answer of ``size`` bytes. Close the connection behind the ``last`` one."""
        self._unsent, self.moved = size, now
        if last or not self._encrypts:
            self._transport.writelines(buffers)
        else:
            self._pieces, self._left = pieces(buffers), size
            self.ready.clear()
            self._continue()
        if last:
            self.close()

    def _continue(self) -> None:
        while self._open and not self._transport.is_closing():
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._left -= len(piece)
            # The transport may call `pause` meanwhile.
            self._transport.write(piece)
        if self._open and not self._left:
            self.ready.set()

    def taken(self, now: float, rate: float) -> bool:
        """Return whether the client has taken bytes of a waiting answer, ``rate`` bytes a second at least, since `moved`. Set
        `moved` then."""
        if self.ready.is_set():
            return False
        left = self._left + self._transport.get_write_buffer_size()
        if self._unsent - left < max(SMALL, rate * (now - self.moved)):
            return False
        self._unsent, self.moved = left, now
        return True

    def close(self) -> None:
        """Send what is written, then close."""
        # uvloop raises RuntimeError if TLS has ended already.
        with suppress(RuntimeError):
            self._transport.close()


def pieces(buffers: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the buffers in pieces of `PIECE`. TLS makes a record of its own for each small buffer otherwise."""
    parts: list[memoryview] = []
    room = PIECE
    for buffer in buffers:
        view = memoryview(buffer)
        place = 0
        while place < len(view):
            part = view[place : place + room]
            parts.append(part)
            place, room = place + len(part), room - len(part)
            if not room:
                yield parts[0] if len(parts) == 1 else b"".join(parts)
                parts, room = [], PIECE
    if parts:
        yield b"".join(parts)
