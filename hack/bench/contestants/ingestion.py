"""Run Firn's ingestion application as a process on this machine, with contracts in a directory instead of Kubernetes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import httpx

from firn.model.jobs import GroupSettings, IngestJob, RecordSchema, RegistryConnection, TableTarget
from firn.model.progress import GroupProgress
from hack.bench.contestants.contestant import START_SECONDS, Contestant
from hack.bench.contestants.lake import CATALOG, Lake
from hack.bench.records.measurements import SCHEMA
from hack.support.command import run
from hack.support.content import cached, content_hash
from hack.support.places import REPOSITORY
from hack.support.progress import step
from tests.servers.process import cache, free_port, running

GROUP = "bench"
PROFILE = "classic"
_ROOTS = [str(REPOSITORY), str(REPOSITORY / "spark_apps")]
_ARCHIVE_PROGRAM = REPOSITORY / "hack" / "images" / "spark" / "class_archive.py"
_FAILURES = 5
"""Consecutive failures after which the benchmark gives up on a topic."""


@dataclass
class Ingestion(Contestant):
    """The driver, and a call for its progress."""

    progress: Callable[[], GroupProgress] = field(kw_only=True)

    @property
    def rows(self) -> int:
        """Return the number of rows that this process has landed, over all topics."""
        return sum(topic.rows for topic in self.progress().topics)


def job(topic: str, table: TableTarget, freshness_seconds: float, schema: RecordSchema = SCHEMA) -> IngestJob:
    """Return the contract of a topic of benchmark records."""
    return IngestJob(
        uid=topic,
        namespace="bench",
        name=topic,
        generation=1,
        group=GROUP,
        profile=PROFILE,
        topic=topic,
        record_schema=schema,
        table=table,
        freshness_ms=int(freshness_seconds * 1000),
    )


def compiled() -> Path:
    """Return the directory of the decoder's machine code, compiled once as in the build of the Spark image."""
    worker = REPOSITORY / "spark_apps" / "firn_spark" / "worker"
    names = (
        "compiled.py",
        "fetching/kernel.py",
        "formats/avro/kernel.py",
        "formats/json/kernel.py",
        "formats/json/tokens.py",
        "formats/json/variant_kernel.py",
        "formats/protobuf/kernel.py",
        "formats/utf8.py",
        "formats/words.py",
    )
    sources = [REPOSITORY / "firn" / "decoders" / "json_limits.py", *(worker / name for name in names)]

    def compile_all(directory: Path) -> None:
        with step("compiling the decoder"), tempfile.TemporaryDirectory() as scratch:
            environment = {"PYTHONPATH": os.pathsep.join(_ROOTS), "TMPDIR": scratch}
            run([sys.executable, "-m", "firn_spark.worker.build", str(directory)], environment=environment)

    return cached("compiled", content_hash(sources, sys.version, version("numba")), compile_all)


def class_path() -> list[str]:
    """Return the jars that Spark's own jars need."""
    return sorted(str(jar) for jar in (cache() / "jars" / "spark").glob("*.jar"))


def class_archive() -> Path:
    """Return the archive of Java classes, written once as in the build of the Spark image."""

    def write(directory: Path) -> None:
        with step("writing the archive of classes"):
            run([sys.executable, _ARCHIVE_PROGRAM, directory / "classes.jsa", *class_path()])

    key = content_hash([_ARCHIVE_PROGRAM], *class_path(), sys.prefix, version("pyspark"))
    return cached("class-archive", key, write) / "classes.jsa"


@contextmanager
def ingestion(
    directory: Path,
    lake: Lake,
    jobs: Sequence[IngestJob],
    *,
    cores: int,
    heap: str,
    registries: Mapping[str, RegistryConnection] = MappingProxyType({}),
) -> Iterator[Ingestion]:
    """Run the driver for ``jobs`` inside the with block."""
    contracts = directory / "jobs"
    contracts.mkdir(parents=True)
    for contract in jobs:
        (contracts / f"{contract.uid}.json").write_text(contract.model_dump_json())
    port = free_port()
    settings = GroupSettings(
        group=GROUP,
        cores=cores,
        heap=heap,
        spark_conf={"spark.driver.extraClassPath": ":".join(class_path())},
        kafka={PROFILE: lake.kafka.connection},
        catalogs={CATALOG: lake.connection},
        registries=dict(registries),
        schema_directory=str(directory / "schemas") if registries else None,
        jobs_directory=str(contracts),
        listen=f"127.0.0.1:{port}",
    )
    file = directory / "group.json"
    file.write_text(settings.model_dump_json())

    def progress() -> GroupProgress:
        return GroupProgress.model_validate_json(httpx.get(f"http://127.0.0.1:{port}/progress").content)

    def serving() -> bool:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code != 200:
                return False
            failing = [topic.message for topic in progress().topics if topic.failures >= _FAILURES]
        except httpx.TransportError:
            return False
        assert not failing, failing[0]
        return True

    scratch = directory / "tmp"
    scratch.mkdir()
    environment = {
        "PYTHONPATH": os.pathsep.join(_ROOTS),
        "FIRN_COMPILED": str(compiled()),
        "FIRN_CLASS_ARCHIVE": str(class_archive()),
        "TMPDIR": str(scratch),
        "SPARK_LOCAL_DIRS": str(scratch),
    }
    command = [sys.executable, str(REPOSITORY / "spark_apps" / "ingest.py"), str(file)]
    with running(command, serving, directory / "driver.log", environment=environment, seconds=START_SECONDS) as process:
        yield Ingestion(process, serving, progress=progress)
