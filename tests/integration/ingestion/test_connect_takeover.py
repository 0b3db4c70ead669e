"""A topic takes its table over from the real Iceberg sink of Kafka Connect: every record lands exactly once."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform

from firn.model import names
from firn.model.conditions import Reason
from firn.model.jobs import Adoption, CatalogConnection, IngestJob, SinkCommits
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.adapters.iceberg.evolution import new_schema
from firn_spark.tables.java_tables import quoted
from tests.integration.ingestion.world import FIELDS, Record, World, audit_of, value
from tests.servers.iceberg_sink import iceberg_sink
from tests.servers.kafka import SMALL
from tests.servers.postgres import Postgres
from tests.servers.process import cache

OWN = {"write.parquet.compression-codec": "zstd", "owner.team": "shop"}


@dataclass
class Connector:
    """A topic whose table the sink fills, on local files: the sink's jars have no object store."""

    world: World
    topic: str
    control: str
    database: Postgres
    directory: Path

    @property
    def group(self) -> str:
        return f"connect-{self.topic}"

    @property
    def connection(self) -> CatalogConnection:
        secret = self.directory / "password"
        secret.write_text(self.database.password)
        return CatalogConnection(
            type="sql",
            uri=self.database.uri,
            warehouse=(self.directory / "warehouse").as_uri(),
            properties={"user": self.database.user},
            secret_properties={"password": str(secret)},
        )

    @property
    def properties(self) -> dict[str, str]:
        return {
            "name": self.topic,
            "tasks.max": "1",
            "topics": self.topic,
            "iceberg.tables": f"shop.{self.topic}",
            "iceberg.control.topic": self.control,
            "iceberg.control.commit.interval-ms": "1000",
            # The group of the coordinator has its member for this long after the end.
            "iceberg.kafka.session.timeout.ms": "6000",
            "iceberg.kafka.heartbeat.interval.ms": "2000",
            "iceberg.catalog": "local",
            "iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "iceberg.catalog.uri": f"jdbc:{self.database.uri}",
            "iceberg.catalog.jdbc.user": self.database.user,
            "iceberg.catalog.jdbc.password": self.database.password,
            "iceberg.catalog.jdbc.schema-version": "V1",
            "iceberg.catalog.warehouse": self.connection.warehouse,
        }

    def create_table(self) -> None:
        schema = new_schema([field.model_copy(update={"required": False}) for field in FIELDS])
        catalog = open_catalog("local", self.connection)
        catalog.create_namespace_if_not_exists("shop")
        catalog.create_table(
            ("shop", self.topic),
            schema=schema,
            partition_spec=PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "id_bucket")),
            sort_order=SortOrder(SortField(2, IdentityTransform())),
            properties={"format-version": "2", **OWN},
        )

    def job(self, **changes: Any) -> IngestJob:
        columns = tuple(field.model_copy(update={"required": False}) for field in FIELDS)
        target = {"catalog": "local", "namespace": "shop", "name": self.topic}
        job = self.world.job(self.topic, table=target, **changes)
        adopt = Adoption(connect=SinkCommits(control_topic=self.control, group=self.group))
        schema = job.record_schema.model_copy(update={"fields": columns})
        return job.model_copy(update={"adopt": adopt, "record_schema": schema})

    def ids(self) -> list[int]:
        """Return the column id of all rows."""
        rows = self.world.spark.read.format("iceberg").load(quoted("local", "shop", self.topic)).select("id").collect()
        return sorted(row[0] for row in rows)

    def events(self) -> Iterator[bytes]:
        """Yield the events on the control topic."""
        consumer = Consumer(
            {"bootstrap.servers": self.world.broker.bootstrap, "group.id": "tests", "enable.partition.eof": True}
        )
        try:
            consumer.assign([TopicPartition(self.control, 0, 0)])
            while True:
                message = consumer.poll(30)
                assert message is not None
                if message.error():
                    return
                yield message.value() or b""
        finally:
            consumer.close()


@pytest.fixture
def connector(world: World, database: Postgres, tmp_path: Path) -> Connector:
    made = Connector(world, world.topic("orders", 2), world.topic("control"), database, tmp_path)
    world.add_catalog("local", made.connection)
    made.create_table()
    return made


def records(first: int, count: int) -> list[Record]:
    return [Record(value(n), partition=n % 2) for n in range(first, first + count)]


def run_sink(connector: Connector, rows: int, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Run the sink until it has committed so many rows, and stop it."""
    world, jars = connector.world, cache() / "jars" / "sink"
    with iceberg_sink(connector.directory / "sink", jars, world.broker.bootstrap, connector.properties, java=SMALL) as (
        sink,
        _,
    ):
        world.await_offsets(lambda: world.size(connector.job()) == rows, f"{rows} rows of the sink", connector.job())
        assert sink.is_running()
        meanwhile()


def test_a_topic_continues_exactly_where_the_sink_ended(connector: Connector) -> None:
    world, job = connector.world, connector.job()
    world.produce(connector.topic, records(0, 40))
    world.start()

    def refused_while_the_sink_runs() -> None:
        world.apply(job)
        state = world.await_state(job, "BackingOff", reason=Reason.WAITING_FOR_CONNECTOR)
        assert "so the connector runs; stop the connector" in state.message

    run_sink(connector, 40, refused_while_the_sink_runs)
    before = world.table(job)
    key = f"kafka.connect.offsets.{connector.control}.{connector.group}"
    ended = json.loads(before.currentSnapshot().summary().get(key))
    world.produce(connector.topic, records(40, 30))
    world.await_offsets(lambda: world.size(job) >= 70, "70 rows", job)
    assert connector.ids() == list(range(70))
    assert world.landed(job) == {0: 35, 1: 35}
    table = world.table(job)
    assert table.spec().toString() == before.spec().toString()
    assert table.sortOrder().toString() == before.sortOrder().toString()
    assert {key: table.properties().get(key) for key in OWN} == OWN
    assert table.properties().get(names.TABLE_KAFKA_CLUSTER)
    taken = next(
        snapshot.summary()
        for snapshot in world.snapshots(job)
        if snapshot.summary().get(names.SUMMARY_KIND) == "ingest"
    )
    assert json.loads(taken.get(key))["0"] > ended["0"]

    # A restart does not take the table over again.
    world.stop()
    world.start()
    world.produce(connector.topic, records(70, 10))
    world.await_offsets(lambda: world.size(job) >= 80, "80 rows", job)
    assert connector.ids() == list(range(80))
    audited = audit_of(world, job)
    assert audited.exact
    assert sum(part.rows for part in audited.partitions) == 40
    assert sum(part.unproved for part in audited.partitions) == 40
