"""The reading of a connection: the reasons for which the broker does not read it, and the time for which a quota mutes it."""

import asyncio
import select
from collections.abc import Callable
from typing import Any

from firn_broker import metrics

HANGUP = getattr(select, "POLLRDHUP", 0)
"""The event of a socket whose client sends no more; 0 if the system does not have it."""
CLOSE_SECONDS = 5.0
"""Seconds for which a closing connection may send its last answer, and in which its client has to confirm the end of TLS."""
QUOTA = "quota"
"""The reason of a muted connection."""


class Input:
    """Reads a connection unless there is a reason not to."""

    def __init__(self, resumed: Callable[[float], None]) -> None:
        """``resumed`` is called with the seconds for which the connection was not read."""
        self._resumed = resumed
        self._transport: Any = None
        self._reasons: set[str] = set()
        self._paused_at = 0.0
        self._unmuting: asyncio.TimerHandle | None = None
        self._lost = False
        self._close_by = 0.0
        """When a closing connection is aborted; 0 if it is not closing."""

    def connect(self, transport: Any) -> None:
        """Begin with a transport that is read."""
        self._transport = transport

    def close(self) -> None:
        """Note that the connection is lost."""
        self._lost = True
        self.unmute()

    @property
    def paused(self) -> bool:
        """Return whether the connection is not read."""
        return bool(self._reasons)

    def paused_for(self, reason: str) -> bool:
        """Return whether this is a reason not to read the connection."""
        return reason in self._reasons

    def pause(self, reason: str) -> None:
        """Stop reading for a reason."""
        if not self._reasons and not self._lost:
            self._paused_at = asyncio.get_running_loop().time()
            self._transport.pause_reading()
        self._reasons.add(reason)

    def resume(self, reason: str) -> None:
        """Read again, unless there is another reason not to."""
        if reason in self._reasons:
            self._reasons.discard(reason)
            if not self._reasons and not self._lost and not self._transport.is_closing():
                self._resumed(asyncio.get_running_loop().time() - self._paused_at)
                self._transport.resume_reading()

    @property
    def muted(self) -> bool:
        """Return whether a quota mutes the connection. The request that is arriving may still complete."""
        return self._unmuting is not None

    def mute(self, ms: int) -> None:
        """Mute the connection for ``ms`` milliseconds. The longest time counts."""
        if self._lost:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + ms / 1000
        if self._unmuting is None:
            metrics.MUTED.inc()
        elif until <= self._unmuting.when():
            return
        else:
            self._unmuting.cancel()
        self._unmuting = loop.call_at(until, self.unmute)

    def unmute(self) -> None:
        """End the time for which the connection is muted."""
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None
            metrics.MUTED.dec()
            self.resume(QUOTA)

    def ended(self, now: float) -> bool:
        """Return whether the connection is closing, or was closed by its client while it is muted. Abort it then.

        A closing connection first gets `CLOSE_SECONDS`, in which its client can read the last answer. The event loop notices
        the end of a connection only while it reads."""
        if self._transport.is_closing():
            self._close_by = self._close_by or now + CLOSE_SECONDS
            if now >= self._close_by:
                self._transport.abort()
            return True
        if self._unmuting is None or not HANGUP:
            return False
        connected = self._transport.get_extra_info("socket")
        if connected is None:
            return False
        poll = select.poll()
        poll.register(connected.fileno(), HANGUP)
        if not poll.poll(0):
            return False
        self._transport.abort()
        return True
