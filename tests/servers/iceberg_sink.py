"""Run the Apache Iceberg sink in a standalone worker of Kafka Connect, from the published jars."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.servers.process import free_port, running

CONNECTOR = "org.apache.iceberg.connect.IcebergSinkConnector"
JSON = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}
"""Converters of records without a schema."""


@dataclass(frozen=True)
class Sink:
    """A worker with one connector."""

    port: int
    connector: Mapping[str, str]

    def is_running(self) -> bool:
        """Return whether all tasks of the connector run. Fails if a task has failed."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port}/connectors/{self.connector['name']}/status")
        except httpx.TransportError:
            return False
        states = [task["state"] for task in answer.json()["tasks"]] if answer.status_code == 200 else []
        assert "FAILED" not in states, json.dumps(answer.json())[:2000]
        return states == ["RUNNING"] * int(self.connector["tasks.max"])


@contextmanager
def iceberg_sink(
    directory: Path,
    jars: Path,
    bootstrap: str,
    connector: Mapping[str, str],
    *,
    worker: Mapping[str, str] | None = None,
    java: Sequence[str] = (),
    seconds: float = 240.0,
) -> Iterator[tuple[Sink, subprocess.Popen[bytes]]]:
    """Run a worker with this connector inside the with block. The control topic and the table must exist.

    ``jars`` has the folders ``worker`` and ``plugins``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    properties = {
        "bootstrap.servers": bootstrap,
        "listeners": f"http://127.0.0.1:{port}",
        **JSON,
        "offset.storage.file.filename": str(directory / "offsets"),
        # A task answers the coordinator only after a poll, which waits for this long.
        "offset.flush.interval.ms": "1000",
        "plugin.path": str(jars / "plugins"),
        **(worker or {}),
    }
    files = directory / "worker.properties", directory / "connector.properties"
    for file, content in zip(files, (properties, {"connector.class": CONNECTOR, **connector}), strict=True):
        file.write_text("".join(f"{key}={value}\n" for key, value in content.items()))
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    command = ["java", *java, "-Dlog4j2.level=WARN", "-cp", f"{jars / 'worker'}/*", main, *map(str, files)]
    sink = Sink(port, connector)
    with running(command, sink.is_running, directory / "worker.log", seconds=seconds) as process:
        yield sink, process
