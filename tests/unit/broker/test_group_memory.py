"""The memory of groups has limits, and large groups do not stop the broker."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from firn_broker.groups import consumer
from firn_broker.groups.assignors import ASSIGNORS, Assignment, Subscriber, uniform
from firn_broker.groups.classic import PENDING_SECONDS
from firn_broker.network.router import Client
from tests.fakes.virtual_time import run
from tests.unit.broker.test_group_coordination import JOIN_GROUP, LEAVE, NONE, SYNC, join, partitions, seconds
from tests.unit.broker.whole import Asked, broker, create

T = TypeVar("T")
KIB, MIB = 1 << 10, 1 << 20
FULL, LATER = ErrorCode.group_max_size_reached, ErrorCode.coordinator_not_available


async def join_classic(asked: Asked, group: str, size: int, *, version: int = 3, member: str = "") -> Any:
    return await asked.ask(
        JOIN_GROUP, version, group_id=group, session_timeout=seconds(30), rebalance_timeout=seconds(1), member_id=member,
        protocol_type="consumer", protocols=[{"name": "range", "metadata": bytes(size)}],
    )  # fmt: skip


def test_the_subscriptions_of_a_group_have_a_limit() -> None:
    async def story() -> None:
        settings = {"max_group_bytes": 64 * KIB, "initial_rebalance_ms": 0}
        async with broker(groups=settings) as asked:
            await create(asked, "t")
            first = await join_classic(asked, "g", 40 * KIB)
            assert first.error_code is NONE
            assert (await join_classic(asked, "g", 40 * KIB)).error_code is FULL
            assert (await join_classic(asked, "g", 40 * KIB, member=first.member_id)).error_code is NONE
            assert (await join_classic(asked, "other", 40 * KIB)).error_code is NONE
            names = ["x" * 200 + str(number) for number in range(200)]
            assert (await join(asked, "new", "a", *names)).error_code is NONE
            assert (await join(asked, "new", "b", *names)).error_code is FULL
            assert (await join(asked, "new", "a", *names)).error_code is NONE

    run(story())


def test_all_groups_share_a_limit_and_one_address_leaves_memory_to_others() -> None:
    async def story() -> None:
        async with broker(groups={"max_bytes": MIB, "initial_rebalance_ms": 0}) as asked:
            await create(asked, "t")
            other = Asked(asked.broker)
            other.client = Client("other:1", "test")
            memory = asked.broker.groups.shards.memory
            members: list[str] = []
            while not (reply := await join_classic(asked, f"g{len(members)}", 100 * KIB)).error_code:
                members.append(reply.member_id)
            assert (reply.error_code, len(members)) == (LATER, 8)
            assert (
                await join(asked, "new", "a", *["x" * 1000 + str(number) for number in range(100)])
            ).error_code is LATER
            assert (await join_classic(other, "h", 60 * KIB)).error_code is NONE
            assert 0 < memory.used <= memory.total
            await asked.ask(LEAVE, 2, group_id="g0", member_id=members[0])
            assert (await join_classic(asked, "again", 100 * KIB)).error_code is NONE
            # Sessions expire.
            await asyncio.sleep(60)
            assert memory.used < 10 * KIB
            asked.broker.groups.shards.drop_all()
            assert memory.used == 0

    run(story())


def test_the_end_of_a_replaced_shard_does_not_change_the_memory_of_its_successor() -> None:
    """A write of the former shard that the coordinator rejects late ends it a second time."""

    async def story() -> None:
        async with broker(groups={"max_bytes": MIB, "initial_rebalance_ms": 0}) as asked:
            shards = asked.broker.groups.shards
            await join_classic(asked, "g", 100 * KIB)
            (former,) = shards.owned()
            shards.drop(former)
            assert shards.memory.used == 0
            assert (await join_classic(asked, "g", 100 * KIB)).error_code is NONE
            used = shards.memory.used
            assert used > 100 * KIB
            shards.drop(former)
            assert shards.memory.used == used

    run(story())


def test_ids_of_clients_that_never_join_take_memory_briefly() -> None:
    async def story() -> None:
        async with broker(groups={"max_bytes": MIB}) as asked:
            memory = asked.broker.groups.shards.memory
            before = memory.used
            asked.client.id = "c" * 1000
            errors = {(await join_classic(asked, f"g{number}", 10, version=4)).error_code for number in range(2000)}
            assert errors == {ErrorCode.member_id_required, LATER}
            assert memory.used <= memory.total
            await asyncio.sleep(PENDING_SECONDS + 1)
            assert memory.used == before
            assert not any(shard.groups for shard in asked.broker.groups.shards.owned())

    run(story())


def test_large_groups_are_written_outside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with broker(groups={"initial_rebalance_ms": 0}) as asked:
            outside = 0
            decode = asked.broker.decoder.run

            async def counted(work: Callable[[], T]) -> T:
                nonlocal outside
                outside += 1
                return await decode(work)

            monkeypatch.setattr(asked.broker.decoder, "run", counted)
            for group, size, times in (("small", KIB, 0), ("large", MIB, 1)):
                member = await join_classic(asked, group, size)
                reply = await asked.ask(
                    SYNC, 3, group_id=group, generation_id=member.generation_id, member_id=member.member_id,
                    assignments=[{"member_id": member.member_id, "assignment": b"x"}],
                )  # fmt: skip
                assert (reply.error_code, reply.assignment, outside) == (NONE, b"x", times)

    run(story())


def test_members_that_join_a_large_group_together_share_one_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    members, count = 20, consumer.COSTLY + 500
    computed: list[int] = []

    def counted(subscribers: Sequence[Subscriber], topics: Mapping[UUID, int]) -> Assignment:
        computed.append(len(subscribers))
        return uniform(subscribers, topics)

    monkeypatch.setitem(ASSIGNORS, "uniform", counted)

    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t", count)
            replies = await asyncio.gather(*(join(asked, "g", f"m{number}") for number in range(members)))
            assert {reply.error_code for reply in replies} == {NONE}
            assert computed == [members]
            owned = [index for reply in replies for _, indexes in partitions(reply) or [] for index in indexes]
            assert sorted(owned) == list(range(count)), "each partition has one owner"
            # A member that joins while targets are computed is in the next ones.
            late = asyncio.create_task(join(asked, "g", "late"))
            await asyncio.sleep(0.1)
            assert not late.done()
            assert (await late).member_epoch > max(reply.member_epoch for reply in replies)
            assert computed == [members, members + 1]

    run(story())


def test_only_changed_members_of_a_group_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = consumer.member_json

    def counted(id: str, *values: Any) -> str:
        written.append(id)
        return write(id, *values)

    monkeypatch.setattr(consumer, "member_json", counted)

    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t", 4)
            for member in "abcd":
                await join(asked, "g", member)
            written.clear()
            await join(asked, "g", "d", "t", rebalance_timeout=seconds(50))
            assert written == ["d"]

    run(story())
