"""A topic takes its table over from the real Iceberg sink of Kafka Connect: every record lands exactly once."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform

from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import CommitConflictError, InvalidSpecError
from firn.model.jobs import CatalogConnection, IngestJob
from firn.schemas import projections
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.adapters.iceberg.evolution import new_schema
from firn_operator.cli.adoption import connect
from firn_operator.cli.adoption.manifest import Choices
from firn_spark.failpoints import Failpoints
from firn_spark.kafka.sink_events import data_written
from firn_spark.tables.commits import Committer, Extras, OtherWriter, newest_summary, read_landed
from firn_spark.tables.java_tables import quoted
from tests.integration.ingestion.contracts import schema_of
from tests.integration.ingestion.test_schema_registries import framed, record
from tests.integration.ingestion.world import FIELDS, Record, World, audit_of, value
from tests.servers.apicurio import Apicurio
from tests.servers.iceberg_sink import CONNECTOR, JSON, iceberg_sink
from tests.servers.kafka import SMALL
from tests.servers.postgres import Postgres
from tests.servers.process import await_true, cache

OWN = {"write.parquet.compression-codec": "zstd", "owner.team": "shop"}


@dataclass
class Connector:
    """A topic whose table the sink fills, on local files: the sink's jars have no object store."""

    world: World
    topic: str
    control: str
    database: Postgres
    directory: Path
    converter: Mapping[str, str] = field(default_factory=dict)
    """Properties of the connector, beside those for JSON."""

    @property
    def group(self) -> str:
        return f"connect-{self.topic}"

    @property
    def resource(self) -> str:
        """The name of the IcebergTopic. Unlike that of a Kafka topic, it has no underscores."""
        return self.control.replace("_", "-")

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
            **self.converter,
        }

    def create_table(self) -> None:
        schema = new_schema([each.model_copy(update={"required": False}) for each in FIELDS])
        catalog = open_catalog("local", self.connection)
        catalog.create_namespace_if_not_exists("shop")
        catalog.create_table(
            ("shop", self.topic),
            schema=schema,
            partition_spec=PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "id_bucket")),
            sort_order=SortOrder(SortField(2, IdentityTransform())),
            properties={"format-version": "2", **OWN},
        )

    def job(self, registry: Apicurio | None = None) -> IngestJob:
        """Return the contract of the manifest that ``firn adopt connect`` writes."""
        file = self.directory / "connector.json"
        file.write_text(json.dumps({"connector.class": CONNECTOR, **JSON, **self.properties}))
        choices = Choices("tests", name=self.resource, catalog="local", registry="main" if registry else "")
        text, _ = connect.run(str(file), choices, dry_run=False)
        topic = IcebergTopic.parse(yaml.safe_load(text))
        target = topic.table_target("").model_dump()
        schema = topic.record_schema()
        if registry is not None:
            schema = projections.applied(schema_of(registry, f"{self.topic}-value"), schema.projection)
        return self.world.job(self.topic, table=target, record_schema=schema, adopt=topic.adoption, name=self.resource)

    def ids(self) -> list[int]:
        """Return the column id of all rows."""
        rows = self.world.spark.read.format("iceberg").load(quoted("local", "shop", self.topic)).select("id").collect()
        return sorted(row[0] for row in rows)

    def set_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        places = [TopicPartition(topic, part, offset) for part, offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(group, places)
        self.world.admin.alter_consumer_group_offsets([request])[group].result(30)

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


@contextmanager
def sink(connector: Connector, rows: int) -> Iterator[None]:
    """Run the sink until it has committed so many rows, and for the with block."""
    world, jars = connector.world, cache() / "jars" / "sink"
    connection = world.broker.bootstrap
    with iceberg_sink(connector.directory / "sink", jars, connection, connector.properties, java=SMALL) as (running, _):
        catalog = open_catalog("local", connector.connection)
        await_true("the table", lambda: catalog.table_exists(("shop", connector.topic)))
        table: Any = world.tables.load("local", "shop", connector.topic)

        def committed() -> bool:
            table.refresh()
            snapshot = table.currentSnapshot()
            return snapshot is not None and int(snapshot.summary().get("total-records")) == rows

        await_true(f"{rows} rows of the sink", committed)
        assert running.is_running()
        yield


def test_a_topic_continues_where_the_sink_ended_and_the_sink_where_the_topic_ended(connector: Connector) -> None:
    world = connector.world
    world.produce(connector.topic, records(0, 40))
    world.start()
    with sink(connector, 40):
        job = connector.job()
        before = world.table(job)
        assert before.properties().get(names.TABLE_ADOPT) == f"tests/{connector.resource}"
        world.apply(job)
        state = world.await_state(job, "BackingOff", reason=Reason.WAITING_FOR_CONNECTOR)
        assert "so the connector runs; stop the connector" in state.message
        # Otherwise the driver could take the table over before the next step has written its event.
        world.stop()
    a_file_without_a_commit_is_awaited(connector, job)
    world.produce(connector.topic, records(40, 30))
    world.await_offsets(lambda: world.size(job) >= 70, "70 rows", job)
    assert connector.ids() == list(range(70))
    assert world.landed(job) == {0: 35, 1: 35}
    the_table_keeps_its_layout(before, world.table(job))

    # A restart does not take the table over again.
    world.stop()
    world.start()
    world.produce(connector.topic, records(70, 10))
    world.await_offsets(lambda: world.size(job) >= 80, "80 rows", job)
    assert connector.ids() == list(range(80))
    audited = audit_of(world, job)
    assert audited.exact
    assert [(part.rows, part.unproved) for part in audited.partitions] == [(20, 20), (20, 20)]

    # The way back, and the way from there.
    world.stop()
    connector.set_group_offsets(connector.group, connector.topic, world.landed(job))
    world.produce(connector.topic, records(80, 10))
    with sink(connector, 90):
        assert connector.ids() == list(range(90))
    world.produce(connector.topic, records(90, 10))
    world.start()
    world.await_offsets(lambda: world.size(job) >= 100, "100 rows", job)
    assert connector.ids() == list(range(100))
    assert audit_of(world, job).exact


def a_file_without_a_commit_is_awaited(connector: Connector, job: IngestJob) -> None:
    """Check that the topic waits for a commit of the sink's coordinator, and continues after it."""
    world = connector.world
    written = [event for event in connector.events() if data_written(event) is not None]
    world.produce(connector.control, [written[-1]])
    world.start()
    waiting = f"table {job.table.identifier}: files that the connector has written wait for their commit"
    await_true("the files wait", lambda: waiting in getattr(world.progress(job), "message", ""))
    assert world.landed(job) == {}
    connector.set_group_offsets(f"{connector.group}-coord", connector.control, {0: world.end(connector.control)})


def the_table_keeps_its_layout(before: Any, after: Any) -> None:
    """Check what a takeover does not change, and the places from which the audits and the sink continue."""
    assert after.spec().toString() == before.spec().toString()
    assert after.sortOrder().toString() == before.sortOrder().toString()
    assert {key: after.properties().get(key) for key in OWN} == OWN
    assert after.properties().get(names.TABLE_KAFKA_CLUSTER)


@pytest.mark.long
def test_a_table_of_an_avro_converter_gets_the_values_of_later_records(
    served: World, registry: Apicurio, database: Postgres, tmp_path: Path
) -> None:
    converter = {
        "value.converter": "io.apicurio.registry.utils.converter.AvroConverter",
        "value.converter.apicurio.registry.url": f"http://127.0.0.1:{registry.port}/apis/registry/v2",
        "value.converter.apicurio.registry.as-confluent": "true",
        "value.converter.apicurio.registry.use-id": "contentId",
        "iceberg.tables.auto-create-enabled": "true",
    }
    made = Connector(served, served.topic("orders"), served.topic("control"), database, tmp_path, converter)
    served.add_catalog("local", made.connection)
    open_catalog("local", made.connection).create_namespace_if_not_exists("shop")
    kinds = {"ref": ("string", "uuid"), "at": ("long", "timestamp-micros"), "day": ("int", "date")}
    logical = ({"name": name, "type": {"type": kind, "logicalType": of}} for name, (kind, of) in kinds.items())
    schema = record({"name": "id", "type": "int"}, *logical)
    number, at = registry.register(f"{made.topic}-value", schema), datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)

    def produce(*ids: int) -> None:
        values = [framed(number, schema, id=n, ref=str(UUID(int=n)), at=at, day=at.date()) for n in ids]
        served.produce(made.topic, values)

    produce(0, 1)
    with sink(made, 2):
        pass
    with pytest.raises(InvalidSpecError, match="column at is long in the table and timestamptz in the schema"):
        made.job(registry)
    with open_catalog("local", made.connection).load_table(("shop", made.topic)).update_schema() as update:
        update.make_column_optional("at")
    job = made.job(registry)
    served.apply(job)
    served.start()
    produce(2, 3)
    served.await_offsets(lambda: served.size(job) >= 4, "4 rows", job)
    found = served.spark.read.format("iceberg").load(quoted("local", "shop", made.topic)).orderBy("id").collect()
    assert [row["id"] for row in found] == [0, 1, 2, 3]
    assert [row["ref"] for row in found] == [str(UUID(int=n)) for n in range(4)]
    assert [row["day"] for row in found] == [at.date()] * 4
    micros = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert [row["at"] for row in found] == [micros, micros, None, None]
    assert [row["at_v2"] and row["at_v2"].astimezone(UTC) for row in found] == [None, None, at, at]
    assert served.dead(job) == []


def test_a_commit_of_the_sink_in_between_stops_a_takeover(world: World) -> None:
    job = world.job(world.topic())
    table = world.tables.ensure(job)
    committer = Committer(world.tables, "driver", Failpoints())
    table.newAppend().set("sink", "1").commit()
    stale, present = OtherWriter("sink", "0", "9"), OtherWriter("sink", "1", "9")
    with pytest.raises(CommitConflictError, match="the connector committed again"):
        committer.commit(table, (), None, "id", 1, {0: 5}, Extras(other=stale))
    assert read_landed(table) is None
    landed = committer.commit(table, (), None, "id", 1, {0: 5}, Extras(other=present))
    assert newest_summary(table, "sink") == "9"

    # The connector is resumed after the takeover. Other engines do not matter.
    table.newAppend().set("other", "1").commit()
    landed = committer.commit(table, (), landed, "id", 1, {0: 6}, Extras(other_key="sink"))
    table.newAppend().set("sink", "2").commit()
    table.newAppend().set("other", "2").commit()
    with pytest.raises(CommitConflictError, match="the connector committed again after the topic took the table over"):
        committer.commit(table, (), landed, "id", 1, {0: 7}, Extras(other_key="sink"))
    assert read_landed(table) == landed
