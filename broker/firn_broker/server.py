"""Connections: frames in, answers out, in the order of the requests, within bounds.

Each connection is read ahead by a few requests, because a producer would otherwise wait a whole flush per request. Produce requests begin
at once, in the order of their arrival, and wait for the same flush together; every other request begins when the one before it is done, as
with Kafka. Frames are received straight into the buffer that the records stay in until they are uploaded.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from firn_broker import metrics
from firn_broker.budget import Budget
from firn_broker.router import Client, Router
from firn_broker.settings import ConnectionSettings
from firn_broker.wire import headers
from firn_broker.wire.cursor import MalformedError

log = structlog.get_logger()

SMALL = 1 << 16
"""Requests below this are not counted: nobody should wait with a heartbeat because others produce."""
PRODUCE = 0
Buffers = Sequence[bytes | memoryview]


class Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(
        self, router: Router, budget: Budget, settings: ConnectionSettings, server: "Server", *, external: bool
    ) -> None:
        self._router = router
        self._external = external
        self._budget = budget
        self._settings = settings
        self._server = server
        self._transport: Any = None
        self._prefix = bytearray(4)
        self._target = memoryview(self._prefix)
        self._filled = 0
        self._body = False
        self._requests = 0
        self._bytes = 0
        self._paused: set[str] = set()
        self._replies: asyncio.Queue[tuple[asyncio.Task[Buffers | None], int] | None] = asyncio.Queue()
        self._serial: asyncio.Task[Buffers | None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._writer: asyncio.Task[None] | None = None
        self._lost = False
        self._late: asyncio.TimerHandle | None = None
        self.client = Client(peer="?")

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.client = Client(
            peer=f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer), external=self._external
        )
        if not self._server.admit(self):
            self._lost = True
            transport.abort()
            return
        transport.set_write_buffer_limits(high=1 << 20)
        self._writer = asyncio.create_task(self._write())

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._target[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._filled += nbytes
        if self._filled < len(self._target):
            return
        if self._body:
            self._arrived()
            frame = self._target
            self._expect(memoryview(self._prefix), body=False)
            self._received(frame)
        else:
            size = int.from_bytes(self._prefix, "big", signed=True)
            if not 8 <= size <= self._settings.max_request_bytes:
                self._refuse("size", f"a request of {size} bytes")
                return
            self._admit(size)

    def eof_received(self) -> bool | None:
        """See `asyncio.BufferedProtocol`. What was asked is still answered."""
        self._replies.put_nowait(None)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._lost = True
        self._arrived()
        if self._body and len(self._target) >= SMALL:
            self._budget.give(len(self._target))
            self._expect(memoryview(self._prefix), body=False)
        self._writable.set()
        self._replies.put_nowait(None)
        self._server.forget(self)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._writable.set()

    # Requests

    def _expect(self, target: memoryview, *, body: bool) -> None:
        self._target = target
        self._filled = 0
        self._body = body

    def _admit(self, size: int) -> None:
        """Make room for a request, or stop reading until there is."""
        if size < SMALL:
            self._expect(memoryview(bytearray(size)), body=True)
        elif self._budget.take(size, lambda: self._granted(size)):
            self._begin(size)
        else:
            metrics.BUFFER_WAITING.set(self._budget.waiting)
            self._pause("budget")

    def _granted(self, size: int) -> bool:
        if self._lost:
            return False
        self._begin(size)
        self._resume("budget")
        return True

    def _begin(self, size: int) -> None:
        """Memory is ours for as long as the request takes to arrive, which is not for ever: others wait for it."""
        self._expect(memoryview(bytearray(size)), body=True)
        self._late = asyncio.get_running_loop().call_later(
            self._settings.arrival_seconds, self._refuse, "slow", f"a request of {size} bytes did not arrive"
        )

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _pause(self, why: str) -> None:
        if not self._paused and not self._lost:
            self._transport.pause_reading()
        self._paused.add(why)

    def _resume(self, why: str) -> None:
        if why in self._paused:
            self._paused.discard(why)
            if not self._paused and not self._lost and not self._transport.is_closing():
                self._transport.resume_reading()

    def _received(self, frame: memoryview) -> None:
        size = len(frame)
        metrics.BYTES_IN.inc(size + 4)
        self._requests += 1
        self._bytes += size
        if self._requests >= self._settings.read_ahead_requests or self._bytes >= self._settings.read_ahead_bytes:
            self._pause("read ahead")
        produce = frame[0] == 0 and frame[1] == PRODUCE
        task = asyncio.create_task(self._serve(frame, None if produce else self._serial))
        if not produce:
            self._serial = task
        self._replies.put_nowait((task, size))
        if "read ahead" in self._paused:
            # Behind the requests at hand, which have to be in the buffer by then.
            asyncio.get_running_loop().call_soon(self._router.stalled)

    async def _serve(self, frame: memoryview, before: "asyncio.Task[Buffers | None] | None") -> Buffers | None:
        if before is not None and not before.done():
            await asyncio.wait((before,))
        header = headers.read(frame)
        return await self._router.handle(header, frame, self.client)

    async def _write(self) -> None:
        """Send answers in the order of the requests."""
        while (item := await self._replies.get()) is not None:
            task, size = item
            try:
                await asyncio.wait((task,))
                if not self._lost:
                    self._send(task)
                    await self._writable.wait()
            finally:
                if size >= SMALL:
                    self._budget.give(size)
                    metrics.BUFFERED.set(self._budget.used)
                self._requests -= 1
                self._bytes -= size
                if (
                    self._requests < self._settings.read_ahead_requests
                    and self._bytes < self._settings.read_ahead_bytes
                ):
                    self._resume("read ahead")
        if not self._lost:
            self._transport.close()
        # A lost connection's requests go on by themselves (what was produced is produced); their memory is given back as they end.
        while not self._replies.empty():
            if (item := self._replies.get_nowait()) is not None:
                await asyncio.wait((item[0],))
                if item[1] >= SMALL:
                    self._budget.give(item[1])

    def _send(self, task: "asyncio.Task[Buffers | None]") -> None:
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
        metrics.BYTES_OUT.inc(size + 4)
        self._transport.writelines([size.to_bytes(4, "big"), *buffers])

    def _refuse(self, reason: str, message: str) -> None:
        metrics.MALFORMED.labels(reason).inc()
        log.warning("connection closed", peer=self.client.peer, client=self.client.id, reason=message)
        self._transport.abort()

    def stop(self) -> None:
        """Read no more; what was asked is answered, then the connection ends."""
        self._pause("stopping")
        self._replies.put_nowait(None)

    @property
    def writer(self) -> "asyncio.Task[None] | None":
        """Ends when all is answered."""
        return self._writer


class Server:
    """All connections, of one listener or two, within the same bounds."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._router: Router
        self._settings = settings
        self._budget = Budget(settings.buffered_bytes)
        self._connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []

    def protocol(self, *, external: bool = False) -> Connection:
        """For a new client."""
        return Connection(self._router, self._budget, self._settings, self, external=external)

    async def bind(self, host: str, port: int, *, external: bool = False) -> tuple[str, int]:
        """Have the port, for clients outside if ``external``; where. Nobody is served yet."""
        server = await asyncio.get_running_loop().create_server(
            partial(self.protocol, external=external), host, port, backlog=1024, start_serving=False
        )
        self._servers.append(server)
        name = server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def accept(self, router: Router) -> None:
        """Serve clients from now on."""
        self._router = router
        for server in self._servers:
            await server.start_serving()

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for one more."""
        if len(self._connections) >= self._settings.max_connections:
            log.warning("connection refused", peer=connection.client.peer, reason="too many connections")
            return False
        self._connections.add(connection)
        metrics.CONNECTIONS.set(len(self._connections))
        return True

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        self._connections.discard(connection)
        metrics.CONNECTIONS.set(len(self._connections))

    async def stop(self, seconds: float, wake: Callable[[], None]) -> None:
        """Accept nothing more, answer what was asked, and end after ``seconds`` at the latest. ``wake`` ends long polls."""
        for server in self._servers:
            server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.stop()
        wake()
        writers = [it.writer for it in connections if it.writer is not None]
        if writers:
            await asyncio.wait(writers, timeout=seconds)
