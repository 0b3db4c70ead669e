"""Run the peer of ingestion: the Apache Iceberg sink in a standalone worker of Kafka Connect, from the published jars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from hack.bench.contestants.contestant import START_SECONDS, Contestant
from hack.bench.contestants.lake import CATALOG, NAMESPACE, Lake
from hack.bench.peers.settings import SINK, Settings
from hack.bench.records.measurements import create_topics
from hack.localcluster.artifacts.jars import fetch
from tests.servers.iceberg_sink import iceberg_sink

VERSION = "1.12.0"
NAME = f"iceberg-kafka-connect {VERSION}"
TASKS = 2
JSON = MappingProxyType({"": "org.apache.kafka.connect.json.JsonConverter", ".schemas.enable": "false"})
"""Properties of the worker's converter of values, without the common beginning of their names."""


def apicurio_converter(registry: str) -> dict[str, str]:
    """Return the properties of Apicurio's converter for Avro values with the framing of Confluent's registry.

    ``registry``: the URL of the registry's own API.
    """
    return {
        "": "io.apicurio.registry.utils.converter.AvroConverter",
        ".apicurio.registry.url": registry,
        ".apicurio.registry.as-confluent": "true",
        ".apicurio.registry.use-id": "contentId",
    }


def jars() -> Path:
    """Return a directory with ``worker`` and the folders of ``plugins``. Maven fetches it if the POM is new."""
    return fetch("sink")


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
    connector = {
        "name": table,
        "tasks.max": str(TASKS),
        "topics": topic,
        "iceberg.tables": f"{NAMESPACE}.{table}",
        "iceberg.control.topic": control,
        "iceberg.control.commit.interval-ms": str(int(commit_seconds * 1000)),
        "iceberg.catalog": CATALOG,
        **{f"iceberg.catalog.{name}": value for name, value in lake.jdbc.items()},
    }
    worker = {
        **{f"value.converter{name}": value for name, value in converter.items()},
        **{f"consumer.{name}": value for name, value in settings.consumer.items()},
    }
    with iceberg_sink(
        directory,
        jars(),
        lake.kafka.bootstrap,
        connector,
        worker=worker,
        java=settings.java,
        seconds=START_SECONDS,
    ) as (running, process):
        yield Contestant(process, running.is_running)
