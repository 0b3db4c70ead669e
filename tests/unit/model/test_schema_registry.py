"""The client accepts only answers of a schema registry."""

import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from firn import schema_registry
from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, UnavailableError
from firn.model.jobs import RegistryConnection, WriterSchema
from firn.schema_registry import MissingReferenceError, Registered, SchemaRegistry, UnusableSchemaError
from tests.servers.kafka import certificates

Answer = tuple[int, dict[str, str], bytes]


class Server(ThreadingHTTPServer):
    """An HTTP server with the answers that a test gives it. It keeps the headers of the last request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.headers: dict[str, str] = {}
        self.requests = 0
        self.connections = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)

    def answer_with(self, path: str, document: Any, status: int = 200, **headers: str) -> None:
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
    server.answer_with("/schemas/ids/7", {"schema": '"string"'})
    server.answer_with("/schemas/ids/8", {"schema": "message M {}", "schemaType": "PROTOBUF"})
    registry = client(server.url + "/")
    assert registry.by_id(7) == Registered(7, "AVRO", WriterSchema(text='"string"'))
    found = registry.by_id(8)
    assert found is not None
    assert found.kind == "PROTOBUF"


def test_the_subject_is_quoted(server: Server) -> None:
    server.answer_with(
        "/subjects/a%2Fb%20c/versions/latest", {"schema": "{}", "id": 3, "version": 2, "subject": "a/b c"}
    )
    assert client(server.url).latest("a/b c") == Registered(3, "AVRO", WriterSchema(text="{}"))


@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_the_registry_says_that_a_schema_is_missing(server: Server, code: int) -> None:
    server.answer_with("/schemas/ids/9", {"error_code": code, "message": "not found"}, status=404)
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
    server.answer_with("/schemas/ids/9", body, status, Location=f"{server.url}/elsewhere")
    server.answer_with("/elsewhere", {"schema": "{}"})
    with pytest.raises(UnavailableError, match="schema registry main: ") as error:
        client(server.url).by_id(9)
    assert error.value.reason == Reason.REGISTRY_UNREACHABLE
    assert server.requests == 1


@pytest.mark.parametrize("status", [401, 403])
def test_rejected_credentials_are_an_error_of_their_own(server: Server, status: int) -> None:
    server.answer_with("/schemas/ids/9", {"error_code": status}, status)
    with pytest.raises(AccessDeniedError, match=r"registries\.main"):
        client(server.url).by_id(9)


def test_large_and_slow_answers_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    page = b"<html>" + b" " * (9 << 20)
    for status, body in ((200, page), (500, b"{" + page)):
        server.answer_with("/schemas/ids/9", body, status)
        with pytest.raises(UnavailableError, match="more than 8 MiB"):
            client(server.url).by_id(9)
    monkeypatch.setattr(schema_registry, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UnavailableError, match="no answer"):
        client(f"http://127.0.0.1:{silent.getsockname()[1]}").by_id(9)
    server.shutdown()
    server.server_close()
    with pytest.raises(UnavailableError, match="no answer"):
        client(server.url).by_id(9)


def test_a_schema_that_is_too_large_is_no_outage(server: Server) -> None:
    for path in ("/schemas/ids/9", "/subjects/orders-value/versions/latest"):
        server.answer_with(path, {"schema": "x" * (10 << 20), "id": 9})
    with pytest.raises(UnusableSchemaError) as by_id:
        client(server.url).by_id(9)
    assert str(by_id.value) == (
        "schema registry main: an answer has more than 8 MiB at /schemas/ids/9; register a smaller schema"
    )
    with pytest.raises(UnusableSchemaError) as latest:
        client(server.url).latest("orders-value")
    assert latest.value.reason == Reason.BAD_SCHEMA


@contextmanager
def trickling(begin: bytes, piece: bytes) -> Iterator[str]:
    """Return the URL of a server whose answer begins with ``begin`` and goes on with one ``piece`` every 20 ms."""
    ended = threading.Event()

    def trickle(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(begin)
            while not ended.wait(0.02):
                try:
                    connection.sendall(piece)
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=trickle, args=(listener,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()


def test_an_answer_that_trickles_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "ANSWER_SECONDS", 0.3)
    headers = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    with trickling(headers, b" ") as url, pytest.raises(UnavailableError, match="more than 0 s"):
        client(url).by_id(9)


@pytest.mark.parametrize(
    ("status", "answer", "subjects"),
    [
        (200, [{"subject": "a-value", "version": 1}, {"subject": "b:c", "version": 2}], {"a-value", "b:c"}),
        (200, [{"subject": ":.sales:a-value", "version": 1}, {"subject": ":.:b", "version": 1}], {"a-value", "b"}),
        (200, [], set()),
        (404, {"error_code": 40403, "message": "Schema not found"}, set()),
    ],
)
def test_deleted_versions_and_contexts_have_subjects(
    server: Server, status: int, answer: Any, subjects: set[str]
) -> None:
    server.answer_with("/schemas/ids/7/versions?deleted=true", answer, status)
    assert client(server.url).subjects(7, deleted=True) == subjects


def test_credentials_are_read_for_each_request(server: Server) -> None:
    server.answer_with("/schemas/ids/1", {"schema": "{}"})
    client(server.url).by_id(1)
    assert "authorization" not in server.headers
    client(server.url, username="firn", password_path="/password").by_id(1)
    assert server.headers["authorization"] == "Basic " + base64.b64encode(b"firn:s3cret").decode()
    client(server.url, token_path="/token").by_id(1)
    assert server.headers["authorization"] == "Bearer t0ken"


def test_the_certificate_of_the_registry_is_checked(server: Server, tmp_path: Path) -> None:
    certificates(tmp_path / "tls", "localhost")
    files = {name: (tmp_path / "tls" / name).read_text() for name in ("ca.crt", "other-ca.crt")}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls" / "server.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.answer_with("/schemas/ids/1", {"schema": "{}"})
    url = f"https://localhost:{server.server_address[1]}"

    def found(url: str, ca: str | None) -> Registered | None:
        return SchemaRegistry("main", RegistryConnection(url=url, ca_path=ca), files.__getitem__).by_id(1)

    assert found(url, "ca.crt") is not None
    for wrong in ("other-ca.crt", None):
        with pytest.raises(UnavailableError, match=r"CERTIFICATE_VERIFY_FAILED.*registries\.main\.tls\.ca"):
            found(url, wrong)
    with pytest.raises(UnavailableError, match="certificate"):
        found(url.replace("localhost", "127.0.0.1"), "ca.crt")


def test_references_come_before_the_schemas_that_use_them(server: Server) -> None:
    def referring(text: str, *subjects: str, **more: Any) -> dict[str, Any]:
        return {"schema": text, "references": [{"name": s, "subject": s, "version": 1} for s in subjects], **more}

    server.answer_with("/schemas/ids/1", referring("order", "customer", "money"))
    server.answer_with("/subjects/customer/versions/1?deleted=true", referring("customer", "money", "address"))
    server.answer_with("/subjects/money/versions/1?deleted=true", referring("money"))
    server.answer_with("/subjects/address/versions/1?deleted=true", referring("address"))
    found = client(server.url).by_id(1)
    assert found is not None
    assert found.schema.references == ("money", "address", "customer")
    assert server.requests == 4


@pytest.mark.parametrize("code", [40401, 40402])
def test_a_reference_that_the_registry_does_not_have_is_no_outage(server: Server, code: int) -> None:
    reference = {"name": "Money", "subject": "money", "version": 3}
    server.answer_with("/schemas/ids/1", {"schema": "order", "references": [reference]})
    server.answer_with("/subjects/money/versions/3?deleted=true", {"error_code": code, "message": "not found"}, 404)
    with pytest.raises(
        MissingReferenceError, match="refers to version 3 of subject money, which the registry does not"
    ) as error:
        client(server.url).by_id(1)
    assert error.value.reason == Reason.BAD_SCHEMA
    assert isinstance(error.value, UnusableSchemaError)


def test_a_circle_of_references_ends(server: Server) -> None:
    for subject, other in (("a", "b"), ("b", "a")):
        reference = [{"name": other, "subject": other, "version": 1}]
        server.answer_with(f"/subjects/{subject}/versions/1?deleted=true", {"schema": subject, "references": reference})
    server.answer_with("/schemas/ids/1", {"schema": "x", "references": [{"name": "a", "subject": "a", "version": 1}]})
    with pytest.raises(UnusableSchemaError, match="form a circle at subject"):
        client(server.url).by_id(1)


def test_a_type_has_one_schema_even_if_two_versions_are_named(server: Server) -> None:
    def named(version: int) -> dict[str, Any]:
        return {"name": "Money", "subject": "money", "version": version}

    customer = {"name": "Customer", "subject": "customer", "version": 1}
    server.answer_with("/schemas/ids/1", {"schema": "order", "references": [customer, named(2)]})
    server.answer_with("/subjects/customer/versions/1?deleted=true", {"schema": "c", "references": [named(1)]})
    server.answer_with("/subjects/money/versions/1?deleted=true", {"schema": "money 1"})
    found = client(server.url).by_id(1)
    assert found is not None
    assert found.schema.references == ("money 1", "c")


def test_a_schema_with_large_references_is_refused(server: Server) -> None:
    references = [{"name": f"n{n}", "subject": f"s{n}", "version": 1} for n in range(3)]
    server.answer_with("/schemas/ids/1", {"schema": "x", "references": references})
    for n in range(3):
        server.answer_with(f"/subjects/s{n}/versions/1?deleted=true", {"schema": "x" * (900 << 10)})
    with pytest.raises(UnusableSchemaError, match="more than 2097152 characters with its references"):
        client(server.url).by_id(1)


def test_half_of_a_surrogate_pair_is_no_schema(server: Server) -> None:
    server.answer_with("/schemas/ids/1", b'{"schema": "\\ud800"}')
    with pytest.raises(UnavailableError, match="is not a schema"):
        client(server.url).by_id(1)


@pytest.mark.parametrize("token", ["one\ntwo", "schl\u00fcssel"])
def test_a_wrong_token_is_in_no_message(server: Server, token: str) -> None:
    registry = SchemaRegistry("main", RegistryConnection(url=server.url, token_path="/token"), lambda _: token)
    with pytest.raises(AccessDeniedError) as error:
        registry.by_id(1)
    assert token not in str(error.value)
    assert "one line of printable ASCII" in str(error.value)
    assert server.requests == 0


def test_a_password_may_have_any_letters(server: Server) -> None:
    server.answer_with("/schemas/ids/1", {"schema": "{}"})
    connection = RegistryConnection(url=server.url, username="firn", password_path="/password")
    SchemaRegistry("main", connection, lambda _: "schl\u00fcssel \u4e2d").by_id(1)
    expected = base64.b64encode("firn:schl\u00fcssel \u4e2d".encode()).decode()
    assert server.headers["authorization"] == f"Basic {expected}"


@pytest.mark.parametrize(("status", "away"), [(429, True), (503, True), (500, False), (404, False)])
def test_only_a_busy_registry_is_away_for_all_schemas(server: Server, status: int, away: bool) -> None:
    server.answer_with("/schemas/ids/1", {"error_code": 1}, status)
    with pytest.raises(UnavailableError) as error:
        client(server.url).by_id(1)
    assert isinstance(error.value, schema_registry.RegistryAwayError) == away


GUID = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize(
    ("context", "status", "answer", "number"),
    [
        ("", 200, [{"context": ".", "id": 7}], 7),
        ("", 200, [{"context": ".sales", "id": 9}, {"context": ".", "id": 7}], 7),
        ("/contexts/.sales", 200, [{"context": ".sales", "id": 9}, {"context": ".", "id": 7}], 9),
        ("/contexts/%3A.sales%3A", 200, [{"context": ".sales", "id": 9}], 9),
        ("/contexts/.other", 200, [{"context": ".", "id": 7}], None),
        ("", 200, [], None),
        ("", 404, {"error_code": 40403, "message": "Schema not found"}, None),
    ],
)
def test_a_guid_has_an_id_in_the_context_of_the_url(
    server: Server, context: str, status: int, answer: Any, number: int | None
) -> None:
    server.answer_with(f"{context}/schemas/guids/{GUID}/ids", answer, status)
    assert client(server.url + context).id_of(GUID) == number


@pytest.mark.parametrize(
    ("status", "answer", "problem"),
    [
        (404, {"error_code": 404, "message": "HTTP 404 Not Found"}, "does not resolve the GUIDs of schemas"),
        (404, b"<html>not here</html>", "does not resolve the GUIDs of schemas"),
        (405, b"", "does not resolve the GUIDs of schemas"),
        (200, {"id": 7}, "is not a schema"),
        (200, [{"context": ".", "id": "7"}], "is not a schema"),
        (429, b"", "HTTP 429"),
        (200, b"<html>log in</html>", "is not a schema"),
    ],
)
def test_a_registry_without_guids_makes_records_wait(server: Server, status: int, answer: Any, problem: str) -> None:
    server.answer_with(f"/schemas/guids/{GUID}/ids", answer, status)
    with pytest.raises(UnavailableError, match=problem) as error:
        client(server.url).id_of(GUID)
    assert error.value.reason == Reason.REGISTRY_UNREACHABLE


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", b"HTTP/1.1 200 OK\r\nX: "])
def test_headers_that_trickle_end(monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    monkeypatch.setattr(schema_registry, "ANSWER_SECONDS", 0.3)
    with trickling(before, b"H") as url:
        begun = time.monotonic()
        with pytest.raises(UnavailableError, match="no answer"):
            client(url).by_id(9)
        assert time.monotonic() - begun < 5


def test_a_connection_is_used_again_after_its_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[threading.Timer] = []
    # A timer runs when the test says that its time is over.
    monkeypatch.setattr(threading.Timer, "start", lambda timer: timers.append(timer))
    server.answer_with("/schemas/ids/7", {"schema": "{}"})
    registry = client(server.url)
    assert registry.by_id(7) is not None
    [timer] = timers
    timer.interval = 0
    timer.run()
    assert registry.by_id(7) is not None
    assert server.connections == 1


@pytest.mark.parametrize(
    ("found", "versions", "missing"),
    [
        pytest.param(
            {
                "schema": "{}",
                "schemaType": "JSON",
                "guid": GUID,
                "maxId": 9,
                "metadata": {"properties": {}},
                "ts": 1,
                "deleted": False,
            },
            [{"subject": "orders-value", "version": 1}],
            {"error_code": 40403, "message": "Schema 8 not found"},
            id="Confluent 8",
        ),
        pytest.param(
            {"schema": "{}", "schemaType": "JSON", "subject": "orders-value", "version": 1},
            [{"subject": "orders-value", "version": 1}, {"subject": "other", "version": 3}],
            {"error_code": 40403, "message": "Schema not found"},
            id="Karapace",
        ),
    ],
)
def test_answers_of_other_registries_are_read(server: Server, found: Any, versions: Any, missing: Any) -> None:
    """They are as their documentation says: no test runs these registries."""
    server.answer_with("/schemas/ids/7", found)
    server.answer_with("/schemas/ids/7/versions?deleted=true", versions)
    server.answer_with("/schemas/ids/8", missing, 404)
    registry = client(server.url)
    assert registry.by_id(7) == Registered(7, "JSON", WriterSchema(text="{}"))
    assert "orders-value" in registry.subjects(7, deleted=True)
    assert registry.by_id(8) is None
