"""The contract of the other calls of `LogStore`: lookups, and rewrites of batch ranges. For every implementation."""

import asyncio
import dataclasses
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import FencedError
from firn_broker.log_types import MAX_TIMESTAMP, RANGE_BYTES, LogState, Lookup, Partition
from firn_broker.metadata_store import time_marks
from firn_broker.metadata_store.sqlite.logs import log as sqlite_log
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
    produced,
    rewritten,
)


class BatchRangeContract(StoreContract):
    """The contract of `LogStore.find` and the calls after it."""

    async def count_time_marks(self, log: Log) -> int:
        """Count the rows of the table."""
        raise NotImplementedError

    async def test_adjacent_batches_are_one_range(self, log: Log) -> None:
        key = await log.key()
        await log.commit(batch(), batch(records=2, time=9000), batch(SECOND), key=key)
        result, other = await log.store.log.find([Lookup(FIRST, 0, 1000), Lookup(SECOND, 0, 1000)])
        (batch_range,) = result.ranges
        assert (batch_range.base_offset, batch_range.last_offset, batch_range.max_timestamp) == (0, 2, 9000)
        assert (batch_range.place.key, batch_range.place.position, batch_range.place.length) == (key, 32, 200)
        assert [batch_range.place.position for batch_range in other.ranges] == [232]

    async def test_a_range_ends_at_a_rejected_batch_and_at_the_size_limit(self, log: Log) -> None:
        await log.commit(batch(), produced(0, epoch=1), produced(9, epoch=0), batch())
        (result,) = await log.store.log.find([Lookup(FIRST, 0, 1000)])
        assert [(batch_range.base_offset, batch_range.last_offset) for batch_range in result.ranges] == [(0, 1), (2, 2)]
        await log.commit(batch(SECOND, length=RANGE_BYTES - 1), batch(SECOND, length=1), batch(SECOND, length=1))
        (result,) = await log.store.log.find([Lookup(SECOND, 0, 2 * RANGE_BYTES)])
        assert [batch_range.last_offset for batch_range in result.ranges] == [1, 2]

    async def test_a_lookup_inside_a_range_finds_that_range(self, log: Log) -> None:
        await log.commit(batch(records=5))
        await log.commit(batch(records=5))
        (result,) = await log.store.log.find([Lookup(FIRST, 3, 1000)])
        assert [batch_range.base_offset for batch_range in result.ranges] == [0, 5]
        (result,) = await log.store.log.find([Lookup(FIRST, 9, 1000)])
        assert [batch_range.base_offset for batch_range in result.ranges] == [5]

    async def test_a_lookup_returns_ranges_up_to_its_bytes_and_at_least_one(self, log: Log) -> None:
        for _ in range(5):
            await log.commit(batch())
        for max_bytes, count in ((1, 1), (100, 1), (101, 2), (300, 3), (10_000, 5)):
            (result,) = await log.store.log.find([Lookup(FIRST, 0, max_bytes)])
            assert len(result.ranges) == count, max_bytes

    async def test_a_lookup_returns_at_most_the_requested_number_of_ranges(self, log: Log) -> None:
        for _ in range(3):
            await log.commit(batch(), batch(SECOND))
        results = await log.store.log.find([Lookup(FIRST, 1, 10_000), Lookup(SECOND, 0, 101)], 1)
        assert [[batch_range.base_offset for batch_range in result.ranges] for result in results] == [[1], [0]]

    async def test_a_lookup_at_the_end_is_empty_and_beyond_it_an_error(self, log: Log) -> None:
        await log.commit(batch())
        results = await log.store.log.find([Lookup(FIRST, 1, 10), Lookup(FIRST, 2, 10), Lookup(FIRST, -1, 10)])
        assert [(result.error, result.high_watermark, list(result.ranges)) for result in results] == [
            (ErrorCode.none, 1, []), (ErrorCode.offset_out_of_range, 1, []), (ErrorCode.offset_out_of_range, 1, []),
        ]  # fmt: skip

    async def test_unknown_partitions_have_no_state_and_fail_lookups(self, log: Log) -> None:
        unknown = Partition(TOPIC, 9)
        (result,) = await log.store.log.find([Lookup(unknown, 0, 10)])
        assert result.error is ErrorCode.unknown_topic_or_partition
        assert await log.store.log.states([unknown, FIRST, unknown])
        assert [state is None for state in await log.store.log.states([unknown, FIRST, unknown])] == [True, False, True]

    async def test_ranges_are_found_by_time(self, log: Log) -> None:
        for time in (1000, 3000, 2000):
            await log.commit(batch(time=time))
        for timestamp, base in ((0, 0), (1000, 0), (1001, 1), (3000, 1), (MAX_TIMESTAMP, 1)):
            batch_range = await log.store.log.find_by_time(FIRST, timestamp)
            assert batch_range is not None
            assert batch_range.base_offset == base
        assert await log.store.log.find_by_time(FIRST, 3001) is None
        later = await log.store.log.find_by_time(FIRST, 1000, 2)
        assert later is not None
        assert later.base_offset == 2

    async def test_ranges_are_found_by_a_time_of_today(self, log: Log) -> None:
        await log.commit(batch(time=1_700_000_000_000))
        batch_range = await log.store.log.find_by_time(FIRST, 1_700_000_000_000)
        assert batch_range is not None
        assert batch_range.base_offset == 0
        assert await log.store.log.find_by_time(FIRST, 1_700_000_000_001) is None

    async def test_ranges_are_found_by_time_over_several_transactions(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_log, "TIMED_RANGES", 2)
        for time in (1000, 3000, 2000, 5000, 5000, 4000):
            await log.commit(batch(time=time))
        for timestamp, since, base in (
            (0, 0, 0),
            (3000, 0, 1),
            (3001, 0, 3),
            (4000, 5, 5),
            (MAX_TIMESTAMP, 0, 3),
            (MAX_TIMESTAMP, 4, 4),
        ):
            batch_range = await log.store.log.find_by_time(FIRST, timestamp, since)
            assert batch_range is not None
            assert batch_range.base_offset == base
        assert await log.store.log.find_by_time(FIRST, 5001) is None
        assert await log.store.log.find_by_time(FIRST, 0, 6) is None
        assert await log.store.log.find_by_time(Partition(TOPIC, 99), 0) is None

    @pytest.mark.parametrize("seed", range(3))
    async def test_time_marks_change_no_result(self, log: Log, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        monkeypatch.setattr(time_marks, "SPACING", 3)
        monkeypatch.setattr(time_marks, "OBSOLETE", 2)
        random, times = Random(seed), list[int]()

        async def found(timestamp: int, since: int) -> int | None:
            batch_range = await log.store.log.find_by_time(FIRST, timestamp, since)
            return None if batch_range is None else batch_range.base_offset

        async def check() -> None:
            (state,) = await log.store.log.states([FIRST])
            assert state is not None
            for since in (0, random.randrange(len(times) + 1)):
                places = range(max(since, state.log_start), len(times))
                for timestamp in {0, 300, *times, max(times) + 1}:
                    first = next((place for place in places if times[place] >= timestamp), None)
                    assert await found(timestamp, since) == first, (timestamp, since, times)
                newest = max(places, key=lambda place: times[place], default=None)
                assert await found(MAX_TIMESTAMP, since) == newest, (since, times)

        for step in range(4):
            for _ in range(random.randrange(4, 9)):
                times.append(step * 20 + random.randrange(60) + 500 * (random.random() < 0.05))
                await log.commit(batch(time=times[-1]), batch(SECOND, time=9999))
            while await log.store.retention.mark_times(random.randrange(3, 8)):
                pass
            await check()
            await log.store.log.advance_start(FIRST, random.randrange(len(times)))
            while await log.store.retention.drop_ranges(10):
                pass
            await check()

    async def test_time_marks_go_with_their_records(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time_marks, "SPACING", 1)

        async def marked() -> int:
            while await log.store.retention.mark_times(100):
                pass
            return await self.count_time_marks(log)

        for time in (1000, 2000, 3000, 4000):
            await log.commit(batch(time=time))
        assert await marked() == 4
        await log.store.log.advance_start(FIRST, 3)
        assert await marked() == 1
        await log.store.topics.delete_topic(TOPIC)
        while await log.store.retention.drop_ranges(10):
            pass
        assert await marked() == 0

    async def test_the_log_start_only_moves_up(self, log: Log) -> None:
        await log.commit(batch(records=10))
        for offset, start in ((4, 4), (2, 4), (99, 10)):
            state = await log.store.log.advance_start(FIRST, offset)
            assert state is not None
            assert state.log_start == start
        assert await log.store.log.advance_start(Partition(TOPIC, 9), 1) is None
        (outcome,) = await log.commit(batch())
        assert (outcome.base_offset, outcome.log_start) == (10, 10)

    async def test_a_rewrite_replaces_ranges(self, log: Log) -> None:
        keys = [await log.key() for _ in range(3)]
        for key in keys:
            await log.commit(batch(records=2), batch(SECOND), key=key)
        rewrite = await rewritten(log, count=2)
        assert await log.store.log.rewrite(rewrite) == [True]
        (result,) = await log.store.log.find([Lookup(FIRST, 0, 10_000)])
        assert (result.log_start, result.high_watermark) == (0, 6)
        assert list(result.ranges[:-1]) == list(rewrite.swaps[0].new)
        assert (result.ranges[-1].base_offset, result.ranges[-1].place.key) == (4, keys[2])
        assert await log.store.log.states([FIRST]) == [LogState(0, 6, 40 + 100)]
        (after,) = await log.commit(batch())
        assert after.base_offset == 6
        assert await log.store.retention.dead_objects(0, 10) == [], "the objects still hold the other partition"
        assert (await log.store.retention.list_objects(*ALL_KEYS))[keys[0]] == (1000, 1)

    async def test_objects_that_lose_their_last_range_to_a_rewrite_are_dead(self, log: Log, advance: Advance) -> None:
        keys = [await log.key() for _ in range(2)]
        for key in keys:
            await log.commit(batch(), key=key)
        rewrite = await rewritten(log)
        assert await log.store.log.rewrite(rewrite) == [True]
        assert await log.store.retention.dead_objects(5_000, 10) == [], (
            "a reader that has just found them may still read them"
        )
        await advance(6)
        assert sorted(await log.store.retention.dead_objects(5_000, 10)) == sorted(keys)
        assert (await log.store.retention.list_objects(*ALL_KEYS))[rewrite.key] == (500, 1)

    async def test_a_repeated_rewrite_returns_the_same_result(self, log: Log) -> None:
        await log.commit(batch())
        await log.commit(batch())
        rewrite = await rewritten(log)
        assert await log.store.log.rewrite(rewrite) == [True]
        state = await log.store.log.states([FIRST])
        assert await log.store.log.rewrite(rewrite) == [True]
        assert await log.store.log.states([FIRST]) == state

    async def test_a_rewrite_of_replaced_ranges_changes_nothing(self, log: Log) -> None:
        await log.commit(batch())
        await log.commit(batch())
        quick, slow = await rewritten(log), await rewritten(log)
        assert await log.store.log.rewrite(quick) == [True]
        assert await log.store.log.rewrite(slow) == [False]
        assert await log.store.log.rewrite(slow) == [False], "a repeated rewrite returns the same"
        assert (await log.store.log.find([Lookup(FIRST, 0, 1000)]))[0].ranges == list(quick.swaps[0].new)
        assert slow.key in await log.store.retention.dead_objects(0, 10)

    async def test_a_rewrite_of_a_deleted_topic_changes_nothing(self, log: Log) -> None:
        await log.commit(batch())
        rewrite = await rewritten(log)
        await log.store.topics.delete_topic(TOPIC)
        assert await log.store.log.rewrite(rewrite) == [False]
        assert await log.store.retention.dead_objects(0, 10) == [rewrite.key]
        assert await log.store.retention.drop_ranges(10) == 1

    async def test_a_rewrite_by_a_fenced_node_is_rejected(self, log: Log) -> None:
        await log.commit(batch())
        rewrite = await rewritten(log)
        await log.store.nodes.join(ADDRESS, TTL, log.lease.node)
        with pytest.raises(FencedError):
            await log.store.log.rewrite(rewrite)
        assert (await log.store.log.find([Lookup(FIRST, 0, 1000)]))[0].ranges == list(rewrite.swaps[0].old)
        with pytest.raises(FencedError):
            await log.store.log.rewrite(dataclasses.replace(rewrite, key="wal/unknown"))

    async def test_appends_continue_during_a_rewrite(self, log: Log) -> None:
        await log.commit(batch(), batch(SECOND))
        rewrite = await rewritten(log)
        keys = [await log.key() for _ in range(10)]
        swapped, *appended = await asyncio.gather(
            log.store.log.rewrite(rewrite), *(log.commit(batch(), batch(SECOND), key=key) for key in keys)
        )
        assert swapped == [True]
        assert sorted(outcomes[0].base_offset for outcomes in appended) == list(range(1, 11))  # type: ignore[attr-defined]
        (result,) = await log.store.log.find([Lookup(FIRST, 0, 100_000)])
        assert [batch_range.base_offset for batch_range in result.ranges] == list(range(11))

    async def test_rewritten_ranges_expire(self, log: Log) -> None:
        await log.commit(batch())
        rewrite = await rewritten(log)
        await log.store.log.rewrite(rewrite)
        await log.commit(batch())
        await log.store.log.advance_start(FIRST, 1)
        assert await log.store.retention.drop_ranges(10) == 1
        assert rewrite.key in await log.store.retention.dead_objects(0, 10)
