"""Records of a real Kafka become rows with the same content, for records of any kind."""

import json
from datetime import UTC, date, datetime

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from firn.model.jobs import Column, KeySchema, RecordSchema, StartFrom
from firn.tables import table_properties
from firn_spark.ingestion.rounds import landing_job
from firn_spark.tables.java_tables import partition_terms, sort_terms
from tests.integration.ingestion.world import FIELDS, Record, World, exactly, places, value, varied_records


def test_records_written_before_and_after_the_driver_started_are_rows(world: World) -> None:
    topic = world.topic(partitions=2)
    job = world.job(topic)
    world.produce(topic, [value(number) for number in range(100)])
    world.apply(job)
    world.start()
    rows = world.await_rows(job, 100)
    assert [(row["id"], row["name"], row["score"]) for row in rows] == [(n, f"n{n}", n / 2) for n in range(100)]
    world.produce(topic, [value(number) for number in range(100, 150)])
    assert places(world.await_rows(job, 150)) == exactly({0: 150})
    assert world.landed(job) == {0: 150, 1: 0}


def test_keys_headers_and_payloads_keep_their_bytes(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, record_schema=RecordSchema(format="Raw"))
    records = [
        Record(None, key=b"tombstone"),
        Record(b"", key=b""),
        Record(b"\xff\x00not text", key=None, headers=[("a", b"1"), ("a", b"2"), ("b", None), ("", b"\xff")]),
        Record(b"x" * 1_048_576, key=b"large"),
        Record(b"plain", headers=[]),
    ]
    world.produce(topic, records)
    world.apply(job)
    world.start()
    rows = world.await_rows(job, len(records))
    assert [row["value"] for row in rows] == [record.value for record in records]
    assert [row["key"] for row in rows] == [record.key for record in records]
    assert [row["_kafka"]["key"] for row in rows] == [record.key for record in records]
    headers = [[(header["key"], header["value"]) for header in row["_kafka"]["headers"] or ()] for row in rows]
    assert headers == [record.headers or [] for record in records]


def test_the_fields_of_keys_are_columns(world: World) -> None:
    topic = world.topic()
    key = KeySchema(columns="Struct", fields=(Column(name="id", type="long"),))
    job = world.job(topic, record_schema=RecordSchema(format="Json", fields=FIELDS, key=key))
    world.produce(topic, [Record(value(1), key=b'{"id": 7}'), Record(value(2), key=None), Record(value(3), key=b"{")])
    world.apply(job)
    world.start()
    rows = world.await_rows(job, 2)
    assert [(row["id"], row["key"], row["_kafka"]["key"]) for row in rows] == [
        (1, {"id": 7}, b'{"id": 7}'),
        (2, None, None),
    ]
    assert [(row["error_path"], row["key"]) for row in world.dead(job)] == [("$key", b"{")]
    flat = key.model_copy(update={"fields": (Column(name="id", type="long"), Column(name="at", type="date"))})
    world.apply(
        job.model_copy(update={"generation": 2, "record_schema": job.record_schema.model_copy(update={"key": flat})})
    )
    world.await_state(job, "CaughtUp", generation=2)
    world.produce(topic, [Record(value(4), key=b'{"id": 8, "at": "2026-01-31"}')])
    assert world.await_rows(job, 3)[-1]["key"] == {"id": 8, "at": date(2026, 1, 31)}


@pytest.mark.parametrize("reader", ["fetch", "spark"])
def test_both_readers_land_the_same_rows(world: World, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing_job, "needs_spark_source", lambda _: reader == "spark")
    topic = world.topic(partitions=3)
    job = world.job(topic)
    sent = varied_records(300)
    world.produce(topic, sent)
    world.apply(job)
    world.start()
    rows = sorted(world.await_rows(job, 300), key=lambda row: row["id"])
    assert [row["_kafka"]["timestamp_ms"] for row in rows] == [1_700_000_000_000 + n for n in range(300)]
    assert [row["_kafka"]["timestamp_type"] for row in rows] == [0] * 300
    assert [row["_kafka"]["key"] for row in rows] == [record.key for record in sent]
    assert [len(row["_kafka"]["headers"] or ()) for row in rows] == [n % 3 for n in range(300)]
    assert rows[5]["_kafka"]["timestamp"] == datetime.fromtimestamp(1_700_000_000.005, UTC).replace(tzinfo=None)


def test_large_records_may_follow_small_ones(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, record_schema=RecordSchema(format="Raw"))
    world.produce(topic, [b"small"] * 300)
    world.apply(job)
    world.start()
    world.await_rows(job, 300)
    # Each of these records fills a good part of a block.
    world.produce(topic, [b"%d" % n * 500_000 for n in range(10, 50)])
    rows = world.await_rows(job, 340)
    assert [row["value"] for row in rows[300:]] == [b"%d" % n * 500_000 for n in range(10, 50)]
    world.produce(topic, [b"small"])
    assert places(world.await_rows(job, 341)) == exactly({0: 341})


def test_times_beyond_microseconds_are_kept_in_milliseconds(world: World) -> None:
    topic = world.topic(message_timestamp_after_max_ms=str(2**63 - 1))
    job = world.job(topic)
    world.produce(topic, [Record(value(0), timestamp=2**62), Record(value(1), timestamp=1_700_000_000_000)])
    world.apply(job)
    world.start()
    far, near = (row["_kafka"] for row in world.await_rows(job, 2))
    assert (far["timestamp"], far["timestamp_ms"]) == (None, 2**62)
    assert near["timestamp"] is not None


def test_only_committed_records_are_rows(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    producer = Producer({"bootstrap.servers": world.broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for number, end in enumerate(
        [
            producer.commit_transaction,
            producer.abort_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
        ]
    ):
        producer.begin_transaction()
        world.produce(topic, [value(number * 10 + digit) for digit in range(10)], producer)
        end(30)
    world.apply(job)
    world.start()
    rows = world.await_rows(job, 20)
    assert [row["id"] for row in rows] == [*range(10), *range(20, 30)]
    world.await_state(job, "CaughtUp", lag_records=0)
    # An open transaction delays no other record, and its records are not read.
    producer.begin_transaction()
    world.produce(topic, [value(99)], producer)
    world.await_state(job, "CaughtUp", lag_records=0)
    assert len(world.rows(job)) == 20
    producer.commit_transaction(30)
    assert world.await_rows(job, 21)[-1]["id"] == 99


def test_the_driver_reads_across_compacted_offsets(world: World) -> None:
    topic = world.topic(
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="100",
        delete_retention_ms="100",
    )
    job = world.job(topic)
    for generation in range(3):
        world.produce(topic, [Record(value(number + generation * 100), key=b"k%d" % number) for number in range(20)])
    world.await_compaction(topic, 40, Record(value(1000), key=b"last"))
    end = world.end(topic)
    world.apply(job)
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: end}, "all offsets", job)
    rows = world.rows(job)
    assert {*range(200, 220), 1000} <= {row["id"] for row in rows}
    assert len(rows) < end
    assert set(places(rows).values()) == {1}


def test_each_type_becomes_its_column_type(world: World) -> None:
    fields = (
        Column(name="flag", type="boolean"),
        Column(name="amount", type="decimal(10, 2)"),
        Column(name="day", type="date"),
        Column(name="at", type="timestamptz"),
        Column(name="tags", type="list<string>"),
        Column(name="by", type="map<string, long>"),
        Column(name="where_", type="struct<lat: double, lon: double>"),
    )
    topic = world.topic()
    job = world.job(
        topic,
        record_schema=RecordSchema(format="Json", fields=fields),
        table={"partition_by": ("month(at)", "bucket(4, day)"), "sort_by": ("at desc",)},
    )
    document = {
        "flag": True, "amount": "12.30", "day": "2024-02-29", "at": "2024-02-29T12:00:00+01:00", "tags": ["a", None], "by": {"x": 1},
        "where_": {"lat": 1.5, "lon": None},
    }  # fmt: skip
    world.produce(topic, [json.dumps(document).encode(), b"{}"])
    world.apply(job)
    world.start()
    full, empty = world.await_rows(job, 2)
    assert str(full["amount"]) == "12.30"
    assert full["day"].isoformat() == "2024-02-29"
    assert full["at"] == datetime(2024, 2, 29, 11)
    assert (full["tags"], full["by"], full["where_"]) == (["a", None], {"x": 1}, {"lat": 1.5, "lon": None})
    assert all(empty[field.name] is None for field in fields)


def test_flat_metadata_columns_land_in_a_table_of_version_3(world: World) -> None:
    topic = world.topic()
    target = {"metadata_columns": "Flat", "format_version": 3, "partition_by": ("bucket(2, id)",)}
    job = world.job(topic, table={**target, "properties": {"kept": "1", "dropped": "2"}})
    world.produce(topic, [value(number) for number in range(10)])
    world.apply(job)
    world.start()
    rows = world.await_rows(job, 10)
    assert [row["_kafka_offset"] for row in rows] == list(range(10))
    assert world.table(job).operations().current().formatVersion() == 3
    assert (
        dict(world.table(job).properties()).items()
        >= {
            **table_properties.CREATED_WITH,
            "write.metadata.metrics.column._kafka_offset": "full",
            table_properties.CODEC: "zstd",
            "kept": "1",
            "dropped": "2",
        }.items()
    )
    # Only properties and layouts that the spec set are removed.
    world.table(job).updateProperties().set("somebody.s", "own").commit()
    world.spark.sql(f"alter table {job.table.identifier} write ordered by id")
    del target["partition_by"]
    world.apply(world.job(topic, generation=2, table={**target, "properties": {"kept": "3"}}))
    world.await_state(job, "CaughtUp", generation=2)
    properties = dict(world.table(job).properties())
    assert (properties["kept"], properties["somebody.s"], "dropped" in properties) == ("3", "own", False)
    assert (partition_terms(world.table(job)), sort_terms(world.table(job))) == ([], ["id asc nulls first"])


def test_start_from_latest_is_remembered_across_a_restart(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, start_from=StartFrom(kind="Latest"))
    world.produce(topic, [value(number) for number in range(5)])
    world.apply(job)
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: 5}, "the first offsets", job)
    world.stop()
    world.produce(topic, [value(number) for number in range(5, 8)])
    world.start()
    assert [row["id"] for row in world.await_rows(job, 3)] == [5, 6, 7]


def test_start_from_a_time_reads_from_that_time(world: World) -> None:
    topic = world.topic(partitions=2)
    job = world.job(topic, start_from=StartFrom(kind="Timestamp", timestamp_ms=1_700_000_000_005))
    world.produce(topic, [Record(value(n), timestamp=1_700_000_000_000 + n) for n in range(10)])
    world.apply(job)
    world.start()
    assert [row["id"] for row in world.await_rows(job, 5)] == [5, 6, 7, 8, 9]
    world.produce(topic, [Record(value(77), partition=1, timestamp=1_600_000_000_000)])
    assert 77 in {row["id"] for row in world.await_rows(job, 6)}


def test_added_partitions_are_read_from_their_beginning(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, start_from=StartFrom(kind="Latest"))
    world.apply(job)
    world.start()
    world.await_state(job, "CaughtUp")
    world.admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    world.produce(topic, [Record(value(1), partition=1)])
    assert [row["_kafka"]["partition"] for row in world.await_rows(job, 1)] == [1]


def test_records_land_over_tls_and_sasl(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, profile="secure")
    world.produce(topic, [value(1)])
    world.apply(job)
    world.start()
    world.await_rows(job, 1)


def test_the_spark_reader_uses_tls_and_sasl(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing_job, "needs_spark_source", lambda _: True)
    topic = world.topic()
    job = world.job(topic, profile="secure")
    world.produce(topic, [value(1)])
    world.apply(job)
    world.start()
    world.await_rows(job, 1)
