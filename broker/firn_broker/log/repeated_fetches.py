"""Fetches that repeat the last request of their connection, which found nothing.

A consumer at the ends of its partitions sends the same bytes every half second, and gets the same answer. Such a fetch
needs no parsing, no task and no lookup of its own. It registers, and a timer sends the answer again. Fetches that end at
about the same time share a timer. If a partition grows, or no poll confirms the ends in time, the broker handles the
request in full.

In a session (KIP-227), each request has the next epoch and is otherwise the same."""

import asyncio
import math
from collections.abc import Mapping

from firn_broker import metrics
from firn_broker.access.authorizer import Authorizer
from firn_broker.access.quotas import Quota, Quotas
from firn_broker.log.fetch_sessions import FetchSession, FetchSessions
from firn_broker.log.watermarks import Watch, Watermarks
from firn_broker.log_types import Partition
from firn_broker.network import budget
from firn_broker.network.router import Buffers, Call, Serve
from firn_broker.settings import ReaderSettings
from firn_broker.wire import headers
from firn_broker.wire.fetch import FetchRequest, epoch_place

Ends = Mapping[Partition, tuple[int, int]]
"""Log start and high watermark by partition."""
REQUEST_BYTES = 16 << 10
"""Largest size of a remembered request with its answer, in bytes."""
END_BYTES = 350
"""Bytes that the end of a partition takes."""
TOTAL_BYTES = 16 << 20
"""Largest size of all remembered requests, in bytes."""
MAX_WAIT_SECONDS = 5.0
"""Longest wait for records, in seconds. Requests with a longer wait are not remembered."""
POLLS = 2
"""Least number of polls of the coordinator for which a request waits, so that one of them can confirm the ends."""
TICK_SECONDS = 0.025
"""Seconds by which an answer may be late. To wake the process costs more than an answer does, so those of a tick go out
together. Then their clients send the next requests together, too."""
_SECONDS = metrics.REQUEST_SECONDS.labels("Fetch")


class RepeatedFetches:
    """Remembers the last request of each connection that found nothing."""

    def __init__(
        self,
        watermarks: Watermarks,
        sessions: FetchSessions,
        authorizer: Authorizer,
        quotas: Quotas,
        settings: ReaderSettings,
    ) -> None:
        self.watermarks = watermarks
        self.sessions = sessions
        self.authorizer = authorizer
        self.quotas = quotas
        self._min_wait_seconds = POLLS * settings.poll_seconds
        self.bytes = budget.Quota(TOTAL_BYTES)
        """The bytes of the remembered request of each connection."""
        self._ticks: dict[int, dict[_Repeated, None]] = {}
        """The waiting fetches by the number of the tick at which their wait ends."""

    def remember(
        self, call: Call, request: FetchRequest, session: FetchSession | None, ends: Ends, body: bytes
    ) -> None:
        """Remember a request that found nothing at these ends, and the body of its answer."""
        wait = request.max_wait_ms / 1000
        if call.client.closed or not self._min_wait_seconds <= wait <= MAX_WAIT_SECONDS:
            return
        size = len(call.frame) + len(body)
        held = size + len(ends) * END_BYTES
        if size <= REQUEST_BYTES and self.bytes.fits(call.client.address, held):
            self.bytes.count(call.client.peer, {call.client.address: held})
            call.client.repeatable = _Last(self, call, session, ends, wait, body)

    def wait(self, fetch: "_Repeated", seconds: float) -> int:
        """Let a fetch expire in the first tick after ``seconds``, and return the number of the tick."""
        loop = asyncio.get_running_loop()
        tick = math.ceil((loop.time() + seconds) / TICK_SECONDS)
        if tick not in self._ticks:
            self._ticks[tick] = {}
            loop.call_at(tick * TICK_SECONDS, self._expire, tick)
        self._ticks[tick][fetch] = None
        return tick

    def leave(self, fetch: "_Repeated", tick: int) -> None:
        """Remove a fetch that ended before its tick."""
        if tick in self._ticks:
            self._ticks[tick].pop(fetch, None)

    def _expire(self, tick: int) -> None:
        for fetch in self._ticks.pop(tick):
            fetch.expire()


class _Last:
    """The last request of a connection."""

    def __init__(
        self,
        fetches: RepeatedFetches,
        call: Call,
        session: FetchSession | None,
        ends: Ends,
        wait_seconds: float,
        body: bytes,
    ) -> None:
        self.fetches = fetches
        self._waiting: _Repeated | None = None
        self.watermarks, self._sessions = fetches.watermarks, fetches.sessions
        self._authorizer, self._decisions = fetches.authorizer, fetches.authorizer.version
        self.ends = ends
        self.partitions = frozenset(ends)
        self.wait_seconds = wait_seconds
        self.body = body
        self._client, self._client_id, self._session = call.client, call.client_id, session
        place = epoch_place(call.header.body, call.version)
        frame = bytes(call.frame)
        # A frame begins with API and version (4 bytes) and the correlation id (4 bytes).
        self._api, self._request, self._rest = frame[:4], frame[8:place], frame[place + 4 :]
        self._epoch = slice(place, place + 4)
        self._size = len(frame)
        self._head = headers.response(call.header)[4:]

    def again(self, frame: memoryview, serve: Serve) -> "asyncio.Future[Buffers | None] | None":
        """Return the future answer if the frame repeats the last request."""
        if len(frame) != self._size:
            return None
        data = bytes(frame)
        epoch = -1 if self._session is None else self._session.epoch
        if (
            int.from_bytes(data[self._epoch], "big", signed=True) != epoch
            or data[8 : self._epoch.start] != self._request
            or data[self._epoch.stop :] != self._rest
            or data[:4] != self._api
            or not self.holds
            or self._throttled
        ):
            return None
        self._waiting = _Repeated(self, data[4:8] + self._head, serve)
        return self._waiting.answer

    @property
    def _throttled(self) -> bool:
        """Return whether the handler has to throttle the client, or to measure the time of its request."""
        quotas, principal = self.fetches.quotas, self._client.principal
        return quotas.active and (
            quotas.limits(Quota.REQUEST_TIME, principal, self._client_id)
            or quotas.wait(Quota.CONSUMER_BYTES, principal, self._client_id) > 0
        )

    def abandon(self) -> None:
        """Cancel the answer that waits for a timer."""
        if self._waiting is not None:
            self._waiting.abandon()

    def release(self) -> None:
        """Release the memory of the request."""
        self.fetches.bytes.forget(self._client.peer)

    @property
    def holds(self) -> bool:
        """Return whether the ends are still the known ones, the session still that of the connection, and the ACLs those that
        allowed the request."""
        known = self.watermarks.known
        return (
            self._authorizer.version == self._decisions
            and self._sessions.holds(self._client, self._session)
            and all(known(partition) == end for partition, end in self.ends.items())
        )

    def ended(self) -> None:
        """Forget the answer, which may hold records."""
        self._waiting = None

    def answered(self, size: int) -> None:
        """Expect the next request of the session. Count the bytes of the answer for the quota of the next request."""
        if (quotas := self.fetches.quotas).active:
            quotas.record(Quota.CONSUMER_BYTES, self._client.principal, self._client_id, size)
        if self._session is not None:
            self._session.advance()


class _Repeated(Watch):
    """A fetch that waits without a task."""

    def __init__(self, last: _Last, head: bytes, serve: Serve) -> None:
        super().__init__(last.partitions)
        loop = asyncio.get_running_loop()
        self._last, self._head, self._serve = last, head, serve
        self._task: asyncio.Task[Buffers | None] | None = None
        self._began = loop.time()
        self.answer: asyncio.Future[Buffers | None] = loop.create_future()
        last.watermarks.register(self)
        last.watermarks.claim(self)
        self._tick = last.fetches.wait(self, last.wait_seconds)
        self.answer.add_done_callback(self._end)

    def wake(self, partition: Partition) -> None:
        """Handle the request in full, in the next turn of the event loop."""
        asyncio.get_running_loop().call_soon(self._handle)

    def abandon(self) -> None:
        """Cancel the answer, unless a task handles the request. The server ends that task, and the answer ends with it."""
        if self._task is None:
            self.answer.cancel()

    def expire(self) -> None:
        """Send the answer again, unless the ends are not certain."""
        if self.answer.done() or self._task is not None:
            return
        if not self.confirmed or not self._last.holds:
            self._handle()
            return
        self._last.answered(len(self._last.body))
        _SECONDS.observe(asyncio.get_running_loop().time() - self._began)
        self.answer.set_result([self._head, self._last.body])

    def _handle(self) -> None:
        if self._task is None and not self.answer.done():
            self._task = self._serve()
            self._task.add_done_callback(self._handled)

    def _handled(self, task: "asyncio.Task[Buffers | None]") -> None:
        if self.answer.done():
            budget.release_answer(task)
        elif task.cancelled():
            self.answer.cancel()
        elif (error := task.exception()) is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(task.result())

    def _end(self, _: object) -> None:
        self._last.fetches.leave(self, self._tick)
        self._last.ended()
        self._last.watermarks.unregister(self)
