"""The dispatch of requests to the handlers of their APIs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import structlog

from firn.records.cursor import MalformedError
from firn.records.message_reader import decode
from firn.records.message_writer import Fields, pieces
from firn_broker import metrics
from firn_broker.access.changes import Changes
from firn_broker.access.quotas import Quota, Quotas
from firn_broker.access.session import OPEN, Session
from firn_broker.access_types import Caller
from firn_broker.log_types import MAIN, Partition
from firn_broker.network.budget import Budget, Counted
from firn_broker.network.throttling import Meter
from firn_broker.wire import headers
from firn_broker.wire.headers import RequestHeader

log = structlog.get_logger()

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
BEFORE_AUTHENTICATION = frozenset({headers.API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
"""Keys of the APIs that a client may use before it has authenticated. No quota counts them, because they have no user."""
PERCENT = 100
"""Units of `Quota.REQUEST_TIME` in a second of the event loop."""


def _not_muted(ms: int) -> None:
    """Do nothing: the client has no connection."""


@dataclass(slots=True)
class Client:
    """The client of one connection."""

    peer: str
    id: str = ""
    software: str = ""
    session: Session = field(default_factory=lambda: Session(OPEN))
    """The authentication of the client."""
    listener: str = MAIN
    """The listener that the client uses. The broker gives it the addresses of that listener."""
    produce_order: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by one produce request at a time, in the order of their arrival, until its batches are buffered."""
    budget: Budget | None = None
    """The memory that requests of all clients share."""
    buffered: list[tuple["asyncio.Future[Any]", list[Any]]] = field(default_factory=list)
    """The future outcomes of produce requests, and their (topic, partition, batch)."""
    mute: Callable[[int], None] = _not_muted
    """Stop reading requests of the connection for this number of milliseconds (KIP-219)."""
    on_close: Callable[[], None] | None = None
    """Called once when the connection ends."""
    closed: bool = False
    closing: bool = False
    """True if the connection has to be closed after the next answer."""
    repeatable: "Repeatable | None" = None
    """The last request, if its handler can answer a repetition."""
    awaited: dict[tuple[str, int, int], tuple[int, int, int]] = field(default_factory=dict)
    """(topic, partition, producer id) -> (epoch, sequence) of a rejected batch that this client has to send again, and
    the number of later batches that were rejected since."""
    redirected: dict[Partition, int] = field(default_factory=dict)
    """The offsets for which the broker last named another one. A client that asks again does not follow."""

    def close(self) -> None:
        """Release the resources of the connection."""
        self.closed = True
        if self.repeatable is not None:
            self.repeatable.abandon()
        self.forget()
        if self.on_close is not None:
            self.on_close()

    def forget(self) -> None:
        """Forget the last request."""
        if self.repeatable is not None:
            self.repeatable.release()
            self.repeatable = None

    @property
    def principal(self) -> str:
        """Return the authenticated principal, as Kafka writes it."""
        return self.session.principal

    @property
    def address(self) -> str:
        """Return the address without the port."""
        return self.peer.rpartition(":")[0]

    @property
    def caller(self) -> Caller:
        """Return the client as ACLs see it."""
        return Caller(self.principal, self.address)

    @property
    def zone(self) -> str:
        """Return the zone that the client states in its id, as in ``client.id=reader,zone=a``."""
        for part in self.id.split(","):
            name, _, value = part.strip().partition("=")
            if name == "zone":
                return value
        return ""


@dataclass(slots=True)
class Call:
    """A request with its frame and its client."""

    header: RequestHeader
    frame: memoryview
    client: Client
    throttle_ms: int = 0
    """The throttle time of the client. The answer states it, and the broker then reads no request for so long (KIP-219)."""
    meter: Meter | None = None
    """The time of the event loop, if the client has a quota for it."""
    changes: Changes | None = None
    """Changes of the request, for the audit log."""

    @property
    def version(self) -> int:
        """Return the version of the message."""
        return self.header.version

    @property
    def client_id(self) -> str:
        """Return the client id of this request. That of `client` may be of a later one."""
        return self.header.client or ""

    def count(self, quotas: Quotas, quota: Quota, amount: float, *, strict: bool = False) -> None:
        """Count what the request uses, and throttle the client if it exceeds its quota.

        With ``strict``, do not throttle the client, because the broker rejects its next requests (`exceeds`)."""
        if quotas.active:
            ms = quotas.record(quota, self.client.principal, self.client_id, amount)
            self._throttle(quota, 0 if strict else ms)

    def exceeds(self, quotas: Quotas, quota: Quota) -> bool:
        """Return whether the client exceeds its quota already, and throttle it in this case."""
        ms = quotas.wait(quota, self.client.principal, self.client_id) if quotas.active else 0
        self._throttle(quota, ms)
        return ms > 0

    def count_time(self, quotas: Quotas) -> None:
        """Count the time of the event loop until now, before the answer states the throttle time."""
        if self.meter is not None:
            self.count(quotas, Quota.REQUEST_TIME, self.meter.take() * PERCENT)

    def _throttle(self, quota: Quota, ms: int) -> None:
        # As in Kafka, the longest of the throttle times counts, and not their sum.
        if ms > 0:
            metrics.QUOTA_THROTTLE.labels(quota).observe(ms / 1000)
            self.throttle_ms = max(self.throttle_ms, ms)


Buffers = Sequence[bytes | memoryview]
Serve = Callable[[], "asyncio.Task[Buffers | None]"]
"""Handles a request in full, in a task."""


class Repeatable(Protocol):
    """A request whose repetition can be answered without its handler."""

    def again(self, frame: memoryview, serve: Serve) -> "asyncio.Future[Buffers | None] | None":
        """Return the future answer if the frame repeats the request. It may come from ``serve``."""
        ...

    def abandon(self) -> None:
        """Cancel the answer that waits, unless ``serve`` gives it."""
        ...

    def release(self) -> None:
        """Release the memory of the request."""
        ...


Handler = Callable[[Any, Call], Awaitable[Fields]]
"""Answers a decoded request with the fields of the newest version."""
RawHandler = Callable[[Call], Awaitable[Buffers | None]]
"""Reads the frame and writes the body of the answer; None if the client waits for no answer."""


@dataclass(frozen=True, slots=True)
class Route:
    """An API: its name, the advertised versions, and its handler."""

    key: int
    name: str
    versions: tuple[int, int]
    request: type | None = None
    """The record that `handler` takes."""
    handler: Handler | None = None
    raw: RawHandler | None = None
    reads: bool = False
    """True if the request changes nothing, so that it may be cancelled at any point when its client disconnects."""


class Router:
    """Answers requests."""

    def __init__(self, routes: Sequence[Route], stalled: Callable[[], None], quotas: Quotas) -> None:
        self._routes: Mapping[int, Route] = {route.key: route for route in routes}
        self._quotas = quotas
        self.stalled = stalled
        """Called when a connection has as many requests in flight as it may have, and is not read until one is
        answered."""

    def reads(self, key: int) -> bool:
        """Return whether requests of this API change nothing, so that they are cancelled when their client
        disconnects."""
        route = self._routes.get(key)
        return route is not None and route.reads

    async def handle(self, header: RequestHeader, frame: memoryview, client: Client) -> Buffers | None:
        """Answer with header and body; None if the client waits for no answer. Raises MalformedError: the connection
        has to be closed."""
        if client.closing:
            # The client sent this before it knew that its connection ends.
            return None
        client.id = header.client or ""
        route = self._routes.get(header.api)
        if route is None:
            raise MalformedError(f"API {header.api}, version {header.version}, is not served here")
        low, high = route.versions
        if not low <= header.version <= high and header.api != headers.API_VERSIONS:
            raise MalformedError(f"{route.name} version {header.version} is not served here")
        call = Call(header, frame, client)
        started = asyncio.get_running_loop().time()
        if header.api not in BEFORE_AUTHENTICATION and (refusal := client.session.refusal(started)) is not None:
            raise MalformedError(f"{route.name} is refused: {refusal}")
        quotas = self._quotas
        timed = (
            quotas.active
            and header.api not in BEFORE_AUTHENTICATION
            and quotas.limits(Quota.REQUEST_TIME, client.principal, call.client_id)
        )
        try:
            if not timed:
                return await self._answer(route, call)
            call.meter = Meter()
            return await call.meter.run(self._answer(route, call))
        except MalformedError:
            raise
        except Exception:
            metrics.REQUEST_ERRORS.labels(route.name).inc()
            raise
        finally:
            metrics.REQUEST_SECONDS.labels(route.name).observe(asyncio.get_running_loop().time() - started)
            if call.changes is not None:
                call.changes.write()
            if call.meter is not None:
                # The time since the answer stated the throttle time counts for the next request.
                quotas.record(Quota.REQUEST_TIME, client.principal, call.client_id, call.meter.take() * PERCENT)
            if call.throttle_ms:
                client.mute(call.throttle_ms)

    async def _answer(self, route: Route, call: Call) -> Buffers | None:
        header = call.header
        if route.raw is not None:
            body = await route.raw(call)
            if body is None:
                return None
            buffers = [headers.response(header), *body]
            return Counted(buffers, body.share) if isinstance(body, Counted) else buffers
        assert route.handler is not None
        assert route.request is not None
        request: Any = decode(route.request, header.api, header.version, call.frame, header.body)
        fields = await route.handler(request, call)
        call.count_time(self._quotas)
        if call.throttle_ms:
            fields = {**fields, "throttle_time": timedelta(milliseconds=call.throttle_ms)}
        answer: list[bytes | memoryview] = [headers.response(header)]
        for piece in pieces(header.api, header.version, fields):
            if len(answer) > 1:
                # Heartbeats and leases must not wait while a long answer is written.
                await asyncio.sleep(0)
            answer.append(piece)
        return answer
