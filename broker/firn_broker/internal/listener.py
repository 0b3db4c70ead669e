"""The internal listener: HTTP for drivers that have its token. It serves one request per connection.

It has neither TLS nor users. The token keeps other pods away, and a NetworkPolicy can do so too.
"""

import asyncio
import hmac
from pathlib import Path

import structlog
from pydantic import ValidationError

from firn.batch_ranges import MAX_REQUEST_BYTES, PATH, Question
from firn.model.errors import UnavailableError
from firn_broker import metrics
from firn_broker.internal.ranges import find_ranges
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
_WRONG, _MISSING, _LARGE = "400 Bad Request", "404 Not Found", "413 Content Too Large"
_UNAVAILABLE = "503 Service Unavailable"


class _Refused(Exception):
    """A request that the listener rejects, with the status and the text for the client."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class InternalListener:
    """Serves `firn.batch_ranges` on an address."""

    def __init__(self, log_store: LogStore, token_file: Path) -> None:
        self._log_store = log_store
        self._token_file = token_file
        self._open = 0

    async def bind(self, host: str, port: int) -> asyncio.Server:
        """Bind the address. The server accepts clients after `asyncio.Server.start_serving`, until it is closed."""
        return await asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES, start_serving=False)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > CONNECTIONS:
                return
            status, body = await self._answer(reader)
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

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, bytes]:
        """Return status and body of the answer to one request."""
        try:
            async with asyncio.timeout(ARRIVAL_SECONDS):
                question = await self._question(reader)
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await find_ranges(self._log_store, question)
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

    async def _question(self, reader: asyncio.StreamReader) -> Question:
        """Read a request: first its headers with the token, then its body. Raises _Refused."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise _Refused(_LARGE, f"the headers have more than {HEAD_BYTES} bytes") from error
        line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (text.partition(":") for text in lines)}
        self._authorize(headers.get("authorization", ""))
        if line.split(" ")[:2] != ["POST", PATH]:
            raise _Refused(_MISSING, f"only POST {PATH} is served here")
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            raise _Refused(_WRONG, "the request has no Content-Length")
        if len(length) > 9 or int(length) > MAX_REQUEST_BYTES:
            raise _Refused(_LARGE, f"the request has more than {MAX_REQUEST_BYTES} bytes")
        body = await reader.readexactly(int(length))
        try:
            return Question.model_validate_json(body)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, problem["loc"]))
            raise _Refused(_WRONG, f"{place}: {problem['msg']}") from error

    def _authorize(self, header: str) -> None:
        """Compare the token. Its file is read each time, so that a new token needs no restart. Raises _Refused."""
        try:
            token = self._token_file.read_bytes().strip()
        except OSError as error:
            log.error("cannot read the token of the internal listener", file=str(self._token_file), error=str(error))
            token = b""
        if not token:
            raise _Refused(_UNAVAILABLE, "the broker has no token; check that the Secret is mounted and has that key")
        scheme, _, given = header.partition(" ")
        # Comparing all bytes takes the same time for every wrong token.
        if not hmac.compare_digest(given.strip().encode("latin-1"), token) or scheme.lower() != "bearer":
            raise _Refused(_REFUSED, "wrong token")
