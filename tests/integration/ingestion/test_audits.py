"""The full audit of maintenance runs finds what is wrong between a log and its tables, and nothing else."""

from confluent_kafka import Producer

from firn.model import names
from firn.model.jobs import IngestJob
from firn.model.maintenance import AuditReport
from firn.model.progress import AuditFrom
from firn_spark.kafka.admin import Kafka
from firn_spark.maintenance.steps.audit import Source, Tables, audit
from firn_spark.tables.java_tables import quoted
from tests.integration.ingestion.world import Record, World, value


def audited(world: World, job: IngestJob) -> AuditReport | None:
    target = job.table

    def source(suffix: str) -> Source | None:
        table = world.tables.load(target.catalog, target.namespace, target.name + suffix)
        flat = target.metadata_columns == "Flat" and not suffix
        name = quoted(target.catalog, target.namespace, target.name + suffix)
        return Source(table, name, flat) if table is not None else None

    rows = source("")
    assert rows is not None
    kafka = Kafka("classic", world.broker.connection)
    return audit(world.spark, [Tables(rows, lambda: source("__dlq"))], kafka, target.name, lambda: None)


def test_an_audit_finds_missing_and_doubled_rows_and_no_others(world: World) -> None:
    topic = world.topic(partitions=2)
    job = world.job(topic, table={"metadata_columns": "Flat"})
    world.produce(topic, [Record(value(n), partition=1) for n in range(40_000)])
    world.produce(topic, [Record(b"bad"), Record(value(1))])
    producer = Producer({"bootstrap.servers": world.broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        world.produce(topic, [Record(value(n)) for n in range(3)], producer)
        end(30)
    world.produce(topic, [Record(value(9))])
    world.apply(job)
    world.start()
    # A bad record, a record, three and a marker, three, and then a marker and a record in any order: the broker writes
    # the marker after it has answered.
    world.await_offsets(lambda: world.landed(job) == {0: 11, 1: 40_000}, "all offsets", job)
    world.stop()
    topic_id = world.topic_id(topic)
    properties = world.table(job).properties()
    commit = properties.get(names.SUMMARY_COMMIT_ID)
    assert AuditFrom.read(properties.get(names.TABLE_AUDIT_FROM)) == AuditFrom(topic_id=topic_id, commit=commit)
    exact = AuditReport(topic_id=topic_id, offsets=40_011)
    assert audited(world, job) == exact
    world.spark.sql(f"delete from {job.table.identifier} where _kafka_partition = 1 and _kafka_offset = 20000")
    world.spark.sql(f"delete from {job.table.identifier}__dlq")
    world.spark.sql(
        f"insert into {job.table.identifier} select * from {job.table.identifier} where _kafka_partition = 0 and _kafka_offset = 1"
    )
    found = audited(world, job)
    assert found is not None
    ranges = {"missing_ranges": ((0, 0, 1), (1, 20_000, 20_001)), "surplus_ranges": ((0, 0, 64),)}
    expected = exact.model_copy(update={"missing": 2, "doubled": 1, "partition": 0, "offset": 0, **ranges})
    assert found.model_dump() == expected.model_dump()
