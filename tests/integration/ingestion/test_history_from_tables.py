"""A topic whose records are only in its table: real clients read the same records from the data files as from the bucket before."""

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from firn.driver_requests.landed_offsets import (
    UNINDEXED_PATH,
    Asked,
    FirstOffset,
    FirstOffsets,
    Unindexed,
)
from firn.model.jobs import GroupSettings, IngestJob, RecordSchema, SchemaFormat
from firn.model.names import LOG_TAG as TAG
from firn.model.progress import HistoryProgress
from firn_spark.ingestion.history import naming
from tests.integration.broker.test_franz_go import go
from tests.integration.ingestion import other_clients
from tests.integration.ingestion.test_direct_reads import CODECS, Diskless, produce, running, world_of
from tests.integration.ingestion.world import World, exactly, places
from tests.log_records import LogRecord, digests, read_log
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


@pytest.fixture
def franz(tmp_path: Path) -> Path:
    """Build the client with franz-go."""
    program = tmp_path / "franz"
    go("build", "-o", program, ".")
    return program


def read(world: World, topic: str) -> list[LogRecord]:
    """Return all records of a topic as a client gets them."""
    return read_log(world.broker.bootstrap, topic, PARTITIONS)


def ask(diskless: Diskless, path: str, body: str) -> Any:
    token = Path(diskless.direct.token_path).read_text().strip()
    answer = httpx.post(f"{diskless.direct.address}{path}", content=body, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text
    return answer.text


def unindexed(diskless: Diskless, topic: UUID, generation: int = 1) -> FirstOffset:
    text = ask(diskless, UNINDEXED_PATH, Unindexed(topics=(Asked(topic, generation, (generation,)),)).model_dump_json())
    (found,) = FirstOffsets.model_validate_json(text).topics
    assert not found.error
    return found


def generation(world: World, job: IngestJob) -> int:
    """Return the generation of the newest tag of the table."""
    return max(int(name.removeprefix(TAG)) for name in tags_of(world, job))


def tags_of(world: World, job: IngestJob) -> set[str]:
    return {str(name) for name in dict(world.table(job).refs()) if str(name).startswith(TAG)}


def settled(diskless: Diskless, world: World, job: IngestJob, id: UUID) -> bool:
    """Return whether the newest data files give all batches back that any of them do."""
    found = unindexed(diskless, id, generation(world, job)) if tags_of(world, job) else None
    return found is not None and not found.waiting and not found.older


def topic_id(world: World, topic: str) -> UUID:
    return UUID(bytes=base64.urlsafe_b64decode(f"{world.topic_id(topic)}=="))


def stories(log: Path) -> Sequence[dict[str, Any]]:
    """Return what the broker has logged about indexings."""
    lines = [line for line in log.read_text().splitlines() if '"indexed offsets of a topic"' in line]
    return [json.loads(line) for line in lines]


def test_clients_read_the_same_records_after_they_moved_to_the_table(
    diskless: Diskless, served: World, franz: Path
) -> None:
    topic = served.topic("flights", PARTITIONS, firn_history="Single")
    job = served.job(topic, record_schema=RecordSchema(format=SchemaFormat.RAW), table={"history": "Single"})
    served.apply(job)
    served.start()
    produce(diskless, [topic])
    rows = served.await_rows(job, RECORDS)
    assert places(rows) == exactly({number: served.end(topic, number) for number in range(PARTITIONS)})
    id = topic_id(served, topic)
    assert set(unindexed(diskless, id).waiting) == set(range(PARTITIONS)), "the driver names files once in an hour"
    before = read(served, topic)

    served.stop()
    served.start(history_ms=300)
    await_true("all offsets are indexed", lambda: settled(diskless, served, job, id))
    await_true("an indexing was logged", lambda: bool(stories(diskless.broker.log)))
    for story in stories(diskless.broker.log):
        assert (story["problems"], story["refused"], story["kept"]) == ({}, 0, 0)
    await_true("only history objects are left", lambda: {path.suffix for path in diskless.objects()} == {".history"})
    await_true("the driver reports it", lambda: reported(served, job) == HistoryProgress(untagged={}))
    assert len(tags_of(served, job)) == 1

    # Nothing is in the memory of a broker that has just started.
    diskless.broker.kill()
    diskless.broker.start()
    assert read(served, topic) == before
    bootstrap, expected = served.broker.bootstrap, digests(before)
    assert other_clients.by_java(bootstrap, topic) == expected
    assert other_clients.by_franz_go(franz, bootstrap, topic) == expected
    assert other_clients.by_spark(served.spark, bootstrap, topic) == expected
    produce(diskless, [topic], seed=2)
    served.await_rows(job, 2 * RECORDS)
    await_true("all offsets are indexed", lambda: settled(diskless, served, job, id))
    after = read(served, topic)
    assert len(after) == 2 * RECORDS
    assert set(before) < set(after)


MAINTENANCE = (
    "CALL lake.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))",
    "CALL lake.system.expire_snapshots(table => '{t}', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)",
    "DELETE FROM lake.{t} WHERE _kafka.partition = 1 AND _kafka.offset < 40",
    "CALL lake.system.expire_snapshots(table => '{t}', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)",
)


def test_maintenance_of_another_engine_takes_no_record_from_the_log(
    diskless: Diskless, served: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(naming, "RELEASED_SECONDS", 0.0)
    topic = served.topic("flights", PARTITIONS, firn_history="Single")
    job = served.job(topic, record_schema=RecordSchema(format=SchemaFormat.RAW), table={"history": "Single"})
    served.apply(job)
    served.start(history_ms=300)
    produce(diskless, [topic])
    served.await_rows(job, RECORDS)
    id = topic_id(served, topic)
    await_true("all offsets are indexed", lambda: settled(diskless, served, job, id))
    before, first = read(served, topic), generation(served, job)
    files = diskless.broker.log
    for statement in MAINTENANCE:
        served.spark.sql(statement.format(t=f"{job.table.namespace}.{job.table.name}"))
        assert read(served, topic) == before
    await_true("a generation began", lambda: generation(served, job) > first)
    await_true("all batches have moved", lambda: settled(diskless, served, job, id))
    await_true("one tag is left", lambda: len(tags_of(served, job)) == 1)
    served.spark.sql(MAINTENANCE[1].format(t=f"{job.table.namespace}.{job.table.name}"))
    diskless.broker.kill()
    diskless.broker.start()
    assert read(served, topic) == before
    assert "Traceback" not in files.read_text()


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
