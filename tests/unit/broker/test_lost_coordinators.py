"""Recoveries into a new coordinator: the bucket, the tables and the list of topics give topics, offsets and records back."""

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import ExitCode, InvalidSpecError, UnavailableError
from firn.records import record_batch
from firn_broker.history.restoring import process, tables
from firn_broker.history.restoring.restoring import restore
from firn_broker.history.rows import Files
from firn_broker.log_types import Partition
from firn_broker.maintenance import compaction, fsck, placeholders, recovery
from firn_broker.maintenance.known_topics import KnownTopic, read_topics
from firn_broker.maintenance.placeholders import FromTables, Span
from firn_broker.maintenance.recovery import Recovered
from firn_broker.metadata_store.sqlite.database import Inline
from firn_broker.ports import History
from firn_broker.storage import wal
from firn_broker.topics.configs import TopicConfigs
from tests.fakes.virtual_time import LoopClock, run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_compaction import alter
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


@dataclass
class Outcome:
    """The result of a recovery."""

    topics: list[str]
    done: Recovered
    gaps: Mapping[str, Sequence[Span]]
    begun: FromTables

    @property
    def complete(self) -> bool:
        return self.done.complete and not self.gaps and not self.begun.unchanged


async def recovered(
    shared: Shared, topics: Sequence[KnownTopic], history: History | None = None, files: Files | None = None
) -> Outcome:
    """Do what ``firn-broker fsck --recover --topics`` does. ``files`` opens data files of tables."""
    store, objects = shared.store, shared.objects
    assert await store.nodes.stop_idle("a recovery runs")
    findings = await fsck.check(store.retention, objects, read=True)
    keys = [*findings.uncommitted, *findings.newer]
    copies: Sequence[str] = ()
    if history is not None:
        restored = await restore(objects, keys, history)
        assert not restored.unreadable
        keys, copies = [*keys, *restored.keys], restored.copies
    begun = await placeholders.begin(store, objects, topics, keys)
    await recovery.accept(store, [], begun.stale, 0)
    for topic in begun.waiting:
        assert files is not None
        keys += await tables.rebuild(objects, process.TABLE_ROWS.validate_python(topic.question()), files)
    keys = [key for key in dict.fromkeys(keys) if key not in begun.stale]
    created = await placeholders.prepare(store, objects, topics, keys)
    landed = {Partition(topic.id, index): end for topic in topics for index, end in topic.next.items()}
    done = await recovery.recover(store, objects, keys, TopicConfigs({}), findings.missing, (), copies, landed)
    gaps = await placeholders.gaps(store, objects)
    assert await store.nodes.allow_serving()
    findings = await fsck.check(store.retention, objects, read=True)
    assert (findings.lost, findings.newer) == (False, [])
    return Outcome([*begun.created, *created], done, gaps, begun)


async def read(asked: Asked, partition: int, topic: str = T) -> tuple[int, list[bytes]]:
    """Return the log start, and all batches with records."""
    batches: list[bytes] = []
    answer: Any = await fetch(asked, topic, partition, 0, wait=0)
    start = offset = answer.log_start_offset
    while True:
        answer = await fetch(asked, topic, partition, offset, wait=0, max_bytes=1 << 20)
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
        outcome = await recovered(shared, topics)
        assert (outcome.topics, outcome.complete) == ([T], True)
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
        assert (await recovered(world.shared, [topic], world.tables())).complete
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
        outcome = await recovered(shared, [known(id)])
        assert list(outcome.gaps) == [f"{T}/{number}" for number in range(PARTITIONS)]
        assert sorted(outcome.done.compacted) == sorted([first, third])
        assert (await recovered(shared, [known(id)])).gaps == outcome.gaps, "a repetition reports them too"
        kept = dict(shared.objects.objects)
        for key in placed(shared):
            del shared.objects.objects[key]
        assert await placeholders.gaps(shared.store, shared.objects) == {}
        shared.objects.objects.update(kept)
        assert await ends(shared, id) == landed
        async with broker(shared, 2, **MERGES) as other:
            after = await logs(other)
            for number, ((_, batches), (_, some)) in enumerate(zip(before, after, strict=True)):
                [gap] = outcome.gaps[f"{T}/{number}"]
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
        assert (await recovered(shared, [known(id, cleanup_policy="compact")])).complete
        assert await ends(shared, id) == landed
        async with broker(shared, 2, **UPKEEP) as other:
            assert await logs(other) == before

    run(story())


@pytest.mark.parametrize("settings", [MERGES, LONG_GRACE], ids=["deleted", "there"])
@pytest.mark.parametrize("fails", range(1, 16))
def test_a_recovery_that_is_repeated_adds_nothing(settings: dict[str, Any], fails: int) -> None:
    """The first one fails at a change of the coordinator. Another coordinator is lost afterwards."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **settings) as asked:
            id = await create(asked, T, partitions=PARTITIONS, retention_ms="-1")
            await fill(asked, 8)
            await asyncio.sleep(150)
            await fill(asked, 3, 8)
            before = await logs(asked)
        topics = [known(id, landed=await ends(shared, id))]
        for turn in range(2):
            await lose(shared)
            with failing(shared, fails), suppress(UnavailableError):
                await recovered(shared, topics)
            await asyncio.sleep(60)
            assert (await recovered(shared, topics)).complete
            again = await recovered(shared, topics)
            assert (again.topics, again.done.records, again.complete) == ([], 0, True), turn
        async with broker(shared, 2, **MERGES) as other:
            assert await logs(other) == before
            await asyncio.sleep(200)
            assert not placed(shared)

    run(story())


@contextmanager
def failing(shared: Shared, number: int) -> Iterator[None]:
    """Let the change with this number fail: a commit, a rewrite or a move of a log start."""
    store, left = shared.store.log, count(1)
    originals = {name: getattr(store, name) for name in ("commit", "rewrite", "advance_start")}

    def failed(original: Any) -> Any:
        async def change(*arguments: Any) -> Any:
            if next(left) == number:
                raise UnavailableError("the coordinator is away")
            return await original(*arguments)

        return change

    with pytest.MonkeyPatch.context() as patched:
        for name, original in originals.items():
            patched.setattr(store, name, failed(original))
        yield


def test_placeholders_of_several_objects_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placeholders, "MOST_PLACEHOLDERS", 1)

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            id = await create(asked, T, partitions=PARTITIONS, retention_ms="-1")
            for number in range(3):
                await fill(asked, 8, 8 * number)
                await asyncio.sleep(4_000)
            before = await logs(asked)
        for fails in range(1, 6):
            await lose(shared)
            with failing(shared, fails), suppress(UnavailableError):
                await recovered(shared, [known(id)])
            await asyncio.sleep(60)
            assert (await recovered(shared, [known(id)])).complete
            async with broker(shared, 2, **LONG_GRACE) as other:
                assert await logs(other) == before

    run(story())


def test_topics_of_a_later_list_get_their_records() -> None:
    """The first recovery commits a merged object for one of its topics, and copies the records of the other."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            id = await create(asked, T, partitions=1, retention_ms="-1")
            other_id = await create(asked, "u", partitions=1, retention_ms="-1")
            for number in range(8):
                for topic in (T, "u"):
                    await produce(asked, topic, 0, raw(1, body=b"%d of %s" % (number, topic.encode()) + b"x" * 30))
                await asyncio.sleep(0.3)
            await asyncio.sleep(200)
            before = [await read(asked, 0, topic) for topic in (T, "u")]
        other = KnownTopic(name="u", id=other_id, partitions=1, configs={"retention.ms": "-1"}, next={0: 8})
        for _ in range(2):
            await lose(shared)
            assert (await recovered(shared, [known(id, 1)])).done.rejected
            await asyncio.sleep(60)
            assert (await recovered(shared, [known(id, 1), other])).complete
            async with broker(shared, 2, **LONG_GRACE) as after:
                assert [await read(after, 0, topic) for topic in (T, "u")] == before

    run(story())


def test_records_that_an_earlier_recovery_committed_keep_their_offsets() -> None:
    """The earlier coordinator was that of a backup. Its recovery copied lost batches of a merged object, which is gone now."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            id = await create(asked, T, partitions=PARTITIONS, retention_ms="-1")
            earlier = shared.store.database.connection.serialize()
            await fill(asked, 6)
            await asyncio.sleep(200)
            before, landed = await logs(asked), await ends(shared, id)
        shared.store.database.connection.deserialize(earlier)
        await asyncio.sleep(60)
        assert (await recovered(shared, [])).complete
        for key in [key for key in shared.objects.objects if key.endswith(wal.MERGED)]:
            del shared.objects.objects[key]
        await lose(shared)
        assert (await recovered(shared, [known(id, landed=landed)])).complete
        async with broker(shared, 2, **MERGES) as other:
            assert await logs(other) == before

    run(story())


@pytest.mark.parametrize("first", [True, False])
def test_an_object_that_is_alone_in_its_hour_shows_its_offsets(first: bool) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            id = await create(asked, T, partitions=PARTITIONS, retention_ms="-1")
            if not first:
                await fill(asked, 4)
                await asyncio.sleep(5_400)
            await produce(asked, T, 0, raw(1, body=b"alone" * 9))
            await asyncio.sleep(5_400)
            await fill(asked, 4, 4)
            await asyncio.sleep(5_400)
            before, landed = await logs(asked), await ends(shared, id)
        await lose(shared)
        assert (await recovered(shared, [known(id, landed=landed)])).complete
        async with broker(shared, 2, **MERGES) as other:
            assert await logs(other) == before

    run(story())


def test_records_of_two_brokers_come_behind_the_landed_offsets() -> None:
    """The ids of their objects show no common order. So a record that has not landed could get an offset that has."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1, **MERGES) as one, broker(shared, 2, **MERGES) as two:
            id = await create(one, T, partitions=1, retention_ms="-1")
            await produce(one, T, 0, raw(1, body=b"first" * 9))
            for number in range(5):
                await produce(two, T, 0, raw(1, body=b"%d" % number + b"x" * 30))
                await asyncio.sleep(1)
            landed = (await ends(shared, id))[0]
            await produce(one, T, 0, raw(1, body=b"newest" * 9))
        await lose(shared)
        outcome = await recovered(shared, [known(id, 1, {0: landed})])
        assert (outcome.done.again, outcome.complete) == ([f"{T}/0"], False)
        async with broker(shared, 3, **MERGES) as other:
            start, batches = await read(other, 0)
            assert (start, len(batches)) == (landed, 7)

    run(story())


def test_records_come_behind_the_landed_offsets_if_some_are_gone() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            id = await create(asked, T, partitions=PARTITIONS, retention_ms="-1")
            await fill(asked, 4)
            await asyncio.sleep(150)
            before = set(shared.objects.objects)
            await produce(asked, T, 0, raw(5, body=b"gone" * 9))
            gone = set(shared.objects.objects) - before
            landed = await ends(shared, id)
            await produce(asked, T, 0, raw(2, body=b"newest" * 9))
        for key in gone:
            del shared.objects.objects[key]
        await lose(shared)
        outcome = await recovered(shared, [known(id, landed=landed)])
        assert outcome.done.again == [f"{T}/0"]
        assert outcome.gaps == {f"{T}/0": [Span(landed[0] - 5, landed[0] - 1)]}
        async with broker(shared, 3, **MERGES) as other:
            _, batches = await read(other, 0)
            assert int.from_bytes(batches[-1][:8], "big") == landed[0]

    run(story())


def test_a_damaged_compacted_object_hides_no_intact_one() -> None:
    settings: dict[str, Any] = {"upkeep": {**LONG_GRACE["upkeep"], "interval_seconds": 30}}

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **settings) as asked:
            id = await create(asked, T, partitions=PARTITIONS, retention_ms="-1")
            await fill_keys(asked)
            await asyncio.sleep(100)
            await fill_keys(asked, 20)
            before = await logs(asked)
            await alter(asked, T, cleanup_policy="compact")
            await asyncio.sleep(60)
        (key,) = [key for key in shared.objects.objects if wal.horizon(key) is not None]
        data = bytearray(shared.objects.objects[key])
        data[wal.HEAD + record_batch.HEADER] ^= 1
        shared.objects.objects[key] = bytes(data)
        await lose(shared)
        outcome = await recovered(shared, [known(id, cleanup_policy="compact")])
        assert outcome.done.skipped == [key]
        async with broker(shared, 2, upkeep={"interval_seconds": 1000}) as other:
            assert await logs(other) == before

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
        outcome = await recovered(shared, [further])
        assert outcome.done.again == [f"{T}/{number}" for number in range(PARTITIONS)]
        assert await ends(shared, id) == {number: landed[number] + end for number, end in further.next.items()}
        shared.objects.objects.clear()
        await lose(shared)
        assert (await recovered(shared, [further])).complete, "retention may have deleted all records"
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
        outcome = await recovered(shared, [known(id, landed=landed)])
        assert outcome.done.complete
        assert [spans[-1].last + 1 for spans in outcome.gaps.values()] == list(landed.values())
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
        outcome = await recovered(shared, [known(id)])
        assert (outcome.topics, outcome.complete) == ([], True)
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
        (
            json.dumps({"topics": [{"name": "t", "id": ID, "partitions": 1}] * 2}),
            "2 topics have the name t; leave only one",
        ),
        (
            json.dumps({"topics": [{"name": name, "id": ID, "partitions": 1} for name in ("t", "u")]}),
            "2 topics have the id .*; leave only one",
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


def fsck_command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "firn_broker", "fsck", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_list_of_topics_needs_a_recovery(tmp_path: Path) -> None:
    ended = fsck_command("--data-dir", str(tmp_path), "--topics", str(tmp_path / "topics.json"))
    assert ended.returncode == ExitCode.CONFIGURATION
    assert "--topics needs fsck --recover" in ended.stderr


def test_a_broker_with_a_directory_gets_a_new_coordinator(tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    known = [
        {"name": "t", "id": ID, "partitions": 2, "next": {"1": 7}},
        {"name": "u", "id": str(UUID(int=9)), "partitions": 1},
    ]
    file.write_text(json.dumps({"topics": known}))
    ended = fsck_command("--data-dir", str(tmp_path), "--recover", "--topics", str(file))
    assert ended.returncode == ExitCode.DONE, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["topics"], report["gaps"]) == (["t", "u"], {})
