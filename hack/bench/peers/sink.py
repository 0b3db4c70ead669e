"""Run the peer of ingestion: the Apache Iceberg sink in a standalone worker of Kafka Connect, from the published jars."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import httpx

from hack.bench.contestants.contestant import START_SECONDS, Contestant
from hack.bench.contestants.lake import CATALOG, NAMESPACE, Lake
from hack.bench.peers.settings import SINK, Settings
from hack.bench.records.measurements import create_topics
from hack.localcluster.artifacts.jars import copy_jars
from hack.support.content import cached, content_hash
from hack.support.progress import step
from tests.servers.process import free_port, running

VERSION = "1.12.0"
NAME = f"iceberg-kafka-connect {VERSION}"
TASKS = 2
_POM = Path(__file__).with_name("sink.pom.xml")
JSON = MappingProxyType({"": "org.apache.kafka.connect.json.JsonConverter", ".schemas.enable": "false"})
"""Properties of the worker's converter of values, without the common beginning of their names."""


def apicurio_converter(format_name: str, registry: str) -> dict[str, str]:
    """Return the properties of Apicurio's converter for Avro or Protobuf values with the framing of Confluent's registry.

    ``registry``: the URL of the registry's own API.
    """
    return {
        "": f"io.apicurio.registry.utils.converter.{format_name}Converter",
        ".apicurio.registry.url": registry,
        ".apicurio.registry.as-confluent": "true",
        ".apicurio.registry.use-id": "contentId",
    }


def jars() -> Path:
    """Return a directory with ``worker`` and the folders of ``plugins``. Maven fetches it if the POM is new."""

    def fetch(directory: Path) -> None:
        with step("fetching the sink's jars"):
            for profile, place in (
                ("worker", "worker"),
                ("plugin", "plugins/iceberg"),
                ("converter", "plugins/converter"),
            ):
                copy_jars(_POM, directory / place, f"sink-{profile}", "-P", profile)

    return cached("jar-sets/sink", content_hash([_POM]), fetch)


@contextmanager
def sink(
    directory: Path,
    lake: Lake,
    topic: str,
    table: str,
    commit_seconds: float,
    settings: Settings = SINK,
    converter: Mapping[str, str] = JSON,
) -> Iterator[Contestant]:
    """Run a worker with all of its tasks inside the with block. The table must exist."""
    directory.mkdir(parents=True, exist_ok=True)
    control = f"control-{table}"
    create_topics(lake.kafka.bootstrap, [control])
    port = free_port()
    worker = {
        "bootstrap.servers": lake.kafka.bootstrap,
        "listeners": f"http://127.0.0.1:{port}",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        **{f"value.converter{name}": value for name, value in converter.items()},
        "offset.storage.file.filename": str(directory / "offsets"),
        # A task answers the coordinator only after a poll, which waits for this long.
        "offset.flush.interval.ms": "1000",
        "plugin.path": str(jars() / "plugins"),
        **{f"consumer.{name}": value for name, value in settings.consumer.items()},
    }
    connector = {
        "name": table,
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": str(TASKS),
        "topics": topic,
        "iceberg.tables": f"{NAMESPACE}.{table}",
        "iceberg.control.topic": control,
        "iceberg.control.commit.interval-ms": str(int(commit_seconds * 1000)),
        "iceberg.catalog": CATALOG,
        **{f"iceberg.catalog.{name}": value for name, value in lake.jdbc.items()},
    }
    files = directory / "worker.properties", directory / "connector.properties"
    for file, properties in zip(files, (worker, connector), strict=True):
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    def serving() -> bool:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/connectors/{table}/status")
        except httpx.TransportError:
            return False
        states = [task["state"] for task in answer.json()["tasks"]] if answer.status_code == 200 else []
        assert "FAILED" not in states, json.dumps(answer.json())[:2000]
        return states == ["RUNNING"] * TASKS

    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    command = ["java", *settings.java, "-Dlog4j2.level=WARN", "-cp", f"{jars() / 'worker'}/*", main, *map(str, files)]
    with running(command, serving, directory / "worker.log", seconds=START_SECONDS) as process:
        yield Contestant(process, serving)
