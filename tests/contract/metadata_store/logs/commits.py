"""The contract of `LogStore.reserve` and `LogStore.commit`, for every implementation."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import FencedError
from firn_broker.log_types import BatchEntry, Commit, Lookup
from firn_broker.ports import WentBackError
from tests.contract.metadata_store.builders import (
    ADDRESS,
    FIRST,
    SECOND,
    TTL,
    Advance,
    Log,
    StoreContract,
    batch,
    offsets,
    placed,
    produced,
)


class CommitContract(StoreContract):
    """The contract of `LogStore.reserve` and `LogStore.commit`."""

    async def test_offsets_are_contiguous(self, log: Log) -> None:
        assert offsets(await log.commit(batch(records=3), batch(records=2), batch(SECOND))) == [0, 3, 0]
        assert offsets(await log.commit(batch(), batch(SECOND, 4))) == [5, 1]
        first, second = await log.store.log.states([FIRST, SECOND])
        assert first is not None
        assert second is not None
        assert (first.log_start, first.high_watermark, first.size) == (0, 6, 300)
        assert (second.high_watermark, second.size) == (5, 200)

    async def test_a_repeated_commit_returns_the_same_outcomes(self, log: Log) -> None:
        key = await log.key()
        before = await log.commit(batch(), produced(0, producer=9), key=key)
        assert await log.commit(batch(), produced(0, producer=9), key=key) == before
        (state,) = await log.store.log.states([FIRST])
        assert state is not None
        assert state.high_watermark == 2

    async def test_a_store_that_lost_commits_of_the_lease_rejects_the_next_one(self, log: Log) -> None:
        await log.commit(batch())
        key = await log.key()
        with pytest.raises(WentBackError):
            await log.store.log.commit(Commit(log.lease, key, 1000, placed([batch()]), after=2))
        outcomes = await log.store.log.commit(Commit(log.lease, key, 1000, placed([batch()]), after=1))
        assert offsets(outcomes) == [1]

    async def test_an_adopted_object_can_be_committed_by_another_lease(self, log: Log, advance: Advance) -> None:
        reserved, withdrawn, committed = [await log.key() for _ in range(3)]
        await log.commit(batch(), key=committed)
        await advance(TTL / 1000 + 1)
        assert await log.store.retention.withdraw_reservations([withdrawn], 60_000) == 1
        other = await log.store.nodes.join(ADDRESS, TTL, log.lease.node)
        keys = [reserved, withdrawn, "wal/unknown"]
        await log.store.log.adopt(other, [*keys, committed])
        for offset, key in enumerate(keys, 1):
            assert offsets(await log.store.log.commit(Commit(other, key, 1000, placed([batch()])))) == [offset]
        assert offsets(await log.store.log.commit(Commit(other, committed, 1000, placed([batch()])))) == [0]
        assert await log.store.retention.dead_objects(-1, 10) == []

    async def test_a_repair_appends_batches_that_are_out_of_order(self, log: Log) -> None:
        async def repair(*batches: BatchEntry) -> list[tuple[int, bool]]:
            commit = Commit(log.lease, await log.key(), 1000, placed(batches), repair=True)
            return [(outcome.base_offset, outcome.duplicate) for outcome in await log.store.log.commit(commit)]

        assert await repair(produced(3), produced(4)) == [(0, False), (1, False)]
        assert await repair(produced(0), produced(4), produced(1)) == [(2, False), (1, True), (3, False)]
        assert await repair(produced(0, epoch=1), produced(5), produced(1, epoch=1)) == [
            (4, False),
            (5, False),
            (6, False),
        ]
        assert offsets(await log.commit(produced(2, epoch=1))) == [7], "its producer goes on"
        assert (await log.commit(produced(9, epoch=1)))[0].error is ErrorCode.out_of_order_sequence_number

    async def test_without_a_required_batch_nothing_is_committed(self, log: Log) -> None:
        key, batches = await log.key(), placed([produced(0), produced(7), produced(1)])
        with pytest.raises(WentBackError, match="out_of_order_sequence_number"):
            await log.store.log.commit(Commit(log.lease, key, 1000, batches, required={0: 0, 1: 1}))
        with pytest.raises(WentBackError, match="were acknowledged at offset 2, and would be at 1 now"):
            await log.store.log.commit(Commit(log.lease, key, 1000, batches, required={0: 0, 2: 2}))
        assert not (await log.store.nodes.progress()).counters[log.lease.commits]
        commit = Commit(log.lease, key, 1000, batches, required={0: 0, 2: 1})
        assert offsets(await log.store.log.commit(commit)) == [0, -1, 1]

    async def test_a_commit_of_an_unreserved_object_is_rejected(self, log: Log) -> None:
        with pytest.raises(FencedError):
            await log.store.log.commit(Commit(log.lease, "wal/unreserved", 1, placed([batch()])))

    async def test_a_fenced_node_commits_nothing(self, log: Log) -> None:
        key = await log.key()
        await log.store.nodes.join(ADDRESS, TTL, log.lease.node)
        with pytest.raises(FencedError):
            await log.commit(batch(), key=key)

    async def test_a_fenced_node_gets_the_outcomes_of_its_earlier_commit(self, log: Log) -> None:
        key = await log.key()
        before = await log.commit(batch(), key=key)
        await log.store.nodes.join(ADDRESS, TTL, log.lease.node)
        assert await log.commit(batch(), key=key) == before

    async def test_an_object_without_accepted_batches_is_dead(self, log: Log) -> None:
        await log.commit(produced(0))
        key = await log.key()
        (outcome,) = await log.commit(produced(0), key=key)
        assert outcome.duplicate
        assert await log.store.retention.dead_objects(0, 10) == [key]

    async def test_append_times_come_from_the_store_and_rise(self, log: Log, advance: Advance) -> None:
        (first,) = await log.commit(batch(append_time=True, time=5))
        await advance(1)
        (second,) = await log.commit(batch(append_time=True, time=3))
        assert 0 < first.append_ms < second.append_ms
        ranges = (await log.store.log.find([Lookup(FIRST, 0, 1000)]))[0].ranges
        assert (
            [batch_range.append_ms for batch_range in ranges]
            == [batch_range.max_timestamp for batch_range in ranges]
            == [first.append_ms, second.append_ms]
        )

    async def test_concurrent_commits_share_no_offset(self, log: Log) -> None:
        keys = [await log.key() for _ in range(20)]
        outcomes = await asyncio.gather(*(log.commit(batch(records=2), batch(SECOND, 3), key=key) for key in keys))
        assert sorted(pair[0].base_offset for pair in outcomes) == list(range(0, 40, 2))
        assert sorted(pair[1].base_offset for pair in outcomes) == list(range(0, 60, 3))

    async def test_a_producer_begins_at_sequence_zero(self, log: Log) -> None:
        """A batch that overtakes the first one, through another broker, must wait for it."""
        outcomes = await log.commit(produced(1), produced(0), produced(1))
        assert [outcome.error for outcome in outcomes] == [
            ErrorCode.out_of_order_sequence_number, ErrorCode.none, ErrorCode.none,
        ]  # fmt: skip
        assert offsets(outcomes) == [-1, 0, 1]
        (alone,) = await log.commit(produced(17, producer=6))
        assert alone.error is ErrorCode.out_of_order_sequence_number

    async def test_a_gap_between_sequences_is_rejected(self, log: Log) -> None:
        outcomes = await log.commit(produced(0, 3), produced(3, 2), produced(6), produced(5))
        assert [outcome.error for outcome in outcomes] == [
            ErrorCode.none, ErrorCode.none, ErrorCode.out_of_order_sequence_number, ErrorCode.none,
        ]  # fmt: skip
        assert offsets(outcomes) == [0, 3, -1, 5]

    async def test_sequences_wrap_around(self, log: Log) -> None:
        last = (1 << 31) - 1
        outcomes = await log.commit(produced(0, last - 1), produced(last - 1, 2), produced(0, 2), produced(2))
        assert offsets(outcomes) == [0, last - 1, last + 1, last + 3]
        (_, wrapping) = await log.commit(produced(0, last, producer=6), produced(last, 3, producer=6))
        (after,) = await log.commit(produced(2, producer=6))
        assert (wrapping.error, after.error) == (ErrorCode.none, ErrorCode.none)

    async def test_a_duplicate_has_the_offset_of_the_first_batch(self, log: Log) -> None:
        await log.commit(batch(records=4))
        first = await log.commit(produced(0, 2), produced(2, 2))
        again = await log.commit(produced(0, 2), produced(2, 2))
        assert offsets(again) == offsets(first) == [4, 6]
        assert all(outcome.duplicate and not outcome.error for outcome in again)
        (state,) = await log.store.log.states([FIRST])
        assert state is not None
        assert state.high_watermark == 8

    async def test_duplicates_of_the_five_newest_batches_are_detected(self, log: Log) -> None:
        await log.commit(*(produced(number) for number in range(6)))
        outcomes = await log.commit(produced(1), produced(0))
        assert outcomes[0].duplicate
        assert outcomes[0].base_offset == 1
        assert outcomes[1].error is ErrorCode.out_of_order_sequence_number

    async def test_a_part_of_a_batch_is_no_duplicate(self, log: Log) -> None:
        await log.commit(produced(0, 5))
        (outcome,) = await log.commit(produced(0, 4))
        assert outcome.error is ErrorCode.out_of_order_sequence_number

    async def test_older_epochs_are_fenced_and_newer_ones_begin_at_zero(self, log: Log) -> None:
        await log.commit(produced(0, epoch=1))
        outcomes = await log.commit(
            produced(1, epoch=0), produced(1, epoch=2), produced(0, epoch=2), produced(1, epoch=2), produced(1, epoch=1)
        )
        assert [outcome.error for outcome in outcomes] == [
            ErrorCode.invalid_producer_epoch, ErrorCode.out_of_order_sequence_number, ErrorCode.none, ErrorCode.none,
            ErrorCode.invalid_producer_epoch,
        ]  # fmt: skip

    async def test_sequences_are_per_producer_and_partition(self, log: Log) -> None:
        outcomes = await log.commit(
            produced(0, producer=1), produced(0, producer=2), produced(1, producer=1), produced(1, producer=2),
            produced(0, producer=1, partition=SECOND),
        )  # fmt: skip
        assert [outcome.error for outcome in outcomes] == [ErrorCode.none] * 5
        again = await log.commit(
            produced(1, producer=1), produced(2, producer=2), produced(1, producer=1, partition=SECOND)
        )
        assert [(outcome.error, outcome.duplicate) for outcome in again] == [
            (ErrorCode.none, True), (ErrorCode.none, False), (ErrorCode.none, False),
        ]  # fmt: skip
