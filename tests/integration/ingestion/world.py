"""The world of the ingestion tests: topics with records, contracts, drivers, and the content of the tables."""

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
from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from firn.kafka_clients import kafka_id
from firn.model.jobs import CatalogConnection, Column, GroupSettings, IngestJob, RecordSchema, TableTarget
from firn.model.progress import TopicProgress
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.driver import Driver
from firn_spark.ingestion.jobs import DirectoryJobs
from firn_spark.tables.catalogs import Catalogs, catalog_conf
from firn_spark.tables.java_tables import Tables, quoted
from tests.servers.kafka import Kafka
from tests.servers.process import await_true, free_port

WAIT = 240.0
FIELDS = (
    Column(name="id", type="long", required=True),
    Column(name="name", type="string"),
    Column(name="score", type="double"),
)


def value(number: int, **more: object) -> bytes:
    return json.dumps({"id": number, "name": f"n{number}", "score": number / 2, **more}).encode()


@dataclass
class Record:
    """A record to produce; ``partition`` None leaves it to the client."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = 0
    headers: list[tuple[str, bytes | None]] | None = None
    timestamp: int = 0


class World(AbstractContextManager["World"]):
    """Everything of one test; ends its drivers and fails if one of them ended badly."""

    def __init__(self, settings: GroupSettings, broker: Kafka, spark: Any, directory: Path) -> None:
        self.suffix = uuid.uuid4().hex[:8]
        self.jobs_directory = directory / "jobs"
        self.jobs_directory.mkdir()
        self.directory = directory
        self.settings = settings.model_copy(update={"jobs_directory": str(self.jobs_directory)})
        self.broker = broker
        self.spark = spark
        self.tables = Tables(Catalogs(spark, settings))
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "message.max.bytes": 2_000_000}
        )
        self.drivers: list[tuple[Driver, threading.Thread]] = []

    def __exit__(self, *_: object) -> None:
        self.stop()

    def add_catalog(self, name: str, connection: CatalogConnection) -> None:
        """Makes a catalog known to the drivers that are started from here on, and to this test's own reading."""
        self.settings = self.settings.model_copy(update={"catalogs": {**self.settings.catalogs, name: connection}})
        self.tables = Tables(Catalogs(self.spark, self.settings))
        for key, setting in catalog_conf(self.settings).items():
            self.spark.conf.set(key, setting)
        # Opened here, before a driver does: Iceberg's two first openers of one database race to bring its tables about.
        self.tables.load(name, "nothing", "nothing")

    # Kafka

    def topic(self, name: str = "orders", partitions: int = 1, **config: str) -> str:
        """Creates a topic; its name is unique to this test."""
        name = f"{name}_{self.suffix}"
        self.create(name, partitions, **config)
        return name

    def create(self, name: str, partitions: int = 1, **config: str) -> None:
        new = NewTopic(name, partitions, 1, config={key.replace("_", "."): setting for key, setting in config.items()})
        self.admin.create_topics([new])[name].result(30)

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(30)

    def topic_id(self, name: str) -> str:
        return kafka_id(self.admin.describe_topics(TopicCollection([name]))[name].result(30).topic_id)

    def produce(self, topic: str, records: Iterable[Record | bytes | None], producer: Producer | None = None) -> None:
        """Produces and waits until all are acknowledged."""
        failures: list[object] = []
        producer = producer or self.producer
        for record in records:
            one = record if isinstance(record, Record) else Record(record)
            more: dict[str, Any] = {} if one.partition is None else {"partition": one.partition}
            while True:
                try:
                    producer.produce(
                        topic,
                        value=one.value,
                        key=one.key,
                        headers=list(one.headers) if one.headers is not None else None,
                        timestamp=one.timestamp,
                        on_delivery=lambda error, _: failures.append(error) if error else None,
                        **more,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        assert not failures, failures

    def await_compaction(self, topic: str, gone: int, filler: Record) -> None:
        """Until the log cleaner has removed at least ``gone`` records of the topic's one partition. It never touches the active segment, and
        only a new record rolls that: ``filler`` is produced until it is done."""

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
        """The partition's end, markers included."""
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
            draft.write_text(job.model_dump_json())
            os.replace(draft, self.jobs_directory / f"{job.uid}.json")

    def remove(self, job: IngestJob) -> None:
        (self.jobs_directory / f"{job.uid}.json").unlink()

    # Drivers

    def spawn(self, failpoints: str = "") -> "Process":
        """A driver as a process of its own, as the image starts it."""
        return Process(self, failpoints)

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
            thread.join(60)
            assert not thread.is_alive(), "the driver does not end"
        self.drivers.clear()

    def progress(self, job: IngestJob, driver: Driver | None = None) -> TopicProgress | None:
        driver = driver or self.drivers[-1][0]
        return next((topic for topic in driver.loop.progress().topics if topic.uid == job.uid), None)

    def await_state(self, job: IngestJob, state: str, driver: Driver | None = None, **also: object) -> TopicProgress:
        def reached() -> bool:
            found = self.progress(job, driver)
            return (
                found is not None
                and found.state == state
                and all(getattr(found, key) == want for key, want in also.items())
            )

        try:
            await_true(f"{job.topic} in state {state} {also}", reached, WAIT)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.progress(job, driver)}") from None
        found = self.progress(job, driver)
        assert found is not None
        return found

    # Tables

    def await_rows(self, job: IngestJob, count: int, seconds: float = WAIT) -> list[dict[str, Any]]:
        """The table's rows once there are ``count`` of them. More is as wrong as fewer."""
        self.await_offsets(lambda: self.size(job) >= count, f"{count} rows in {job.table.identifier}", job, seconds)
        rows = self.rows(job)
        assert len(rows) == count
        return rows

    def await_offsets(self, check: Callable[[], bool], what: str, job: IngestJob, seconds: float = WAIT) -> None:
        try:
            await_true(what, check, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.progress(job) if self.drivers else ''}") from None

    def table(self, job: IngestJob, suffix: str = "") -> Any:
        return self.tables.load(job.table.catalog, job.table.namespace, job.table.name + suffix)

    def size(self, job: IngestJob) -> int:
        """How many rows the table's metadata says there are. Cheap enough to be asked until it is so, which a Spark job is not."""
        table = self.table(job)
        snapshot = None if table is None else table.currentSnapshot()
        return 0 if snapshot is None else int(snapshot.summary().get("total-records"))

    def rows(self, job: IngestJob, suffix: str = "") -> list[dict[str, Any]]:
        """All rows, by partition and offset. Read by Spark, which does not share code with the writer."""
        if self.table(job, suffix) is None:
            return []
        name = quoted(job.table.catalog, job.table.namespace, job.table.name + suffix)
        frame = self.spark.read.format("iceberg").load(name)
        order = (
            ["_kafka.partition", "_kafka.offset"]
            if "_kafka" in frame.columns
            else ["_kafka_partition", "_kafka_offset"]
        )
        return [row.asDict(recursive=True) for row in frame.orderBy(*order).collect()]

    def dead(self, job: IngestJob) -> list[dict[str, Any]]:
        return self.rows(job, "__dlq")

    def landed(self, job: IngestJob) -> Mapping[int, int]:
        from firn_spark.tables.commits import read_landed

        table = self.table(job)
        state = read_landed(table) if table is not None else None
        return state.offsets if state is not None else {}

    def snapshots(self, job: IngestJob, suffix: str = "") -> list[Any]:
        return list(self.table(job, suffix).snapshots())


class Process(AbstractContextManager["Process"]):
    """A driver's process; killed at the end of the with block if it is still there."""

    def __init__(self, world: World, failpoints: str) -> None:
        file = world.directory / "group.json"
        self.port = free_port()
        file.write_text(world.settings.model_copy(update={"listen": f"127.0.0.1:{self.port}"}).model_dump_json())
        root = Path(__file__).parents[3]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{root}{os.pathsep}{root / 'spark_apps'}",
            "FIRN_FAILPOINTS": failpoints,
            "SPARK_LOCAL_DIRS": str(world.directory),
        }
        with (world.directory / "driver.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(root / "spark_apps" / "ingest.py"), str(file)],
                env=environment,
                stdout=output,
                stderr=output,
            )

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    def await_stopped(self) -> None:
        """Until the process stands still at a failpoint."""

        def stopped() -> bool:
            assert self.process.poll() is None, f"ended with {self.process.returncode}"
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

        await_true("the process is stopped", stopped, WAIT)

    def get(self, path: str) -> httpx.Response | None:
        """The answer of the driver's HTTP server; None while there is none."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=10)
        except httpx.TransportError:
            return None


def places(rows: Iterable[Mapping[str, Any]]) -> Counter[tuple[int, int]]:
    """How often each (partition, offset) is among ``rows``."""
    return Counter((row["_kafka"]["partition"], row["_kafka"]["offset"]) for row in rows)


def exactly(partition_ends: Mapping[int, int]) -> Counter[tuple[int, int]]:
    """Every offset of every partition, once."""
    return Counter({(part, offset): 1 for part, end in partition_ends.items() for offset in range(end)})


__all__ = ["FIELDS", "Record", "Self", "World", "exactly", "places", "time", "value"]
