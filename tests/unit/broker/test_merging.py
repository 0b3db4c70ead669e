"""Merges on whole brokers: what is due, which bytes readers get afterwards, and damaged objects."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from firn.model.errors import UnavailableError
from firn.records import record_batch
from firn_broker.log_types import (
    ROW_BYTES,
    UNMERGEABLE,
    UNMERGED,
    BatchRange,
    MergeSource,
    Partition,
    SourceRow,
    WalRange,
)
from firn_broker.maintenance import compaction, fsck
from firn_broker.maintenance.merges import merging
from firn_broker.maintenance.merges.merging import HOUR_MS, MOST_ROWS, SOURCES, grouped, select
from firn_broker.storage import wal
from tests.contract.metadata_store.builders import ALL_KEYS
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_whole_brokers import fetch, produce
from tests.unit.broker.whole import Asked, Shared, broker, create

MERGES: dict[str, Any] = {
    "upkeep": {"interval_seconds": 10, "grace_seconds": 60, "merge_seconds": 20, "merged_bytes": 20_000}
}
PARTITION = Partition(UUID(int=7), 0)


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of merged objects have several ranges."""
    monkeypatch.setattr(compaction, "RANGE_BYTES", 400)


def source(number: int, size: int = 100, made_ms: int | None = None, rows: int = 1) -> MergeSource:
    return MergeSource(f"wal/{number}", size, rows, number if made_ms is None else made_ms)


def keys(sources: Sequence[MergeSource] | None) -> list[str]:
    return [each.key for each in sources or ()]


def row(base: int, last: int, key: str = "wal/a", *, size: int = 100, made_ms: int = 0) -> SourceRow:
    return SourceRow(PARTITION, made_ms, [BatchRange(base, last, WalRange(key, 100 * base, size), 1, -1)])


def test_objects_of_brokers_wait_until_they_fill_an_object() -> None:
    sources = [source(number) for number in range(6)]
    assert select(UNMERGED, sources, 600, now_ms=50, wait_ms=100) is None
    selection = select(UNMERGED, sources, 450, now_ms=50, wait_ms=100)
    assert selection is not None
    assert keys(selection.sources) == ["wal/0", "wal/1", "wal/2", "wal/3"]


def test_objects_of_brokers_do_not_wait_for_ever() -> None:
    sources = [source(number) for number in range(3)]
    assert select(UNMERGED, sources, 1000, now_ms=99, wait_ms=100) is None
    selection = select(UNMERGED, sources, 1000, now_ms=100, wait_ms=100)
    assert selection is not None
    assert len(selection.sources) == 3
    assert select(UNMERGED, sources[:1], 1000, now_ms=100, wait_ms=100) is None
    many = [source(number, 1) for number in range(SOURCES)]
    assert select(UNMERGED, many, 1 << 30, now_ms=0, wait_ms=1 << 30) is not None


def test_a_selection_has_few_rows() -> None:
    many = [source(number, rows=MOST_ROWS // 4) for number in range(40)]
    assert len(select(UNMERGED, many, 1 << 30, 0, 0).sources) == 4  # type: ignore[union-attr]
    assert len(select(1, many, 1 << 30, 0, 0).sources) == 4  # type: ignore[union-attr]
    huge = [source(number, rows=MOST_ROWS) for number in range(40)]
    assert len(select(UNMERGED, huge, 1 << 30, 0, 0).sources) == 2  # type: ignore[union-attr]
    assert len(select(1, huge, 1 << 30, 0, 0).sources) == 2  # type: ignore[union-attr]


def test_what_is_left_of_an_hour_is_merged_after_its_end() -> None:
    sources = [source(number, made_ms=HOUR_MS - 3 + number) for number in range(5)]
    for level in (UNMERGED, 1):
        assert select(level, sources, 1000, HOUR_MS + 99, wait_ms=100 if level else HOUR_MS) is None
        selection = select(level, sources, 1000, HOUR_MS + 100, wait_ms=100)
        assert selection is not None
        assert keys(selection.sources) == ["wal/0", "wal/1", "wal/2"]
        assert not selection.ends
        alone = select(level, sources[2:], 1000, HOUR_MS + 100, wait_ms=100)
        assert alone is not None
        assert alone.ends == (level != UNMERGED)
        assert keys(alone.sources) == ["wal/2"]


def test_a_level_merges_the_objects_of_sixteen_merges() -> None:
    sources = [source(number, made_ms=number // 3) for number in range(60)]
    assert select(1, sources[:45], 100, 0, 0) is None
    selection = select(1, sources[:50], 100, 0, 0)
    assert selection is not None
    assert keys(selection.sources) == [f"wal/{number}" for number in range(48)]


def test_a_level_with_too_many_objects_merges_complete_merges_only() -> None:
    sources = [source(number, made_ms=number // 700) for number in range(SOURCES)]
    selection = select(2, sources, 100, 0, 0)
    assert selection is not None
    assert len(selection.sources) == 3500


def test_rows_that_follow_one_another_join() -> None:
    rows = [row(0, 4), row(5, 9, "wal/b"), row(11, 12, "wal/c"), row(13, 20, "wal/d")]
    assert [len(group) for group in grouped(rows, UNMERGED)] == [2, 2]
    large = [row(number, number, f"wal/{number}", size=ROW_BYTES // 2) for number in range(3)]
    assert [len(group) for group in grouped(large, UNMERGED)] == [2, 1]


def test_rows_of_different_hours_and_of_one_merged_object_stay_apart() -> None:
    rows = [row(0, 4), row(5, 9, "wal/b", made_ms=HOUR_MS - 1), row(10, 12, "wal/c", made_ms=HOUR_MS)]
    assert [len(group) for group in grouped(rows, UNMERGED)] == [2, 1]
    same = [row(0, 4), row(5, 9), row(10, 12, "wal/b")]
    assert [len(group) for group in grouped(same, UNMERGED)] == [3]
    assert [len(group) for group in grouped(same, 1)] == [1, 2]


async def fill(asked: Asked, partitions: int, rounds: int, topic: str = "t") -> None:
    for number in range(rounds):
        for partition in range(partitions):
            body = b"%d-%d " % (number, partition) * (1 + number % 5)
            await produce(asked, topic, partition, raw(1 + number % 3, body=body + b"x" * 30, time=1000 + number))
        await asyncio.sleep(0.3)


async def read(asked: Asked, partition: int, topic: str = "t", max_bytes: int = 1 << 20) -> bytes:
    """Return all batches of a partition, with their offsets."""
    batches, offset = b"", 0
    while True:
        answer: Any = await fetch(asked, topic, partition, offset, wait=0, max_bytes=max_bytes)
        assert not answer.error_code
        if offset >= answer.high_watermark:
            return batches
        data = memoryview(answer.records)
        for place, size, offsets in record_batch.walk(data):
            base = int.from_bytes(data[place : place + 8], "big")
            if base >= offset:
                batches += data[place : place + size]
            offset = base + offsets


async def objects(shared: Shared) -> dict[str, int]:
    """Return the number of rows of each object that has any."""
    listed = await shared.store.retention.list_objects(*ALL_KEYS)
    return {key: count for key, (_, count) in listed.items() if count}


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_readers_get_the_same_bytes_after_a_merge(kind: str) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            id = await create(asked, "t", partitions=3, retention_ms="-1", message_timestamp_type=kind)
            await fill(asked, 3, 40)
            before = [await read(asked, partition) for partition in range(3)]
            states = await shared.store.log.states([Partition(id, number) for number in range(3)])
            assert len(await objects(shared)) > 100
            await asyncio.sleep(60)
            merged = await objects(shared)
            assert sum(merged.values()) <= 2 * 3
            assert all(key.endswith(".merged") for key in merged)
            await asyncio.sleep(80)
            assert set(shared.objects.objects) == set(merged), "the small objects are deleted"
            assert await shared.store.log.states([Partition(id, number) for number in range(3)]) == states
        async with broker(shared, 2, **MERGES) as other:
            for partition in range(3):
                assert await read(other, partition) == before[partition]
                assert await read(other, partition, max_bytes=100) == before[partition]
            findings = await fsck.check(shared.store.retention, shared.objects, read=True)
            assert (findings.lost, findings.newer, findings.unknown, findings.uncommitted) == (False, [], [], [])

    run(story())


def test_higher_levels_join_the_rows_of_many_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(merging, "FAN", 3)
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            await create(asked, "t", partitions=20, retention_ms="-1")
            for _ in range(12):
                await fill(asked, 20, 2)
                await asyncio.sleep(40)
            await asyncio.sleep(60)
            before = [await read(asked, partition) for partition in range(20)]
            merged = await objects(shared)
            levels = [len(await shared.store.merges.sources(level, 0, 100)) for level in range(3)]
            assert levels[0] == 0
            assert levels[1] < 3, levels
            assert sum(merged.values()) < 20 * 6, merged
        async with broker(shared, 2, **MERGES) as other:
            assert [await read(other, partition) for partition in range(20)] == before

    run(story())


def test_damaged_and_missing_batches_stay_where_they_are() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            await create(asked, "t", partitions=2, retention_ms="-1")
            await fill(asked, 2, 10)
            damaged, missing, *_ = sorted(await objects(shared))
            data = bytearray(shared.objects.objects[damaged])
            data[wal.HEAD + 70] ^= 1
            kept = shared.objects.objects.pop(missing)
            shared.objects.objects[damaged] = bytes(data)
            await asyncio.sleep(80)
            left = await objects(shared)
            assert {damaged, missing} < set(left)
            assert [key for key in left if not key.endswith(".merged")] == [damaged, missing]
            assert [len(await shared.store.merges.sources(UNMERGED, 0, 10)), UNMERGEABLE] == [0, 127]
            shared.objects.objects[missing] = kept
            data[wal.HEAD + 70] ^= 1
            shared.objects.objects[damaged] = bytes(data)
            for partition in range(2):
                assert len(record_batch.walk(memoryview(await read(asked, partition)))) == 10

    run(story())


def test_a_failed_merge_is_repeated_and_leaves_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            await create(asked, "t", retention_ms="-1")
            await fill(asked, 1, 10)
            true, failed = shared.objects.put, list[str]()

            async def put(key: str, data: memoryview) -> None:
                await true(key, data)
                if key.endswith(".merged") and len(failed) < 3:
                    failed.append(key)
                    raise UnavailableError("the store ended")

            monkeypatch.setattr(shared.objects, "put", put)
            await asyncio.sleep(200)
            (merged,) = await objects(shared)
            assert len(failed) == 3
            assert set(shared.objects.objects) == {merged}

    run(story())


def test_a_read_that_fails_once_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            await create(asked, "t", retention_ms="-1")
            await fill(asked, 1, 10)
            true, failed = shared.objects.get_ranges, set[str]()

            async def get_ranges(key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
                if key not in failed:
                    failed.add(key)
                    raise UnavailableError("a time-out")
                return await true(key, ranges)

            monkeypatch.setattr(shared.objects, "get_ranges", get_ranges)
            await asyncio.sleep(80)
            (merged,) = await objects(shared)
            assert merged.endswith(".merged")
            assert len(failed) >= 10

    run(story())


def test_an_object_that_cannot_be_read_holds_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            await create(asked, "t", retention_ms="-1")
            await fill(asked, 1, 10)
            broken, true = min(await objects(shared)), shared.objects.get_ranges

            async def get_ranges(key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
                if key == broken:
                    raise UnavailableError("the range is not satisfiable")
                return await true(key, ranges)

            monkeypatch.setattr(shared.objects, "get_ranges", get_ranges)
            await asyncio.sleep(80)
            left = await objects(shared)
            assert [key for key in left if not key.endswith(".merged")] == [broken]
            assert len(left) <= 3

    run(story())


def test_a_single_object_is_merged_alone() -> None:
    """A merged object shows the offsets of its batches, from which a recovery makes a coordinator."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            await create(asked, "t", retention_ms="-1")
            await produce(asked, "t", 0, raw(1))
            await asyncio.sleep(2 * HOUR_MS / 1000)
            (single,) = await objects(shared)
            assert single.endswith(".merged")
            assert await shared.store.merges.sources(UNMERGED, 0, 10) == []
            assert REGISTRY.get_sample_value("firn_broker_unmerged_seconds") == 0

    run(story())


def test_no_object_is_merged_if_the_settings_say_so() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, upkeep={**MERGES["upkeep"], "merged_bytes": 0}) as asked:
            await create(asked, "t", retention_ms="-1")
            await fill(asked, 1, 5)
            before = await objects(shared)
            await asyncio.sleep(100)
            assert asked.broker.healthy
            assert await objects(shared) == before

    run(story())


def test_the_metric_counts_how_long_objects_have_waited() -> None:
    async def story() -> None:
        async with broker(upkeep={**MERGES["upkeep"], "merged_bytes": 1 << 20}) as asked:
            await create(asked, "t", retention_ms="-1")
            await fill(asked, 1, 5)
            await asyncio.sleep(35)
            assert 5 <= (REGISTRY.get_sample_value("firn_broker_unmerged_seconds") or 0) <= 16
            await asyncio.sleep(30)
            assert REGISTRY.get_sample_value("firn_broker_unmerged_seconds") == 0

    run(story())
