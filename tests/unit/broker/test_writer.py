"""The path of produced batches to the log: buffered, uploaded, committed in order, and the failure of each step."""

import asyncio
import math

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import REGISTRY

from firn.model.errors import UnavailableError
from firn_broker.log.blocks import Block
from firn_broker.log.writer import Append
from firn_broker.log_types import Node, NodeAddress, Partition
from tests.contract.metadata_store.builders import ALL_KEYS
from tests.unit.broker.batches import batch
from tests.unit.broker.rig import FIRST, SECOND, rig


def append(partition: Partition = FIRST, count: int = 1, **more: int) -> Append:
    return Append(partition, batch(count, **more), False)  # type: ignore[arg-type]


async def test_requests_of_an_interval_share_an_object() -> None:
    async with rig() as parts:
        futures = [parts.writer.append([append(), append(SECOND, 2)]) for _ in range(3)]
        answers = [[outcome.base_offset for outcome in await future] for future in futures]
        assert answers == [[0, 0], [1, 2], [2, 4]]
        assert parts.objects.puts == 1


async def test_a_lone_batch_does_not_wait_for_the_interval() -> None:
    async with rig(puts_per_second=math.inf, flush_seconds=60) as parts:
        for offset in range(3):
            (outcome,) = await parts.writer.append([append()])
            assert outcome.base_offset == offset
        assert parts.objects.puts == 3


async def test_requests_that_arrive_together_share_an_object_without_an_interval() -> None:
    async with rig(puts_per_second=math.inf, flush_seconds=60) as parts:
        await asyncio.gather(*(parts.writer.append([append()]) for _ in range(5)))
        assert parts.objects.puts == 1


async def test_batches_that_arrive_during_an_upload_share_the_next_object() -> None:
    async with rig(puts_per_second=math.inf, flush_seconds=60) as parts:
        gate = asyncio.Event()
        parts.objects.gates = [gate]
        futures = [parts.writer.append([append()])]
        while not parts.objects.puts:
            await asyncio.sleep(0)
        for _ in range(4):
            futures.append(parts.writer.append([append()]))
            await asyncio.sleep(0)
        gate.set()
        assert [outcome.base_offset for future in futures for outcome in await future] == list(range(5))
        assert parts.objects.puts == 2


async def test_a_spent_budget_leaves_the_interval() -> None:
    async with rig(puts_per_second=1e-6, flush_seconds=0.02) as parts:
        for offset in range(3):
            (outcome,) = await parts.writer.append([append()])
            assert outcome.base_offset == offset


async def test_the_next_token_comes_before_a_long_interval_ends() -> None:
    async with rig(puts_per_second=100, flush_seconds=60) as parts:
        for offset in range(105):
            (outcome,) = await parts.writer.append([append()])
            assert outcome.base_offset == offset


async def test_a_stalled_producer_causes_no_more_early_uploads_than_it_may() -> None:
    async with rig(flush_seconds=60, early_bytes=1, early_uploads=2) as parts:
        gates = [asyncio.Event() for _ in range(3)]
        parts.objects.gates = list(gates)
        futures = []
        for _ in range(3):
            futures.append(parts.writer.append([append()]))
            parts.writer.flush_early()
        while parts.objects.puts < 2:
            await asyncio.sleep(0)
        assert parts.objects.most_at_once == 2
        for gate in gates:
            gate.set()
        assert [outcome.base_offset for future in futures for outcome in await future] == [0, 1, 2]
        assert parts.objects.puts == 3


async def test_a_full_object_does_not_wait_for_the_interval() -> None:
    async with rig(flush_seconds=60, flush_bytes=1024) as parts:
        futures = [parts.writer.append([Append(FIRST, batch(body=b"x" * 600), False)]) for _ in range(2)]
        (first,) = await futures[0]
        assert first.base_offset == 0
        assert not futures[1].done()
        await parts.writer.drain()
        assert (await futures[1])[0].base_offset == 1


async def test_commits_follow_the_order_of_rotation() -> None:
    async with rig(flush_bytes=1024) as parts:
        late = asyncio.Event()
        parts.objects.gates = [late]
        first = parts.writer.append([Append(FIRST, batch(body=b"x" * 2000), False)])
        second = parts.writer.append([Append(FIRST, batch(body=b"y" * 2000), False)])
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert parts.objects.puts == 2
        assert not second.done()
        late.set()
        assert [outcome.base_offset for outcome in [*await first, *await second]] == [0, 1]


async def test_concurrent_uploads_are_bounded() -> None:
    async with rig(flush_bytes=1024, uploads=2) as parts:
        gates = [asyncio.Event() for _ in range(5)]
        parts.objects.gates = list(gates)
        futures = [parts.writer.append([Append(FIRST, batch(body=b"x" * 2000), False)]) for _ in range(5)]
        for gate in gates:
            await asyncio.sleep(0.002)
            gate.set()
        await asyncio.gather(*futures)
        assert parts.objects.most_at_once == 2


async def test_a_commit_with_a_lost_reply_is_repeated() -> None:
    async with rig() as parts:
        parts.store.lost = 3
        (outcome,) = await parts.writer.append([append(count=4)])
        assert outcome.base_offset == 0
        assert len(set(parts.store.commits)) == 1
        assert len(parts.store.commits) == 4
        (after,) = await parts.writer.append([append()])
        assert after.base_offset == 4


async def test_a_commit_that_fails_with_an_unexpected_error_is_repeated() -> None:
    async with rig() as parts:
        parts.store.trouble = [RuntimeError("unheard of")] * 2
        (outcome,) = await parts.writer.append([append()])
        assert outcome.base_offset == 0
        assert len(set(parts.store.commits)) == 1
        await parts.writer.drain()


async def test_a_file_that_fails_with_an_unexpected_error_blocks_no_other() -> None:
    async with rig() as parts:

        def broken(key: str, block: Block) -> None:
            raise RuntimeError(key)

        parts.cache.put_written = broken  # type: ignore[method-assign]
        (outcome,) = await parts.writer.append([append()])
        assert outcome.error is ErrorCode.kafka_storage_error
        del parts.cache.put_written
        assert (await parts.writer.append([append()]))[0].error is ErrorCode.none


async def test_producers_of_a_failed_upload_have_to_retry() -> None:
    async with rig() as parts:
        parts.objects.broken = True
        (outcome,) = await parts.writer.append([append()])
        assert outcome.error is ErrorCode.kafka_storage_error
        parts.objects.broken = False
        assert (await parts.writer.append([append()]))[0].base_offset == 0


async def test_an_abandoned_upload_leaves_no_object() -> None:
    async with rig() as parts:
        parts.objects.broken = True
        await parts.writer.append([append()])
        parts.objects.broken = False
        await parts.writer.append([append()])
        given_up, used = parts.store.commits
        assert await parts.store.retention.dead_objects(0, 10) == [given_up]
        assert (await parts.store.retention.list_objects(*ALL_KEYS))[used][1] == 1


OTHER = Node(7, NodeAddress("other", 1))


@pytest.mark.parametrize("happened", [False, True])
async def test_a_broker_that_redirects_answers_and_commits_no_more(happened: bool) -> None:
    async with rig() as parts:
        parts.membership.nodes = [*parts.membership.nodes, OTHER]
        parts.store.lost = 1 if happened else 0
        parts.store.trouble = [] if happened else [UnavailableError("no way there")] * 2
        answer = parts.writer.append([append(producer=1, epoch=0, sequence=0)])
        parts.membership.until = 0
        (outcome,) = await answer
        assert outcome.error is ErrorCode.kafka_storage_error
        (outcome,) = await parts.writer.append([append(producer=1, epoch=0, sequence=1)])
        assert outcome.error is ErrorCode.kafka_storage_error, "no upload has begun"
        assert parts.writer.unfinished == 0
        while len(parts.store.commits) < 1 + happened:
            await asyncio.sleep(0.001)
        assert len(set(parts.store.commits)) == 1
        assert len(await parts.store.retention.dead_objects(0, 10)) == 1 - happened
        await parts.membership._renew()
        (outcome,) = await parts.writer.append([append(producer=1, epoch=0, sequence=0)])
        assert (outcome.base_offset, outcome.duplicate) == (0, happened), "the producer's own retry"


async def test_keys_of_an_earlier_lease_are_not_used() -> None:
    """Another broker may have withdrawn and forgotten these reservations. No broker would delete their objects."""
    async with rig() as parts:
        await parts.writer.append([append()])
        parts.membership.until = 0
        before = set(await parts.store.retention.list_objects(*ALL_KEYS))
        parts.store.database.connection.execute("UPDATE wal SET state=2 WHERE state=0")
        await parts.membership._renew()
        (outcome,) = await parts.writer.append([append()])
        assert outcome.base_offset == 1
        assert parts.store.commits[-1] not in before


async def test_later_batches_do_not_overtake_a_lost_one_of_their_producer() -> None:
    async with rig(flush_bytes=1024) as parts:
        gate = asyncio.Event()
        parts.objects.gates = [gate]
        parts.objects.broken = True
        body = b"x" * 2000
        lost = parts.writer.append([Append(FIRST, batch(body=body, producer=1, epoch=0, sequence=0), False)])
        await asyncio.sleep(0.001)
        following = parts.writer.append([Append(FIRST, batch(body=body, producer=1, epoch=0, sequence=1), False)])
        others = parts.writer.append([Append(FIRST, batch(body=body, producer=2, epoch=0, sequence=0), False)])
        waiting = parts.writer.append([append(producer=1, epoch=0, sequence=2)])
        while parts.objects.puts < 4:
            await asyncio.sleep(0.001)
        gate.set()
        # The upload of the first file fails permanently. Other uploads succeed when the store recovers.
        while not lost.done():
            await asyncio.sleep(0.001)
            parts.objects.broken = not parts.objects.objects and not lost.done()
        assert [outcome.error for outcome in [*await lost, *await following, *await waiting]] == [
            ErrorCode.kafka_storage_error
        ] * 3
        assert (await others)[0].error in (ErrorCode.none, ErrorCode.kafka_storage_error)
        parts.objects.broken = False
        (again,) = await parts.writer.append([append(producer=1, epoch=0, sequence=0)])
        assert again.error is ErrorCode.none


async def test_a_fenced_node_commits_nothing() -> None:
    async with rig() as parts:
        await parts.writer.append([append()])
        await parts.store.nodes.join(NodeAddress("other", 1), 60_000, parts.membership.lease.node)
        (outcome,) = await parts.writer.append([append()])
        assert outcome.error is ErrorCode.kafka_storage_error


async def test_withdrawn_reservations_fail_one_request() -> None:
    async with rig() as parts:
        await parts.writer.append([append()])
        parts.store.database.connection.execute("UPDATE wal SET state=2 WHERE state=0")
        (outcome,) = await parts.writer.append([append()])
        assert outcome.error is ErrorCode.kafka_storage_error
        (outcome,) = await parts.writer.append([append()])
        assert (outcome.error, outcome.base_offset) == (ErrorCode.none, 1)


async def test_a_drain_answers_all_requests() -> None:
    async with rig(flush_seconds=60) as parts:
        futures = [parts.writer.append([append()]) for _ in range(3)]
        await parts.writer.drain()
        assert all(future.done() for future in futures)
        assert parts.writer.unfinished == 0


async def test_records_are_counted_once() -> None:
    def count() -> float:
        return REGISTRY.get_sample_value("firn_broker_produced_records_total") or 0

    async with rig() as parts:
        before = count()
        again = Append(FIRST, batch(3, producer=1, epoch=0, sequence=0), False)
        await parts.writer.append([Append(FIRST, batch(4), False), again])
        await parts.writer.append([again])
        assert count() - before == 7
