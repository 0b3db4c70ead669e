"""The contract of the rest of `LogStore`: where batches lie, and runs that are rewritten, for every implementation."""

import asyncio
import dataclasses

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import FencedError
from firn_broker.log_types import MAX_TIMESTAMP, RANGE_BYTES, LogState, Lookup, Partition
from firn_broker.metadata_store.sqlite import log as sqlite_log
from tests.contract.metadata_store.builders import (
    ADDRESS,
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


class RunContract(StoreContract):
    """The contract of the rest of `LogStore`: where batches lie, and runs that are rewritten."""

    async def test_batches_that_lie_together_are_one_run(self, log: Log) -> None:
        key = await log.key()
        await log.commit(batch(), batch(records=2, time=9000), batch(SECOND), key=key)
        found, other = await log.store.log.find([Lookup(FIRST, 0, 1000), Lookup(SECOND, 0, 1000)])
        (run,) = found.ranges
        assert (run.base_offset, run.last_offset, run.max_timestamp) == (0, 2, 9000)
        assert (run.place.key, run.place.position, run.place.length) == (key, 32, 200)
        assert [it.place.position for it in other.ranges] == [232]

    async def test_a_run_ends_at_a_refused_batch_and_before_it_is_too_long(self, log: Log) -> None:
        await log.commit(batch(), produced(0, epoch=1), produced(9, epoch=0), batch())
        (found,) = await log.store.log.find([Lookup(FIRST, 0, 1000)])
        assert [(it.base_offset, it.last_offset) for it in found.ranges] == [(0, 1), (2, 2)]
        await log.commit(batch(SECOND, length=RANGE_BYTES - 1), batch(SECOND, length=1), batch(SECOND, length=1))
        (found,) = await log.store.log.find([Lookup(SECOND, 0, 2 * RANGE_BYTES)])
        assert [it.last_offset for it in found.ranges] == [1, 2]

    async def test_an_offset_inside_a_run_finds_it(self, log: Log) -> None:
        await log.commit(batch(records=5))
        await log.commit(batch(records=5))
        (found,) = await log.store.log.find([Lookup(FIRST, 3, 1000)])
        assert [it.base_offset for it in found.ranges] == [0, 5]
        (found,) = await log.store.log.find([Lookup(FIRST, 9, 1000)])
        assert [it.base_offset for it in found.ranges] == [5]

    async def test_as_many_runs_as_the_bytes_allow_and_one_at_least(self, log: Log) -> None:
        for _ in range(5):
            await log.commit(batch())
        for wanted, runs in ((1, 1), (100, 1), (101, 2), (300, 3), (10_000, 5)):
            (found,) = await log.store.log.find([Lookup(FIRST, 0, wanted)])
            assert len(found.ranges) == runs, wanted

    async def test_no_more_runs_of_each_partition_than_were_asked_for(self, log: Log) -> None:
        for _ in range(3):
            await log.commit(batch(), batch(SECOND))
        found = await log.store.log.find([Lookup(FIRST, 1, 10_000), Lookup(SECOND, 0, 101)], 1)
        assert [[run.base_offset for run in one.ranges] for one in found] == [[1], [0]]

    async def test_the_end_has_no_runs_and_beyond_it_is_an_error(self, log: Log) -> None:
        await log.commit(batch())
        found = await log.store.log.find([Lookup(FIRST, 1, 10), Lookup(FIRST, 2, 10), Lookup(FIRST, -1, 10)])
        assert [(it.error, it.high_watermark, list(it.ranges)) for it in found] == [
            (ErrorCode.none, 1, []), (ErrorCode.offset_out_of_range, 1, []), (ErrorCode.offset_out_of_range, 1, []),
        ]  # fmt: skip

    async def test_unknown_partitions(self, log: Log) -> None:
        nobody = Partition(TOPIC, 9)
        (found,) = await log.store.log.find([Lookup(nobody, 0, 10)])
        assert found.error is ErrorCode.unknown_topic_or_partition
        assert await log.store.log.states([nobody, FIRST, nobody])
        assert [it is None for it in await log.store.log.states([nobody, FIRST, nobody])] == [True, False, True]

    async def test_runs_are_found_by_time(self, log: Log) -> None:
        for time in (1000, 3000, 2000):
            await log.commit(batch(time=time))
        for wanted, base in ((0, 0), (1000, 0), (1001, 1), (3000, 1), (MAX_TIMESTAMP, 1)):
            run = await log.store.log.find_by_time(FIRST, wanted)
            assert run is not None
            assert run.base_offset == base
        assert await log.store.log.find_by_time(FIRST, 3001) is None
        later = await log.store.log.find_by_time(FIRST, 1000, 2)
        assert later is not None
        assert later.base_offset == 2

    async def test_runs_are_found_by_time_among_many(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_log, "TIMED_RUNS", 2)
        for time in (1000, 3000, 2000, 5000, 5000, 4000):
            await log.commit(batch(time=time))
        for wanted, since, base in (
            (0, 0, 0),
            (3000, 0, 1),
            (3001, 0, 3),
            (4000, 5, 5),
            (MAX_TIMESTAMP, 0, 3),
            (MAX_TIMESTAMP, 4, 4),
        ):
            run = await log.store.log.find_by_time(FIRST, wanted, since)
            assert run is not None
            assert run.base_offset == base
        assert await log.store.log.find_by_time(FIRST, 5001) is None
        assert await log.store.log.find_by_time(FIRST, 0, 6) is None
        assert await log.store.log.find_by_time(Partition(TOPIC, 99), 0) is None

    async def test_the_log_start_moves_up_only(self, log: Log) -> None:
        await log.commit(batch(records=10))
        for offset, start in ((4, 4), (2, 4), (99, 10)):
            state = await log.store.log.advance_start(FIRST, offset)
            assert state is not None
            assert state.log_start == start
        assert await log.store.log.advance_start(Partition(TOPIC, 9), 1) is None
        (outcome,) = await log.commit(batch())
        assert (outcome.base_offset, outcome.log_start) == (10, 10)

    async def test_new_runs_take_the_place_of_old_ones(self, log: Log) -> None:
        keys = [await log.key() for _ in range(3)]
        for key in keys:
            await log.commit(batch(records=2), batch(SECOND), key=key)
        rewrite = await rewritten(log, upto=2)
        assert await log.store.log.rewrite(rewrite)
        (found,) = await log.store.log.find([Lookup(FIRST, 0, 10_000)])
        assert (found.log_start, found.high_watermark) == (0, 6)
        assert list(found.ranges[:-1]) == list(rewrite.new)
        assert (found.ranges[-1].base_offset, found.ranges[-1].place.key) == (4, keys[2])
        assert await log.store.log.states([FIRST]) == [LogState(0, 6, 40 + 100)]
        (after,) = await log.commit(batch())
        assert after.base_offset == 6
        assert await log.store.retention.dead_objects(0, 10) == [], "the other partition is still in them"
        assert (await log.store.retention.list_objects())[keys[0]] == (1000, 1)

    async def test_objects_without_runs_die_by_a_rewrite(self, log: Log, advance: Advance) -> None:
        keys = [await log.key() for _ in range(2)]
        for key in keys:
            await log.commit(batch(), key=key)
        rewrite = await rewritten(log)
        assert await log.store.log.rewrite(rewrite)
        assert await log.store.retention.dead_objects(5_000, 10) == [], "who has just found them may still read them"
        await advance(6)
        assert sorted(await log.store.retention.dead_objects(5_000, 10)) == sorted(keys)
        assert (await log.store.retention.list_objects())[rewrite.key] == (500, 1)

    async def test_a_rewrite_without_an_answer_is_asked_again(self, log: Log) -> None:
        await log.commit(batch())
        await log.commit(batch())
        rewrite = await rewritten(log)
        assert await log.store.log.rewrite(rewrite)
        state = await log.store.log.states([FIRST])
        assert await log.store.log.rewrite(rewrite)
        assert await log.store.log.states([FIRST]) == state

    async def test_a_rewrite_of_what_is_not_there_any_more_does_nothing(self, log: Log) -> None:
        await log.commit(batch())
        await log.commit(batch())
        quick, slow = await rewritten(log), await rewritten(log)
        assert await log.store.log.rewrite(quick)
        assert not await log.store.log.rewrite(slow)
        assert not await log.store.log.rewrite(slow), "and says so again"
        assert (await log.store.log.find([Lookup(FIRST, 0, 1000)]))[0].ranges == list(quick.new)
        assert slow.key in await log.store.retention.dead_objects(0, 10)

    async def test_a_rewrite_of_a_deleted_topic_does_nothing(self, log: Log) -> None:
        await log.commit(batch())
        rewrite = await rewritten(log)
        await log.store.topics.delete_topic(TOPIC)
        assert not await log.store.log.rewrite(rewrite)
        assert await log.store.retention.dead_objects(0, 10) == [rewrite.key]
        assert await log.store.retention.drop_runs(10) == 1

    async def test_a_rewrite_of_a_node_whose_epoch_is_over_is_refused(self, log: Log) -> None:
        await log.commit(batch())
        rewrite = await rewritten(log)
        await log.store.nodes.join(ADDRESS, TTL, log.lease.node)
        with pytest.raises(FencedError):
            await log.store.log.rewrite(rewrite)
        assert (await log.store.log.find([Lookup(FIRST, 0, 1000)]))[0].ranges == list(rewrite.old)
        with pytest.raises(FencedError):
            await log.store.log.rewrite(dataclasses.replace(rewrite, key="wal/nobody"))

    async def test_appends_go_on_while_runs_are_written_anew(self, log: Log) -> None:
        await log.commit(batch(), batch(SECOND))
        rewrite = await rewritten(log)
        keys = [await log.key() for _ in range(10)]
        done, *given = await asyncio.gather(
            log.store.log.rewrite(rewrite), *(log.commit(batch(), batch(SECOND), key=key) for key in keys)
        )
        assert done
        assert sorted(it[0].base_offset for it in given) == list(range(1, 11))  # type: ignore[index]
        (found,) = await log.store.log.find([Lookup(FIRST, 0, 100_000)])
        assert [it.base_offset for it in found.ranges] == list(range(11))

    async def test_rewritten_runs_expire_as_others_do(self, log: Log) -> None:
        await log.commit(batch())
        rewrite = await rewritten(log)
        await log.store.log.rewrite(rewrite)
        await log.commit(batch())
        await log.store.log.advance_start(FIRST, 1)
        assert await log.store.retention.drop_runs(10) == 1
        assert rewrite.key in await log.store.retention.dead_objects(0, 10)
