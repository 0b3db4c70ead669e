"""The client of a schema registry believes only answers of one."""

import base64
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from firn import schema_registry
from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, UnavailableError
from firn.model.jobs import RegistryConnection, WriterSchema
from firn.schema_registry import Registered, SchemaRegistry

Answer = tuple[int, dict[str, str], bytes]


class Server(ThreadingHTTPServer):
    """An HTTP server with the answers that a test gives it. It keeps the headers of the last request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.headers: dict[str, str] = {}
        self.requests = 0

    def tell(self, path: str, document: Any, status: int = 200, **headers: str) -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.answers[path] = status, headers, body

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        self.server.headers = {name.lower(): value for name, value in self.headers.items()}
        status, headers, body = self.server.answers.get(self.path, (404, {}, b"<html>not here</html>"))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
        yield running
        running.shutdown()


def client(url: str, **more: Any) -> SchemaRegistry:
    return SchemaRegistry("main", RegistryConnection(url=url, **more), {"/password": "s3cret", "/token": "t0ken\n"}.get)  # type: ignore[arg-type]


def test_a_schema_is_found_by_its_id(server: Server) -> None:
    server.tell("/schemas/ids/7", {"schema": '"string"'})
    server.tell("/schemas/ids/8", {"schema": "message M {}", "schemaType": "PROTOBUF"})
    registry = client(server.url + "/")
    assert registry.by_id(7) == Registered(7, "AVRO", WriterSchema(text='"string"'))
    found = registry.by_id(8)
    assert found is not None
    assert found.kind == "PROTOBUF"


def test_the_subject_is_quoted(server: Server) -> None:
    server.tell("/subjects/a%2Fb%20c/versions/latest", {"schema": "{}", "id": 3, "version": 2, "subject": "a/b c"})
    assert client(server.url).latest("a/b c") == Registered(3, "AVRO", WriterSchema(text="{}"))


@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_the_registry_says_that_a_schema_is_missing(server: Server, code: int) -> None:
    server.tell("/schemas/ids/9", {"error_code": code, "message": "not found"}, status=404)
    assert client(server.url).by_id(9) is None


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"<html>no such page</html>"),
        (404, b'{"error": "no such service"}'),
        (200, b"<html>log in here</html>"),
        (200, b"[]"),
        (200, b'{"schema": 7}'),
        (200, b"{" * 100_000),
        (200, b'{"schema": "{}", "references": [{"subject": "s"}]}'),
        (429, b'{"error_code": 429, "message": "slow down"}'),
        (500, b'{"error_code": 50001, "message": "store"}'),
        (302, b""),
    ],
)
def test_any_other_answer_is_an_outage(server: Server, status: int, body: bytes) -> None:
    server.tell("/schemas/ids/9", body, status, Location=f"{server.url}/elsewhere")
    server.tell("/elsewhere", {"schema": "{}"})
    with pytest.raises(UnavailableError, match="schema registry main: ") as error:
        client(server.url).by_id(9)
    assert error.value.reason == Reason.REGISTRY_UNREACHABLE
    assert server.requests == 1


@pytest.mark.parametrize("status", [401, 403])
def test_rejected_credentials_are_an_error_of_their_own(server: Server, status: int) -> None:
    server.tell("/schemas/ids/9", {"error_code": status}, status)
    with pytest.raises(AccessDeniedError, match=r"registries\.main"):
        client(server.url).by_id(9)


def test_large_and_slow_answers_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.tell("/schemas/ids/9", {"schema": "x" * (9 << 20)})
    with pytest.raises(UnavailableError, match="more than 8 MiB"):
        client(server.url).by_id(9)
    monkeypatch.setattr(schema_registry, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UnavailableError, match="no answer"):
        client(f"http://127.0.0.1:{silent.getsockname()[1]}").by_id(9)
    server.shutdown()
    server.server_close()
    with pytest.raises(UnavailableError, match="no answer"):
        client(server.url).by_id(9)


def test_an_answer_that_trickles_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "ANSWER_SECONDS", 0.3)
    ended = threading.Event()

    def trickle(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not ended.wait(0.02):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=trickle, args=(listener,), daemon=True).start()
        with pytest.raises(UnavailableError, match="more than 0 s"):
            client(f"http://127.0.0.1:{listener.getsockname()[1]}").by_id(9)
    ended.set()


def test_credentials_are_read_for_each_request(server: Server) -> None:
    server.tell("/schemas/ids/1", {"schema": "{}"})
    client(server.url).by_id(1)
    assert "authorization" not in server.headers
    client(server.url, username="firn", password_path="/password").by_id(1)
    assert server.headers["authorization"] == "Basic " + base64.b64encode(b"firn:s3cret").decode()
    client(server.url, token_path="/token").by_id(1)
    assert server.headers["authorization"] == "Bearer t0ken"


def test_references_come_before_the_schemas_that_use_them(server: Server) -> None:
    def referring(text: str, *subjects: str, **more: Any) -> dict[str, Any]:
        return {"schema": text, "references": [{"name": s, "subject": s, "version": 1} for s in subjects], **more}

    server.tell("/schemas/ids/1", referring("order", "customer", "money"))
    server.tell("/subjects/customer/versions/1", referring("customer", "money", "address"))
    server.tell("/subjects/money/versions/1", referring("money"))
    server.tell("/subjects/address/versions/1", referring("address"))
    found = client(server.url).by_id(1)
    assert found is not None
    assert found.schema.references == ("money", "address", "customer")
    assert server.requests == 4


def test_a_circle_of_references_ends(server: Server) -> None:
    for subject, other in (("a", "b"), ("b", "a")):
        reference = [{"name": other, "subject": other, "version": 1}]
        server.tell(f"/subjects/{subject}/versions/1", {"schema": subject, "references": reference})
    server.tell("/schemas/ids/1", {"schema": "x", "references": [{"name": "a", "subject": "a", "version": 1}]})
    with pytest.raises(UnavailableError, match="refers to itself"):
        client(server.url).by_id(1)
