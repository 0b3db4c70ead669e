"""A bad record never blocks the topic and is never lost, unless the spec says so."""

from typing import Any

from firn.model.jobs import Column, RecordSchema
from firn.tables import table_properties
from tests.integration.ingestion.world import FIELDS, Record, World, exactly, places, value

BAD = [
    b"{",
    b'{"id": "text"}',
    b'{"id": 1.5}',
    b'{"id": 9223372036854775808}',
    b'{"name": "no id"}',
    b"\xff\xfe",
    b"[" * 5000,
    b"",
    None,
]


def mixed(count: int, every: int = 5) -> list[bytes | None]:
    return [BAD[(n // every) % len(BAD)] if n % every == 0 else value(n) for n in range(count)]


def audit(world: World, job: Any, ends: dict[int, int]) -> None:
    assert places([*world.rows(job), *world.dead(job)]) == exactly(ends)


def test_each_record_is_a_row_or_a_dead_letter(world: World) -> None:
    topic = world.topic()
    # Properties that name columns would prevent Iceberg from creating a table without these columns.
    columns = {"write.metadata.metrics.column.score": "none", "write.parquet.bloom-filter-enabled.column.id": "true"}
    job = world.job(topic, generation=7, table={"properties": {**columns, "comment": "orders"}})
    records = mixed(100)
    world.produce(topic, [Record(record, key=b"k") for record in records])
    world.apply(job)
    world.start()
    world.await_rows(job, 80)
    dead = world.dead(job)
    audit(world, job, {0: 100})
    assert [row["value"] for row in dead] == [record for n, record in enumerate(records) if n % 5 == 0]
    assert {row["generation"] for row in dead} == {7}
    assert all(row["error_code"] and row["error_stage"] and row["error_detail"] for row in dead)
    assert {row["error_code"] for row in dead if row["value"] is None} == {"Tombstone"}
    progress = world.await_state(job, "CaughtUp", rows=80, dead_letters=20)
    assert progress.dead_letter_table == f"{job.table.identifier}__dlq"
    letters = dict(world.table(job, "__dlq").properties())
    assert letters["comment"] == "orders"
    assert not columns.keys() & letters.keys()
    assert letters.items() >= table_properties.CREATED_WITH.items()
    world.produce(topic, [b"late", value(5)])
    world.await_rows(job, 81)
    audit(world, job, {0: 102})


def test_halt_stops_the_topic_at_the_record_and_skip_continues(world: World) -> None:
    topic, other = world.topic(partitions=2), world.topic("other")
    job, good = world.job(topic, on_bad_record="Halt"), world.job(other)
    world.produce(
        topic,
        [*(value(n) for n in range(3)), b"bad", value(4), b"worse", value(6), *(Record(value(9), partition=1),) * 3],
    )
    world.apply(job, good)
    world.start()
    halted = world.await_state(job, "Halted").halted_at
    assert halted is not None
    assert (halted.partition, halted.offset) == (0, 3)
    assert places(world.rows(job)) == exactly({0: 3, 1: 3})
    world.produce(other, [value(1)])
    world.await_rows(good, 1)
    # The record becomes a dead letter, and the next bad record halts the topic again.
    world.apply(job.model_copy(update={"resume": "skip:0:3"}))
    world.await_offsets(
        lambda: bool((at := world.progress(job)) and at.halted_at and at.halted_at.offset == 5), "halt at 5", job
    )
    assert places(world.dead(job)) == {(0, 3): 1}
    assert len(world.rows(job)) == 7
    world.apply(job.model_copy(update={"resume": "skip:0:5"}))
    world.await_rows(job, 8)
    world.await_state(job, "CaughtUp")
    assert places([*world.rows(job), *world.dead(job)]) == exactly({0: 7, 1: 3})


def test_a_corrected_spec_ends_a_halt(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, on_bad_record="Halt")
    world.produce(topic, [value(0), b"bad", value(2)])
    world.apply(job)
    world.start()
    world.await_state(job, "Halted")
    world.apply(job.model_copy(update={"generation": 2, "on_bad_record": "DeadLetter"}))
    world.await_rows(job, 2)
    audit(world, job, {0: 3})


def test_skip_counts_the_skipped_records(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, on_bad_record="Skip")
    world.produce(topic, mixed(50))
    world.apply(job)
    world.start()
    world.await_rows(job, 40)
    recent = world.await_state(job, "CaughtUp", skipped=10, rows=40).recent
    assert recent is not None
    assert (recent.records, recent.rejected) == (50, 10)
    assert recent.code
    assert world.table(job, "__dlq") is None
    assert world.landed(job) == {0: 50}


def test_a_running_driver_uses_new_columns_and_wider_types(world: World) -> None:
    topic = world.topic()
    fields = (Column(name="id", type="int"), Column(name="name", type="string"))
    job = world.job(topic, record_schema=RecordSchema(format="Json", fields=fields))
    world.produce(topic, [value(1)])
    world.apply(job)
    world.start()
    world.await_rows(job, 1)
    wider = (Column(name="id", type="long"), Column(name="name", type="string"), Column(name="score", type="double"))
    world.apply(job.model_copy(update={"generation": 2, "record_schema": RecordSchema(format="Json", fields=wider)}))
    world.await_state(job, "CaughtUp", generation=2)
    world.produce(topic, [value(2**40)])
    rows = world.await_rows(job, 2)
    assert [(row["id"], row["score"]) for row in rows] == [(1, None), (2**40, 2**39)]


def test_another_table_of_the_dead_letter_name_is_not_changed(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    foreign = f"{job.table.identifier}__dlq"
    world.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {job.table.catalog}.{job.table.namespace}")
    world.spark.sql(f"CREATE TABLE {foreign} (id bigint) USING iceberg")
    world.produce(topic, [value(0), b"bad"])
    world.apply(job)
    world.start()
    progress = world.await_state(job, "BackingOff", reason="ResourceConflict")
    assert foreign in progress.message
    assert world.spark.table(foreign).count() == 0
    world.spark.sql(f"ALTER TABLE {foreign} RENAME TO {job.table.namespace}.theirs_{world.suffix}")
    world.await_rows(job, 1)
    audit(world, job, {0: 2})


def test_an_incompatible_table_is_reported_and_not_changed(world: World) -> None:
    topic, other = world.topic(), world.topic("other")
    job = world.job(topic)
    world.apply(job)
    world.start()
    world.await_state(job, "CaughtUp")
    world.remove(job)
    world.await_offsets(lambda: world.progress(job) is None, "the topic to leave", job)
    clash = world.job(
        other,
        table={"name": topic},
        record_schema=RecordSchema(format="Json", fields=(*FIELDS[:1], Column(name="name", type="long"))),
    )
    world.apply(clash)
    progress = world.await_state(clash, "BackingOff", table_reason="SchemaIncompatible")
    assert "name is string, the schema wants long" in progress.table_message
