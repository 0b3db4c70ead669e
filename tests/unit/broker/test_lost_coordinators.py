"""Recoveries into a new coordinator: the bucket, the tables and the list of topics give topics, offsets and records back."""

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import ExitCode, InvalidSpecError
from firn.records import record_batch
from firn_broker.__main__ import main
from firn_broker.history.restoring.restoring import restore
from firn_broker.log_types import Partition
from firn_broker.maintenance import compaction, fsck, placeholders, recovery
from firn_broker.maintenance.placeholders import KnownTopic, Prepared, Span, read_topics
from firn_broker.maintenance.recovery import Recovered
from firn_broker.metadata_store.sqlite.database import Inline
from firn_broker.ports import History
from firn_broker.storage import wal
from firn_broker.topics.configs import TopicConfigs
from tests.fakes.virtual_time import LoopClock, run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_compaction import fill as fill_keys
from tests.unit.broker.test_history_indexing import UPKEEP, World, made
from tests.unit.broker.test_merging import MERGES
from tests.unit.broker.test_whole_brokers import fetch, produce
from tests.unit.broker.whole import Asked, Shared, SharedStore, broker, create

LONG_GRACE: dict[str, Any] = {"upkeep": {**MERGES["upkeep"], "grace_seconds": 100_000}}
PARTITIONS = 3
T = "t"


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of merged objects have several ranges."""
    monkeypatch.setattr(compaction, "RANGE_BYTES", 400)


def known(
    id: UUID, partitions: int = PARTITIONS, landed: Mapping[int, int] | None = None, **configs: str
) -> KnownTopic:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return KnownTopic(name=T, id=id, partitions=partitions, configs={"retention.ms": "-1", **named}, next=landed or {})


async def fill(asked: Asked, rounds: int, start: int = 0) -> None:
    """Produce a batch to each partition in each round. No two are equal. The last partition has an idempotent producer."""
    for number in range(start, start + rounds):
        for partition in range(PARTITIONS - 1):
            body = b"%d-%d " % (number, partition) * (1 + number % 5)
            await produce(asked, T, partition, raw(1 + number % 3, body=body + b"x" * 30, time=1000 + number))
        await produce(asked, T, PARTITIONS - 1, raw(1, producer=7, epoch=0, sequence=number))
        await asyncio.sleep(0.3)


async def lose(shared: Shared) -> None:
    """Replace the coordinator by a new one, and let the leases of brokers end."""
    new = SharedStore(":memory:", LoopClock(), "another", Inline())
    await new.start()
    shared.store.database.connection.deserialize(new.database.connection.serialize())
    await asyncio.sleep(60)


async def recovered(
    shared: Shared, topics: Sequence[KnownTopic], history: History | None = None
) -> tuple[Prepared, Recovered, Mapping[str, Span]]:
    """Do what ``firn-broker fsck --recover --topics`` does."""
    store, objects = shared.store, shared.objects
    assert await store.nodes.stop_idle("a recovery runs")
    findings = await fsck.check(store.retention, objects, read=True)
    keys = [*findings.uncommitted, *findings.newer]
    copies: Sequence[str] = ()
    if history is not None:
        restored = await restore(objects, keys, history)
        assert not restored.unreadable
        keys, copies = [*keys, *restored.keys], restored.copies
    prepared = await placeholders.prepare(store, objects, topics, keys)
    done = await recovery.recover(store, objects, keys, TopicConfigs({}), findings.missing, (), copies)
    added = await placeholders.complete(store, objects, topics)
    assert await store.nodes.allow_serving()
    findings = await fsck.check(store.retention, objects, read=True)
    assert (findings.lost, findings.newer) == (False, [])
    return prepared, done, added


async def read(asked: Asked, partition: int) -> tuple[int, list[bytes]]:
    """Return the log start, and all batches with records."""
    batches: list[bytes] = []
    answer: Any = await fetch(asked, T, partition, 0, wait=0)
    start = offset = answer.log_start_offset
    while True:
        answer = await fetch(asked, T, partition, offset, wait=0, max_bytes=1 << 20)
        assert answer.error_code is ErrorCode.none
        if offset >= answer.high_watermark:
            return start, batches
        data = memoryview(answer.records)
        for place, size, offsets in record_batch.walk(data):
            base = int.from_bytes(data[place : place + 8], "big")
            if base >= offset and record_batch.header(data, place)[2]:
                batches.append(bytes(data[place : place + size]))
            offset = base + offsets


async def logs(asked: Asked, partitions: int = PARTITIONS) -> list[tuple[int, list[bytes]]]:
    return [await read(asked, partition) for partition in range(partitions)]


async def ends(shared: Shared, id: UUID) -> dict[int, int]:
    states = await shared.store.log.states([Partition(id, number) for number in range(PARTITIONS)])
    return {number: state.high_watermark for number, state in enumerate(states) if state is not None}


def placed(shared: Shared) -> list[str]:
    return [key for key in shared.objects.objects if key.endswith(wal.PLACEHOLDERS)]


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("settings", [MERGES, LONG_GRACE], ids=["deleted", "there"])
def test_logs_get_their_offsets_back(settings: dict[str, Any], kind: str) -> None:
    """Retention has deleted the first records, merges have read most others, and the newest lie in objects of brokers."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **settings) as asked:
            id = await create(asked, T, partitions=PARTITIONS, retention_ms="-1", message_timestamp_type=kind)
            await fill(asked, 8)
            await asyncio.sleep(60)
            for partition, end in (await ends(shared, id)).items():
                await shared.store.log.advance_start(Partition(id, partition), end)
            await asyncio.sleep(100)
            for number in range(2):
                await fill(asked, 8, 8 + 8 * number)
                await asyncio.sleep(60)
            if kind == "CreateTime":
                # Otherwise the records get the append time of the recovery.
                await fill(asked, 4, 24)
                await produce(asked, T, 0, raw(2))
            before, landed = await logs(asked), await ends(shared, id)
        await lose(shared)
        topics = [known(id, landed={0: 5, 1: landed[1]}, message_timestamp_type=kind)]
        prepared, done, added = await recovered(shared, topics)
        assert (prepared.topics, prepared.complete, done.complete, added) == ([T], True, True, {})
        assert (await ends(shared, id)) == landed
        async with broker(shared, 2, **MERGES) as other:
            after = await logs(other)
            assert [batches[-len(some) :] for (_, batches), (_, some) in zip(after, before, strict=True)] == [
                batches for _, batches in before
            ]
            if settings is MERGES:
                assert after == before
            else:
                assert {start for start, _ in after} == {0}, "the bucket has deleted records until the grace is over"
            await asyncio.sleep(200)
            assert await logs(other) == after
            assert not placed(shared)
            answer = await produce(other, T, 1, raw(1))
            assert answer.base_offset == landed[1]

    run(story())


def test_records_in_tables_get_their_offsets_back(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 12)
            await world.index(asked, world.rows[5:])
            await asyncio.sleep(200)
            await world.fill(asked, 5, seed=2)
        await lose(world.shared)
        topic = known(world.topic, 2, dict(world.landed_to))
        prepared, done, added = await recovered(world.shared, [topic], world.tables())
        assert (prepared.complete, done.complete, added) == (True, True, {})
        async with broker(world.shared, 2, tables=world.tables(), **UPKEEP) as other:
            await world.check(other)
            indexed = await world.index(other, name="again", generation=2)
            assert indexed.batches
            await world.check(other)

    run(story())


def test_clients_pass_over_offsets_that_no_object_gives_back() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            id = await create(asked, T, partitions=PARTITIONS, retention_ms="-1")
            for number in range(3):
                await fill(asked, 8, 8 * number)
                await asyncio.sleep(60)
            await asyncio.sleep(100)
            before, landed = await logs(asked), await ends(shared, id)
        first, second, third = sorted(
            (key for key in shared.objects.objects if key.endswith(wal.MERGED)), key=lambda key: key.rpartition("/")[2]
        )
        del shared.objects.objects[second]
        await lose(shared)
        prepared, done, _ = await recovered(shared, [known(id)])
        assert not prepared.complete
        assert list(prepared.gaps) == [f"{T}/{number}" for number in range(PARTITIONS)]
        assert sorted(done.compacted) == sorted([first, third])
        assert await ends(shared, id) == landed
        async with broker(shared, 2, **MERGES) as other:
            after = await logs(other)
            for number, ((_, batches), (_, some)) in enumerate(zip(before, after, strict=True)):
                [gap] = prepared.gaps[f"{T}/{number}"]
                bases = {int.from_bytes(batch[:8], "big"): batch for batch in batches}
                assert some == [batch for base, batch in bases.items() if not gap.first <= base <= gap.last]
            await asyncio.sleep(200)
            assert await logs(other) == after, "merges read placeholders too"

    run(story())


def test_a_compacted_topic_gets_its_offsets_back() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **UPKEEP) as asked:
            id = await create(asked, T, partitions=PARTITIONS, cleanup_policy="compact", retention_ms="-1")
            await fill_keys(asked)
            await fill_keys(asked, 20)
            await asyncio.sleep(300)
            assert any(wal.horizon(key) is not None for key in shared.objects.objects)
            before, landed = await logs(asked), await ends(shared, id)
        await lose(shared)
        prepared, done, _ = await recovered(shared, [known(id, cleanup_policy="compact")])
        assert (prepared.complete, done.complete) == (True, True)
        assert await ends(shared, id) == landed
        async with broker(shared, 2, **UPKEEP) as other:
            assert await logs(other) == before

    run(story())


def test_a_recovery_that_is_repeated_adds_nothing() -> None:
    """The first one ends before or after the recovery of records, and another coordinator is lost afterwards."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            id = await create(asked, T, partitions=PARTITIONS, retention_ms="-1")
            await fill(asked, 8)
            await asyncio.sleep(150)
            await fill(asked, 3, 8)
            before = await logs(asked)
        topics = [known(id)]
        for _ in range(2):
            await lose(shared)
            assert await shared.store.nodes.stop_idle("a recovery runs")
            findings = await fsck.check(shared.store.retention, shared.objects, read=False)
            await placeholders.prepare(shared.store, shared.objects, topics, [*findings.uncommitted, *findings.newer])
            await asyncio.sleep(60)
            prepared, done, _ = await recovered(shared, topics)
            assert (prepared.topics, prepared.complete, done.complete) == ([], True, True)
            assert done.records
            again, repeated, _ = await recovered(shared, topics)
            assert (again.topics, repeated.records) == ([], 0)
        async with broker(shared, 2, **MERGES) as other:
            assert await logs(other) == before
            await asyncio.sleep(200)
            assert not placed(shared)

    run(story())


def test_new_records_get_no_offset_that_has_landed() -> None:
    """Objects with landed records are gone. The table has their rows."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **LONG_GRACE) as asked:
            id = await create(asked, T, partitions=PARTITIONS, retention_ms="-1")
            await fill(asked, 2)
            landed = await ends(shared, id)
        await lose(shared)
        further = known(id, landed={number: end + 10 * number for number, end in landed.items()})
        prepared, _, added = await recovered(shared, [further])
        assert prepared.unplaced == [f"{T}/1", f"{T}/2"]
        assert not prepared.complete
        assert added == {}
        assert await ends(shared, id) == {0: landed[0], 1: 2 * landed[1] + 10, 2: 2 * landed[2] + 20}
        shared.objects.objects.clear()
        await lose(shared)
        prepared, _, added = await recovered(shared, [further])
        assert (prepared.complete, added) == (True, {})
        assert await ends(shared, id) == dict(further.next)
        async with broker(shared, 2, **LONG_GRACE) as other:
            answer = await produce(other, T, 2, raw(1))
            assert answer.base_offset == landed[2] + 20

    run(story())


def test_landed_offsets_behind_the_last_object_stay_free() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            id = await create(asked, T, partitions=PARTITIONS, retention_ms="-1")
            await fill(asked, 8)
            await asyncio.sleep(150)
            merged = set(shared.objects.objects)
            await fill(asked, 3, 8)
            landed = await ends(shared, id)
        for key in set(shared.objects.objects) - merged:
            del shared.objects.objects[key]
        await lose(shared)
        prepared, _, added = await recovered(shared, [known(id, landed=landed)])
        assert prepared.complete
        assert list(added) == [f"{T}/{number}" for number in range(PARTITIONS)]
        assert [span.last + 1 for span in added.values()] == list(landed.values())
        assert await ends(shared, id) == landed

    run(story())


def test_a_restored_coordinator_gets_the_partitions_that_came_later() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            id = await create(asked, T, partitions=1, retention_ms="-1")
            await produce(asked, T, 0, raw(3))
            earlier = shared.store.database.connection.serialize()
            assert await shared.store.topics.grow_topic(id, PARTITIONS)
            await asyncio.sleep(5)
            await fill(asked, 4)
            before = await logs(asked)
        shared.store.database.connection.deserialize(earlier)
        await asyncio.sleep(60)
        prepared, done, _ = await recovered(shared, [known(id)])
        assert (prepared.topics, prepared.complete, done.complete) == ([], True, True)
        async with broker(shared, 2, **MERGES) as other:
            assert await logs(other) == before

    run(story())


def test_a_name_that_belongs_to_another_topic_is_refused() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            await create(asked, T)
        await asyncio.sleep(60)
        with pytest.raises(InvalidSpecError, match="topic t: the coordinator has a topic of this name with another id"):
            await placeholders.prepare(shared.store, shared.objects, [known(UUID(int=5))], [])

    run(story())


ID = base64.urlsafe_b64encode(UUID(int=1 << 100).bytes).decode().rstrip("=")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Invalid JSON"),
        ('{"topics": [{"name": "t", "id": "x", "partitions": 1}]}', "is not the id of a Kafka topic"),
        (json.dumps({"topics": [{"name": "t", "id": ID, "partitions": 0}]}), "greater than 0"),
        (json.dumps({"topics": [{"name": "t", "id": ID, "partitions": 1, "offset": 1}]}), "Extra inputs"),
        (json.dumps({"topics": [{"name": "t", "id": ID, "partitions": 1}] * 2}), "two topics have the same name"),
        (
            json.dumps({"topics": [{"name": name, "id": ID, "partitions": 1} for name in ("t", "u")]}),
            "two topics have the same id",
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "topics.json"
    file.write_text(text)
    with pytest.raises(InvalidSpecError, match=message):
        read_topics(file)


def test_a_file_has_the_ids_that_kafka_writes(tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    file.write_text(json.dumps({"topics": [{"name": "t", "id": ID, "partitions": 2, "next": {"1": 7}}]}))
    (topic,) = read_topics(file)
    assert (topic.id, topic.next, topic.configs) == (UUID(int=1 << 100), {1: 7}, {})


def test_the_list_of_topics_needs_a_recovery(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["fsck", "--data-dir", str(tmp_path), "--topics", str(tmp_path / "topics.json")]) == ExitCode.CONFIGURATION
    )
    assert "--topics needs fsck --recover" in capsys.readouterr().err


def test_a_broker_with_a_directory_gets_a_new_coordinator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "topics.json"
    file.write_text(json.dumps({"topics": [{"name": "t", "id": ID, "partitions": 2, "next": {"1": 7}}]}))
    assert main(["fsck", "--data-dir", str(tmp_path), "--recover", "--topics", str(file)]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["prepared"] == {"topics": ["t"], "gaps": {}, "unplaced": [], "added": {}}
