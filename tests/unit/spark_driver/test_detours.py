"""A round lands the same records whether its tasks read the bucket, the brokers, or both."""

import dataclasses
import json
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from firn.model.jobs import DirectReads, KafkaConnection
from firn_spark.ingestion.rounds.landing_job import LandingJobs, TopicResult
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.diskless.direct_reads import DirectReader
from firn_spark.worker.fetching.slices import Slice
from tests.unit.fetching.broker import Broker, WantedPartition, records
from tests.unit.fetching.bucket import Stored
from tests.unit.fetching.log import Batch, Record
from tests.unit.spark import tables
from tests.unit.spark_driver.topic import topic


class Spark:
    """Runs the tasks of a job here, one after the other."""

    @property
    def sparkContext(self) -> "Spark":
        return self

    def parallelize(self, groups: Sequence[Any], _: int) -> "Spark":
        self._groups = groups
        return self

    def mapPartitions(self, work: Any) -> "Spark":
        self._rows = [row for group in self._groups for row in work(iter([group]))]
        return self

    def collect(self) -> list[Any]:
        return self._rows


class Kafka:
    def __init__(self, connection: KafkaConnection) -> None:
        self.connection = connection


@pytest.fixture
def broker() -> Iterator[Broker]:
    cluster: list[Broker] = []
    with Broker(1, cluster) as broker:
        broker.leaders = {0: 1, 1: 1}
        yield broker


def stored_batch(first: int, count: int) -> Batch:
    return Batch(first, [Record(number, b'{"id": %d}' % (first + number)) for number in range(count)])


@pytest.fixture
def bucket(tmp_path: Path) -> Stored:
    """Return a bucket with three objects, each with two records of both partitions."""
    (tmp_path / "bucket").mkdir()
    made = Stored(tmp_path / "bucket")
    for number in range(3):
        made.put(f"o{number}", {("orders", part): [stored_batch(2 * number, 2)] for part in range(2)})
    return made


def land(
    broker: Broker,
    bucket: Stored,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    located: bool = True,
    rebuilt: bool = False,
) -> TopicResult:
    """Land both partitions. ``located``: the brokers say where their records are. ``rebuilt``: in a table."""

    def locate(_: DirectReader, groups: Sequence[Sequence[Slice]], ids: dict[str, str]) -> list[list[Slice]]:
        assert ids == {"orders": "id-1"}
        if not located:
            return [[dataclasses.replace(part, rebuilt=rebuilt) for part in group] for group in groups]
        return [[bucket.slice(part.topic, part.partition, part.start, part.end) for part in group] for group in groups]

    monkeypatch.setattr(DirectReader, "locate", locate)
    direct = DirectReads(address="http://127.0.0.1:1", token_path="/none", url=bucket.directory.as_uri())
    connection = KafkaConnection(bootstrap_servers=f"127.0.0.1:{broker.port}")
    landing: Topic = topic()
    landing.table.spec = tables.table_of(landing.job, tmp_path / "table")
    jobs = LandingJobs(Spark(), lambda _: Kafka(connection), tasks=1, buffer_bytes=1 << 20, direct={"classic": direct})  # type: ignore[arg-type, return-value]
    return jobs.run({landing: {0: (0, 6), 1: (1, 5)}})["orders"]


def places(result: TopicResult) -> list[tuple[int, int, int]]:
    rows = tables.read([json.loads(text) for text in result.data])
    return sorted((row["_kafka"]["partition"], row["_kafka"]["offset"], row["id"]) for row in rows)


EXPECTED = [(0, number, number) for number in range(6)] + [(1, number, number) for number in range(1, 5)]


def serve(broker: Broker, *partitions: int) -> None:
    """Let the broker answer one Fetch of each partition with all records."""
    data = b"".join(stored_batch(2 * number, 2).encode() for number in range(3))
    broker.script = {part: deque([records(data)]) for part in partitions}


def test_tasks_read_the_bucket_and_ask_no_broker(
    broker: Broker, bucket: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = land(broker, bucket, tmp_path, monkeypatch)
    assert places(result) == EXPECTED
    assert result.partitions == {0: (6, 0, 5), 1: (4, 1, 4)}
    assert (result.detours, result.problem) == (0, "")
    assert broker.wanted == []


def test_brokers_serve_the_offsets_of_an_object_that_is_gone(
    broker: Broker, bucket: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bucket.directory / "o1").unlink()
    serve(broker, 0, 1)
    result = land(broker, bucket, tmp_path, monkeypatch)
    assert places(result) == EXPECTED
    assert result.partitions == {0: (6, 0, 5), 1: (4, 1, 4)}
    assert result.detours == 2
    assert "o1: it does not exist" in result.problem
    assert [(part.partition, part.fetch_offset) for part in broker.wanted] == [(0, 2), (1, 2)]


def test_brokers_serve_all_offsets_if_they_do_not_say_where_these_are(
    broker: Broker, bucket: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(broker, 0, 1)
    result = land(broker, bucket, tmp_path, monkeypatch, located=False)
    assert places(result) == EXPECTED
    assert result.detours == 2
    assert [part.fetch_offset for part in broker.wanted] == [0, 1]


def test_brokers_serve_offsets_that_they_rebuild_and_this_is_no_detour(
    broker: Broker, bucket: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(broker, 0, 1)
    result = land(broker, bucket, tmp_path, monkeypatch, located=False, rebuilt=True)
    assert places(result) == EXPECTED
    assert (result.detours, result.problem) == (0, "")


def test_a_damaged_object_is_no_reason_to_lose_or_repeat_records(
    broker: Broker, bucket: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = bucket.ranges["orders", 1][1]
    data = bytearray((bucket.directory / place.key).read_bytes())
    data[place.position + place.length - 1] ^= 1
    bucket.write(place.key, bytes(data))
    serve(broker, 1)
    result = land(broker, bucket, tmp_path, monkeypatch)
    assert places(result) == EXPECTED
    assert result.detours == 1
    assert broker.wanted == [WantedPartition(1, 0, 2)]
