"""The contract of `RetentionStore`, for every implementation."""

from random import Random
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import FencedError
from firn_broker.log_types import KEPT_REPLIES, Commit, Lookup, Partition, Topic
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
    offsets,
    placed,
    produced,
)

AGAIN = ErrorCode.kafka_storage_error


async def forget(log: Log, advance: Advance, producer: int) -> None:
    """Let the store forget a producer."""
    await log.commit(produced(0, producer=producer))
    await advance(11)
    assert await log.store.retention.forget_producers(10_000, 10) == 1


class RetentionContract(StoreContract):
    """The contract of `RetentionStore`."""

    async def test_a_withdrawn_reservation_rejects_the_commit_and_its_object_is_dead(
        self, log: Log, advance: Advance
    ) -> None:
        key = await log.key()
        await advance(3)
        assert await log.store.retention.stale_reservations(2_000, 10) == [], "the node is live"
        assert await log.store.retention.withdraw_reservations([key]) == 0, "the node is live"
        await advance(TTL / 1000)
        assert await log.store.retention.stale_reservations(60_000, 10) == [], "the reservation is too young"
        assert await log.store.retention.stale_reservations(2_000, 10) == [key]
        assert await log.store.retention.withdraw_reservations([key]) == 1
        assert await log.store.retention.stale_reservations(2_000, 10) == []
        with pytest.raises(FencedError):
            await log.commit(batch(), key=key)
        assert await log.store.retention.dead_objects(5_000, 10) == []
        await advance(6)
        assert await log.store.retention.dead_objects(5_000, 10) == [key]
        backlog = await log.store.retention.dead_backlog()
        assert (backlog.objects, backlog.oldest_ms >= 6_000, backlog.postponed) == (1, True, 0)
        await log.store.retention.forget_objects([key])
        assert await log.store.retention.dead_objects(0, 10) == []
        assert await log.store.retention.dead_backlog() == (0, 0, 0, 0)

    async def test_a_postponed_object_waits_as_long_as_it_has_been_dead(self, log: Log, advance: Advance) -> None:
        keys = [await log.key(), await log.key()]
        await advance(TTL / 1000 + 1)
        await log.store.retention.withdraw_reservations(keys)
        await advance(10)
        await log.store.retention.postpone_objects(keys[:1], 15_000)
        assert (await log.store.retention.dead_backlog()).postponed == 1
        for seconds, postponement in ((10, 15_000), (15, 15_000), (15, 5_000), (5, 5_000)):
            assert await log.store.retention.dead_objects(0, 10) == keys[1:]
            await advance(seconds - 2)
            assert await log.store.retention.dead_objects(0, 10) == keys[1:]
            await advance(3)
            assert sorted(await log.store.retention.dead_objects(0, 10)) == keys
            await log.store.retention.postpone_objects(keys[:1], postponement)
        await log.store.retention.forget_objects(keys)
        assert (await log.store.retention.dead_backlog()).postponed == 0

    async def test_the_parts_of_all_keys_have_each_object_once(self, log: Log) -> None:
        random = Random(1)
        ids = [UUID(int=random.getrandbits(128)) for _ in range(500)]
        keys = [wal.compacted_key(id, 5) if number % 2 else wal.key(id) for number, id in enumerate(ids)]
        await log.store.log.reserve(log.lease, keys)
        found: list[str] = []
        for part in wal.PARTS:
            some = await log.store.retention.list_objects(*part)
            assert all(key.startswith(part.prefix) for key in some)
            found += some
        assert sorted(found) == sorted(keys)

    async def test_the_object_of_a_withdrawn_reservation_is_kept_until_a_decision(
        self, log: Log, advance: Advance
    ) -> None:
        key = await log.key()
        await advance(TTL / 1000 + 1)
        for _ in range(2):
            assert await log.store.retention.withdraw_reservations([key], None) == 1
            assert await log.store.retention.dead_backlog() == (0, 0, 0, 1)
            with pytest.raises(FencedError):
                await log.commit(batch(), key=key)
            assert await log.store.retention.stale_reservations(0, 10) == []
            await advance(10**7)
            assert await log.store.retention.dead_objects(0, 10) == []
        assert await log.store.retention.withdraw_reservations([key], 60_000) == 1
        assert await log.store.retention.dead_backlog() == (1, 0, 0, 0)
        with pytest.raises(FencedError):
            await log.commit(batch(), key=key)
        await advance(50)
        assert await log.store.retention.dead_objects(0, 10) == []
        await advance(11)
        assert await log.store.retention.dead_objects(0, 10) == [key]

    async def test_an_uncommitted_object_may_contain_only_records_of_the_log(self, log: Log) -> None:
        await log.store.nodes.allocate_producer_ids(10)
        key = await log.key()
        await log.commit(produced(0, 2), *(produced(number) for number in range(2, 9)), produced(0, partition=SECOND))
        contains = log.store.retention.contains
        for contained in (
            [produced(0, 2), produced(2), produced(0, partition=SECOND)], [produced(1, 3)], [produced(8)], [produced(0)],
        ):  # fmt: skip
            assert all(await contains(key, contained))
        for other in (
            produced(9), produced(8, 2), produced(1, partition=SECOND), produced(0, epoch=1), produced(0, producer=6), batch(),
            produced(0, partition=Partition(TOPIC, 2)), produced(0, partition=Partition(UUID(int=9), 0)),
        ):  # fmt: skip
            assert await contains(key, [produced(8), other, produced(8)]) == [True, False, True]
        assert await contains("wal/unknown", [produced(8)]) == [False]
        assert await contains(key, []) == []
        await log.commit(produced(0, epoch=1))
        assert await contains(key, [produced(8)]) == [False], "the producer may have sent other records instead"
        assert await contains(key, [produced(0, epoch=1)]) == [True]

    async def test_a_producer_id_from_after_the_reservation_proves_nothing(self, log: Log) -> None:
        """A store that goes back to the reservation allocates the id to another producer."""
        await log.store.nodes.allocate_producer_ids(5)
        key = await log.key()
        await log.store.nodes.allocate_producer_ids(5)
        await log.commit(produced(0), produced(0, producer=4))
        contains = log.store.retention.contains
        assert await contains(key, [produced(0, producer=number) for number in (4, 5)]) == [True, False]
        assert await contains(await log.key(), [produced(0)]) == [True]

    async def test_nothing_proves_the_records_of_an_adopted_object(self, log: Log) -> None:
        """A store that went back may have allocated the id to another producer since."""
        await log.store.nodes.allocate_producer_ids(10)
        await log.commit(produced(0))
        known = await log.key()
        await log.store.log.adopt(log.lease, [known, "wal/lost"])
        contains = log.store.retention.contains
        assert [await contains(key, [produced(0)]) for key in (known, "wal/lost")] == [[True], [False]]

    async def test_of_a_forgotten_producer_only_the_newest_batches_are_known(self, log: Log, advance: Advance) -> None:
        await log.store.nodes.allocate_producer_ids(10)
        await forget(log, advance, 3)
        key = await log.key()
        await log.commit(produced(7, 2, producer=3))
        contains = log.store.retention.contains
        assert await contains(key, [produced(7, 2, producer=3)]) == [False], "it is held"
        await log.commit(produced(7, 2, producer=3), produced(9, producer=3))
        expected = {6: False, 7: True, 9: True, 10: False}
        answers = await contains(key, [produced(number, producer=3) for number in expected])
        assert dict(zip(expected, answers, strict=True)) == expected

    async def test_old_replies_are_forgotten_except_the_newest(self, log: Log, advance: Advance) -> None:
        keys = []
        for _ in range(KEPT_REPLIES + 3):
            keys.append(await log.key())
            await log.commit(batch(), key=keys[-1])
            await advance(0.01)
        assert await log.store.retention.forget_replies(5_000, 1000) == 0
        assert offsets(await log.commit(batch(), key=keys[0])) == [0], "the reply is too young"
        await advance(6)
        await log.store.nodes.renew(log.lease, TTL)
        assert await log.store.retention.forget_replies(5_000, 2) == 2
        assert offsets(await log.commit(batch(), key=keys[2])) == [2], "the limit is reached"
        assert await log.store.retention.forget_replies(5_000, 1000) == 1
        assert await log.store.retention.forget_replies(5_000, 1000) == 0
        for key in keys[:3]:
            with pytest.raises(FencedError):
                await log.commit(batch(), key=key)
        for offset, key in enumerate(keys[3:], 3):
            assert offsets(await log.commit(batch(), key=key)) == [offset]
        await log.store.nodes.join(ADDRESS, TTL, log.lease.node)
        await log.store.retention.forget_replies(5_000, 1000)
        with pytest.raises(FencedError):
            await log.commit(batch(), key=keys[-1])

    async def test_the_age_of_a_reply_counts_from_the_commit(self, log: Log, advance: Advance) -> None:
        key = await log.key()
        for _ in range(KEPT_REPLIES):
            await log.commit(batch(SECOND))
        await advance(6)
        await log.store.nodes.renew(log.lease, TTL)
        await log.commit(batch(), key=key)
        await log.store.retention.forget_replies(5_000, 1000)
        assert offsets(await log.commit(batch(), key=key)) == [0]

    async def test_silent_producers_are_forgotten(self, log: Log, advance: Advance) -> None:
        await log.commit(produced(0, producer=1), produced(0, producer=2))
        await advance(8)
        await log.commit(produced(1, producer=1))
        await advance(3)
        assert await log.store.retention.forget_producers(10_000, 10) == 1
        outcomes = await log.commit(produced(7, producer=1), produced(7, producer=2))
        assert [outcome.error for outcome in outcomes] == [ErrorCode.out_of_order_sequence_number, AGAIN]

    async def test_only_a_producer_that_may_be_forgotten_begins_at_any_sequence(
        self, log: Log, advance: Advance
    ) -> None:
        other = Topic(UUID(int=8), "payments", 1, {})
        await log.store.topics.create_topic(other)
        await log.commit(produced(0, producer=3))
        await advance(11)
        assert await log.store.retention.forget_producers(10_000, 10) == 1
        outcomes = await log.commit(
            produced(7, producer=4), produced(7, producer=3, partition=Partition(other.id, 0)), produced(7, producer=3),
            produced(8, producer=3), produced(7, producer=2, partition=SECOND),
        )  # fmt: skip
        assert [outcome.error for outcome in outcomes] == [
            ErrorCode.out_of_order_sequence_number, ErrorCode.out_of_order_sequence_number, AGAIN, AGAIN, AGAIN,
        ]  # fmt: skip
        outcomes = await log.commit(
            produced(7, producer=3), produced(8, producer=3), produced(7, producer=2, partition=SECOND),
            produced(7, producer=3),
        )  # fmt: skip
        assert [(outcome.error, outcome.base_offset, outcome.duplicate) for outcome in outcomes] == [
            (ErrorCode.none, 1, False), (ErrorCode.none, 2, False), (ErrorCode.none, 0, False), (ErrorCode.none, 1, True),
        ]  # fmt: skip

    async def test_no_batch_of_a_forgotten_producer_overtakes_an_earlier_one(self, log: Log, advance: Advance) -> None:
        """A client sends a batch again only after all earlier ones have an answer."""
        await forget(log, advance, 3)

        async def send(*sequences: int) -> list[ErrorCode]:
            return [
                outcome.error for outcome in await log.commit(*(produced(number, producer=3) for number in sequences))
            ]

        # 6 and 7 wait at another broker.
        assert await send(8, 9) == [AGAIN] * 2
        assert await send(7) == [AGAIN]
        assert await send(6) == [AGAIN]
        assert await send(7) == [AGAIN], "its client still has 6 under way"
        assert await send(6) == [ErrorCode.none]
        assert await send(8, 7, 8) == [ErrorCode.out_of_order_sequence_number, ErrorCode.none, ErrorCode.none]

    async def test_a_forgotten_producer_may_begin_at_zero_at_once(self, log: Log, advance: Advance) -> None:
        await forget(log, advance, 3)
        outcomes = await log.commit(produced(8, producer=3), produced(0, producer=3), produced(1, producer=3))
        assert [outcome.error for outcome in outcomes] == [AGAIN, ErrorCode.none, ErrorCode.none]
        await log.commit(produced(8, producer=2))
        outcomes = await log.commit(produced(8, producer=2, epoch=1), produced(0, producer=2, epoch=1))
        assert [outcome.error for outcome in outcomes] == [ErrorCode.out_of_order_sequence_number, ErrorCode.none]

    async def test_a_forgotten_producer_may_begin_at_the_last_sequence(self, log: Log, advance: Advance) -> None:
        await forget(log, advance, 3)
        last = (1 << 31) - 1
        outcomes = [(await log.commit(produced(number, 2, producer=3)))[0].error for number in (1, last, 1, last, 1, 3)]
        assert outcomes == [AGAIN, AGAIN, AGAIN, ErrorCode.none, ErrorCode.none, ErrorCode.none]

    async def test_a_commit_that_only_holds_a_forgotten_producer_counts(self, log: Log, advance: Advance) -> None:
        """After the coordinator went back, it has to be repeated too."""
        await forget(log, advance, 3)
        before = (await log.store.nodes.progress()).counters[log.lease.commits]
        await log.commit(produced(8, producer=3))
        assert (await log.store.nodes.progress()).counters[log.lease.commits] == before + 1

    async def test_a_repair_accepts_a_forgotten_producer_at_once(self, log: Log, advance: Advance) -> None:
        """No client sends the batches of a repair again."""
        await forget(log, advance, 3)
        await log.commit(produced(8, producer=2))
        entries = placed([produced(8, producer=3), produced(9, producer=3), produced(9, producer=2)])
        outcomes = await log.store.log.commit(Commit(log.lease, await log.key(), 1000, entries, repair=True))
        assert [outcome.error for outcome in outcomes] == [ErrorCode.none] * 3
        (later,) = await log.commit(produced(8, producer=1))
        assert later.error is AGAIN

    async def test_a_producer_goes_on_in_a_topic_that_is_created_again(self, log: Log, advance: Advance) -> None:
        again = Partition(UUID(int=8), 0)
        await log.commit(produced(0, 5, producer=3))
        await log.store.topics.delete_topic(TOPIC)
        await log.store.topics.create_topic(Topic(again.topic, "orders", 1, {}))
        for expected in (AGAIN, ErrorCode.none):
            outcomes = await log.commit(
                produced(5, producer=4, partition=again), produced(5, producer=3, partition=again)
            )
            assert [outcome.error for outcome in outcomes] == [ErrorCode.out_of_order_sequence_number, expected]

    async def test_deleted_names_are_forgotten_with_their_producers(self, log: Log, advance: Advance) -> None:
        again = Partition(UUID(int=8), 0)
        await log.commit(produced(0, 5, producer=3))
        await log.store.topics.delete_topic(TOPIC)
        await advance(11)
        await log.store.retention.forget_producers(10_000, 10)
        await log.store.topics.create_topic(Topic(again.topic, "orders", 1, {}))
        (outcome,) = await log.commit(produced(5, producer=3, partition=again))
        assert outcome.error is ErrorCode.out_of_order_sequence_number

    async def test_silent_producers_are_examined_in_bounded_steps(self, log: Log, advance: Advance) -> None:
        await log.commit(*(produced(0, producer=number) for number in range(5)))
        await advance(8)
        await log.commit(*(produced(1, producer=number) for number in (0, 1, 4)))
        await advance(3)
        assert [await log.store.retention.forget_producers(10_000, 2) for _ in range(3)] == [0, 2, 0]
        await advance(10)
        assert [await log.store.retention.forget_producers(10_000, 2) for _ in range(3)] == [2, 1, 0]

    async def test_ranges_below_the_log_start_are_dropped_and_empty_objects_are_dead(self, log: Log) -> None:
        key, other = await log.key(), await log.key()
        await log.commit(batch(records=2), batch(SECOND), key=key)
        await log.commit(batch(records=2), key=other)
        await log.store.log.advance_start(FIRST, 3)
        assert await log.store.retention.drop_ranges(10) == 1
        (result,) = await log.store.log.find([Lookup(FIRST, 3, 10)])
        assert [batch_range.base_offset for batch_range in result.ranges] == [2], "the range with the log start stays"
        assert (await log.store.log.find([Lookup(FIRST, 2, 10)]))[0].error is ErrorCode.offset_out_of_range
        assert await log.store.retention.dead_objects(0, 10) == []
        await log.store.log.advance_start(SECOND, 1)
        assert await log.store.retention.drop_ranges(10) == 1
        assert await log.store.retention.dead_objects(0, 10) == [key]
        (state,) = await log.store.log.states([FIRST])
        assert state is not None
        assert state.size == 100

    async def test_dropping_is_bounded(self, log: Log) -> None:
        for _ in range(5):
            await log.commit(batch())
        await log.store.log.advance_start(FIRST, 5)
        assert [await log.store.retention.drop_ranges(2) for _ in range(4)] == [2, 2, 1, 0]

    async def test_old_ranges_expire(self, log: Log, advance: Advance) -> None:
        await advance(0)
        (stamp,) = await log.commit(batch(SECOND, append_time=True))
        now = stamp.append_ms
        for age in (9000, 8000, 1000, 9000):
            await log.commit(batch(time=now - age))
        assert await log.store.retention.expire(TOPIC, 5000, -1, 10) == 2
        (state,) = await log.store.log.states([FIRST])
        assert state is not None
        assert state.log_start == 2, "ranges expire from the beginning only"
        assert await log.store.retention.expire(TOPIC, 5000, -1, 10) == 0

    async def test_records_without_a_timestamp_have_the_age_of_their_object(self, log: Log, advance: Advance) -> None:
        await advance(0)
        await log.commit(batch(time=-1))
        assert await log.store.retention.expire(TOPIC, 60_000, -1, 10) == 0
        await advance(61)
        assert await log.store.retention.expire(TOPIC, 60_000, -1, 10) == 1

    async def test_logs_shrink_to_their_retention_bytes(self, log: Log) -> None:
        for _ in range(5):
            await log.commit(batch())
        for limit, start in ((500, 0), (250, 2), (250, 2), (0, 5)):
            await log.store.retention.expire(TOPIC, -1, limit, 10)
            (state,) = await log.store.log.states([FIRST])
            assert state is not None
            assert state.log_start == start, limit

    async def test_expiry_by_age_is_bounded_over_all_partitions(self, log: Log) -> None:
        for _ in range(5):
            await log.commit(batch(), batch(SECOND))
        for passed, starts in ((4, [4, 0]), (4, [5, 3]), (2, [5, 5]), (0, [5, 5])):
            assert await log.store.retention.expire(TOPIC, 0, -1, 4) == passed
            assert [state and state.log_start for state in await log.store.log.states([FIRST, SECOND])] == starts

    async def test_expiry_by_size_is_bounded(self, log: Log) -> None:
        for _ in range(5):
            await log.commit(batch(), batch(SECOND))
        for passed, starts in ((4, [4, 0]), (4, [5, 3]), (2, [5, 5])):
            assert await log.store.retention.expire(TOPIC, -1, 0, 4) == passed
            assert [state and state.log_start for state in await log.store.log.states([FIRST, SECOND])] == starts
            while await log.store.retention.drop_ranges(4):
                pass

    async def test_expiry_by_size_pauses_while_many_ranges_wait_to_be_dropped(self, log: Log) -> None:
        for _ in range(8):
            await log.commit(batch())
        for dropped, start in ((0, 3), (0, 3), (1, 5)):
            if dropped:
                assert await log.store.retention.drop_ranges(dropped) == dropped
            await log.store.retention.expire(TOPIC, -1, 300, 3)
            (state,) = await log.store.log.states([FIRST])
            assert state is not None
            assert state.log_start == start

    async def test_waiting_ranges_of_one_partition_count_for_the_topic(self, log: Log) -> None:
        for _ in range(4):
            await log.commit(batch(), batch(SECOND))
        await log.store.log.advance_start(FIRST, 3)
        for passed, starts in ((0, [3, 0]), (3, [4, 2])):
            assert await log.store.retention.expire(TOPIC, -1, 0, 3) == passed
            assert [state and state.log_start for state in await log.store.log.states([FIRST, SECOND])] == starts
            assert await log.store.retention.drop_ranges(1) == 1

    async def test_one_call_expires_all_partitions_of_a_topic(self, log: Log) -> None:
        for partition in (FIRST, SECOND):
            for _ in range(3):
                await log.commit(batch(partition))
        assert await log.store.retention.expire(TOPIC, 0, -1, 10) == 6
        assert [state and state.log_start for state in await log.store.log.states([FIRST, SECOND])] == [3, 3]

    async def test_objects_are_listed_with_their_ranges(self, log: Log) -> None:
        key, unused = await log.key(), await log.key()
        await log.commit(batch(), batch(SECOND), key=key)
        assert dict(await log.store.retention.list_objects(*ALL_KEYS)) == {key: (1000, 2), unused: (-1, 0)}
