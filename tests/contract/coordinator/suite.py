"""What `firn_broker.ports.Coordinator` promises, whoever keeps the promise."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import FencedError
from firn_broker.log_types import (
    KEPT_REPLIES,
    MAX_TIMESTAMP,
    RUN_BYTES,
    BatchEntry,
    BatchOutcome,
    Commit,
    CommittedOffset,
    Endpoint,
    LogState,
    NodeAddress,
    NodeLease,
    Partition,
    Rewrite,
    Run,
    StoredGroup,
    Topic,
    WalRange,
    Wanted,
)
from firn_broker.metadata_store import sqlite
from firn_broker.ports import Coordinator

TOPIC = UUID(int=7)
FIRST, SECOND = Partition(TOPIC, 0), Partition(TOPIC, 1)
ADDRESS = NodeAddress("127.0.0.1", 9092)
TTL = 10_000
Advance = Callable[[float], Awaitable[None]]


class Log:
    """A node with a topic, that commits batches one object after the other."""

    def __init__(self, coordinator: Coordinator, lease: NodeLease) -> None:
        self.coordinator = coordinator
        self.lease = lease
        self.number = 0

    async def key(self) -> str:
        self.number += 1
        key = f"wal/{self.lease.epoch}-{self.number}"
        await self.coordinator.reserve(self.lease, [key])
        return key

    async def commit(self, *batches: BatchEntry, key: str | None = None) -> Sequence[BatchOutcome]:
        return await self.coordinator.commit(Commit(self.lease, key or await self.key(), 1000, placed(batches)))


def placed(batches: Sequence[BatchEntry]) -> list[BatchEntry]:
    """The batches behind one another, as an object has them."""
    position, found = 32, []
    for it in batches:
        found.append(
            BatchEntry(
                it.partition, position, it.length, it.records, it.max_timestamp, it.append_time, it.producer_id,
                it.producer_epoch, it.base_sequence,
            )
        )  # fmt: skip
        position += it.length
    return found


def batch(
    partition: Partition = FIRST, records: int = 1, *, length: int = 100, time: int = 1000, append_time: bool = False
) -> BatchEntry:
    return BatchEntry(partition, 0, length, records, time, append_time)


def produced(
    sequence: int, records: int = 1, *, epoch: int = 0, producer: int = 5, partition: Partition = FIRST
) -> BatchEntry:
    return BatchEntry(partition, 0, 100, records, 1000, False, producer, epoch, sequence)


def offsets(outcomes: Sequence[BatchOutcome]) -> list[int]:
    return [it.base_offset for it in outcomes]


async def rewritten(log: Log, *, upto: int = 1 << 30) -> Rewrite:
    """The first runs of the first partition as one run of another object, not asked for yet."""
    (found,) = await log.coordinator.find([Wanted(FIRST, 0, 100_000)])
    old = found.runs[:upto]
    key = await log.key()
    new = Run(old[0].base_offset, old[-1].last_offset, WalRange(key, 32, 40), old[-1].max_timestamp, -1)
    return Rewrite(log.lease, key, 500, FIRST, old, [new])


class CoordinatorContract:
    """Fixtures: ``coordinator``, started, with nothing in it, and ``advance`` that lets its clock go on."""

    @pytest.fixture
    async def log(self, coordinator: Coordinator) -> Log:
        await coordinator.create_topic(Topic(TOPIC, "orders", 2, {}))
        return Log(coordinator, await coordinator.join(ADDRESS, TTL))

    # Nodes and leases

    async def test_the_cluster_keeps_its_id(self, coordinator: Coordinator) -> None:
        assert await coordinator.cluster_id() == await coordinator.cluster_id() != ""

    async def test_a_lease_from_a_time_that_a_clock_took_back_ends_as_others_do(
        self, coordinator: Coordinator, advance: Advance
    ) -> None:
        first, _ = await coordinator.join(ADDRESS, TTL), await coordinator.join(ADDRESS, 1000 * TTL)
        assert [it.id for it in await coordinator.renew(first, TTL)] == [0, 1]
        await advance(TTL / 1000 + 1)
        assert [it.id for it in await coordinator.renew(first, TTL)] == [0]

    async def test_nodes_get_the_lowest_free_id(self, coordinator: Coordinator, advance: Advance) -> None:
        first, second = await coordinator.join(ADDRESS, TTL), await coordinator.join(ADDRESS, 2 * TTL)
        assert (first.node, second.node) == (0, 1)
        await advance(TTL / 1000 + 1)
        again = await coordinator.join(ADDRESS, TTL)
        assert again.node == 0
        assert again.epoch > first.epoch

    async def test_a_node_that_does_not_renew_is_gone(self, coordinator: Coordinator, advance: Advance) -> None:
        first, second = await coordinator.join(ADDRESS, TTL), await coordinator.join(NodeAddress("b", 2, "z"), TTL)
        await advance(6)
        await coordinator.renew(first, TTL)
        await advance(6)
        assert [it.id for it in await coordinator.renew(first, TTL)] == [0]
        nodes = await coordinator.renew(second, TTL)
        assert [it.id for it in await coordinator.renew(first, TTL)] == [0, 1], (
            "nobody took its place: it may come back"
        )
        assert [it.id for it in nodes][:1] == [0]
        assert (await coordinator.renew(first, TTL))[1].address == NodeAddress("b", 2, "z")

    async def test_a_node_tells_where_clients_outside_reach_it(self, coordinator: Coordinator) -> None:
        outside = NodeAddress("a", 1, "z", Endpoint("a.example", 31000))
        lease = await coordinator.join(outside, TTL, 3)
        assert [it.address for it in await coordinator.renew(lease, TTL)] == [outside]
        lease = await coordinator.join(NodeAddress("a", 1, "z"), TTL, 3)
        assert [it.address.external for it in await coordinator.renew(lease, TTL)] == [None], "it lost that listener"

    async def test_a_wanted_id_fences_whoever_has_it(self, coordinator: Coordinator) -> None:
        first = await coordinator.join(ADDRESS, TTL, 3)
        second = await coordinator.join(ADDRESS, TTL, 3)
        assert (first.node, second.node, second.epoch) == (3, 3, first.epoch + 1)
        with pytest.raises(FencedError):
            await coordinator.renew(first, TTL)

    async def test_a_node_that_leaves_is_gone_at_once(self, coordinator: Coordinator) -> None:
        first, second = await coordinator.join(ADDRESS, TTL), await coordinator.join(ADDRESS, TTL)
        await coordinator.leave(second)
        assert [it.id for it in await coordinator.renew(first, TTL)] == [0]

    async def test_a_right_has_one_holder(self, coordinator: Coordinator, advance: Advance) -> None:
        first, second = await coordinator.join(ADDRESS, TTL), await coordinator.join(ADDRESS, 3 * TTL)
        held = await coordinator.take("upkeep", first)
        assert held is not None
        assert await coordinator.take("upkeep", first) == held
        assert await coordinator.take("upkeep", second) is None
        await advance(TTL / 1000 + 1)
        taken = await coordinator.take("upkeep", second)
        assert taken is not None
        assert taken.epoch > held.epoch

    async def test_a_released_right_is_free_and_its_epoch_over(self, coordinator: Coordinator) -> None:
        first, second = await coordinator.join(ADDRESS, TTL), await coordinator.join(ADDRESS, TTL)
        held = await coordinator.take("groups/1", first)
        assert held is not None
        await coordinator.release(held, first)
        with pytest.raises(FencedError):
            await coordinator.save_group(held, 1, StoredGroup("g", 1, "{}"))
        taken = await coordinator.take("groups/1", second)
        assert taken is not None
        assert taken.epoch > held.epoch

    # Topics

    async def test_topics_are_made_once(self, coordinator: Coordinator) -> None:
        assert await coordinator.create_topic(Topic(TOPIC, "orders", 3, {"retention.ms": "1"}))
        assert not await coordinator.create_topic(Topic(UUID(int=8), "orders", 1, {}))
        found = await coordinator.topics()
        assert found is not None
        assert list(found.topics) == [Topic(TOPIC, "orders", 3, {"retention.ms": "1"})]
        assert await coordinator.topics(found.version) is None

    async def test_every_change_of_topics_is_a_new_version(self, coordinator: Coordinator) -> None:
        await coordinator.create_topic(Topic(TOPIC, "orders", 1, {}))
        version = -1
        for change in (
            coordinator.grow_topic(TOPIC, 4),
            coordinator.configure_topic(TOPIC, {}, {"a": "b"}),
            coordinator.delete_topic(TOPIC),
        ):
            assert await change
            found = await coordinator.topics()
            assert found is not None
            assert found.version > version
            version = found.version
        assert not await coordinator.grow_topic(TOPIC, 5)
        assert not await coordinator.configure_topic(TOPIC, {"a": "b"}, {})
        assert not await coordinator.delete_topic(TOPIC)

    async def test_configs_are_replaced_by_who_knows_them(self, coordinator: Coordinator) -> None:
        first, second = {"a": "1", "b": "2"}, {"c": "3"}
        await coordinator.create_topic(Topic(TOPIC, "orders", 1, first))
        assert await coordinator.configure_topic(TOPIC, {"b": "2", "a": "1"}, second)
        before = await coordinator.topics()
        assert before is not None
        assert not await coordinator.configure_topic(TOPIC, first, {})
        assert await coordinator.topics(before.version) is None
        assert before.topics[0].configs == second

    async def test_a_grown_topic_has_its_new_partitions(self, log: Log) -> None:
        await log.coordinator.grow_topic(TOPIC, 3)
        assert offsets(await log.commit(batch(Partition(TOPIC, 2)))) == [0]
        await log.coordinator.grow_topic(TOPIC, 2)
        (state,) = await log.coordinator.states([Partition(TOPIC, 2)])
        assert state is not None

    async def test_a_deleted_topic_takes_nothing_and_its_objects_die(self, log: Log, advance: Advance) -> None:
        key = await log.key()
        await log.commit(batch(), key=key)
        await log.coordinator.delete_topic(TOPIC)
        (outcome,) = await log.commit(batch())
        assert outcome.error is ErrorCode.unknown_topic_or_partition
        assert await log.coordinator.states([FIRST]) == [None]
        assert (await log.coordinator.find([Wanted(FIRST, 0, 1)]))[0].error is ErrorCode.unknown_topic_or_partition
        assert await log.coordinator.drop_runs(100) == 1
        await advance(11)
        assert key in await log.coordinator.dead_objects(10_000, 10)

    async def test_a_topic_made_anew_begins_at_zero(self, log: Log) -> None:
        await log.commit(batch(records=5))
        await log.coordinator.delete_topic(TOPIC)
        other = UUID(int=8)
        await log.coordinator.create_topic(Topic(other, "orders", 1, {}))
        assert offsets(await log.commit(batch(Partition(other, 0)))) == [0]

    # Commits

    async def test_offsets_are_contiguous(self, log: Log) -> None:
        assert offsets(await log.commit(batch(records=3), batch(records=2), batch(SECOND))) == [0, 3, 0]
        assert offsets(await log.commit(batch(), batch(SECOND, 4))) == [5, 1]
        first, second = await log.coordinator.states([FIRST, SECOND])
        assert first is not None
        assert second is not None
        assert (first.log_start, first.high_watermark, first.size) == (0, 6, 300)
        assert (second.high_watermark, second.size) == (5, 200)

    async def test_the_same_object_is_answered_the_same(self, log: Log) -> None:
        key = await log.key()
        before = await log.commit(batch(), produced(0, producer=9), key=key)
        assert await log.commit(batch(), produced(0, producer=9), key=key) == before
        (state,) = await log.coordinator.states([FIRST])
        assert state is not None
        assert state.high_watermark == 2

    async def test_what_is_not_reserved_is_refused(self, log: Log) -> None:
        with pytest.raises(FencedError):
            await log.coordinator.commit(Commit(log.lease, "wal/nobody", 1, placed([batch()])))

    async def test_an_old_epoch_commits_nothing(self, log: Log) -> None:
        key = await log.key()
        await log.coordinator.join(ADDRESS, TTL, log.lease.node)
        with pytest.raises(FencedError):
            await log.commit(batch(), key=key)

    async def test_what_an_old_epoch_did_is_still_told(self, log: Log) -> None:
        key = await log.key()
        before = await log.commit(batch(), key=key)
        await log.coordinator.join(ADDRESS, TTL, log.lease.node)
        assert await log.commit(batch(), key=key) == before

    async def test_a_withdrawn_reservation_is_refused_and_its_object_dies(self, log: Log, advance: Advance) -> None:
        key = await log.key()
        await advance(3)
        assert await log.coordinator.abandon(2_000, 10) == 0, "the node lives"
        await advance(TTL / 1000)
        assert await log.coordinator.abandon(2_000, 10) == 1
        with pytest.raises(FencedError):
            await log.commit(batch(), key=key)
        assert await log.coordinator.dead_objects(5_000, 10) == []
        await advance(6)
        assert await log.coordinator.dead_objects(5_000, 10) == [key]
        await log.coordinator.forget_objects([key])
        assert await log.coordinator.dead_objects(0, 10) == []

    async def test_replies_that_nobody_asks_for_any_more_are_forgotten(self, log: Log, advance: Advance) -> None:
        keys = []
        for _ in range(KEPT_REPLIES + 3):
            keys.append(await log.key())
            await log.commit(batch(), key=keys[-1])
            await advance(0.01)
        assert await log.coordinator.forget_replies(5_000, 1000) == 0
        assert offsets(await log.commit(batch(), key=keys[0])) == [0], "too young"
        await advance(6)
        await log.coordinator.renew(log.lease, TTL)
        assert await log.coordinator.forget_replies(5_000, 2) == 2
        assert offsets(await log.commit(batch(), key=keys[2])) == [2], "not more than the limit"
        assert await log.coordinator.forget_replies(5_000, 1000) == 1
        assert await log.coordinator.forget_replies(5_000, 1000) == 0
        for key in keys[:3]:
            with pytest.raises(FencedError):
                await log.commit(batch(), key=key)
        for offset, key in enumerate(keys[3:], 3):
            assert offsets(await log.commit(batch(), key=key)) == [offset]
        await log.coordinator.join(ADDRESS, TTL, log.lease.node)
        await log.coordinator.forget_replies(5_000, 1000)
        with pytest.raises(FencedError):
            await log.commit(batch(), key=keys[-1])

    async def test_an_object_that_was_reserved_long_ago_is_young_once_it_is_committed(
        self, log: Log, advance: Advance
    ) -> None:
        key = await log.key()
        for _ in range(KEPT_REPLIES):
            await log.commit(batch(SECOND))
        await advance(6)
        await log.coordinator.renew(log.lease, TTL)
        await log.commit(batch(), key=key)
        await log.coordinator.forget_replies(5_000, 1000)
        assert offsets(await log.commit(batch(), key=key)) == [0]

    async def test_an_object_without_accepted_batches_is_dead(self, log: Log) -> None:
        await log.commit(produced(0))
        key = await log.key()
        (outcome,) = await log.commit(produced(0), key=key)
        assert outcome.duplicate
        assert await log.coordinator.dead_objects(0, 10) == [key]

    async def test_append_time_is_the_coordinators_and_rises(self, log: Log, advance: Advance) -> None:
        (first,) = await log.commit(batch(append_time=True, time=5))
        await advance(1)
        (second,) = await log.commit(batch(append_time=True, time=3))
        assert 0 < first.append_ms < second.append_ms
        found = (await log.coordinator.find([Wanted(FIRST, 0, 1000)]))[0].runs
        assert (
            [it.append_ms for it in found] == [it.max_timestamp for it in found] == [first.append_ms, second.append_ms]
        )

    async def test_commits_at_the_same_time_share_no_offset(self, log: Log) -> None:
        keys = [await log.key() for _ in range(20)]
        given = await asyncio.gather(*(log.commit(batch(records=2), batch(SECOND, 3), key=key) for key in keys))
        assert sorted(it[0].base_offset for it in given) == list(range(0, 40, 2))
        assert sorted(it[1].base_offset for it in given) == list(range(0, 60, 3))

    # Runs that are written anew

    async def test_new_runs_take_the_place_of_old_ones(self, log: Log) -> None:
        keys = [await log.key() for _ in range(3)]
        for key in keys:
            await log.commit(batch(records=2), batch(SECOND), key=key)
        rewrite = await rewritten(log, upto=2)
        assert await log.coordinator.rewrite(rewrite)
        (found,) = await log.coordinator.find([Wanted(FIRST, 0, 10_000)])
        assert (found.log_start, found.high_watermark) == (0, 6)
        assert list(found.runs[:-1]) == list(rewrite.new)
        assert (found.runs[-1].base_offset, found.runs[-1].place.key) == (4, keys[2])
        assert await log.coordinator.states([FIRST]) == [LogState(0, 6, 40 + 100)]
        (after,) = await log.commit(batch())
        assert after.base_offset == 6
        assert await log.coordinator.dead_objects(0, 10) == [], "the other partition is still in them"
        assert (await log.coordinator.objects())[keys[0]] == (1000, 1)

    async def test_objects_without_runs_die_by_a_rewrite(self, log: Log, advance: Advance) -> None:
        keys = [await log.key() for _ in range(2)]
        for key in keys:
            await log.commit(batch(), key=key)
        rewrite = await rewritten(log)
        assert await log.coordinator.rewrite(rewrite)
        assert await log.coordinator.dead_objects(5_000, 10) == [], "who has just found them may still read them"
        await advance(6)
        assert sorted(await log.coordinator.dead_objects(5_000, 10)) == sorted(keys)
        assert (await log.coordinator.objects())[rewrite.key] == (500, 1)

    async def test_a_rewrite_without_an_answer_is_asked_again(self, log: Log) -> None:
        await log.commit(batch())
        await log.commit(batch())
        rewrite = await rewritten(log)
        assert await log.coordinator.rewrite(rewrite)
        state = await log.coordinator.states([FIRST])
        assert await log.coordinator.rewrite(rewrite)
        assert await log.coordinator.states([FIRST]) == state

    async def test_a_rewrite_of_what_is_not_there_any_more_does_nothing(self, log: Log) -> None:
        await log.commit(batch())
        await log.commit(batch())
        quick, slow = await rewritten(log), await rewritten(log)
        assert await log.coordinator.rewrite(quick)
        assert not await log.coordinator.rewrite(slow)
        assert not await log.coordinator.rewrite(slow), "and says so again"
        assert (await log.coordinator.find([Wanted(FIRST, 0, 1000)]))[0].runs == list(quick.new)
        assert slow.key in await log.coordinator.dead_objects(0, 10)

    async def test_a_rewrite_of_a_deleted_topic_does_nothing(self, log: Log) -> None:
        await log.commit(batch())
        rewrite = await rewritten(log)
        await log.coordinator.delete_topic(TOPIC)
        assert not await log.coordinator.rewrite(rewrite)
        assert await log.coordinator.dead_objects(0, 10) == [rewrite.key]
        assert await log.coordinator.drop_runs(10) == 1

    async def test_a_rewrite_of_a_node_whose_epoch_is_over_is_refused(self, log: Log) -> None:
        await log.commit(batch())
        rewrite = await rewritten(log)
        await log.coordinator.join(ADDRESS, TTL, log.lease.node)
        with pytest.raises(FencedError):
            await log.coordinator.rewrite(rewrite)
        assert (await log.coordinator.find([Wanted(FIRST, 0, 1000)]))[0].runs == list(rewrite.old)
        with pytest.raises(FencedError):
            await log.coordinator.rewrite(dataclasses.replace(rewrite, key="wal/nobody"))

    async def test_appends_go_on_while_runs_are_written_anew(self, log: Log) -> None:
        await log.commit(batch(), batch(SECOND))
        rewrite = await rewritten(log)
        keys = [await log.key() for _ in range(10)]
        done, *given = await asyncio.gather(
            log.coordinator.rewrite(rewrite), *(log.commit(batch(), batch(SECOND), key=key) for key in keys)
        )
        assert done
        assert sorted(it[0].base_offset for it in given) == list(range(1, 11))  # type: ignore[index]
        (found,) = await log.coordinator.find([Wanted(FIRST, 0, 100_000)])
        assert [it.base_offset for it in found.runs] == list(range(11))

    async def test_rewritten_runs_expire_as_others_do(self, log: Log) -> None:
        await log.commit(batch())
        rewrite = await rewritten(log)
        await log.coordinator.rewrite(rewrite)
        await log.commit(batch())
        await log.coordinator.advance_start(FIRST, 1)
        assert await log.coordinator.drop_runs(10) == 1
        assert rewrite.key in await log.coordinator.dead_objects(0, 10)

    # Idempotence

    async def test_an_unknown_producer_may_begin_anywhere(self, log: Log) -> None:
        (outcome,) = await log.commit(produced(17))
        assert (outcome.error, outcome.base_offset) == (ErrorCode.none, 0)

    async def test_sequences_follow_one_another(self, log: Log) -> None:
        outcomes = await log.commit(produced(0, 3), produced(3, 2), produced(6), produced(5))
        assert [it.error for it in outcomes] == [
            ErrorCode.none, ErrorCode.none, ErrorCode.out_of_order_sequence_number, ErrorCode.none,
        ]  # fmt: skip
        assert offsets(outcomes) == [0, 3, -1, 5]

    async def test_sequences_wrap(self, log: Log) -> None:
        last = (1 << 31) - 1
        outcomes = await log.commit(produced(last - 1, 2), produced(0, 2), produced(2))
        assert offsets(outcomes) == [0, 2, 4]
        (wrapping,) = await log.commit(produced(last, 3, producer=6))
        (after,) = await log.commit(produced(2, producer=6))
        assert (wrapping.error, after.error) == (ErrorCode.none, ErrorCode.none)

    async def test_a_duplicate_has_the_first_ones_offset(self, log: Log) -> None:
        await log.commit(batch(records=4))
        first = await log.commit(produced(0, 2), produced(2, 2))
        again = await log.commit(produced(0, 2), produced(2, 2))
        assert offsets(again) == offsets(first) == [4, 6]
        assert all(it.duplicate and not it.error for it in again)
        (state,) = await log.coordinator.states([FIRST])
        assert state is not None
        assert state.high_watermark == 8

    async def test_five_batches_are_remembered(self, log: Log) -> None:
        await log.commit(*(produced(number) for number in range(6)))
        outcomes = await log.commit(produced(1), produced(0))
        assert outcomes[0].duplicate
        assert outcomes[0].base_offset == 1
        assert outcomes[1].error is ErrorCode.out_of_order_sequence_number

    async def test_a_duplicate_has_to_be_the_whole_batch(self, log: Log) -> None:
        await log.commit(produced(0, 5))
        (outcome,) = await log.commit(produced(0, 4))
        assert outcome.error is ErrorCode.out_of_order_sequence_number

    async def test_epochs(self, log: Log) -> None:
        await log.commit(produced(0, epoch=1))
        outcomes = await log.commit(
            produced(1, epoch=0), produced(1, epoch=2), produced(0, epoch=2), produced(1, epoch=2), produced(1, epoch=1)
        )
        assert [it.error for it in outcomes] == [
            ErrorCode.invalid_producer_epoch, ErrorCode.out_of_order_sequence_number, ErrorCode.none, ErrorCode.none,
            ErrorCode.invalid_producer_epoch,
        ]  # fmt: skip

    async def test_producers_and_partitions_do_not_mix(self, log: Log) -> None:
        outcomes = await log.commit(
            produced(0, producer=1), produced(0, producer=2), produced(1, producer=1), produced(1, producer=2),
            produced(0, producer=1, partition=SECOND),
        )  # fmt: skip
        assert [it.error for it in outcomes] == [ErrorCode.none] * 5
        again = await log.commit(
            produced(1, producer=1), produced(2, producer=2), produced(1, producer=1, partition=SECOND)
        )
        assert [(it.error, it.duplicate) for it in again] == [
            (ErrorCode.none, True), (ErrorCode.none, False), (ErrorCode.none, False),
        ]  # fmt: skip

    async def test_producers_that_are_silent_are_forgotten(self, log: Log, advance: Advance) -> None:
        await log.commit(produced(0, producer=1), produced(0, producer=2))
        await advance(8)
        await log.commit(produced(1, producer=1))
        await advance(3)
        assert await log.coordinator.forget_producers(10_000, 10) == 1
        outcomes = await log.commit(produced(7, producer=1), produced(7, producer=2))
        assert [it.error for it in outcomes] == [ErrorCode.out_of_order_sequence_number, ErrorCode.none]

    async def test_silent_producers_are_looked_for_step_by_step(self, log: Log, advance: Advance) -> None:
        await log.commit(*(produced(0, producer=number) for number in range(5)))
        await advance(8)
        await log.commit(*(produced(1, producer=number) for number in (0, 1, 4)))
        await advance(3)
        assert [await log.coordinator.forget_producers(10_000, 2) for _ in range(3)] == [0, 2, 0]
        await advance(10)
        assert [await log.coordinator.forget_producers(10_000, 2) for _ in range(3)] == [2, 1, 0]

    async def test_producer_ids_are_given_once(self, coordinator: Coordinator) -> None:
        first = await coordinator.producer_ids(10)
        assert await coordinator.producer_ids(1) >= first + 10

    # Finding

    async def test_batches_that_lie_together_are_one_run(self, log: Log) -> None:
        key = await log.key()
        await log.commit(batch(), batch(records=2, time=9000), batch(SECOND), key=key)
        found, other = await log.coordinator.find([Wanted(FIRST, 0, 1000), Wanted(SECOND, 0, 1000)])
        (run,) = found.runs
        assert (run.base_offset, run.last_offset, run.max_timestamp) == (0, 2, 9000)
        assert (run.place.key, run.place.position, run.place.length) == (key, 32, 200)
        assert [it.place.position for it in other.runs] == [232]

    async def test_a_run_ends_at_a_refused_batch_and_before_it_is_too_long(self, log: Log) -> None:
        await log.commit(batch(), produced(0, epoch=1), produced(9, epoch=0), batch())
        (found,) = await log.coordinator.find([Wanted(FIRST, 0, 1000)])
        assert [(it.base_offset, it.last_offset) for it in found.runs] == [(0, 1), (2, 2)]
        await log.commit(batch(SECOND, length=RUN_BYTES - 1), batch(SECOND, length=1), batch(SECOND, length=1))
        (found,) = await log.coordinator.find([Wanted(SECOND, 0, 2 * RUN_BYTES)])
        assert [it.last_offset for it in found.runs] == [1, 2]

    async def test_an_offset_inside_a_run_finds_it(self, log: Log) -> None:
        await log.commit(batch(records=5))
        await log.commit(batch(records=5))
        (found,) = await log.coordinator.find([Wanted(FIRST, 3, 1000)])
        assert [it.base_offset for it in found.runs] == [0, 5]
        (found,) = await log.coordinator.find([Wanted(FIRST, 9, 1000)])
        assert [it.base_offset for it in found.runs] == [5]

    async def test_as_many_runs_as_the_bytes_allow_and_one_at_least(self, log: Log) -> None:
        for _ in range(5):
            await log.commit(batch())
        for wanted, runs in ((1, 1), (100, 1), (101, 2), (300, 3), (10_000, 5)):
            (found,) = await log.coordinator.find([Wanted(FIRST, 0, wanted)])
            assert len(found.runs) == runs, wanted

    async def test_no_more_runs_of_each_partition_than_were_asked_for(self, log: Log) -> None:
        for _ in range(3):
            await log.commit(batch(), batch(SECOND))
        found = await log.coordinator.find([Wanted(FIRST, 1, 10_000), Wanted(SECOND, 0, 101)], 1)
        assert [[run.base_offset for run in one.runs] for one in found] == [[1], [0]]

    async def test_the_end_has_no_runs_and_beyond_it_is_an_error(self, log: Log) -> None:
        await log.commit(batch())
        found = await log.coordinator.find([Wanted(FIRST, 1, 10), Wanted(FIRST, 2, 10), Wanted(FIRST, -1, 10)])
        assert [(it.error, it.high_watermark, list(it.runs)) for it in found] == [
            (ErrorCode.none, 1, []), (ErrorCode.offset_out_of_range, 1, []), (ErrorCode.offset_out_of_range, 1, []),
        ]  # fmt: skip

    async def test_unknown_partitions(self, log: Log) -> None:
        nobody = Partition(TOPIC, 9)
        (found,) = await log.coordinator.find([Wanted(nobody, 0, 10)])
        assert found.error is ErrorCode.unknown_topic_or_partition
        assert await log.coordinator.states([nobody, FIRST, nobody])
        assert [it is None for it in await log.coordinator.states([nobody, FIRST, nobody])] == [True, False, True]

    async def test_runs_are_found_by_time(self, log: Log) -> None:
        for time in (1000, 3000, 2000):
            await log.commit(batch(time=time))
        for wanted, base in ((0, 0), (1000, 0), (1001, 1), (3000, 1), (MAX_TIMESTAMP, 1)):
            run = await log.coordinator.find_by_time(FIRST, wanted)
            assert run is not None
            assert run.base_offset == base
        assert await log.coordinator.find_by_time(FIRST, 3001) is None
        later = await log.coordinator.find_by_time(FIRST, 1000, 2)
        assert later is not None
        assert later.base_offset == 2

    async def test_runs_are_found_by_time_among_many(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite, "TIMED_RUNS", 2)
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
            run = await log.coordinator.find_by_time(FIRST, wanted, since)
            assert run is not None
            assert run.base_offset == base
        assert await log.coordinator.find_by_time(FIRST, 5001) is None
        assert await log.coordinator.find_by_time(FIRST, 0, 6) is None
        assert await log.coordinator.find_by_time(Partition(TOPIC, 99), 0) is None

    # What goes

    async def test_the_log_start_moves_up_only(self, log: Log) -> None:
        await log.commit(batch(records=10))
        for offset, start in ((4, 4), (2, 4), (99, 10)):
            state = await log.coordinator.advance_start(FIRST, offset)
            assert state is not None
            assert state.log_start == start
        assert await log.coordinator.advance_start(Partition(TOPIC, 9), 1) is None
        (outcome,) = await log.commit(batch())
        assert (outcome.base_offset, outcome.log_start) == (10, 10)

    async def test_runs_below_the_log_start_go_and_objects_with_their_last(self, log: Log) -> None:
        key, other = await log.key(), await log.key()
        await log.commit(batch(records=2), batch(SECOND), key=key)
        await log.commit(batch(records=2), key=other)
        await log.coordinator.advance_start(FIRST, 3)
        assert await log.coordinator.drop_runs(10) == 1
        (found,) = await log.coordinator.find([Wanted(FIRST, 3, 10)])
        assert [it.base_offset for it in found.runs] == [2], "the run with the log start stays"
        assert (await log.coordinator.find([Wanted(FIRST, 2, 10)]))[0].error is ErrorCode.offset_out_of_range
        assert await log.coordinator.dead_objects(0, 10) == []
        await log.coordinator.advance_start(SECOND, 1)
        assert await log.coordinator.drop_runs(10) == 1
        assert await log.coordinator.dead_objects(0, 10) == [key]
        (state,) = await log.coordinator.states([FIRST])
        assert state is not None
        assert state.size == 100

    async def test_dropping_is_bounded(self, log: Log) -> None:
        for _ in range(5):
            await log.commit(batch())
        await log.coordinator.advance_start(FIRST, 5)
        assert [await log.coordinator.drop_runs(2) for _ in range(4)] == [2, 2, 1, 0]

    async def test_old_runs_expire(self, log: Log, advance: Advance) -> None:
        await advance(0)
        (stamp,) = await log.commit(batch(SECOND, append_time=True))
        now = stamp.append_ms
        for age in (9000, 8000, 1000, 9000):
            await log.commit(batch(time=now - age))
        assert await log.coordinator.expire(TOPIC, 5000, -1, 10) == 2
        (state,) = await log.coordinator.states([FIRST])
        assert state is not None
        assert state.log_start == 2, "only from the beginning on"
        assert await log.coordinator.expire(TOPIC, 5000, -1, 10) == 0

    async def test_records_without_time_are_as_old_as_their_object(self, log: Log, advance: Advance) -> None:
        await advance(0)
        await log.commit(batch(time=-1))
        assert await log.coordinator.expire(TOPIC, 60_000, -1, 10) == 0
        await advance(61)
        assert await log.coordinator.expire(TOPIC, 60_000, -1, 10) == 1

    async def test_logs_shrink_to_their_bytes(self, log: Log) -> None:
        for _ in range(5):
            await log.commit(batch())
        for limit, start in ((500, 0), (250, 2), (250, 2), (0, 5)):
            await log.coordinator.expire(TOPIC, -1, limit, 10)
            (state,) = await log.coordinator.states([FIRST])
            assert state is not None
            assert state.log_start == start, limit

    async def test_expiry_is_bounded(self, log: Log) -> None:
        """Over all partitions together."""
        for _ in range(5):
            await log.commit(batch(), batch(SECOND))
        for passed, starts in ((4, [4, 0]), (4, [5, 3]), (2, [5, 5]), (0, [5, 5])):
            assert await log.coordinator.expire(TOPIC, 0, -1, 4) == passed
            assert [it and it.log_start for it in await log.coordinator.states([FIRST, SECOND])] == starts

    async def test_expiry_by_size_is_bounded(self, log: Log) -> None:
        for _ in range(5):
            await log.commit(batch(), batch(SECOND))
        for passed, starts in ((4, [4, 0]), (4, [5, 3]), (2, [5, 5])):
            assert await log.coordinator.expire(TOPIC, -1, 0, 4) == passed
            assert [it and it.log_start for it in await log.coordinator.states([FIRST, SECOND])] == starts
            while await log.coordinator.drop_runs(4):
                pass

    async def test_logs_shrink_no_further_while_many_runs_wait_to_be_dropped(self, log: Log) -> None:
        for _ in range(8):
            await log.commit(batch())
        for dropped, start in ((0, 3), (0, 3), (1, 5)):
            if dropped:
                assert await log.coordinator.drop_runs(dropped) == dropped
            await log.coordinator.expire(TOPIC, -1, 300, 3)
            (state,) = await log.coordinator.states([FIRST])
            assert state is not None
            assert state.log_start == start

    async def test_runs_of_one_partition_that_wait_to_be_dropped_count_for_all(self, log: Log) -> None:
        for _ in range(4):
            await log.commit(batch(), batch(SECOND))
        await log.coordinator.advance_start(FIRST, 3)
        for passed, starts in ((0, [3, 0]), (3, [4, 2])):
            assert await log.coordinator.expire(TOPIC, -1, 0, 3) == passed
            assert [it and it.log_start for it in await log.coordinator.states([FIRST, SECOND])] == starts
            assert await log.coordinator.drop_runs(1) == 1

    async def test_all_partitions_of_a_topic_expire_at_once(self, log: Log) -> None:
        for partition in (FIRST, SECOND):
            for _ in range(3):
                await log.commit(batch(partition))
        assert await log.coordinator.expire(TOPIC, 0, -1, 10) == 6
        assert [it and it.log_start for it in await log.coordinator.states([FIRST, SECOND])] == [3, 3]

    async def test_objects_are_listed_with_their_runs(self, log: Log) -> None:
        key, unused = await log.key(), await log.key()
        await log.commit(batch(), batch(SECOND), key=key)
        assert dict(await log.coordinator.objects()) == {key: (1000, 2), unused: (-1, 0)}

    # Groups

    async def test_groups_are_kept_by_shard(self, log: Log) -> None:
        held = await log.coordinator.take("groups/1", log.lease)
        assert held is not None
        await log.coordinator.save_group(held, 1, StoredGroup("a", 1, '{"x": 1}'))
        await log.coordinator.save_group(held, 1, StoredGroup("a", 2, '{"x": 2}'))
        await log.coordinator.save_group(held, 2, StoredGroup("b", 1, "{}"))
        await log.coordinator.save_group(held, 1, StoredGroup("a", 1, '{"x": "late"}'))
        assert list(await log.coordinator.groups(1)) == [StoredGroup("a", 2, '{"x": 2}')]
        assert [it.name for it in await log.coordinator.groups()] == ["a", "b"]

    async def test_offsets_are_kept_with_their_metadata(self, log: Log) -> None:
        held = await log.coordinator.take("groups/1", log.lease)
        assert held is not None
        wanted = {FIRST: CommittedOffset(5, 0, "so far"), SECOND: CommittedOffset(7)}
        await log.coordinator.commit_offsets(held, "g", {FIRST: CommittedOffset(4)})
        await log.coordinator.commit_offsets(held, "g", wanted)
        assert dict(await log.coordinator.offsets("g")) == wanted
        assert await log.coordinator.offset_groups() == ["g"]
        await log.coordinator.delete_offsets(held, "g", [SECOND])
        assert list(await log.coordinator.offsets("g")) == [FIRST]
        await log.coordinator.delete_group(held, "g")
        assert dict(await log.coordinator.offsets("g")) == {}

    async def test_who_lost_a_group_changes_nothing(self, log: Log, advance: Advance) -> None:
        held = await log.coordinator.take("groups/1", log.lease)
        assert held is not None
        await advance(TTL / 1000 + 1)
        other = await log.coordinator.join(ADDRESS, TTL, 7)
        assert await log.coordinator.take("groups/1", other) is not None
        for change in (
            log.coordinator.save_group(held, 1, StoredGroup("a", 1, "{}")),
            log.coordinator.delete_group(held, "a"),
            log.coordinator.commit_offsets(held, "a", {FIRST: CommittedOffset(1)}),
            log.coordinator.delete_offsets(held, "a", [FIRST]),
        ):
            with pytest.raises(FencedError):
                await change

    async def test_lags_are_of_topics_the_greatest_first(self, log: Log) -> None:
        await log.commit(batch(FIRST, records=5), batch(SECOND, records=7))
        other = UUID(int=8)
        await log.coordinator.create_topic(Topic(other, "other", 1, {}))
        await log.commit(batch(Partition(other, 0), records=20))
        commit = log.coordinator.commit_offsets
        await commit(
            None, "a", {FIRST: CommittedOffset(1), SECOND: CommittedOffset(9), Partition(other, 0): CommittedOffset(0)}
        )
        await commit(None, "b", {SECOND: CommittedOffset(2), Partition(TOPIC, 99): CommittedOffset(2)})
        await commit(None, "not asked for", {SECOND: CommittedOffset(0)})
        lags = [("a", other, 20), ("b", TOPIC, 5), ("a", TOPIC, 4)]
        assert list(await log.coordinator.lags(["a", "b", "none"], 10)) == lags
        assert list(await log.coordinator.lags(["a", "b", "none"], 2)) == lags[:2]
        await log.coordinator.delete_topic(other)
        assert list(await log.coordinator.lags(["a", "b"], 10)) == lags[1:]
        assert list(await log.coordinator.lags([], 10)) == []

    async def test_offsets_go_with_their_topic(self, log: Log) -> None:
        await log.coordinator.commit_offsets(None, "g", {FIRST: CommittedOffset(5)})
        await log.coordinator.delete_topic(TOPIC)
        assert dict(await log.coordinator.offsets("g")) == {}

    async def test_no_offsets_are_kept_for_a_topic_that_is_gone(self, log: Log) -> None:
        held = await log.coordinator.take("groups/1", log.lease)
        gone = Partition(UUID(int=6), 0)
        for lease in (held, None):
            await log.coordinator.commit_offsets(lease, "g", {gone: CommittedOffset(5), SECOND: CommittedOffset(6)})
            assert list(await log.coordinator.offsets("g")) == [SECOND]
        await log.coordinator.delete_topic(TOPIC)
        await log.coordinator.commit_offsets(held, "g", {SECOND: CommittedOffset(7)})
        assert await log.coordinator.offset_groups() == []
