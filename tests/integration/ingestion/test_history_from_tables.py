"""A topic whose records are only in its table: real clients read the same records from the data files as from the bucket before."""

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from firn.driver_requests.landed_offsets import (
    UNINDEXED_PATH,
    Asked,
    FirstOffsets,
    Unindexed,
)
from firn.model.jobs import GroupSettings, IngestJob, RecordSchema, SchemaFormat
from firn.model.progress import HistoryProgress
from tests.integration.ingestion.test_direct_reads import CODECS, Diskless, produce, running, world_of
from tests.integration.ingestion.world import World, exactly, places
from tests.servers.firn_broker import fleet_settings
from tests.servers.postgres import Postgres
from tests.servers.process import await_true
from tests.servers.s3 import S3

PARTITIONS = 3
RECORDS = 400 * len(CODECS)


@pytest.fixture
def diskless(tmp_path: Path, database: Postgres, storage: S3) -> Iterator[Diskless]:
    lake = {**fleet_settings(tmp_path, database, storage, "single")["objects"], "url": f"s3://{storage.bucket}/lake"}
    with running(tmp_path, database, storage, "single", history={"stores": [lake]}) as made:
        yield made


@pytest.fixture
def served(diskless: Diskless, settings: GroupSettings, spark: object, tmp_path: Path) -> Iterator[World]:
    with world_of(diskless, settings, spark, tmp_path) as world:
        yield world


def read(world: World, topic: str) -> list[tuple[Any, ...]]:
    """Return all records of a topic as a client gets them, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": world.broker.bootstrap,
            "group.id": "tests",
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found, ended = list[tuple[Any, ...]](), 0
    try:
        while ended < PARTITIONS:
            message = consumer.poll(60)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
            else:
                found.append(_record(message))
    finally:
        consumer.close()
    return sorted(found, key=lambda record: record[:2])


def _record(message: Message) -> tuple[Any, ...]:
    headers = tuple(message.headers() or ())
    return message.partition(), message.offset(), message.timestamp(), message.key(), message.value(), headers


def ask(diskless: Diskless, path: str, body: str) -> Any:
    token = Path(diskless.direct.token_path).read_text().strip()
    answer = httpx.post(f"{diskless.direct.address}{path}", content=body, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text
    return answer.text


def unindexed(diskless: Diskless, topic: UUID) -> dict[int, int]:
    text = ask(diskless, UNINDEXED_PATH, Unindexed(topics=(Asked(topic, 1),)).model_dump_json())
    (found,) = FirstOffsets.model_validate_json(text).topics
    assert not found.error
    return dict(found.waiting)


def stories(log: Path) -> Sequence[dict[str, Any]]:
    """Return what the broker has logged about indexings."""
    lines = [line for line in log.read_text().splitlines() if '"indexed offsets of a topic"' in line]
    return [json.loads(line) for line in lines]


def test_clients_read_the_same_records_after_they_moved_to_the_table(diskless: Diskless, served: World) -> None:
    topic = served.topic("flights", PARTITIONS, firn_history="Single")
    job = served.job(topic, record_schema=RecordSchema(format=SchemaFormat.RAW), table={"history": "Single"})
    served.apply(job)
    served.start()
    produce(diskless, [topic])
    rows = served.await_rows(job, RECORDS)
    assert places(rows) == exactly({number: served.end(topic, number) for number in range(PARTITIONS)})
    id = UUID(bytes=base64.urlsafe_b64decode(f"{served.topic_id(topic)}=="))
    assert set(unindexed(diskless, id)) == set(range(PARTITIONS)), "the driver names files once in an hour"
    before = read(served, topic)

    served.stop()
    served.start(history_ms=300)
    await_true("all offsets are indexed", lambda: not unindexed(diskless, id))
    await_true("an indexing was logged", lambda: bool(stories(diskless.broker.log)))
    for story in stories(diskless.broker.log):
        assert (story["problems"], story["refused"], story["kept"]) == ({}, 0, 0)
    await_true("only history objects are left", lambda: {path.suffix for path in diskless.objects()} == {".history"})
    await_true("the driver reports it", lambda: reported(served, job) == HistoryProgress())
    assert set(dict(served.table(job).refs())) == {"main", "firn-log"}

    # Nothing is in the memory of a broker that has just started.
    diskless.broker.kill()
    diskless.broker.start()
    assert read(served, topic) == before
    produce(diskless, [topic], seed=2)
    served.await_rows(job, 2 * RECORDS)
    await_true("all offsets are indexed", lambda: not unindexed(diskless, id))
    after = read(served, topic)
    assert len(after) == 2 * RECORDS
    assert set(before) < set(after)


def reported(world: World, job: IngestJob) -> HistoryProgress | None:
    progress = world.progress(job)
    return progress.history if progress is not None else None


def test_a_driver_reports_why_it_cannot_name_files(diskless: Diskless, served: World) -> None:
    topic = served.topic("flights", PARTITIONS)
    job = served.job(topic, record_schema=RecordSchema(format=SchemaFormat.RAW), table={"history": "Single"})
    served.apply(job)
    served.start(history_ms=300)
    produce(diskless, [topic])
    served.await_rows(job, RECORDS)
    wanted = f"topic {topic}: the topic does not have the config firn.history=Single yet"
    await_true(
        "the driver reports it", lambda: (found := reported(served, job)) is not None and found.problem == wanted
    )
