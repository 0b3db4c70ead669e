"""Topics of diskless brokers land like any other: both readers use the ordinary Kafka protocol."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from firn.model.jobs import GroupSettings, KafkaConnection
from firn_spark.ingestion.rounds import landing_job
from tests.integration.ingestion.world import Record, World, exactly, places, value, varied_records
from tests.servers.firn_broker import FirnBroker, embedded
from tests.servers.kafka import Kafka


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FirnBroker]:
    # Some records here have timestamps years ago, and the first round of retention must not delete them.
    with embedded(tmp_path / "broker", FIRN_BROKER_TOPICS__CONFIGS='{"retention.ms": "-1"}') as server:
        yield server


@pytest.fixture
def world(settings: GroupSettings, server: FirnBroker, spark: object, tmp_path: Path) -> Iterator[World]:
    connection = KafkaConnection(bootstrap_servers=server.bootstrap)
    settings = settings.model_copy(update={"kafka": {"classic": connection}})
    with World(settings, Kafka(server.bootstrap), spark, tmp_path) as world:
        yield world


@pytest.mark.parametrize("reader", ["fetch", "spark"])
def test_both_readers_land_diskless_records(
    world: World, server: FirnBroker, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landing_job, "needs_spark_source", lambda _: reader == "spark")
    topic = world.topic(partitions=3)
    job = world.job(topic)
    sent = varied_records(300)
    world.produce(topic, sent)
    world.apply(job)
    world.start()
    rows = sorted(world.await_rows(job, 300), key=lambda row: row["id"])
    assert [row["_kafka"]["timestamp_ms"] for row in rows] == [1_700_000_000_000 + n for n in range(300)]
    assert [row["_kafka"]["key"] for row in rows] == [record.key for record in sent]
    assert [len(row["_kafka"]["headers"] or ()) for row in rows] == [n % 3 for n in range(300)]

    # The broker is killed and another one replaces it. Compressed records that are produced then land, too.
    server.kill()
    server.start()
    for part, codec in enumerate(("gzip", "snappy", "lz4", "zstd")):
        squeezed = Producer(
            {
                "bootstrap.servers": server.bootstrap,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 50,
            }
        )
        first = 300 + 750 * part
        world.produce(topic, [Record(value(n), partition=n % 3) for n in range(first, first + 750)], squeezed)
    landed = places(world.await_rows(job, 3_300))
    assert landed == exactly(dict.fromkeys(range(3), 1_100))
    assert world.landed(job) == dict.fromkeys(range(3), 1_100)
