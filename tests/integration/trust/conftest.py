"""PostgreSQL, S3 and an HTTP server with TLS, whose certificates are of a private CA."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from firn.model.jobs import CatalogConnection
from tests.authority import Authority, Pair
from tests.servers.postgres import CERTIFIED, Postgres, directory_for_postgres, postgres, query
from tests.servers.s3 import S3, s3


@dataclass(frozen=True)
class Private:
    """Servers with TLS. ``odd`` is an S3 server whose certificate has another name, that of ``old`` has expired. ``rest`` and ``stranger``
    answer as an empty REST catalog. The certificate of ``stranger`` is of the foreign CA."""

    ca: Path
    foreign: Path
    """A CA that has signed no certificate of the servers."""
    connection: CatalogConnection
    """Catalog in the database and the store, with a client certificate."""
    database: Postgres
    store: S3
    odd: S3
    old: S3
    rest: str
    stranger: str

    @property
    def uri(self) -> str:
        """Address of the database, by the name in its certificate."""
        return f"postgresql://localhost:{self.database.port}/postgres"

    def at(self, store: S3) -> CatalogConnection:
        """Return the catalog with its tables in another store."""
        properties = {**self.connection.properties, "s3.endpoint": store.endpoint}
        return self.connection.model_copy(update={"properties": properties})

    def rest_catalog(self, uri: str) -> CatalogConnection:
        """Return a REST catalog of the private CA."""
        return CatalogConnection(type="rest", uri=uri, warehouse="lake", ca_path=str(self.ca))


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        config: dict[str, object] = {"defaults": {}, "overrides": {}}
        answer = json.dumps(config if "/config" in self.path else {"namespaces": [["private"]]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def answering(tls: Pair) -> Iterator[str]:
    """Run a server that answers as a REST catalog with one namespace; return its address by the name localhost."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://localhost:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Private]:
    folder = tmp_path_factory.mktemp("trust")
    authority, foreign = Authority(folder), Authority(folder, "foreign")
    server = authority.issue("server", "localhost")
    client = authority.issue(CERTIFIED)
    client.key.chmod(0o600)
    odd, old = authority.issue("odd", "elsewhere.example"), authority.issue("old", "localhost", days=-1)
    for name in ("store", "odd", "old"):
        (folder / name).mkdir()
    with (
        directory_for_postgres() as place,
        postgres(place, tls=server, clients=authority.file) as database,
        s3(folder / "store", tls=server) as store,
        s3(folder / "odd", tls=odd) as odd_store,
        s3(folder / "old", tls=old) as old_store,
        answering(server) as rest,
        answering(foreign.issue("stranger", "localhost")) as stranger,
    ):
        query(database, f"CREATE USER {CERTIFIED} SUPERUSER")
        connection = CatalogConnection(
            type="sql",
            uri=f"postgresql://localhost:{database.port}/postgres",
            warehouse=f"s3://{store.bucket}/warehouse",
            properties={**store.properties, "user": CERTIFIED},
            secret_properties=store.secret_properties,
            ca_path=str(authority.file),
            certificate_path=str(client.certificate),
            certificate_key_path=str(client.key),
            store_ca_path=str(authority.file),
        )
        yield Private(authority.file, foreign.file, connection, database, store, odd_store, old_store, rest, stranger)
