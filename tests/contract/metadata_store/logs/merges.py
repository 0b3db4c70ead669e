"""The contract of `MergeStore`, and of rewrites of many partitions. For every implementation."""

import asyncio
from random import Random
from uuid import UUID

import pytest

from firn_broker.log_types import (
    MAX_TIMESTAMP,
    ROW_BYTES,
    UNMERGEABLE,
    UNMERGED,
    BatchRange,
    Commit,
    LogState,
    Lookup,
    Partition,
    Rewrite,
    SourceRow,
    Swap,
    WalRange,
)
from firn_broker.storage import wal
from tests.contract.metadata_store.builders import (
    ADDRESS,
    ALL_KEYS,
    FIRST,
    SECOND,
    TOPIC,
    TTL,
    Advance,
    Log,
    StoreContract,
    batch,
)  # fmt: skip


async def stored(log: Log, partition: Partition = FIRST) -> list[BatchRange]:
    """Return all ranges of a partition."""
    (state,) = await log.store.log.states([partition])
    assert state is not None
    (result,) = await log.store.log.find([Lookup(partition, state.log_start, 1 << 40)], 1 << 20)
    return list(result.ranges)


async def merged(log: Log, *partitions: Partition, level: int = 1, made_ms: int | None = None) -> Rewrite:
    """Build a rewrite that moves all ranges of the partitions into one object, one range after the other."""
    key, position, swaps = await log.key(), 32, []
    for partition in partitions:
        old, new = await stored(log, partition), []
        for found in old:
            new.append(found._replace(place=WalRange(key, position, found.place.length)))
            position += found.place.length
        swaps.append(Swap(partition, old, new))
    return Rewrite(log.lease, key, position, swaps, level, made_ms)


async def rows(log: Log, key: str) -> int:
    """Return how many rows of batch ranges the object has."""
    return (await log.store.retention.list_objects(*ALL_KEYS))[key][1]


class MergeContract(StoreContract):
    """The contract of merges."""

    async def test_a_rewrite_moves_ranges_of_many_partitions(self, log: Log, advance: Advance) -> None:
        keys = [await log.key() for _ in range(3)]
        for key in keys:
            await log.commit(batch(), batch(SECOND, records=2), key=key)
        states = await log.store.log.states([FIRST, SECOND])
        rewrite = await merged(log, FIRST, SECOND)
        assert await log.store.log.rewrite(rewrite) == [True, True]
        assert await log.store.log.rewrite(rewrite) == [True, True], "a repeated rewrite returns the same"
        for swap in rewrite.swaps:
            assert await stored(log, swap.partition) == swap.new
        assert await log.store.log.states([FIRST, SECOND]) == states
        await advance(1)
        assert sorted(await log.store.retention.dead_objects(0, 10)) == sorted(keys)
        assert (await log.commit(batch()))[0].base_offset == 3

    async def test_ranges_next_to_each_other_are_one_row(self, log: Log) -> None:
        for _ in range(5):
            await log.commit(batch(), batch(SECOND, records=2))
        rewrite = await merged(log, FIRST, SECOND)
        await log.store.log.rewrite(rewrite)
        assert await rows(log, rewrite.key) == 2
        again = await merged(log, FIRST)
        assert await log.store.log.rewrite(again) == [True]
        assert (await rows(log, rewrite.key), await rows(log, again.key)) == (1, 1)

    async def test_a_row_ends_at_its_bytes_and_at_an_append_time(self, log: Log) -> None:
        for _ in range(4):
            await log.commit(batch(length=ROW_BYTES // 3))
        await log.commit(batch(append_time=True))
        await log.commit(batch(append_time=True))
        rewrite = await merged(log, FIRST)
        await log.store.log.rewrite(rewrite)
        assert await rows(log, rewrite.key) == 4
        assert await stored(log) == rewrite.swaps[0].new

    @pytest.mark.parametrize("seed", range(3))
    async def test_lookups_in_a_row_find_what_single_ranges_would_be(self, log: Log, seed: int) -> None:
        random = Random(seed)
        for _ in range(12):
            await log.commit(
                batch(records=random.randint(1, 3), length=random.randint(1, 200), time=random.randrange(99))
            )
        before = [
            await log.store.log.find([Lookup(FIRST, offset, size)], limit)
            for offset in range(12)
            for size in (1, 150, 400, 5000)
            for limit in (1, 3, 99)
        ]
        rewrite = await merged(log, FIRST)
        places = dict(zip(rewrite.swaps[0].old, rewrite.swaps[0].new, strict=True))
        await log.store.log.rewrite(rewrite)
        assert await rows(log, rewrite.key) == 1
        after = [
            await log.store.log.find([Lookup(FIRST, offset, size)], limit)
            for offset in range(12)
            for size in (1, 150, 400, 5000)
            for limit in (1, 3, 99)
        ]
        for (one,), (other,) in zip(before, after, strict=True):
            assert [places[found] for found in one.ranges] == list(other.ranges)

    async def test_unfinished_objects_are_those_that_the_lease_reserved_with_an_ending(self, log: Log) -> None:
        other = await log.store.nodes.join(ADDRESS, TTL, 7)
        keys = [wal.merged_key(UUID(int=1)), wal.merged_key(UUID(int=2)), wal.history_key(UUID(int=3), 7)]
        await log.store.log.reserve(log.lease, keys)
        await log.store.log.reserve(other, [wal.merged_key(UUID(int=4))])
        await log.store.log.commit(Commit(log.lease, keys[0], 0, ()))
        assert await log.store.merges.unfinished(log.lease, wal.MERGED) == [keys[1]]
        assert await log.store.merges.unfinished(log.lease, wal.HISTORY) == [keys[2]]

    @pytest.mark.parametrize("seed", range(3))
    async def test_searches_by_time_in_rows_find_what_single_ranges_would_be(self, log: Log, seed: int) -> None:
        random, times = Random(seed), list[int]()
        for step in range(4):
            for _ in range(random.randint(1, 3)):
                times.append(random.randrange(60))
                await log.commit(batch(time=times[-1]))
            if step < 3:
                first = len(times) - random.randint(1, len(times))
                old = [found for found in await stored(log) if found.base_offset >= first]
                key, new = await log.key(), list[BatchRange]()
                for number, found in enumerate(old):
                    new.append(found._replace(place=WalRange(key, 32 + 100 * number, 100)))
                assert await log.store.log.rewrite(Rewrite(log.lease, key, 500, [Swap(FIRST, old, new)])) == [True]
        for start in range(len(times)):
            await log.store.log.advance_start(FIRST, start)
            for since in (0, random.randrange(start, len(times))):
                places = range(max(start, since), len(times))
                for timestamp in {0, *times, 60}:
                    expected = next((place for place in places if times[place] >= timestamp), None)
                    searched = await log.store.log.find_by_time(FIRST, timestamp, since)
                    assert (None if searched is None else searched.base_offset) == expected, (timestamp, since, times)
                newest = await log.store.log.find_by_time(FIRST, MAX_TIMESTAMP, since)
                assert newest is not None
                assert newest.base_offset == max(places, key=lambda place: times[place]), (since, times)

    async def test_a_swap_takes_place_without_the_others(self, log: Log) -> None:
        await log.commit(batch(), batch(SECOND))
        slow, quick = await merged(log, FIRST, SECOND), await merged(log, FIRST)
        await log.store.log.rewrite(quick)
        assert await log.store.log.rewrite(slow) == [False, True]
        assert await stored(log) == quick.swaps[0].new
        assert await stored(log, SECOND) == slow.swaps[1].new
        assert await rows(log, slow.key) == 1

    async def test_a_swap_may_take_some_ranges_of_a_row(self, log: Log) -> None:
        for _ in range(5):
            await log.commit(batch())
        before = await merged(log, FIRST)
        await log.store.log.rewrite(before)
        old, key = (await stored(log))[1:3], await log.key()
        new = [found._replace(place=WalRange(key, 32, 60)) for found in (old[0]._replace(last_offset=2),)]
        assert await log.store.log.rewrite(Rewrite(log.lease, key, 500, [Swap(FIRST, old, new)])) == [True]
        kept = before.swaps[0].new
        assert await stored(log) == [kept[0], *new, *kept[3:]]
        assert (await rows(log, before.key), await rows(log, key)) == (2, 1)
        assert await log.store.log.states([FIRST]) == [LogState(0, 5, 360)]
        await log.store.log.rewrite(await merged(log, FIRST))
        assert {before.key, key} <= set(await log.store.retention.dead_objects(0, 10))

    async def test_two_swaps_may_share_a_row(self, log: Log) -> None:
        for _ in range(6):
            await log.commit(batch())
        before = await merged(log, FIRST)
        await log.store.log.rewrite(before)
        key, kept = await log.key(), list(before.swaps[0].new)
        swaps = [
            Swap(FIRST, [kept[number]], [kept[number]._replace(place=WalRange(key, 32 + 100 * number, 100))])
            for number in (0, 1, 3)
        ]
        assert await log.store.log.rewrite(Rewrite(log.lease, key, 900, swaps)) == [True, True, True]
        assert await stored(log) == [*(swap.new[0] for swap in swaps[:2]), kept[2], swaps[2].new[0], *kept[4:]]
        assert (await rows(log, before.key), await rows(log, key)) == (2, 3)

    async def test_compacted_objects_are_no_sources(self, log: Log) -> None:
        key = f"{await log.key()}.compacted-0"
        await log.store.log.reserve(log.lease, [key])
        await log.commit(batch(), key=key)
        assert await log.store.merges.sources(UNMERGED, 0, 10) == []

    async def test_a_rewrite_without_a_swap_leaves_a_dead_object(self, log: Log) -> None:
        await log.commit(batch())
        slow, quick = await merged(log, FIRST), await merged(log, FIRST)
        await log.store.log.rewrite(quick)
        assert await log.store.log.rewrite(slow) == [False]
        assert slow.key in await log.store.retention.dead_objects(0, 10)
        assert [source.key for source in await log.store.merges.sources(1, 0, 10)] == [quick.key]

    async def test_rows_expire_as_a_whole(self, log: Log) -> None:
        for time in (1, 2, 1 << 60):
            await log.commit(batch(time=time))
        (first, second, _) = await stored(log)
        key = await log.key()
        new = [first._replace(place=WalRange(key, 32, 100)), second._replace(place=WalRange(key, 132, 100))]
        await log.store.log.rewrite(Rewrite(log.lease, key, 500, [Swap(FIRST, [first, second], new)]))
        await log.store.log.advance_start(FIRST, 1)
        assert await log.store.retention.drop_ranges(10) == 0
        assert await log.store.retention.expire(TOPIC, 1000, -1, 10) == 1
        assert await log.store.retention.drop_ranges(10) == 1
        assert await log.store.log.states([FIRST]) == [LogState(2, 3, 100)]
        assert key in await log.store.retention.dead_objects(0, 10)

    async def test_sources_are_the_oldest_objects_of_a_level(self, log: Log, advance: Advance) -> None:
        keys = [await log.key() for _ in range(3)]
        for key in keys:
            await log.commit(batch(), key=key)
            await advance(2)
        unused = await log.key()
        sources = await log.store.merges.sources(UNMERGED, 0, 10)
        assert [tuple(source[:3]) for source in sources] == [(key, 1000, 1) for key in keys]
        assert sources[0].made_ms < sources[1].made_ms < sources[2].made_ms
        assert [source.key for source in await log.store.merges.sources(UNMERGED, 0, 2)] == keys[:2]
        assert [source.key for source in await log.store.merges.sources(UNMERGED, 3000, 10)] == keys[:2]
        rewrite = await merged(log, FIRST, level=3, made_ms=sources[1].made_ms)
        await log.store.log.rewrite(rewrite)
        assert [source.key for source in await log.store.merges.sources(UNMERGED, 0, 10)] == []
        assert list(await log.store.merges.sources(3, 0, 10)) == [(rewrite.key, 332, 1, sources[1].made_ms)]
        await log.store.merges.finish([*keys, unused, rewrite.key])
        assert [source.key for source in await log.store.merges.sources(3, 0, 10)] == []
        assert list(await log.store.merges.sources(UNMERGEABLE, 0, 10)) == []
        await log.commit(batch(), key=unused)
        assert [source.key for source in await log.store.merges.sources(UNMERGED, 0, 10)] == [unused]

    async def test_a_rewrite_without_a_level_is_no_source(self, log: Log) -> None:
        await log.commit(batch())
        await log.store.log.rewrite(await merged(log, FIRST, level=UNMERGEABLE))
        assert [list(await log.store.merges.sources(level, 0, 10)) for level in range(3)] == [[], [], []]

    async def test_the_rows_of_sources_come_by_partition_and_offset(self, log: Log) -> None:
        keys = [await log.key() for _ in range(3)]
        for key in keys:
            await log.commit(batch(), batch(SECOND), key=key)
        made = {source.key: source.made_ms for source in await log.store.merges.sources(UNMERGED, 0, 10)}
        expected = [
            SourceRow(partition, made[found.place.key], [found])
            for partition in (FIRST, SECOND)
            for found in await stored(log, partition)
            if found.place.key in keys[:2]
        ]
        assert len(expected) == 4
        assert list(await log.store.merges.rows(keys[:2], None, 10)) == expected
        pages = list[SourceRow]()
        while page := await log.store.merges.rows(keys[:2], pages[-1] if pages else None, 1):
            pages += page
        assert pages == expected
        assert await log.store.merges.rows(["wal/unknown"], None, 10) == []

    async def test_sources_have_no_rows_that_retention_drops(self, log: Log) -> None:
        for _ in range(3):
            await log.commit(batch(), batch(SECOND))
        keys = [source.key for source in await log.store.merges.sources(UNMERGED, 0, 10)]
        await log.store.log.advance_start(FIRST, 2)
        found = await log.store.merges.rows(keys, None, 10)
        assert [(row.partition, row.ranges[0].base_offset) for row in found] == [
            (FIRST, 2), (SECOND, 0), (SECOND, 1), (SECOND, 2),
        ]  # fmt: skip
        await log.store.topics.delete_topic(TOPIC)
        assert await log.store.merges.rows(keys, None, 10) == []

    async def test_ranges_that_retention_dropped_meanwhile_stay_dropped(self, log: Log) -> None:
        for _ in range(3):
            await log.commit(batch(), batch(SECOND))
        rewrite = await merged(log, FIRST, SECOND)
        await log.store.log.advance_start(FIRST, 2)
        assert await log.store.retention.drop_ranges(10) == 2
        assert await log.store.log.rewrite(rewrite) == [False, True]
        assert [found.base_offset for found in await stored(log)] == [2]
        assert await log.store.log.states([FIRST]) == [LogState(2, 3, 100)]
        assert await stored(log, SECOND) == rewrite.swaps[1].new

    async def test_a_topic_that_was_deleted_meanwhile_stays_deleted(self, log: Log) -> None:
        await log.commit(batch(), batch(SECOND))
        rewrite = await merged(log, FIRST, SECOND)
        await log.store.topics.delete_topic(TOPIC)
        await log.store.retention.drop_ranges(10)
        assert await log.store.log.rewrite(rewrite) == [False, False]
        assert rewrite.key in await log.store.retention.dead_objects(0, 10)
        assert (await log.store.retention.list_objects(*ALL_KEYS))[rewrite.key][1] == 0

    @pytest.mark.parametrize("seed", range(4))
    async def test_merges_beside_retention_lose_no_range_and_leave_no_object(self, log: Log, seed: int) -> None:
        random, expected = Random(seed), 0
        for _ in range(6):
            for _ in range(random.randint(1, 6)):
                await log.commit(batch(time=random.randrange(99)), batch(SECOND, records=2))
                expected += 1
            start = random.randrange(expected)
            calls = [
                log.store.log.rewrite(await merged(log, FIRST, SECOND)),
                log.store.log.rewrite(await merged(log, FIRST)),
                log.store.log.advance_start(FIRST, start),
                log.store.retention.drop_ranges(random.randint(1, 9)),
                log.store.retention.drop_ranges(9),
            ]
            random.shuffle(calls)
            await asyncio.gather(*calls)
            (state,) = await log.store.log.states([FIRST])
            assert state is not None
            assert state.high_watermark == expected
            offsets = [found.base_offset for found in await stored(log)]
            assert offsets == list(range(state.log_start, expected))
            assert [found.base_offset for found in await stored(log, SECOND)] == list(range(0, 2 * expected, 2))
        await asyncio.gather(
            log.store.topics.delete_topic(TOPIC),
            log.store.log.rewrite(await merged(log, FIRST, SECOND)),
            log.store.retention.drop_ranges(9),
        )
        while await log.store.retention.drop_ranges(100):
            pass
        objects = await log.store.retention.list_objects(*ALL_KEYS)
        assert {key: rows for key, (_, rows) in objects.items() if rows} == {}
        assert set(objects) == set(await log.store.retention.dead_objects(0, 1000))

    async def test_records_without_a_timestamp_keep_their_age(self, log: Log, advance: Advance) -> None:
        await log.commit(batch(time=-1))
        (source,) = await log.store.merges.sources(UNMERGED, 0, 10)
        await advance(5)
        await log.store.log.rewrite(await merged(log, FIRST, made_ms=source.made_ms))
        assert await log.store.retention.expire(TOPIC, 9_000, -1, 10) == 0
        await advance(5)
        assert await log.store.retention.expire(TOPIC, 9_000, -1, 10) == 1
