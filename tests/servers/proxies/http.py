"""An HTTP proxy on loopback that can answer requests itself, and change answers."""

import http.client
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

_OF_THE_CONNECTION = frozenset({"connection", "transfer-encoding", "content-length", "content-encoding", "keep-alive"})


@dataclass(frozen=True)
class Request:
    """A request. The names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def of(cls, status: int, document: Any) -> Self:
        """Return an answer with a JSON document."""
        return cls(status, {"content-type": "application/json"}, json.dumps(document).encode())


class HttpProxy(AbstractContextManager["HttpProxy"]):
    """Forward requests to 127.0.0.1:``target``, unless ``first`` answers. ``then`` may change the answer."""

    def __init__(
        self,
        target: int,
        first: Callable[[Request], Answer | None],
        then: Callable[[Request, Answer], Answer] | None = None,
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.read_body()
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, body)
                answer = first(request)
                if answer is None:
                    # Without compression, so that the answer can be changed.
                    plain = {**headers, "accept-encoding": "identity"} if then is not None else headers
                    answer = _forward(target, replace(request, headers=plain))
                    answer = then(request, answer) if then is not None else answer
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in _OF_THE_CONNECTION:
                        self.send_header(name, value)
                length = (
                    answer.headers.get("content-length", "0") if request.method == "HEAD" else str(len(answer.body))
                )
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(answer.body)

            def read_body(self) -> bytes:
                if self.headers.get("transfer-encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("content-length", 0)))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
                return b"".join(parts)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _forward(target: int, request: Request) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", target, timeout=60)
    try:
        # All headers stay as they are, because the store checks their signature.
        sent = {name: value for name, value in request.headers.items() if name not in ("expect", "transfer-encoding")}
        connection.request(request.method, request.path, request.body, sent)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, headers, answer.read())
    finally:
        connection.close()
