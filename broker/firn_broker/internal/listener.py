"""The internal listener: HTTP for drivers. It serves one request per connection.

With ``tls``, the server of all listeners accepts its connections, so they share the bounds of clients that have not
authenticated.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import structlog
from pydantic import ValidationError

from firn.driver_requests import landed_offsets
from firn.driver_requests.batch_ranges import MAX_REQUEST_BYTES, PATH, Answer, Question
from firn.driver_requests.landed_offsets import FirstOffset, FirstOffsets, Landed, LandedAnswer, Refusal, Unindexed
from firn.model.errors import UnavailableError
from firn.model.jobs import Contract
from firn_broker import metrics
from firn_broker.access_types import Caller, Operation
from firn_broker.internal.gates import Gate, WrongTokenError
from firn_broker.internal.ranges import find_ranges
from firn_broker.network.handshakes import Place
from firn_broker.ports import LogStore

log = structlog.get_logger()

HEAD_BYTES = 8192
CONNECTIONS = 64
"""Largest number of open connections. The listener closes other connections at once."""
ARRIVAL_SECONDS = 10.0
"""Seconds within which a request has to arrive."""
ANSWER_SECONDS = 30.0
"""Seconds within which the coordinator has to answer, and then the client has to read."""
_OK, _REFUSED = "200 OK", "401 Unauthorized"
_FORBIDDEN = "403 Forbidden"
_WRONG, _MISSING, _LARGE = "400 Bad Request", "404 Not Found", "413 Content Too Large"
_UNAVAILABLE = "503 Service Unavailable"


class _Refused(Exception):
    """A request that the listener rejects, with the status and the text for the client."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Route(NamedTuple):
    """The kind of the requests at a path, their most bytes, and their handler."""

    kind: type[Contract]
    most_bytes: int
    answer: Callable[[Caller, Any], Awaitable[Contract]]


class InternalListener:
    """Serves `firn.driver_requests.batch_ranges` and `firn.driver_requests.landed_offsets` on an address."""

    def __init__(self, log_store: LogStore, gate: Gate, add: Callable[[Landed], Refusal | None]) -> None:
        """``add`` lets offsets wait for their indexing, as `Indexings.add` does."""
        self._log_store = log_store
        self._gate = gate
        self._add = add
        self._open = 0
        self._routes = {
            PATH: _Route(Question, MAX_REQUEST_BYTES, self._ranges),
            landed_offsets.UNINDEXED_PATH: _Route(Unindexed, MAX_REQUEST_BYTES, self._unindexed),
            landed_offsets.LANDED_PATH: _Route(Landed, landed_offsets.MAX_REQUEST_BYTES, self._landed),
        }

    async def bind(self, host: str, port: int) -> asyncio.Server:
        """Bind the address. The server accepts clients after `asyncio.Server.start_serving`, until it is closed."""
        return await asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES, start_serving=False)

    def protocol(self, place: Place) -> asyncio.BaseProtocol:
        """Create the connection of a client that has a place among those that have not authenticated yet."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._serve(reader, writer, place.leave)
            finally:
                place.leave()

        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=HEAD_BYTES), serve)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, admitted: Callable[[], None] = lambda: None
    ) -> None:
        """Serve a connection. Calls ``admitted`` when the client has authenticated."""
        self._open += 1
        try:
            if self._open > CONNECTIONS:
                return
            status, body = await self._answer(reader, _host(writer), admitted)
            metrics.INTERNAL_REQUESTS.labels(status.split()[0]).inc()
            kind = "application/json" if status == _OK else "text/plain"
            head = (
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            async with asyncio.timeout(ANSWER_SECONDS):
                await writer.drain()
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, host: str, admitted: Callable[[], None]) -> tuple[str, bytes]:
        """Return status and body of the answer to one request."""
        try:
            async with asyncio.timeout(ARRIVAL_SECONDS):
                caller, route, question = await self._question(reader, host, admitted)
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await route.answer(caller, question)
        except WrongTokenError as error:
            return _REFUSED, f"{error}\n".encode()
        except _Refused as refused:
            return refused.status, f"{refused}\n".encode()
        except TimeoutError:
            return _UNAVAILABLE, b"timed out; the request or the coordinator took too long\n"
        except UnavailableError as error:
            return _UNAVAILABLE, f"{error}\n".encode()
        except OSError:
            raise
        except asyncio.IncompleteReadError:
            raise
        except Exception:
            log.exception("a request at the internal listener failed")
            return "500 Internal Server Error", b"unexpected error; the log of the broker has it\n"
        return _OK, answer.model_dump_json().encode()

    async def _ranges(self, caller: Caller, question: Question) -> Answer:
        errors = await self._gate.forbidden(caller, {wanted.topic for wanted in question.partitions})
        return await find_ranges(self._log_store, question, errors)

    async def _unindexed(self, caller: Caller, question: Unindexed) -> FirstOffsets:
        errors = await self._gate.forbidden(caller, [asked.topic for asked in question.topics])
        found = []
        for topic, generation, tagged in question.topics:
            if topic in errors:
                found.append(FirstOffset(errors[topic].name, {}, {}, {}))
            else:
                found.append(FirstOffset("", *await self._log_store.unindexed(topic, generation, tagged)))
        return FirstOffsets.model_construct(topics=tuple(found))

    async def _landed(self, caller: Caller, landed: Landed) -> LandedAnswer:
        errors = await self._gate.forbidden(caller, [landed.topic], Operation.ALTER)
        if landed.topic in errors:
            raise _Refused(_FORBIDDEN, errors[landed.topic].name)
        return LandedAnswer(refusal=self._add(landed))

    async def _question(
        self, reader: asyncio.StreamReader, host: str, admitted: Callable[[], None]
    ) -> tuple[Caller, _Route, Any]:
        """Read a request: first its headers with the token, then its body. Raises _Refused and the errors of `Gate.admit`."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise _Refused(_LARGE, f"the headers have more than {HEAD_BYTES} bytes") from error
        line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (text.partition(":") for text in lines)}
        caller = await self._gate.admit(headers.get("authorization", ""), host)
        admitted()
        method, path = (*line.split(" "), "")[:2]
        route = self._routes.get(path)
        if method != "POST" or route is None:
            raise _Refused(_MISSING, f"only POST {', '.join(self._routes)} is served here")
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            raise _Refused(_WRONG, "the request has no Content-Length")
        if len(length) > 9 or int(length) > route.most_bytes:
            raise _Refused(_LARGE, f"the request has more than {route.most_bytes} bytes")
        body = await reader.readexactly(int(length))
        try:
            return caller, route, route.kind.model_validate_json(body)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, problem["loc"]))
            raise _Refused(_WRONG, f"{place}: {problem['msg']}") from error


def _host(writer: asyncio.StreamWriter) -> str:
    """Return the address of the client without the port."""
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if peer else ""
