"""Compacted topics on whole brokers: which records stay, which are removed, and crashes in between."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import ExitCode, UnavailableError
from firn.records import keys, record_batch
from firn_broker import metrics
from firn_broker.log_types import Lookup, LookupResult, Partition, Rewrite
from firn_broker.maintenance import compaction, fsck
from firn_broker.storage import wal
from tests.contract.metadata_store.builders import ALL_KEYS
from tests.fakes.virtual_time import run
from tests.gen import NOW
from tests.unit.broker.batches import raw
from tests.unit.broker.test_keys import record
from tests.unit.broker.test_recovery import fsck as fsck_process
from tests.unit.broker.test_recovery import printed_report
from tests.unit.broker.test_whole_brokers import fetch, produce
from tests.unit.broker.whole import Asked, Shared, broker, create, zero

UPKEEP: dict[str, Any] = {"upkeep": {"interval_seconds": 30, "grace_seconds": 60}}
NOW_MS = int(NOW.timestamp() * 1000)


def batch(*pairs: tuple[bytes | None, bytes | None], time: int = NOW_MS) -> memoryview:
    of = [record(number, key, value, time) for number, (key, value) in enumerate(pairs)]
    (made,) = keys.encode(of, 0, len(of) - 1, compressed=False, batch_bytes=1 << 20)
    return memoryview(made)


async def read(asked: Asked, topic: str = "t") -> list[tuple[int, bytes | None, bool]]:
    """Return (offset, key, tombstone) of all records, read as a consumer reads them."""
    records: list[tuple[int, bytes | None, bool]] = []
    offset = 0
    while True:
        answer: Any = await fetch(asked, topic, 0, offset, wait=0)
        assert not answer.error_code
        if offset >= answer.high_watermark:
            return records
        data = memoryview(answer.records)
        assert len(data), "a consumer could not continue"
        for place, size, offsets in record_batch.walk(data):
            encoded = data[place : place + size]
            records += [
                (decoded.offset, decoded.key, decoded.tombstone)
                for decoded in keys.decode(encoded)
                if decoded.offset >= offset
            ]
            offset = int.from_bytes(encoded[:8], "big") + offsets


async def fill(asked: Asked, start: int = 0) -> None:
    for number in range(10):
        answer = await produce(asked, "t", 0, batch((b"a", b"%d" % number), (b"b", b"%d" % number)))
        assert answer.base_offset == start + 2 * number
        await asyncio.sleep(0.3)


async def topic_id(asked: Asked) -> UUID:
    topic = await asked.broker.topic_metadata.find("t")
    assert topic is not None
    return topic.id


async def size_of(asked: Asked, partitions: int = 3) -> list[int]:
    id = await topic_id(asked)
    states = await asked.broker.metadata_store.log.states([Partition(id, number) for number in range(partitions)])
    return [state.size for state in states if state is not None]


async def alter(asked: Asked, name: str, **configs: str) -> ErrorCode:
    settings = [
        {"name": key.replace("_", "."), "config_operation": 0, "value": value} for key, value in configs.items()
    ]
    answer = await asked.ask(
        44, 1, resources=[{"resource_type": 2, "resource_name": name, "configs": settings}], validate_only=False
    )
    code: ErrorCode = answer.responses[0].error_code
    return code


def test_the_newest_record_of_each_key_keeps_its_offset() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **UPKEEP) as asked:
            await create(asked, "t", cleanup_policy="compact")
            await fill(asked)
            await produce(asked, "t", 0, batch((b"b", None), (b"c", b"v")))
            assert len(await read(asked)) == 22
            before = len(shared.objects.objects)
            await asyncio.sleep(150)
            assert await read(asked) == [(18, b"a", False), (20, b"b", True), (21, b"c", False)]
            assert before > 1 == len(shared.objects.objects)
            findings = await fsck.check(shared.store.retention, shared.objects, read=True)
            assert (findings.lost, findings.unknown, findings.objects) == (False, [], 1)
            assert (await produce(asked, "t", 0, batch((b"a", b"w")))).base_offset == 22

    run(story())


def test_tombstones_expire_without_writes_and_across_brokers() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **UPKEEP) as asked:
            await create(asked, "t", cleanup_policy="compact", delete_retention_ms="600000")
            await fill(asked)
            await produce(asked, "t", 0, batch((b"a", None), (b"b", None), time=1))
            await asyncio.sleep(500)
            assert await read(asked) == [(20, b"a", True), (21, b"b", True)]
        async with broker(shared, 2, **UPKEEP) as other:
            await asyncio.sleep(60)
            assert [entry[0] for entry in await read(other)] == [20, 21]
            await asyncio.sleep(150)
            assert await read(other) == []
            assert (await produce(other, "t", 0, batch((b"c", b"w")))).base_offset == 22
            assert await read(other) == [(22, b"c", False)]

    run(story())


def test_the_next_broker_does_not_compact_again() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **UPKEEP) as asked:
            await create(asked, "t", cleanup_policy="compact")
            await fill(asked)
            await asyncio.sleep(150)
            await produce(asked, "t", 0, batch((b"a", b"w")))
        before = set(shared.objects.objects)
        async with broker(shared, 2, **UPKEEP) as other:
            await asyncio.sleep(300)
            assert set(shared.objects.objects) == before
            await fill(other, 21)
            await asyncio.sleep(150)
            assert [entry[0] for entry in await read(other)] == [39, 40]

    run(story())


def test_a_full_pass_is_compacted_below_the_dirty_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(compaction, "PASS_RANGES", 4)
        async with broker(**UPKEEP) as asked:
            await create(asked, "t", cleanup_policy="compact")
            await produce(asked, "t", 0, batch(*((b"%d" % number, b"v" * 100) for number in range(300))))
            await asyncio.sleep(60)
            for _ in range(6):
                await produce(asked, "t", 0, batch((b"0", b"w")))
                await asyncio.sleep(0.3)
            await asyncio.sleep(100)
            assert [entry[0] for entry in await read(asked)][298:] == [299, 303, 304, 305]

    run(story())


def test_a_lower_dirty_ratio_applies_without_writes() -> None:
    async def story() -> None:
        async with broker(**UPKEEP) as asked:
            await create(asked, "t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.9")
            await fill(asked)
            await asyncio.sleep(60)
            await produce(asked, "t", 0, batch((b"a", b"w")))
            await asyncio.sleep(100)
            assert [entry[0] for entry in await read(asked)] == [18, 19, 20]
            assert await alter(asked, "t", min_cleanable_dirty_ratio="0.1") == ErrorCode.none
            await asyncio.sleep(100)
            assert [entry[0] for entry in await read(asked)] == [19, 20]

    run(story())


def test_records_of_append_time_keep_their_times() -> None:
    async def story() -> None:
        async with broker(**UPKEEP) as asked:
            await create(asked, "t", cleanup_policy="compact", message_timestamp_type="LogAppendTime")
            times = {}
            for number in range(6):
                answer = await produce(asked, "t", 0, batch((b"%d" % (number % 3), b"v"), time=1))
                times[answer.base_offset] = answer.log_append_time
                await asyncio.sleep(1)
            await asyncio.sleep(100)
            answer = await fetch(asked, "t", 0, 0, wait=0)
            data = memoryview(answer.records)
            timestamps = {}
            for place, size, _ in record_batch.walk(data):
                encoded = data[place : place + size]
                assert record_batch.header(encoded)[1] & record_batch.APPEND_TIME_BIT
                timestamps.update({decoded.offset: decoded.timestamp for decoded in keys.decode(encoded)})
            assert timestamps == {offset: int(times[offset].timestamp() * 1000) for offset in (3, 4, 5)}

    run(story())


def test_records_younger_than_the_lag_stay() -> None:
    async def story() -> None:
        async with broker(**UPKEEP) as asked:
            now = int(asked.broker.clock.now().timestamp() * 1000)
            await create(asked, "t", cleanup_policy="compact", min_compaction_lag_ms="120000")
            for number in range(4):
                await produce(asked, "t", 0, batch((b"a", b"v"), time=now + number))
            await asyncio.sleep(100)
            assert len(await read(asked)) == 4
            await asyncio.sleep(60)
            assert [entry[0] for entry in await read(asked)] == [3]

    run(story())


def test_a_compacted_topic_may_also_delete_by_age() -> None:
    async def story() -> None:
        async with broker(**UPKEEP) as asked:
            now = int(asked.broker.clock.now().timestamp() * 1000)
            await create(asked, "t", cleanup_policy="compact,delete", retention_ms="200000")
            for number in range(4):
                await produce(asked, "t", 0, batch((b"%d" % (number % 2), b"v"), time=now))
            await asyncio.sleep(100)
            assert [entry[0] for entry in await read(asked)] == [2, 3]
            await asyncio.sleep(200)
            answer = await fetch(asked, "t", 0, 4, wait=0)
            assert (answer.error_code, answer.log_start_offset, answer.high_watermark) == (ErrorCode.none, 4, 4)

    run(story())


def test_one_round_compacts_all_due_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        # One partition needs three passes. All of them together need several times the work of one round.
        monkeypatch.setattr(compaction, "PASS_RANGES", 2)
        async with broker(upkeep={**UPKEEP["upkeep"], "compacted_bytes": 1 << 20}) as asked:
            await create(asked, "t", partitions=6, cleanup_policy="compact")
            large = batch((b"k", b"v" * 300_000))
            for _ in range(3):
                await asyncio.gather(*(produce(asked, "t", partition, large) for partition in range(6)))
            for _ in range(3):
                await produce(asked, "t", 0, large)
            await asyncio.sleep(32 - asyncio.get_running_loop().time())
            assert all(size < 400_000 for size in await size_of(asked, 6)), await size_of(asked, 6)
            assert metrics.NOT_COMPACTED.labels("behind")._value.get() == 0

    run(story())


def test_due_partitions_take_turns_over_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **UPKEEP) as asked:
            await create(asked, "t", partitions=4, cleanup_policy="compact")
            for _ in range(3):
                await asyncio.gather(*(produce(asked, "t", partition, batch((b"k", b"v"))) for partition in range(4)))
            before = await size_of(asked, 4)
            true = shared.store.log.find

            async def find(wanted: Sequence[Lookup]) -> Sequence[LookupResult]:
                await asyncio.sleep(20)
                return await true(wanted)

            monkeypatch.setattr(shared.store.log, "find", find)
            behind_counts = []
            for _ in range(6):
                await produce(asked, "t", 0, batch((b"k", b"v")))
                await asyncio.sleep(30)
                behind_counts.append(metrics.NOT_COMPACTED.labels("behind")._value.get())
            assert max(behind_counts) == 2, behind_counts
            after = await size_of(asked, 4)
            assert all(now < was for now, was in zip(after[1:], before[1:], strict=True)), (before, after)
            await asyncio.sleep(200)
            assert all(now < was for now, was in zip(await size_of(asked, 4), before, strict=True))
            assert metrics.NOT_COMPACTED.labels("behind")._value.get() == 0

    run(story())


@pytest.mark.parametrize("why", ["outgrown", "undecodable"])
def test_a_partition_that_fails_to_compact_is_reported(why: str) -> None:
    async def story() -> None:
        def not_compacted() -> float:
            return metrics.NOT_COMPACTED.labels(why)._value.get()

        async with broker(upkeep={**UPKEEP["upkeep"], "compacted_bytes": 1 << 20}) as asked:
            await create(asked, "t")
            if why == "undecodable":
                await produce(asked, "t", 0, raw(3))
            for number in range(4):
                await produce(asked, "t", 0, batch((b"%d" % number if why == "outgrown" else b"k", b"v" * 300_000)))
            assert await alter(asked, "t", cleanup_policy="compact") == ErrorCode.none
            partition = Partition(await topic_id(asked), 0)
            before = await asked.broker.metadata_store.log.states([partition])
            await asyncio.sleep(100)
            assert not_compacted() == 1
            assert await asked.broker.metadata_store.log.states([partition]) == before
            await asked.broker.metadata_store.log.advance_start(partition, 3)
            await produce(asked, "t", 0, batch((b"k", b"v")))
            await asyncio.sleep(150)
            assert not_compacted() == 0

    run(story())


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["reserve", "put", "before", "after"])
def test_a_fault_at_any_step_loses_nothing(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **UPKEEP) as asked:
            await create(asked, "t", cleanup_policy="compact")
            await fill(asked)
            place: Any = shared.objects if fault == "put" else shared.store.log
            name = fault if fault in ("put", "reserve") else "rewrite"
            true = getattr(place, name)

            async def broken(*values: Rewrite) -> None:
                if fault == "after":
                    await true(*values)
                raise UnavailableError("broken")

            with monkeypatch.context() as patched:
                patched.setattr(place, name, broken)
                await asyncio.sleep(40)
                assert {entry[0] for entry in await read(asked)} >= {18, 19}
            await asyncio.sleep(300)
            assert [entry[0] for entry in await read(asked)] == [18, 19]
            listed = await shared.store.retention.list_objects(*ALL_KEYS)
            assert [key for key, (size, _) in listed.items() if size < 0 and wal.horizon(key) is not None] == []
            assert set(shared.objects.objects) == {key for key, (_, runs) in listed.items() if runs}

    run(story())


def test_the_longest_delete_retention_keeps_tombstones() -> None:
    async def story() -> None:
        async with broker(**UPKEEP) as asked:
            await create(asked, "t", cleanup_policy="compact", delete_retention_ms=str((1 << 63) - 1))
            await fill(asked)
            await produce(asked, "t", 0, batch((b"a", None)))
            await asyncio.sleep(1000)
            assert await read(asked) == [(19, b"b", False), (20, b"a", True)]

    run(story())


@pytest.mark.slow
@pytest.mark.parametrize("fault", [UnavailableError, RuntimeError])
@pytest.mark.parametrize("place", ["put", "rewrite"])
def test_other_maintenance_continues_if_compaction_fails(
    fault: type[Exception], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **UPKEEP) as asked:
            gone = await create(asked, "gone")
            await produce(asked, "gone", 0, batch((b"k", b"v")))
            (of_gone,) = shared.objects.objects
            await create(asked, "t", cleanup_policy="compact")
            await fill(asked)

            async def broken(*_: object) -> None:
                raise fault("broken")

            true = shared.objects.put

            async def put(key: str, data: memoryview) -> None:
                if wal.horizon(key) is not None:
                    raise fault("broken")
                await true(key, data)

            if place == "put":
                monkeypatch.setattr(shared.objects, "put", put)
            else:
                monkeypatch.setattr(shared.store.log, "rewrite", broken)
            await asyncio.sleep(60)
            await asked.broker.metadata_store.topics.delete_topic(gone)
            await asyncio.sleep(200)
            assert of_gone not in shared.objects.objects
            assert {entry[0] for entry in await read(asked)} >= {18, 19}

    run(story())


def test_a_failing_partition_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **UPKEEP) as asked:
            await create(asked, "t", partitions=3, cleanup_policy="compact")
            for partition in range(3):
                await produce(asked, "t", partition, batch((b"k", b"v"), (b"k", b"v")))
            true = shared.store.log.find

            async def find(wanted: Sequence[Lookup]) -> Sequence[LookupResult]:
                if wanted[0].partition.index == 0:
                    raise UnavailableError("broken")
                return await true(wanted)

            sizes = await size_of(asked)
            monkeypatch.setattr(shared.store.log, "find", find)
            await asyncio.sleep(150)
            after = await size_of(asked)
            assert [now < before for now, before in zip(after, sizes, strict=True)] == [False, True, True]

    run(story())


def test_a_compacted_topic_above_the_limits_is_rejected() -> None:
    async def story() -> None:
        async with broker(topics={"compacted_partitions": 3}) as asked:
            with pytest.raises(
                AssertionError,
                match=r"with 4 partitions: a compacted topic can have at most 3 partitions; .* topics.compactedPartitions",
            ):
                await create(asked, "large", partitions=4, cleanup_policy="compact,delete")
            with pytest.raises(AssertionError, match=r"can have at most 33554432 bytes; .* upkeep.compactedBytes"):
                await create(asked, "large", cleanup_policy="compact,delete", retention_bytes="1000000000")
            await create(asked, "small", cleanup_policy="compact,delete", retention_bytes="1000000")
            await create(asked, "t", partitions=4)
            assert await alter(asked, "t", cleanup_policy="compact") == ErrorCode.invalid_config
            await create(asked, "grown", partitions=3, cleanup_policy="compact")
            answer = await asked.ask(
                37, 3, topics=[{"name": "grown", "count": 4, "assignments": None}], timeout=zero(), validate_only=False
            )
            assert answer.results[0].error_code == ErrorCode.invalid_partitions

    run(story())


def test_a_compacted_topic_rejects_records_without_a_key() -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t", cleanup_policy="compact")
            for bad in (batch((b"k", b"v"), (None, b"v")), raw(2)):
                assert (await produce(asked, "t", 0, bad)).error_code == ErrorCode.invalid_record
            assert (await produce(asked, "t", 0, batch((b"k", b"v")))).base_offset == 0

    run(story())


@pytest.mark.parametrize("passes", [1, 2])
def test_a_recovery_puts_compacted_objects_in_the_place_of_deleted_ones(
    passes: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The coordinator was restored from a backup from before the compaction."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **UPKEEP) as asked:
            await create(asked, "t", cleanup_policy="compact", delete_retention_ms="300000")
            await fill(asked)
            await produce(asked, "t", 0, batch((b"b", None), (b"c", b"v")))
            backup = shared.store.database.connection.serialize()
            # The second pass removes the tombstone.
            await asyncio.sleep(150 if passes == 1 else 500)
            compacted = await read(asked)
            assert len(compacted) == (3 if passes == 1 else 2)
        await asyncio.sleep(60)
        shared.store.database.connection.deserialize(backup)
        shared.store.database.connection.execute("UPDATE node SET expires_ms = 0")
        assert await fsck_process(shared, monkeypatch) == ExitCode.DONE
        report = printed_report(capsys)
        assert (len(report["recovered"]["compacted"]), report["missing"]) == (1, [])
        async with broker(shared, 2, **UPKEEP) as asked:
            assert await read(asked) == compacted
            await asyncio.sleep(70)
            assert await read(asked) == compacted
            assert (await produce(asked, "t", 0, batch((b"a", b"w")))).base_offset == 22

    run(story())


def test_a_recovery_reports_missing_objects_that_no_compacted_one_replaces(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compaction read more records than the restored coordinator knows."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **UPKEEP) as asked:
            await create(asked, "t", cleanup_policy="compact")
            await fill(asked)
            backup = shared.store.database.connection.serialize()
            await produce(asked, "t", 0, batch((b"b", None), (b"c", b"v")))
            await asyncio.sleep(150)
        shared.store.database.connection.deserialize(backup)
        shared.store.database.connection.execute("UPDATE node SET expires_ms = 0")
        assert await fsck_process(shared, monkeypatch) == ExitCode.CORRUPT
        report = printed_report(capsys)
        assert report["recovered"]["compacted"] == []
        assert report["missing"]
        (compacted,) = shared.objects.objects
        assert report["recovered"]["kept"] == [compacted], "it has the only copy of the later records"
        upkeep: dict[str, Any] = {"upkeep": {**UPKEEP["upkeep"], "abandon_seconds": 100, "uncommitted_seconds": 500}}
        async with broker(shared, 2, **upkeep):
            await asyncio.sleep(1000)
            assert list(shared.objects.objects) == [compacted]
            assert await fsck_process(shared, monkeypatch, "accept", **upkeep) == ExitCode.CORRUPT
            await asyncio.sleep(1000)
            assert not shared.objects.objects

    run(story())


def test_a_recovery_keeps_a_compacted_object_that_the_coordinator_does_not_know(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no orphan afterwards, so a person can give it up."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, upkeep={**UPKEEP["upkeep"], "grace_seconds": 10**6}) as asked:
            await create(asked, "t", cleanup_policy="compact")
            await fill(asked)
            backup = shared.store.database.connection.serialize()
            before = set(shared.objects.objects)
            await asyncio.sleep(150)
        shared.store.database.connection.deserialize(backup)
        shared.store.database.connection.execute("UPDATE node SET expires_ms = 0")
        shared.store.database.connection.execute("DELETE FROM wal WHERE size < 0")
        (compacted,) = set(shared.objects.objects) - before
        assert await fsck_process(shared, monkeypatch) == ExitCode.DONE
        report = printed_report(capsys)
        assert report["newer"] == report["recovered"]["kept"] == [compacted]
        assert (await shared.store.retention.dead_backlog()).kept == 1

    run(story())
