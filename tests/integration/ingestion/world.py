"""The world of the ingestion tests: topics with records, contracts, drivers, and the content of tables."""

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from pyiceberg.io import PY_IO_IMPL

from firn.kafka_clients import kafka_id
from firn.model.errors import ExitCode
from firn.model.jobs import CatalogConnection, Column, GroupSettings, IngestJob, RecordSchema, TableTarget
from firn.model.maintenance import (
    CompactionWork,
    MaintenanceRun,
    RetentionWork,
    SnapshotsWork,
    TableReport,
    TableWork,
)
from firn.model.progress import ReportReader, TopicProgress
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.cli import audit
from firn_operator.cli.lake import ARROW_IO
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.driver import Driver
from firn_spark.ingestion.jobs import DirectoryJobs
from firn_spark.leases import Files, Leases
from firn_spark.maintenance.application import Run
from firn_spark.tables.catalogs import Catalogs, catalog_conf
from firn_spark.tables.commits import read_landed, view_of
from firn_spark.tables.java_tables import Tables, quoted
from tests.servers.kafka import Kafka
from tests.servers.process import PATIENCE, await_true, free_port

WAIT = 240.0
ROOT = Path(__file__).parents[3]
FIELDS = (
    Column(name="id", type="long", required=True),
    Column(name="name", type="string"),
    Column(name="score", type="double"),
)


def value(number: int, **more: object) -> bytes:
    return json.dumps({"id": number, "name": f"n{number}", "score": number / 2, **more}).encode()


@dataclass
class Record:
    """A record to produce. With ``partition`` None the client chooses one."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = 0
    headers: list[tuple[str, bytes | None]] | None = None
    timestamp: int = 0


def varied_records(count: int) -> list[Record]:
    """Return records of three partitions, some without a key or without headers, each with its own timestamp."""
    return [
        Record(
            value(n),
            key=None if n % 7 == 0 else f"k{n}".encode(),
            partition=n % 3,
            headers=[("h", b"%d" % n)] * (n % 3),
            timestamp=1_700_000_000_000 + n,
        )
        for n in range(count)
    ]


class World(AbstractContextManager["World"]):
    """All state of one test. At the end it stops the drivers, and fails if a driver failed."""

    def __init__(self, settings: GroupSettings, broker: Kafka, spark: Any, directory: Path) -> None:
        self.suffix = uuid.uuid4().hex[:8]
        self.jobs_directory = directory / "jobs"
        self.jobs_directory.mkdir()
        self.directory = directory
        self.settings = settings.model_copy(update={"jobs_directory": str(self.jobs_directory)})
        self.broker = broker
        self.spark = spark
        self.catalogs = Catalogs(spark, settings)
        self.tables = Tables(self.catalogs)
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "message.max.bytes": 2_000_000}
        )
        self.drivers: list[tuple[Driver, threading.Thread]] = []

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self.catalogs.close()

    def add_catalog(self, name: str, connection: CatalogConnection) -> None:
        """Add a catalog for drivers that start later, and for the reads of this test."""
        self.settings = self.settings.model_copy(update={"catalogs": {**self.settings.catalogs, name: connection}})
        self.catalogs.close()
        self.catalogs = Catalogs(self.spark, self.settings)
        self.tables = Tables(self.catalogs)
        for key, setting in catalog_conf(self.settings).items():
            self.spark.conf.set(key, setting)
        # Opened here before a driver does, because two first openers of a database race to create its tables.
        self.tables.load(name, "nothing", "nothing")

    # Kafka

    def topic(self, name: str = "orders", partitions: int = 1, **config: str) -> str:
        """Create a topic with a name unique to this test."""
        name = f"{name}_{self.suffix}"
        self.create(name, partitions, **config)
        return name

    def create(self, name: str, partitions: int = 1, **config: str) -> None:
        new = NewTopic(name, partitions, 1, config={key.replace("_", "."): setting for key, setting in config.items()})
        self.admin.create_topics([new])[name].result(30)

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(30)

    def topic_id(self, name: str) -> str:
        found: list[str] = []

        def described() -> bool:
            """Return whether the broker knows the topic. It learns of a new topic shortly after the answer to its creation."""
            try:
                found.append(kafka_id(self.admin.describe_topics(TopicCollection([name]))[name].result(30).topic_id))
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            return bool(found)

        await_true(f"the broker knows topic {name}", described)
        return found[0]

    def produce(self, topic: str, records: Iterable[Record | bytes | None], producer: Producer | None = None) -> None:
        """Produce records and wait until all are acknowledged."""
        failures: list[object] = []
        producer = producer or self.producer
        for record in records:
            sent = record if isinstance(record, Record) else Record(record)
            more: dict[str, Any] = {} if sent.partition is None else {"partition": sent.partition}
            while True:
                try:
                    producer.produce(
                        topic,
                        value=sent.value,
                        key=sent.key,
                        headers=list(sent.headers) if sent.headers is not None else None,
                        timestamp=sent.timestamp,
                        on_delivery=lambda error, _: failures.append(error) if error else None,
                        **more,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        assert not failures, failures

    def await_compaction(self, topic: str, gone: int, filler: Record) -> None:
        """Wait until the log cleaner has removed at least ``gone`` records of the only partition.

        The cleaner never touches the active segment, and only a new record rolls it. So ``filler`` is produced until
        the cleaner is done."""

        def cleaned() -> bool:
            self.produce(topic, [filler])
            consumer = Consumer(
                {"bootstrap.servers": self.broker.bootstrap, "group.id": "tests", "enable.partition.eof": True}
            )
            try:
                consumer.assign([TopicPartition(topic, 0, 0)])
                count = 0
                while True:
                    message = consumer.poll(10)
                    assert message is not None
                    if message.error():
                        return (message.offset() or 0) - count >= gone
                    count += 1
            finally:
                consumer.close()

        await_true(f"compaction of {topic}", cleaned, WAIT)

    def end(self, topic: str, partition: int = 0) -> int:
        """Return the end offset of the partition, markers included."""
        place = TopicPartition(topic, partition)
        return int(self.admin.list_offsets({place: OffsetSpec.latest()})[place].result(30).offset)

    # Contracts

    def job(self, topic: str, **changes: Any) -> IngestJob:
        table = {"catalog": "lake", "namespace": f"ns_{self.suffix}", "name": topic, **changes.pop("table", {})}
        return IngestJob(
            **{
                "uid": f"uid-{topic}",
                "namespace": "tests",
                "name": topic,
                "generation": 1,
                "group": "test",
                "profile": "classic",
                "topic": topic,
                "topic_id": None,
                "record_schema": RecordSchema(format="Json", fields=FIELDS),
                "table": TableTarget(**table),
                "freshness_ms": 1000,
                **changes,
            }
        )

    def apply(self, *jobs: IngestJob) -> None:
        for job in jobs:
            draft = self.jobs_directory / f"{job.uid}.draft"
            draft.write_text(job.model_dump_json(exclude_none=True))
            os.replace(draft, self.jobs_directory / f"{job.uid}.json")

    def remove(self, job: IngestJob) -> None:
        (self.jobs_directory / f"{job.uid}.json").unlink()

    # Drivers

    def spawn(self, failpoints: str = "", code: Path = ROOT) -> "Process":
        """Start a driver as a process, as the image does. ``code`` is a tree of this repository."""
        return Process(self, failpoints, code)

    def run_until_killed(self, failpoints: str) -> None:
        """Start a driver as a process, and wait until a failpoint kills it."""
        with self.spawn(failpoints) as driver:
            assert driver.process.wait(WAIT * PATIENCE) == -9, (self.directory / "driver.log").read_text()[-3000:]

    def start(self, failpoints: str = "", **settings: Any) -> Driver:
        configured = self.settings.model_copy(update=settings)
        driver = Driver(
            configured,
            self.spark,
            DirectoryJobs(str(self.jobs_directory), configured.group, interval=0.1),
            Failpoints(failpoints),
        )
        thread = threading.Thread(target=driver.run, name="driver", daemon=True)
        thread.start()
        self.drivers.append((driver, thread))
        return driver

    def stop(self) -> None:
        for driver, thread in self.drivers:
            driver.loop.stop()
            thread.join(240)
            assert not thread.is_alive(), "the driver does not end"
        self.drivers.clear()

    def progress(self, job: IngestJob, driver: Driver | None = None) -> TopicProgress | None:
        driver = driver or self.drivers[-1][0]
        return next((topic for topic in ReportReader().read(driver.loop.report()).topics if topic.uid == job.uid), None)

    def await_state(self, job: IngestJob, state: str, driver: Driver | None = None, **also: object) -> TopicProgress:
        def reached() -> bool:
            topic = self.progress(job, driver)
            return (
                topic is not None
                and topic.state == state
                and all(getattr(topic, key) == want for key, want in also.items())
            )

        try:
            await_true(f"{job.topic} in state {state} {also}", reached, WAIT)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.progress(job, driver)}") from None
        topic = self.progress(job, driver)
        assert topic is not None
        return topic

    # Tables

    def await_rows(self, job: IngestJob, count: int, seconds: float = WAIT) -> list[dict[str, Any]]:
        """Return the rows of the table after it has ``count`` rows. Fail if it has more."""
        self.await_offsets(lambda: self.size(job) >= count, f"{count} rows in {job.table.identifier}", job, seconds)
        rows = self.rows(job)
        assert len(rows) == count
        return rows

    def await_offsets(self, check: Callable[[], bool], description: str, job: IngestJob, seconds: float = WAIT) -> None:
        try:
            await_true(description, check, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.progress(job) if self.drivers else ''}") from None

    def table(self, job: IngestJob, suffix: str = "") -> Any:
        return self.tables.load(job.table.catalog, job.table.namespace, job.table.name + suffix)

    def size(self, job: IngestJob) -> int:
        """Return the number of rows by the metadata of the table. It is cheap enough for polling, unlike a Spark
        job."""
        table = self.table(job)
        snapshot = None if table is None else table.currentSnapshot()
        return 0 if snapshot is None else int(snapshot.summary().get("total-records"))

    def rows(self, job: IngestJob, suffix: str = "") -> list[dict[str, Any]]:
        """Return all rows by partition and offset. Spark reads them, and shares no code with the writer."""
        if self.table(job, suffix) is None:
            return []
        name = quoted(job.table.catalog, job.table.namespace, job.table.name + suffix)
        rows = [row.asDict(recursive=True) for row in self.spark.read.format("iceberg").load(name).collect()]

        def place(row: dict[str, Any]) -> tuple[int, int]:
            kafka = row.get("_kafka")
            return (kafka["partition"], kafka["offset"]) if kafka else (row["_kafka_partition"], row["_kafka_offset"])

        # Python sorts, because Spark runs two more jobs to sort.
        return sorted(rows, key=place)

    def dead(self, job: IngestJob) -> list[dict[str, Any]]:
        return self.rows(job, "__dlq")

    def landed(self, job: IngestJob) -> Mapping[int, int]:
        table = self.table(job)
        state = read_landed(table, view_of(job)) if table is not None else None
        return state.offsets if state is not None else {}

    def snapshots(self, job: IngestJob, suffix: str = "") -> list[Any]:
        return list(self.table(job, suffix).snapshots())


class Process(AbstractContextManager["Process"]):
    """The process of a driver. The end of the with block kills it if it still runs."""

    def __init__(self, world: World, failpoints: str, code: Path) -> None:
        file = world.directory / "group.json"
        self.port = free_port()
        file.write_text(world.settings.model_copy(update={"listen": f"127.0.0.1:{self.port}"}).model_dump_json())
        environment = {
            **os.environ,
            "PYTHONPATH": f"{code}{os.pathsep}{code / 'spark_apps'}",
            "FIRN_FAILPOINTS": failpoints,
            "SPARK_LOCAL_DIRS": str(world.directory),
        }
        with (world.directory / "driver.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(code / "spark_apps" / "ingest.py"), str(file)],
                cwd=code,  # The workers of Spark look for packages there first.
                env=environment,
                stdout=output,
                stderr=output,
            )

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    def await_stopped(self) -> None:
        """Wait until the process stops at a failpoint."""

        def stopped() -> bool:
            assert self.process.poll() is None, f"ended with {self.process.returncode}"
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

        await_true("the process is stopped", stopped, WAIT)

    def get(self, path: str) -> httpx.Response | None:
        """Return the answer of the driver's HTTP server, or None without one."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=10)
        except httpx.TransportError:
            return None


def places(rows: Iterable[Mapping[str, Any]]) -> Counter[tuple[int, int]]:
    """Return how often each (partition, offset) occurs in ``rows``."""
    return Counter((row["_kafka"]["partition"], row["_kafka"]["offset"]) for row in rows)


def exactly(partition_ends: Mapping[int, int]) -> Counter[tuple[int, int]]:
    """Return every offset of every partition, once each."""
    return Counter({(part, offset): 1 for part, end in partition_ends.items() for offset in range(end)})


def audit_of(world: World, *jobs: IngestJob, letters: bool = False) -> audit.Audit:
    """Audit the topic of these tables as the command does, with or without dead letters."""
    job = jobs[0]
    connection = world.settings.catalogs[job.table.catalog]
    properties = {**connection.properties, PY_IO_IMPL: ARROW_IO, "s3.region": "us-east-1"}
    catalog = open_catalog(job.table.catalog, connection.model_copy(update={"properties": properties}))
    parts = []
    for each in jobs:
        table, dead = (each.table.namespace, each.table.name), (each.table.namespace, each.table.dead_letters)
        has_letters = letters and catalog.table_exists(dead)
        parts.append((catalog.load_table(table), catalog.load_table(dead) if has_letters else None))
    return audit.audit_tables({"bootstrap.servers": world.broker.bootstrap}, job.topic, parts, print)


def run_on(world: World, job: IngestJob, failpoints: str = "", **work: Any) -> Run:
    """Return a maintenance run with work on the table of ``job``."""
    target, uuid = job.table, str(world.table(job).uuid())
    table = TableWork(
        uid=job.uid, namespace=job.namespace, name=job.name, table=target, table_uuid=uuid, **work
    )  # fmt: skip
    contract = MaintenanceRun(
        name=f"run-{world.suffix}",
        tables=(table,),
        catalogs=world.settings.catalogs,
        registries=world.settings.registries,
    )
    leases = Leases(Files(str(world.directory / "leases")), contract.name, contract.lease_seconds)
    return Run(contract, world.spark, leases, Failpoints(failpoints))


def maintain(world: World, job: IngestJob, *sharers: str) -> TableReport:
    """Compact the table and its dead letters, and expire all snapshots except the newest."""
    snapshots = RetentionWork(enforce=True, snapshots=SnapshotsWork(max_age_ms=0, min_keep=1))
    run = run_on(world, job, sharers=sharers, compaction=CompactionWork(open_grace_ms=0), retention=snapshots)
    assert run.work() == ExitCode.DONE, run.report()
    return run.report().tables[0]


__all__ = ["FIELDS", "Record", "Self", "World", "audit_of", "exactly", "maintain", "places", "run_on", "time", "value"]
