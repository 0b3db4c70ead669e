"""Connections: frames in, answers out, in the order of the requests, within bounds.

The server reads a few requests of each connection ahead, because a producer would otherwise wait for one flush per
request. Produce requests start at once, in the order of their arrival, and wait for the same flush together. Every
other request starts when all requests before it are done, as with Kafka. So it reads what they wrote. The server
receives frames into the buffer that holds the records until they are uploaded.

When a client disconnects, the server cancels its reads (`router.Route.reads`) and completes its writes. Until then the
connection counts towards the limits.

A client that exceeds a quota gets its answer at once. The server then does not read its connection for the throttle time
(KIP-219). Such a connection is neither idle nor slow, and the server notices each second whether the client has closed
it."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from firn.model.clock import SystemClock
from firn.records.cursor import MalformedError
from firn.records.message_reader import REQUEST_LIMIT
from firn_broker import metrics
from firn_broker.access.audit import Audit
from firn_broker.access.mechanisms.exchange import AuthenticationError
from firn_broker.access.session import OPEN, Admission, identified
from firn_broker.log_types import MAIN
from firn_broker.network.budget import SHARES, Budget, Counted, Share, release_answer
from firn_broker.network.handshakes import Entry, Place, Places
from firn_broker.network.input import QUOTA, Input
from firn_broker.network.output import SMALL, Output
from firn_broker.network.router import BEFORE_AUTHENTICATION, Buffers, Client, Router
from firn_broker.network.tls import BACKLOG, TlsContext, TlsServer, bound_sockets
from firn_broker.settings import ConnectionSettings
from firn_broker.storage.memory import uncleared
from firn_broker.wire import headers

log = structlog.get_logger()

UNCOUNTED = 1 << 12
"""Bytes below which a request does not count towards the budget, unless it produces or is behind another one. So a
heartbeat never waits for producers. A larger request may be a long poll, and thousands of connections can have one."""
PRODUCE = 0
SIZE = 4
"""Bytes of the size of a request."""
PREFIX = 6
"""Bytes received before the budget grants memory: the size of the request, and its API key (int16), which decides
whether it counts."""
STEP = 1 << 18
"""Bytes that the budget grants an arriving request at a time. It grants each step before its bytes are read. So a request
that does not arrive holds no more than one step of the budget."""
AT_ONCE = 1 << 21
"""Size in bytes of the first memory for a larger request. Each time that it is full, memory of twice the size replaces it.
Most requests are smaller, and are never copied."""
RATE_SECONDS = 2.0
"""Seconds after which the rate of an arriving request is checked."""
CHECK_SECONDS = 1.0
"""The longest interval between two checks of the connections' timeouts."""


_Work = asyncio.Future[Buffers | None]
"""The task of a request, or its answer without a task of its own."""
_Reply = tuple[_Work, int, int]
"""A received request: its answer to come, its size in bytes, and how many of them count towards the budget."""


@dataclass(frozen=True, slots=True)
class Entrance:
    """The common part of all connections of a listener."""

    listener: str = MAIN
    """The name of the listener, as in `NodeAddress`."""
    admission: Admission = OPEN
    """How clients authenticate."""
    unencrypted: Callable[[Client], None] | None = None
    """Called once for each connection that has sent a request, if other listeners have TLS and this one does not."""
    rejected: Callable[[str, str, str], None] = lambda address, mechanism, reason: None
    """Called with the address of a client whose certificate has no principal, the mechanism and the reason."""


PLAIN = Entrance()
"""The entrance of a listener without TLS and authentication."""


class Connection(asyncio.BufferedProtocol):
    """The connection of one client."""

    def __init__(
        self,
        router: Router,
        budget: Budget,
        settings: ConnectionSettings,
        server: "Server",
        entrance: Entrance,
        place: Place | None = None,
    ) -> None:
        self._router = router
        self._entrance = entrance
        self._entry = Entry(server.places, place)
        self._budget = budget
        self._settings = settings
        self._server = server
        self._transport: Any = None
        self._prefix = bytearray(PREFIX)
        self._target = self._prefix
        self._filled = 0
        self._size = 0
        """Bytes of the arriving request; 0 until they are known."""
        self._granted_bytes = 0
        """Bytes that the arriving request may fill."""
        self._counts = False
        """True if the arriving request counts towards the budget."""
        self._begun = self._active = asyncio.get_running_loop().time()
        """`_begun` is when the request began to arrive, plus the time during which it was not read."""
        self._requests = 0
        self._bytes = 0
        self._input = Input(self._resumed)
        self._replies: asyncio.Queue[_Reply | None] = asyncio.Queue()
        self._direct: _Reply | None = None
        """The only request, if its answer comes without a task. A callback sends an answer that the transport can buffer. To wake
        the task of the connection would take a quarter of the CPU time of such a request."""
        self._running: list[_Work] = []
        """The received requests in their order, without some of those that are done."""
        self._reading: asyncio.Task[Buffers | None] | None = None
        """The running request, if it changes nothing."""
        self._output = Output(self._active)
        self._sending: Share | None = None
        """The share of the budget that the answer being sent holds."""
        self._writer: asyncio.Task[None] | None = None
        self._lost = self._reported = False
        self.client = Client(peer="?")

    # Callbacks of asyncio

    def connection_made(self, transport: Any) -> None:
        """Register the connection, or refuse it."""
        self._transport = transport
        self._input.connect(transport)
        peer = transport.get_extra_info("peername")
        self.client = Client(
            peer=f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer),
            listener=self._entrance.listener,
            budget=self._budget,
            mute=self._mute,
        )
        if not self._identify() or not self._server.admit(self):
            self._lost = True
            transport.abort()
            return
        self._output.connect(transport)
        if transport.get_extra_info("ssl_object") is not None:
            # TLS buffers what arrives while the connection is not read, outside the budget.
            transport.set_read_buffer_limits(high=SMALL)
        if (connected := transport.get_extra_info("socket")) is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._writer = asyncio.create_task(self._write())
        self._writer.add_done_callback(self._ended)

    def _identify(self) -> bool:
        """Begin the session. Return False if the client has a certificate without a principal, or its address has too many
        connections whose clients have not authenticated."""
        certificate = self._transport.get_extra_info("peercert")
        try:
            self.client.session = identified(self._entrance.admission, certificate, self._active)
        except AuthenticationError as error:
            self._entrance.rejected(self.client.address, "certificate", error.reason)
            return False
        if self.client.session.authenticated:
            self._entry.end()
            return True
        return self._entry.begin(self.client.address, self._active, self._transport.abort)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the unfilled part of the buffer."""
        if not self._size:
            return memoryview(self._target)[self._filled :]
        if self._filled == len(self._target):
            target = uncleared(min(self._size, max(AT_ONCE, 2 * self._filled)))
            target[: self._filled] = self._target
            self._target = target
        return memoryview(self._target)[self._filled : self._granted_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the received bytes."""
        self._filled += nbytes
        if self._size:
            if self._filled == self._size:
                self._complete()
            elif self._filled == self._granted_bytes:
                self._grow()
            return
        if self._filled < SIZE:
            return
        # Checked before the rest arrives, so that bytes that are not Kafka's protocol end the connection at once.
        size = int.from_bytes(self._prefix[:SIZE], "big", signed=True)
        limit = self._settings.max_request_bytes if not self._entry.waiting else self._settings.unauthenticated_bytes
        if not 8 <= size <= limit:
            setting = "maxRequestBytes" if not self._entry.waiting else "unauthenticatedBytes"
            self._refuse("size", f"a request has {size} bytes; it must have 8 to {limit} (connections.{setting})")
        elif self._filled == PREFIX:
            if self._entry.waiting and self._prefix[SIZE + 1] not in BEFORE_AUTHENTICATION:
                self._refuse(
                    "malformed", "the client has to authenticate first: configure SASL or a client certificate"
                )
                return
            produces = self._prefix[SIZE] == 0 and self._prefix[SIZE + 1] == PRODUCE
            if size > REQUEST_LIMIT and not produces:
                self._refuse(
                    "size", f"a request has {size} bytes; requests other than Produce may have at most {REQUEST_LIMIT}"
                )
                return
            # Small requests behind another one count too: a long poll could hold many of them for minutes. Before authentication,
            # the number of places bounds the memory, so that no such client takes that of producers.
            counts = produces or size >= UNCOUNTED or self._requests > 0
            self._begin(size, counts=counts and not self._entry.waiting)

    def eof_received(self) -> bool | None:
        """Abort: no Kafka client closes only one direction."""
        # close() would wait until all answers are sent, and a client that reads nothing prevents that.
        self._transport.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the memory of the connection and its arriving request, and its place in line."""
        self._lost = True
        self._input.close()
        self.client.close()
        self._budget.cancel(self._granted)
        if self._counts:
            granted, self._granted_bytes = self._granted_bytes, 0
            self._budget.release(granted, self.client.peer)
        self._output.drop()
        self._queue(None)
        self._ended()

    def pause_writing(self) -> None:
        """Send nothing until the transport has sent what it has."""
        self._output.pause()

    def resume_writing(self) -> None:
        """Send again."""
        self._output.resume()

    # Requests

    def _begin(self, size: int, *, counts: bool) -> None:
        """Receive the rest of a request."""
        self._active = self._begun = asyncio.get_running_loop().time()
        self._size, self._counts, self._granted_bytes = size, counts, 0
        # The frame begins with the API key, which has arrived.
        self._target, self._filled = self._prefix[SIZE:], PREFIX - SIZE
        self._grow()

    def _grow(self) -> None:
        """Acquire memory for the next bytes of the request, or stop reading until it is granted."""
        step = min(self._size - self._granted_bytes, STEP)
        growing = self._granted_bytes > 0
        if not self._counts or self._budget.acquire(step, self.client.peer, self._granted, growing=growing):
            self._granted_bytes += step
        else:
            self._input.pause("budget")

    def _granted(self, size: int) -> None:
        self._granted_bytes += size
        self._input.resume("budget")

    def _complete(self) -> None:
        frame, counted = memoryview(self._target), self._granted_bytes if self._counts else 0
        self._target, self._filled, self._size, self._counts = self._prefix, 0, 0, False
        if self._input.muted:
            self._input.pause(QUOTA)
        self._received(frame, counted)

    def check_timeouts(self, now: float) -> None:
        """Close the connection if a timeout has passed. If the client has disconnected, cancel its running read."""
        settings = self._settings
        if self._lost:
            # Cancelled at a check and not at once: most reads are done by then, and a broken-off query costs more than
            # a reply.
            if self._reading is not None:
                self._reading.cancel()
            return
        if self._input.ended(now):
            return
        if self.client.session.revoked:
            # A waiting fetch must end too, and it may wait for minutes.
            self._refuse("credential", "the password of the client was changed or deleted")
            return
        self.client.session.note_use()
        if self._entry.late(now, settings.authentication_seconds):
            metrics.REFUSED_HANDSHAKES.labels("slow").inc()
            limit = f"{settings.authentication_seconds} s (connections.authenticationSeconds)"
            self._refuse("slow", f"the client did not authenticate within {limit}")
            return
        if self._entrance.unencrypted is not None and not self._reported and self.client.id:
            self._reported = True
            self._entrance.unencrypted(self.client)
        if self._output.taken(now, settings.min_bytes_per_second):
            self._active = now
        if self._size and not self._input.paused and self._too_slow(now - self._begun):
            return
        if self._sending is not None and self._sending.contended and now - self._output.moved > settings.drain_seconds:
            # Only if others wait: a consumer that processes records may leave its next answer unread for minutes.
            self._refuse("stuck", "the client does not read its answer, and other requests wait for the memory")
        elif now - self._active > settings.idle_seconds and not self._input.muted:
            self._note_end("idle")
            self._transport.abort()

    def _too_slow(self, seconds: float) -> bool:
        """Close the connection if its request has been arriving too long; return whether it is closed."""
        settings = self._settings
        if seconds > settings.arrival_seconds:
            why = f"did not arrive within {settings.arrival_seconds} s (connections.arrivalSeconds)"
        elif (
            self._counts
            and self._budget.contended(self.client.peer)
            and seconds > RATE_SECONDS
            and self._filled < settings.min_bytes_per_second * seconds
        ):
            why = "arrives too slowly (connections.minBytesPerSecond), and other requests wait for the memory"
        else:
            return False
        self._refuse("slow", f"a request of {self._size} bytes {why}")
        return True

    def _resumed(self, seconds: float) -> None:
        self._begun += seconds
        self._active = asyncio.get_running_loop().time()

    def _mute(self, ms: int) -> None:
        """Read no further request for ``ms`` milliseconds. An arriving request may complete, because it holds memory."""
        self._input.mute(ms)
        if self._input.muted and not self._size:
            self._input.pause(QUOTA)

    def _received(self, frame: memoryview, counted: int) -> None:
        size = len(frame)
        metrics.BYTES_IN.inc(size + 4)
        self._requests += 1
        self._bytes += size
        most = self._settings.read_ahead_requests if not self._entry.waiting else 1
        if self._requests >= most or self._bytes >= self._settings.read_ahead_bytes:
            self._input.pause("read ahead")
        produce = frame[0] == 0 and frame[1] == PRODUCE
        earlier = [task for task in self._running if not task.done()]
        task: _Work | None = None
        # The router sees no repetition, so the session is checked here.
        if self.client.repeatable is not None and not earlier and self.client.session.refusal(self._active) is None:
            task = self.client.repeatable.again(frame, lambda: asyncio.create_task(self._serve(frame, ())))
        direct = task is not None and self._requests == 1
        if task is None:
            task = asyncio.create_task(self._serve(frame, () if produce else earlier))
        self._running = [*earlier, task]
        if direct:
            self._direct = task, size, counted
            task.add_done_callback(self._answered)
        else:
            self._queue((task, size, counted))
        if self._input.paused_for("read ahead"):
            # Scheduled behind the tasks of the received requests, whose batches have to be buffered first.
            asyncio.get_running_loop().call_soon(self._router.stalled)

    async def _serve(self, frame: memoryview, earlier: Sequence[_Work]) -> Buffers | None:
        if earlier:
            await asyncio.wait(earlier)
        header = headers.read(frame)
        if not self._router.reads(header.api):
            return await self._router.handle(header, frame, self.client)
        if self._lost:
            return None
        self._reading = asyncio.current_task()
        try:
            return await self._router.handle(header, frame, self.client)
        finally:
            self._reading = None

    def _queue(self, reply: _Reply | None) -> None:
        """Queue an answer for the task of the connection, behind earlier answers. None ends the task."""
        if self._direct is not None:
            direct, self._direct = self._direct, None
            self._replies.put_nowait(direct)
        self._replies.put_nowait(reply)

    def _answered(self, task: _Work) -> None:
        """Send the answer of the only request, unless sending has to wait for the client."""
        if self._direct is None or self._direct[0] is not task:
            return
        reply, self._direct = self._direct, None
        if task.cancelled() or task.exception() is not None or not self._has_room(task.result()):
            self._replies.put_nowait(reply)
            return
        try:
            self._send(task)
        finally:
            self._finish(*reply)

    def _has_room(self, buffers: Buffers | None) -> bool:
        return self._output.has_room(SIZE + sum(map(len, buffers or ())))

    async def _write(self) -> None:
        """Send the answers in the order of the requests."""
        while (reply := await self._replies.get()) is not None:
            task, size, counted = reply
            try:
                await asyncio.wait((task,))
                if not self._lost:
                    self._send(task)
                    await self._output.ready.wait()
            finally:
                self._finish(task, size, counted)
        if not self._lost:
            self._output.close()
        # After a disconnect, requests that change something run to completion. Their memory is released as they end.
        while not self._replies.empty():
            if (reply := self._replies.get_nowait()) is not None:
                await asyncio.wait((reply[0],))
                self._finish(*reply)

    def _finish(self, task: _Work, size: int, counted: int) -> None:
        """Release what an answered request held."""
        self._budget.release(counted, self.client.peer)
        release_answer(task)
        self._sending = None
        self._requests -= 1
        self._bytes -= size
        if self._requests < self._settings.read_ahead_requests and self._bytes < self._settings.read_ahead_bytes:
            self._input.resume("read ahead")

    def _send(self, task: _Work) -> None:
        try:
            buffers = task.result()
        except MalformedError as error:
            self._refuse("malformed", str(error))
            return
        except asyncio.CancelledError:
            self._transport.abort()
            return
        except Exception as error:
            log.exception("request failed", peer=self.client.peer, client=self.client.id, error=str(error))
            self._transport.abort()
            return
        if buffers is None or self._transport.is_closing():
            return
        size = sum(map(len, buffers))
        self._active = asyncio.get_running_loop().time()
        metrics.BYTES_OUT.inc(size + 4)
        self._sending = buffers.share if isinstance(buffers, Counted) else None
        answer = [size.to_bytes(SIZE, "big"), *buffers]
        self._output.send(answer, SIZE + size, self._active, last=self.client.closing)
        if self.client.closing:
            self._input.pause("closing")
        elif self._entry.waiting and self.client.session.authenticated:
            self._entry.end()

    def _refuse(self, reason: str, message: str) -> None:
        metrics.MALFORMED.labels(reason).inc()
        self._note_end(message)
        self._transport.abort()

    def _note_end(self, reason: str) -> None:
        audit, client = self._server.audit, self.client
        audit.closed(client.address, client.id, reason, authenticated=not self._entry.waiting)

    def _ended(self, _: object = None) -> None:
        if self._lost and (self._writer is None or self._writer.done()):
            # A check of a password may go on after its client has left, and counts until then.
            self._entry.end()
            self._server.forget(self)

    def stop(self) -> None:
        """Read no more requests, answer those that were received, then close."""
        self._input.pause("stopping")
        self._queue(None)

    @property
    def writer(self) -> "asyncio.Task[None] | None":
        """Return the task that ends when all requests are answered."""
        return self._writer


class Server:
    """The connections of all listeners, within common bounds."""

    def __init__(self, settings: ConnectionSettings, audit: Audit | None = None) -> None:
        self._router: Router
        self._settings = settings
        self.audit = audit or Audit(SystemClock())
        """Bounds the lines about connections, so that clients cannot fill the log."""
        self._budget = Budget(settings.buffered_bytes)
        self._connections: set[Connection] = set()
        self._addresses: Counter[str] = Counter()
        """Connections of each address."""
        self.places = Places(settings, self.audit)
        """Connections whose clients have not authenticated yet."""
        self._servers: list[asyncio.Server] = []
        self._tls_servers: list[TlsServer] = []
        self._contexts: list[TlsContext] = []
        self._checking: asyncio.TimerHandle | None = None
        self._check_seconds = min(
            CHECK_SECONDS,
            settings.arrival_seconds / 2,
            settings.drain_seconds / 2,
            settings.idle_seconds / 2,
            settings.authentication_seconds / 2,
        )

    def protocol(self, entrance: Entrance = PLAIN, place: Place | None = None) -> Connection:
        """Create the connection of a new client."""
        return Connection(self._router, self._budget, self._settings, self, entrance, place)

    async def bind(
        self, host: str, port: int, entrance: Entrance = PLAIN, tls: TlsContext | None = None
    ) -> tuple[str, int]:
        """Bind a listener and return its address; `accept` starts to serve."""
        make = partial(self.protocol, entrance)
        if tls is None:
            server = await asyncio.get_running_loop().create_server(
                make, host, port, backlog=BACKLOG, start_serving=False
            )
            self._servers.append(server)
            name = server.sockets[0].getsockname()
        else:
            return await self.bind_tls(host, port, tls, make)
        return str(name[0]), int(name[1])

    async def bind_tls(
        self, host: str, port: int, tls: TlsContext, protocol: Callable[[Place], asyncio.BaseProtocol]
    ) -> tuple[str, int]:
        """Bind a TLS listener, also of another protocol, and return its address; `accept` starts to serve."""
        self._contexts.append(tls)
        sockets = await bound_sockets(host, port)
        seconds = self._settings.authentication_seconds
        self._tls_servers += [TlsServer(each, tls, self.places, protocol, seconds, self.audit) for each in sockets]
        name = sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def accept(self, router: Router) -> None:
        """Start to serve clients."""
        self._router = router
        metrics.BUFFERED.set_function(lambda: self._budget.held)
        metrics.BUFFER_WAITING.set_function(lambda: self._budget.waiting)
        self._check_connections()
        for server in self._servers:
            await server.start_serving()
        for tls_server in self._tls_servers:
            tls_server.start()

    def _check_connections(self) -> None:
        """Check all timeouts with one timer, which costs less than a timer for each request."""
        loop = asyncio.get_running_loop()
        checks: list[Callable[[], None]] = [context.refresh for context in self._contexts]
        checks += [partial(connection.check_timeouts, loop.time()) for connection in self._connections]
        for check in checks:
            try:
                check()
            except Exception:
                # One connection or listener must not end the checks of the others.
                log.exception("a check failed")
        self._checking = loop.call_later(self._check_seconds, self._check_connections)

    def admit(self, connection: Connection) -> bool:
        """Register the connection; return False if there are too many, or too many from its address."""
        limit, address = self._settings.max_connections, connection.client.address
        of_address = max(limit - limit // SHARES, 1)
        if len(self._connections) >= limit or self._addresses[address] >= of_address:
            self.audit.refused(address, "too many connections (connections.maxConnections)")
            return False
        self._connections.add(connection)
        self._addresses[address] += 1
        metrics.CONNECTIONS.set(len(self._connections))
        metrics.LISTENER_CONNECTIONS.labels(connection.client.listener or "main").inc()
        return True

    def forget(self, connection: Connection) -> None:
        """Remove a connection that is closed and has no running request."""
        if connection in self._connections:
            self._connections.remove(connection)
            metrics.LISTENER_CONNECTIONS.labels(connection.client.listener or "main").dec()
            address = connection.client.address
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]
        metrics.CONNECTIONS.set(len(self._connections))

    async def stop(self, seconds: float, wake: Callable[[], None]) -> None:
        """Accept no connections, answer the received requests, and return after ``seconds`` at the latest. ``wake``
        ends long polls."""
        for server in self._servers:
            server.close()
        for tls_server in self._tls_servers:
            tls_server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.stop()
        wake()
        writers = [connection.writer for connection in connections if connection.writer is not None]
        if writers:
            await asyncio.wait(writers, timeout=seconds)
        if self._checking is not None:
            self._checking.cancel()
