"""Run a peer of ingestion: Apache Flink with Iceberg's sink, from the published distribution and jars.

The job is a statement of Flink SQL. It runs in one process, with the job manager and one task manager for all cores. A
cluster of processes would need more memory.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from firn.model.jobs import Column
from hack.bench.contestants.contestant import START_SECONDS, Contestant
from hack.bench.contestants.lake import CATALOG, NAMESPACE, Lake
from hack.bench.peers.settings import FLINK, Settings
from hack.localcluster.artifacts.jars import copy_jars
from hack.support.command import run
from hack.support.content import cached, content_hash
from hack.support.places import cache_directory
from hack.support.progress import step
from tests.servers.process import free_port, running

VERSION = "2.1.3"
ICEBERG_VERSION = "1.11.0"
NAME = f"Flink {VERSION} with iceberg-flink-runtime-2.1 {ICEBERG_VERSION}"
_POM = Path(__file__).with_name("flink.pom.xml")
_PROGRAM = Path(__file__).with_name("FlinkSql.java")
_PACKAGE = f"apache-flink-libraries=={VERSION}"
_OPEN = (
    "lang",
    "net",
    "nio",
    "text",
    "time",
    "util",
    "util.concurrent",
    "util.concurrent.atomic",
    "util.concurrent.locks",
)
FLAGS = tuple(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPEN)
"""JVM flags that every run needs. The packages are those that Flink's own configuration opens."""
SETTINGS = {
    "execution.target": "local",
    "pipeline.object-reuse": "true",
    "restart-strategy.type": "disable",
}
SOURCE = {
    "scan.startup.mode": "earliest-offset",
    "format": "json",
    "json.timestamp-format.standard": "ISO-8601",
}
SINK = {"distribution-mode": "none"}
_TYPES = {"long": "BIGINT", "timestamptz": "TIMESTAMP_LTZ(6)"}


def jars() -> Path:
    """Return a directory with all archives and the program. It is filled again if the POM, the program or the version is new."""

    def fetch(directory: Path) -> None:
        with step("fetching Flink"):
            with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
                pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
                run([*pip, "--no-binary=:all:", "-d", scratch, _PACKAGE], log=cache_directory("logs") / "flink.log")
                (package,) = Path(scratch).glob("*.tar.gz")
                with tarfile.open(package) as archive:
                    for member in archive:
                        path = Path(member.name)
                        content = archive.extractfile(member) if path.match("lib/*.jar") else None
                        if content is not None:
                            (directory / path.name).write_bytes(content.read())
            copy_jars(_POM, directory, "flink")
            run(["javac", "-cp", f"{directory}/*", "-d", str(directory), str(_PROGRAM)])

    return cached("jar-sets/flink", content_hash([_POM, _PROGRAM], _PACKAGE), fetch)


def fields(columns: Sequence[Column]) -> str:
    """Return the declaration of the columns in Flink SQL."""
    return ", ".join(f"`{column.name}` {_TYPES.get(column.type, column.type.upper())}" for column in columns)


def script(lake: Lake, topic: str, table: str, columns: Sequence[Column], settings: Settings = FLINK) -> str:
    """Return the statements of the job."""
    catalog = {"type": "iceberg", **lake.jdbc}
    consumer = {"bootstrap.servers": lake.kafka.bootstrap, **settings.consumer}
    properties = {f"properties.{name}": value for name, value in consumer.items()}
    source = {"connector": "kafka", "topic": topic, **properties, **SOURCE}
    return (
        f"CREATE CATALOG `{CATALOG}` WITH ({_options(catalog)});\n"
        f"CREATE TEMPORARY TABLE source ({fields(columns)}) WITH ({_options(source)});\n"
        f"INSERT INTO `{CATALOG}`.`{NAMESPACE}`.`{table}` /*+ OPTIONS({_options(SINK)}) */ SELECT * FROM source;\n"
    )


def _options(options: dict[str, str]) -> str:
    return ", ".join(f"'{key}'='{value}'" for key, value in options.items())


@contextmanager
def flink(
    directory: Path,
    lake: Lake,
    topic: str,
    table: str,
    columns: Sequence[Column],
    checkpoint_seconds: float,
    cores: int,
    settings: Settings = FLINK,
) -> Iterator[Contestant]:
    """Run a job with a slot for each of ``cores`` inside the with block. The table must exist."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    configuration = {
        **SETTINGS,
        "parallelism.default": cores,
        "taskmanager.numberOfTaskSlots": cores,
        "execution.checkpointing.interval": f"{checkpoint_seconds:g}s",
        "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
        "io.tmp.dirs": str(directory),
        "rest.bind-port": port,
    }
    (directory / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in configuration.items()))
    file = directory / "job.sql"
    file.write_text(script(lake, topic, table, columns, settings))

    def serving() -> bool:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/jobs/overview")
        except httpx.TransportError:
            return False
        jobs = answer.json()["jobs"] if answer.status_code == 200 else []
        assert all(job["state"] not in ("FAILING", "FAILED") for job in jobs), f"the job failed: {directory}"
        return bool(jobs) and all(job["tasks"]["running"] == job["tasks"]["total"] for job in jobs)

    command = ["java", *settings.java, *FLAGS, "-cp", f"{jars()}:{jars()}/*", _PROGRAM.stem, str(directory), str(file)]
    with running(command, serving, directory / "job.log", seconds=START_SECONDS) as process:
        yield Contestant(process, serving)
