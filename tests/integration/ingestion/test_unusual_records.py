"""Both readers bring every committed record of unusual logs into the table, unchanged and once."""

from typing import Any

import pytest
from confluent_kafka import Producer

from firn.model.jobs import RecordSchema
from firn_spark.ingestion.rounds import landing_job
from tests.integration.ingestion import raw_produce
from tests.integration.ingestion.world import Record, World, places, value

READERS = ("fetch", "spark")
LAST_MICROSECONDS = 9_223_372_036_854_775
"""The last time in milliseconds that fits into a column of microseconds."""
TIMES = [1, 253_402_300_800_000, LAST_MICROSECONDS, LAST_MICROSECONDS + 1, 2**63 - 1]
"""Times around 1970 and the year 10000, and on both sides of the limits."""


def read_by(reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing_job, "needs_spark_source", lambda _: reader == "spark")


def test_records_of_any_kafka_timestamp_land(world: World) -> None:
    topic = world.topic(message_timestamp_after_max_ms=str(2**63 - 1))
    job = world.job(topic, table={"partition_by": ("day(_kafka.timestamp)",)})
    world.produce(topic, [Record(value(number), timestamp=time) for number, time in enumerate(TIMES, 1)])
    raw_produce.produce(world.broker.bootstrap, topic, [value(0), b"bad"], -1)
    world.apply(job)
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: 7}, "offset 7", job)
    # As numbers, because Python's times end with the year 9999.
    columns = "id, unix_micros(_kafka.timestamp) as micros, _kafka.timestamp_ms as ms, _kafka.timestamp_type as kind"
    rows = world.spark.sql(f"select {columns} from {job.table.identifier} order by id").collect()
    expected = [
        (number, time * 1000 if time <= LAST_MICROSECONDS else None, time, 0) for number, time in enumerate(TIMES, 1)
    ]
    assert [tuple(row) for row in rows] == [(0, None, -1, 0), *expected]
    (dead,) = world.dead(job)
    assert (dead["value"], dead["_kafka"]["timestamp"], dead["_kafka"]["timestamp_ms"]) == (b"bad", None, -1)
    days = world.spark.sql(f"select count(distinct partition) as days from {job.table.identifier}.files").first().days
    assert days == 4


@pytest.mark.parametrize("reader", READERS)
def test_records_of_any_key_value_and_header_land(world: World, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read_by(reader, monkeypatch)
    topic = world.topic()
    job = world.job(topic, record_schema=RecordSchema(format="Raw"))
    records = [
        Record(None, key=b"tombstone"),
        Record(None),
        Record(b"", key=b""),
        Record(b"\xff\x00", headers=[("same", b"1"), ("same", b"2"), ("none", None), ("", b""), ("naïve ✓", b"\xff")]),
        Record(bytes(range(256)) * 4096, key=b"1 MiB"),
        Record(b"x" * 1_048_576, headers=[("large", b"y" * 100_000)]),
        Record(b"after it"),
    ]
    world.produce(topic, records)
    world.apply(job)
    world.start()
    rows = world.await_rows(job, len(records))
    assert [(row["key"], row["value"]) for row in rows] == [(record.key, record.value) for record in records]
    headers = [[(header["key"], header["value"]) for header in row["_kafka"]["headers"] or ()] for row in rows]
    assert headers == [record.headers or [] for record in records]


@pytest.mark.parametrize("reader", READERS)
def test_records_with_header_names_that_are_not_utf_8_land(
    world: World, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by(reader, monkeypatch)
    topic = world.topic()
    job = world.job(topic)
    world.produce(topic, [Record(value(0), headers=[("plain", b"1")])])
    names = [b"\xff\xfe", b"cut short \xe2\x82", b"a\xc3(b", b"\xf0\x9f\x92"]
    for number, name in enumerate(names, 1):
        raw_produce.produce(world.broker.bootstrap, topic, [value(number)], 1, name)
    world.produce(topic, [Record(value(9), headers=[("plain", None)])])
    world.apply(job)
    world.start()
    rows = world.await_rows(job, 6)
    headers = [[(header["key"], header["value"]) for header in row["_kafka"]["headers"]] for row in rows]
    expected = ["\ufffd\ufffd", "cut short \ufffd", "a\ufffd(b", "\ufffd"]
    assert headers == [[("plain", b"1")], *([(name, b"v")] for name in expected), [("plain", None)]]


def test_a_log_with_aborted_transactions_and_gaps_lands(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = world.topic(
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="100",
        delete_retention_ms="100",
    )
    transactional = Producer({"bootstrap.servers": world.broker.bootstrap, "transactional.id": topic})
    transactional.init_transactions(30)

    def transaction(ids: range, end: Any) -> None:
        transactional.begin_transaction()
        world.produce(topic, [Record(value(id_), key=b"k%d" % (id_ % 20)) for id_ in ids], transactional)
        end(30)

    for first in (0, 100, 200):
        transaction(range(first, first + 20), transactional.commit_transaction)
        transaction(range(first + 50, first + 60), transactional.abort_transaction)
    # 40 records that newer ones replaced, 30 aborted ones and 6 markers.
    world.await_compaction(topic, 70, Record(value(300), key=b"filler"))
    # The end of the log holds only records that no consumer may read.
    transaction(range(400, 410), transactional.abort_transaction)
    end = world.end(topic)
    for reader in READERS:
        read_by(reader, monkeypatch)
        job = world.job(topic, uid=reader, table={"name": f"{topic}_{reader}"})
        world.apply(job)
        world.start()
        world.await_state(job, "CaughtUp", lag_records=0)
        rows = world.rows(job)
        ids = {row["id"] for row in rows}
        assert {*range(200, 220), 300} <= ids
        assert ids <= {*range(20), *range(100, 120), *range(200, 220), 300}
        assert set(places(rows).values()) == {1}
        assert len(rows) < end - 70
        world.stop()
        world.remove(job)


@pytest.mark.parametrize("reader", READERS)
def test_an_aborted_transaction_alone_lands_no_row(world: World, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read_by(reader, monkeypatch)
    topic = world.topic()
    job = world.job(topic)
    producer = Producer({"bootstrap.servers": world.broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    world.produce(topic, [value(1), value(2)], producer)
    producer.abort_transaction(30)
    world.apply(job)
    world.start()
    world.await_state(job, "CaughtUp", lag_records=0, rows=0)
    assert world.end(topic) == 3
    world.produce(topic, [value(3)])
    assert [row["id"] for row in world.await_rows(job, 1)] == [3]
