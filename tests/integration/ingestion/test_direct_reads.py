"""Tasks read diskless topics from the bucket, and get what a Fetch of the brokers returns."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from prometheus_client.parser import text_string_to_metric_families

from firn.kafka_clients import kafka_id
from firn.model.errors import NotReadyError
from firn.model.jobs import DirectReads, GroupSettings, KafkaConnection
from firn_spark.kafka.diskless.direct_reads import DirectReader
from firn_spark.worker.fetching import source
from firn_spark.worker.fetching.access import access
from firn_spark.worker.fetching.objects import Objects
from firn_spark.worker.fetching.slices import Slice
from tests.integration.ingestion.test_fetching import rows_of
from tests.integration.ingestion.world import World, exactly, places, value, varied_records
from tests.servers.firn_broker import FirnBroker, fleet_settings, of_fleet
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres
from tests.servers.process import await_true, free_port
from tests.servers.s3 import S3

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3


@dataclass(frozen=True)
class Diskless:
    """A broker with an internal listener, and the connection of a driver to both."""

    broker: FirnBroker
    connection: KafkaConnection
    direct: DirectReads
    metrics: int
    bucket: Path
    """Directory of the S3 server with the objects of the broker."""

    def fetches(self) -> float:
        """Return the number of Fetch requests since the start of the broker."""
        text = httpx.get(f"http://127.0.0.1:{self.metrics}/metrics", timeout=10).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "firn_broker_request_seconds_count" and sample.labels["api"] == "Fetch"
        )

    def objects(self) -> list[Path]:
        while True:
            # The server removes a directory with its last object, also while this looks into it.
            with suppress(FileNotFoundError):
                return sorted(path for path in self.bucket.rglob("*") if path.is_file())


@contextmanager
def running(directory: Path, database: Postgres, storage: S3, name: str, **more: Any) -> Iterator[Diskless]:
    """Run a broker of a fleet whose topics tasks read from the bucket, with ``more`` settings."""
    metrics, internal = free_port(), free_port()
    token = directory / "token"
    token.write_text("the-token\n")
    settings = fleet_settings(directory, database, storage, name)
    document = {
        **settings,
        "metricsListen": f"127.0.0.1:{metrics}",
        "internal": {"bind": f"127.0.0.1:{internal}", "tokenFile": str(token)},
        # Some records have timestamps years ago.
        "topics": {"configs": {"retention.ms": "-1"}},
        "upkeep": {"intervalSeconds": 0.2, "graceSeconds": 0.5},
        "writer": {"flushSeconds": 0.05},
        **more,
    }
    broker = of_fleet(directory, name, document)
    broker.start()
    direct = DirectReads(
        address=f"http://127.0.0.1:{internal}",
        token_path=str(token),
        url=settings["objects"]["url"],
        properties=settings["objects"]["config"],
        secret_properties=settings["objects"]["secretConfig"],
    )
    connection = KafkaConnection(bootstrap_servers=broker.bootstrap)
    try:
        yield Diskless(broker, connection, direct, metrics, storage.directory / "buckets" / storage.bucket / name)
    finally:
        broker.stop()


@contextmanager
def world_of(diskless: Diskless, settings: GroupSettings, spark: object, directory: Path) -> Iterator[World]:
    """Run drivers that serve topics of the broker, with direct reads."""
    update = {"kafka": {"classic": diskless.connection}, "direct": {"classic": diskless.direct}}
    with World(settings.model_copy(update=update), Kafka(diskless.broker.bootstrap), spark, directory) as world:
        yield world


@pytest.fixture(scope="module")
def diskless(tmp_path_factory: pytest.TempPathFactory, database: Postgres, storage: S3) -> Iterator[Diskless]:
    with running(tmp_path_factory.mktemp("direct"), database, storage, "direct") as made:
        yield made


@pytest.fixture
def admin(diskless: Diskless) -> AdminClient:
    return AdminClient({"bootstrap.servers": diskless.broker.bootstrap})


def create(admin: AdminClient, name: str, **config: str) -> str:
    """Create a topic, and return its id."""
    new = NewTopic(name, PARTITIONS, 1, config={key.replace("_", "."): setting for key, setting in config.items()})
    admin.create_topics([new])[name].result(30)
    return kafka_id(admin.describe_topics(TopicCollection([name]))[name].result(30).topic_id)


def produce(diskless: Diskless, topics: Sequence[str], seed: int = 1, keys: int = 10**9) -> None:
    """Produce records of all shapes with all codecs, so that objects have records of all topics."""
    rng = random.Random(seed)
    for codec in CODECS:
        producer = Producer(
            {"bootstrap.servers": diskless.broker.bootstrap, "compression.type": codec, "linger.ms": 20}
        )
        for number in range(400):
            producer.produce(
                rng.choice(topics),
                key=b"key %d" % (number % keys) if keys < 10**9 else rng.choice([None, b"key %d" % number]),
                value=rng.choice([None, b"", rng.randbytes(rng.randrange(300)), b"x" * 5_000]),
                headers=[("name", b"value"), ("none", None)] if rng.random() < 0.1 else None,
                partition=rng.randrange(PARTITIONS),
                timestamp=1_700_000_000_000 + number,
            )
        assert producer.flush(30) == 0


def slices_of(admin: AdminClient, topics: Sequence[str], skipped: int = 0) -> list[Slice]:
    """Return all offsets of the topics without the first ones of each partition."""
    wanted = [TopicPartition(name, part) for name in topics for part in range(PARTITIONS)]
    starts = {
        place: future.result(30).offset
        for place, future in admin.list_offsets(dict.fromkeys(wanted, OffsetSpec.earliest())).items()
    }
    ends = {
        place: future.result(30).offset
        for place, future in admin.list_offsets(dict.fromkeys(wanted, OffsetSpec.latest())).items()
    }
    return [Slice(one.topic, one.partition, starts[one] + skipped, ends[one]) for one in wanted]


def located(diskless: Diskless, slices: Sequence[Slice], ids: Mapping[str, str]) -> list[Slice]:
    (found,) = DirectReader("waves", diskless.direct).locate([slices], ids)
    return found


def read(diskless: Diskless, slices: Sequence[Slice], ids: Mapping[str, str]) -> tuple[list[tuple[Any, ...]], Objects]:
    """Read all slices from the bucket."""
    bucket = DirectReader("waves", diskless.direct).bucket()
    assert bucket is not None
    objects = Objects(bucket, located(diskless, slices, ids))
    return rows_of(objects.blocks()), objects


def fetched(diskless: Diskless, slices: Sequence[Slice]) -> list[tuple[Any, ...]]:
    """Read all slices from the broker."""
    return rows_of(source.read(access(diskless.connection), slices))


@pytest.mark.parametrize("skipped", [0, 3])
def test_the_bucket_has_the_records_that_a_broker_returns(diskless: Diskless, admin: AdminClient, skipped: int) -> None:
    names = [f"same-{skipped}-{name}" for name in "ab"]
    ids = {name: create(admin, name) for name in names}
    produce(diskless, names)
    slices = slices_of(admin, names, skipped)
    before = diskless.fetches()
    rows, objects = read(diskless, slices, ids)
    assert (objects.rest, objects.problem) == ([], "")
    assert diskless.fetches() == before
    assert len(rows) == 2_000 - 6 * skipped
    assert rows == fetched(diskless, slices)


def test_records_have_the_time_of_their_commit_in_topics_with_append_time(
    diskless: Diskless, admin: AdminClient
) -> None:
    ids = {"appended": create(admin, "appended", message_timestamp_type="LogAppendTime")}
    produce(diskless, ["appended"])
    slices = slices_of(admin, ["appended"])
    rows, objects = read(diskless, slices, ids)
    assert objects.rest == []
    assert {row[4] for row in rows} == {1}
    assert rows == fetched(diskless, slices)


def test_compacted_topics_are_read_before_and_after_a_compaction(diskless: Diskless, admin: AdminClient) -> None:
    """Places that the driver got before a compaction are valid for the time that maintenance keeps objects."""
    ids = {"compacted": create(admin, "compacted", cleanup_policy="compact")}
    produce(diskless, ["compacted"], keys=20)
    slices = slices_of(admin, ["compacted"])
    count = len(fetched(diskless, slices))

    def compacted() -> bool:
        return len(fetched(diskless, slices)) < min(count, 500)

    await_true("a compaction", compacted, 240)

    def same() -> bool:
        before = fetched(diskless, slices)
        rows, objects = read(diskless, slices, ids)
        assert objects.rest == []
        assert len({row[2] for row in rows}) < max(part.end for part in slices)
        return rows in (before, fetched(diskless, slices))

    # Compactions that run between the reads change what each of them finds.
    assert any(same() for _ in range(5))


def test_deleted_records_are_left_to_the_broker_which_reports_them(diskless: Diskless, admin: AdminClient) -> None:
    ids = {"deleted": create(admin, "deleted")}
    produce(diskless, ["deleted"])
    before = slices_of(admin, ["deleted"])
    admin.delete_records([TopicPartition("deleted", 0, 50)])[TopicPartition("deleted", 0)].result(30)
    found = located(diskless, before, ids)
    assert [bool(part.ranges) for part in found] == [False, True, True]
    with pytest.raises(NotReadyError, match="no longer has offset 0"):
        fetched(diskless, before)
    now = slices_of(admin, ["deleted"])
    rows, objects = read(diskless, now, ids)
    assert objects.rest == []
    assert rows == fetched(diskless, now)


def test_a_topic_that_was_created_again_has_no_places(diskless: Diskless, admin: AdminClient) -> None:
    ids = {"again": create(admin, "again")}
    produce(diskless, ["again"])
    slices = slices_of(admin, ["again"])
    admin.delete_topics(["again"])["again"].result(30)
    again = {"again": create(admin, "again")}
    produce(diskless, ["again"], seed=2)
    assert all(not part.ranges for part in located(diskless, slices, ids))
    assert all(part.ranges for part in located(diskless, slices_of(admin, ["again"]), again))


@pytest.mark.parametrize("fault", ["missing", "truncated", "damaged"])
def test_brokers_serve_what_the_bucket_does_not(diskless: Diskless, admin: AdminClient, fault: str) -> None:
    """The broker has the records in its cache, so the two sources together return all of them."""
    name = f"fault-{fault}"
    ids = {name: create(admin, name)}
    produce(diskless, [name])
    slices = slices_of(admin, [name])
    expected = fetched(diskless, slices)
    found = located(diskless, slices, ids)
    key = sorted({one.key for part in found for one in part.ranges})[1]
    file = diskless.bucket / key
    data = file.read_bytes()
    if fault == "missing":
        file.unlink()
    else:
        file.write_bytes(data[:40] if fault == "truncated" else data[:40] + bytes(len(data) - 40))
    rows, objects = read(diskless, slices, ids)
    assert objects.rest
    assert key in objects.problem
    assert sorted(rows + fetched(diskless, objects.rest), key=lambda row: row[:3]) == expected
    assert len(rows) < len(expected)
    file.write_bytes(data)


@pytest.mark.parametrize(
    "change",
    [
        {"properties": {"aws_access_key_id": "unknown"}},
        {"properties": {"aws_endpoint": "http://127.0.0.1:1"}},
        {"url": "s3://firn/another"},
    ],
)
def test_brokers_serve_all_records_if_the_bucket_cannot_be_read(
    diskless: Diskless, admin: AdminClient, change: dict[str, Any]
) -> None:
    name = f"unreadable-{len(admin.list_topics(timeout=10).topics)}"
    ids = {name: create(admin, name)}
    produce(diskless, [name])
    slices = slices_of(admin, [name])
    properties = {**diskless.direct.properties, **change.get("properties", {})}
    wrong = diskless.direct.model_copy(update={**change, "properties": properties})
    rows, objects = read(replace(diskless, direct=wrong), slices, ids)
    assert rows == []
    assert objects.rest == slices
    assert objects.problem


def test_a_wrong_token_names_no_places(diskless: Diskless, admin: AdminClient, tmp_path: Path) -> None:
    ids = {"token": create(admin, "token")}
    produce(diskless, ["token"])
    slices = slices_of(admin, ["token"])
    (tmp_path / "wrong").write_text("another-token")
    wrong = diskless.direct.model_copy(update={"token_path": str(tmp_path / "wrong")})
    (found,) = DirectReader("waves", wrong).locate([slices], ids)
    assert found == slices


@pytest.fixture
def world(settings: GroupSettings, diskless: Diskless, spark: object, tmp_path: Path) -> Iterator[World]:
    with world_of(diskless, settings, spark, tmp_path) as world:
        yield world


def test_topics_land_exactly_once_without_a_fetch(world: World, diskless: Diskless) -> None:
    fetches = diskless.fetches()
    jobs = [world.job(world.topic(name, partitions=3)) for name in ("one", "two")]
    sent = varied_records(300)
    for job in jobs:
        world.produce(job.topic, sent)
    world.apply(*jobs)
    world.start()
    for job in jobs:
        rows = sorted(world.await_rows(job, 300), key=lambda row: row["id"])
        assert [row["_kafka"]["timestamp_ms"] for row in rows] == [1_700_000_000_000 + n for n in range(300)]
        assert [row["_kafka"]["key"] for row in rows] == [record.key for record in sent]
        assert [len(row["_kafka"]["headers"] or ()) for row in rows] == [n % 3 for n in range(300)]
    assert diskless.fetches() == fetches
    # The broker is killed and another one replaces it. The rounds continue, and still fetch nothing.
    diskless.broker.kill()
    diskless.broker.start()
    for job in jobs:
        world.produce(job.topic, [replace(sent[0], value=value(n), partition=n % 3) for n in range(300, 900)])
        assert places(world.await_rows(job, 900)) == exactly(dict.fromkeys(range(3), 300))
        assert world.landed(job) == dict.fromkeys(range(3), 300)
    assert diskless.fetches() == 0


def test_topics_land_exactly_once_while_the_bucket_loses_objects(world: World, diskless: Diskless) -> None:
    """A missing object costs a detour over the broker, which has its records in the cache."""
    job = world.job(world.topic("lossy", partitions=3))
    world.produce(job.topic, varied_records(600))
    hidden = [(path, path.read_bytes()) for path in diskless.objects()]
    for path, _ in hidden:
        path.unlink()
    world.apply(job)
    metrics = world.start().metrics.registry
    assert places(world.await_rows(job, 600)) == exactly(dict.fromkeys(range(3), 200))
    labels = {"namespace": job.namespace, "topic": job.name}
    await_true("detours", lambda: bool(metrics.get_sample_value("firn_ingest_detours_total", labels)))
    for path, data in hidden:
        path.write_bytes(data)
