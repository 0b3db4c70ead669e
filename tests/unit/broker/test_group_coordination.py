"""Groups on whole brokers: which broker coordinates a group, what survives a failure, and what it costs."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta
from prometheus_client import REGISTRY

from firn.model.errors import UnavailableError
from firn_broker.groups.expiry import TICK_SECONDS
from firn_broker.groups.group import Group
from firn_broker.groups.lag import SECONDS
from firn_broker.groups.shards import CHECK_SECONDS, HELD_SECONDS, Shard
from firn_broker.log_types import NodeAddress
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Asked, Shared, broker, create

NONE = ErrorCode.none
COMMIT, FETCH = 8, 9
JOIN_GROUP, CLASSIC_HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST = range(11, 17)
DELETE, DELETE_OFFSETS, HEARTBEAT, DESCRIBE_CONSUMERS = 42, 47, 68, 69


def seconds(value: float) -> Any:
    return i32Timedelta.parse(timedelta(seconds=value))


async def beat(asked: Asked, group: str, member: str, epoch: int, version: int = 1, **more: Any) -> Any:
    return await asked.ask(
        HEARTBEAT, version, group_id=group, member_id=member, member_epoch=epoch, **{"topic_partitions": None, **more}
    )


async def join(asked: Asked, group: str, member: str, *names: str, **more: Any) -> Any:
    return await beat(
        asked, group, member, 0,
        **{"rebalance_timeout": seconds(60), "subscribed_topic_names": names or ("t",), "topic_partitions": (), **more},
    )  # fmt: skip


async def join_classic(asked: Asked, group: str, protocol: str = "range") -> Any:
    return await asked.ask(
        JOIN_GROUP, 3, group_id=group, session_timeout=seconds(10), rebalance_timeout=seconds(10), member_id="",
        protocol_type="consumer", protocols=[{"name": protocol, "metadata": b"\0\0\0\0\0\1\0\1t\0\0\0\0"}],
    )  # fmt: skip


def partitions(reply: Any) -> list[tuple[UUID, list[int]]] | None:
    if reply.assignment is None:
        return None
    return [(topic.topic_id, list(topic.partitions)) for topic in reply.assignment.topic_partitions]


async def commit(asked: Asked, group: str, member: str, epoch: int, offset: int = 1) -> ErrorCode:
    reply = await asked.ask(
        COMMIT, 9, group_id=group, generation_id_or_member_epoch=epoch, member_id=member,
        topics=[{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": offset}]}],
    )  # fmt: skip
    code: ErrorCode = reply.topics[0].partitions[0].error_code
    return code


async def read(asked: Asked, group: str, member: str | None, epoch: int) -> tuple[ErrorCode, int]:
    reply = await asked.ask(
        FETCH, 9, require_stable=False,
        groups=[
            {"group_id": group, "member_id": member, "member_epoch": epoch, "topics": [{"name": "t", "partition_indexes": (0,)}]}
        ],
    )  # fmt: skip
    return reply.groups[0].error_code, reply.groups[0].topics[0].partitions[0].committed_offset


async def listed(asked: Asked, **filters: Any) -> dict[str, tuple[str, str]]:
    reply = await asked.ask(LIST, 5, **{"states_filter": (), "types_filter": (), **filters})
    return {group.group_id: (group.group_type, group.group_state) for group in reply.groups}


def test_a_consumer_group_is_described_listed_and_deleted() -> None:
    async def story() -> None:
        async with broker() as asked:
            topic = await create(asked, "t", 2)
            joined = await join(asked, "g", "m", instance_id="i", rack_id="r")
            assert (joined.error_code, joined.member_id, joined.member_epoch) == (NONE, "m", 1)
            assert joined.heartbeat_interval == timedelta(seconds=5)
            assert partitions(joined) == [(topic, [0, 1])]
            assert partitions(await beat(asked, "g", "m", 1)) is None
            groups = (await asked.ask(DESCRIBE_CONSUMERS, 1, group_ids=("g", "none"))).groups
            assert [described_group.error_code for described_group in groups] == [NONE, ErrorCode.group_id_not_found]
            group, member = groups[0], groups[0].members[0]
            assert (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
                "Stable",
                1,
                1,
                "uniform",
            )
            assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch, member.member_type) == (
                "m",
                "i",
                "r",
                1,
                1,
            )
            assert (member.client_id, member.client_host, list(member.subscribed_topic_names)) == (
                "test",
                "/test",
                ["t"],
            )
            owned = member.assignment.topic_partitions[0]
            assert (owned.topic_id, owned.topic_name, list(owned.partitions)) == (topic, "t", [0, 1])
            assert member.target_assignment == member.assignment
            (dead,) = (await asked.ask(DESCRIBE, 5, groups=("g",))).groups
            assert (dead.error_code, dead.group_state) == (NONE, "Dead"), "the classic protocol is not for this group"
            await join_classic(asked, "c")
            assert await listed(asked, types_filter=("Consumer",)) == {"g": ("consumer", "Stable")}
            assert list(await listed(asked, types_filter=("classic",))) == ["c"]
            assert await listed(asked, states_filter=("stable",), types_filter=("classic",)) == {}
            assert (await asked.ask(DELETE, 2, groups_names=("g",))).results[0].error_code is ErrorCode.non_empty_group
            assert (await beat(asked, "g", "m", -1)).member_epoch == -1
            assert await listed(asked, types_filter=("consumer",)) == {"g": ("consumer", "Empty")}
            assert (await asked.ask(DELETE, 2, groups_names=("g",))).results[0].error_code is NONE
            assert list(await listed(asked)) == ["c"]

    run(story())


def test_a_group_has_one_protocol_and_changes_it_while_it_is_empty() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, groups={"initial_rebalance_ms": 0}) as asked:
            await create(asked, "t")
            await join(asked, "g", "m")
            assert (await join_classic(asked, "g")).error_code is ErrorCode.inconsistent_group_protocol
            await beat(asked, "g", "m", -1)
            classic = await join_classic(asked, "g")
            assert classic.error_code is NONE
            refused = await join(asked, "g", "m")
            assert refused.error_code is ErrorCode.group_id_not_found
            assert "classic protocol" in refused.error_message
            assert (await beat(asked, "g", "m", 1)).error_code is ErrorCode.group_id_not_found
            await asked.ask(13, 0, group_id="g", member_id=classic.member_id)
            assert (await beat(asked, "g", "m", 1)).error_code is ErrorCode.unknown_member_id
            assert (await join(asked, "g", "m")).error_code is NONE
            assert await listed(asked) == {"g": ("consumer", "Stable")}
        async with broker(shared, seed=2) as other:
            assert await listed(other) == {"g": ("consumer", "Stable")}

    run(story())


def test_only_members_in_their_epoch_commit_offsets() -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t")
            await join(asked, "g", "m")
            assert await commit(asked, "g", "m", 1, 5) is NONE
            assert await commit(asked, "g", "m", 2) is ErrorCode.stale_member_epoch
            assert await commit(asked, "g", "n", 1) is ErrorCode.unknown_member_id
            assert await commit(asked, "g", "", -1) is ErrorCode.unknown_member_id
            assert await read(asked, "g", None, -1) == await read(asked, "g", "m", 1) == (NONE, 5)
            assert (await read(asked, "g", "m", 0))[0] is ErrorCode.stale_member_epoch
            assert (await read(asked, "g", "n", 1))[0] is ErrorCode.unknown_member_id
            wanted = [{"name": "t", "partitions": [{"partition_index": 0}]}]
            kept = await asked.ask(DELETE_OFFSETS, 0, group_id="g", topics=wanted)
            assert kept.topics[0].partitions[0].error_code is ErrorCode.group_subscribed_to_topic
            await beat(asked, "g", "m", -1)
            gone = await asked.ask(DELETE_OFFSETS, 0, group_id="g", topics=wanted)
            assert gone.topics[0].partitions[0].error_code is NONE
            assert await read(asked, "g", None, -1) == (NONE, -1)

    run(story())


def test_only_the_first_version_assigns_member_ids() -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t")
            more = {"rebalance_timeout": seconds(60), "subscribed_topic_names": ("t",), "topic_partitions": ()}
            first = await beat(asked, "g", "", 0, version=0, **more)
            assert first.error_code is NONE
            assert UUID(first.member_id)
            assert (await beat(asked, "g", "", 0, **more)).error_code is ErrorCode.invalid_request
            assert (await beat(asked, "", "m", 0, **more)).error_code is ErrorCode.invalid_request
            pattern = {**more, "subscribed_topic_names": None, "subscribed_topic_regex": "("}
            assert (await beat(asked, "h", "m", 0, **pattern)).error_code is ErrorCode.invalid_regular_expression
            assert list(await listed(asked)) == ["g"], "a rejected member leaves no group behind"

    run(story())


class Saves:
    """Count, delay or reject calls of `save_group`."""

    def __init__(self, shared: Shared) -> None:
        self.inner: Callable[..., Awaitable[None]] = shared.store.groups.save_group
        self.count = 0
        self.seconds = 0.05
        self.broken = False
        shared.store.groups.save_group = self.save  # type: ignore[assignment,method-assign]

    async def save(self, *arguments: Any) -> None:
        self.count += 1
        await asyncio.sleep(self.seconds)
        if self.broken:
            raise UnavailableError("not now")
        await self.inner(*arguments)


def test_no_reply_is_sent_before_the_group_is_stored() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            topic = await create(asked, "t", 2)
            saves = Saves(shared)
            saves.broken = True
            refused = await join(asked, "g", "m")
            assert (refused.error_code, partitions(refused)) == (ErrorCode.coordinator_not_available, None)
            assert (await beat(asked, "g", "m", 1)).error_code is ErrorCode.coordinator_not_available
            saves.broken = False
            assert partitions(await join(asked, "g", "m")) == [(topic, [0, 1])]
            count = saves.count
            for _ in range(5):
                assert (await beat(asked, "g", "m", 1)).error_code is NONE
            assert saves.count == count, "a heartbeat that changes nothing is not stored"

    run(story())


def test_concurrent_joins_are_stored_together() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            await create(asked, "t", 50)
            saves = Saves(shared)
            replies = await asyncio.gather(*(join(asked, "g", f"m{number}") for number in range(50)))
            assert {reply.error_code for reply in replies} == {NONE}
            assert saves.count <= 3

    run(story())


def test_a_group_continues_after_its_broker_is_killed() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as first, broker(shared, seed=2) as second:
            topic = await create(first, "t", 4)
            await asyncio.sleep(2)
            names = [f"g{number}" for number in range(20)]
            mine = [
                group_name
                for group_name in names
                if first.broker.membership.shard_coordinator(first.broker.groups.shard(group_name)).id == 0
            ]
            assert 0 < len(mine) < len(names)
            for name in mine:
                assert partitions(await join(first, name, "m")) == [(topic, [0, 1, 2, 3])]
                assert (await join(second, name, "n")).error_code is ErrorCode.not_coordinator
            for task in first.broker._background:
                task.cancel()
            killed = asyncio.get_running_loop().time()
            for name in mine:
                while (reply := await beat(second, name, "m", 1)).error_code is not NONE:
                    assert reply.error_code in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress)
                    await asyncio.sleep(0.1)
                assert (reply.member_epoch, partitions(reply)) == (1, None), "the group continues unchanged"
            assert asyncio.get_running_loop().time() - killed < 7, "a lease of 5 seconds, and a check each second"
            joined = await join(second, mine[0], "n")
            assert (joined.member_epoch, partitions(joined)) == (2, []), "the broker knows the owners of the partitions"
            assert (await commit(first, mine[0], "m", 1)) is ErrorCode.coordinator_not_available

    run(story())


def test_a_broker_that_loses_its_lease_drops_its_groups() -> None:
    """The broker cannot know whether another broker has the groups, and its own state may be old when it gets them
    back."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared) as first, broker(shared, seed=2) as second:
            topic = await create(first, "t", 4)
            await asyncio.sleep(2)
            membership = first.broker.membership
            name = next(
                group_name
                for group_name in map(str, range(100))
                if membership.shard_coordinator(first.broker.groups.shard(group_name)).id == membership.lease.node
            )
            assert partitions(await join(first, name, "m")) == [(topic, [0, 1, 2, 3])]
            renew = shared.store.nodes.renew

            async def cut_off(lease: Any, ttl_ms: int) -> Any:
                if lease == membership.lease:
                    raise UnavailableError("no way there")
                return await renew(lease, ttl_ms)

            shared.store.nodes.renew = cut_off  # type: ignore[method-assign]
            while (code := (await beat(first, name, "m", 1)).error_code) is NONE:
                assert (await join(second, name, "n")).error_code in (
                    ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress,
                )  # fmt: skip
                await asyncio.sleep(0.1)
            assert code is ErrorCode.coordinator_not_available
            while (joined := await join(second, name, "n")).error_code is not NONE:
                await asyncio.sleep(0.1)
            assert (joined.member_epoch, partitions(joined)) == (2, [])
            reply = await beat(second, name, "m", 1)
            owned = [{"topic_id": topic, "partitions": part} for _, part in partitions(reply) or ()]
            assert (await beat(second, name, "m", 2, topic_partitions=owned)).member_epoch == 2
            shared.store.nodes.renew = renew  # type: ignore[method-assign]
            while (back := await beat(first, name, "m", 2)).error_code is not NONE:
                assert back.error_code is not ErrorCode.fenced_member_epoch, "a reply is never old"
                await asyncio.sleep(0.1)
            assert (back.member_epoch, partitions(back)) == (2, None)

    run(story())


def test_a_write_from_before_a_lapsed_lease_has_no_effect() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            await create(asked, "t", 2)
            await create(asked, "u")
            saves = Saves(shared)
            await join(asked, "g", "m")
            saves.seconds = 15
            late = asyncio.ensure_future(beat(asked, "g", "m", 1, subscribed_topic_names=("t", "u")))
            await asyncio.sleep(0)
            saves.seconds = 0.05
            renew = shared.store.nodes.renew

            async def cut_off(lease: Any, ttl_ms: int) -> Any:
                raise UnavailableError("no way there")

            shared.store.nodes.renew = cut_off  # type: ignore[method-assign]
            await asyncio.sleep(7)
            assert (await join(asked, "g", "n")).error_code is ErrorCode.coordinator_not_available
            shared.store.nodes.renew = renew  # type: ignore[method-assign]
            await asyncio.sleep(2)
            assert (await join(asked, "g", "n")).error_code is NONE
            assert (await late).error_code is ErrorCode.not_coordinator
            assert (await join(asked, "g", "o")).error_code is NONE
        async with broker(shared, seed=2) as other:
            (group,) = (await other.ask(DESCRIBE_CONSUMERS, 1, group_ids=("g",))).groups
            assert {
                participant.member_id: list(participant.subscribed_topic_names) for participant in group.members
            } == {id: ["t"] for id in "mno"}

    run(story())


@pytest.mark.parametrize("lost", ["acquire", "release"])
def test_a_group_moves_although_a_lease_reply_was_lost(lost: str) -> None:
    """A broker that holds a shard without knowing it would block the shard for as long as it lives."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared) as first:
            await create(first, "t")
            names = [f"g{number}" for number in range(20)]
            inner = getattr(shared.store.nodes, lost)
            troubled = lost == "acquire"

            async def answered(*arguments: Any) -> Any:
                result = await inner(*arguments) if lost == "acquire" or not troubled else None
                if troubled:
                    raise UnavailableError("lost")
                return result

            setattr(shared.store.nodes, lost, answered)
            for name in names:
                joined = await join(first, name, "m")
                assert joined.error_code is (ErrorCode.coordinator_not_available if troubled else NONE)
            troubled = lost == "release"
            async with broker(shared, seed=2) as second:
                await asyncio.sleep(3)
                troubled = False
                moved = [
                    group_name
                    for group_name in names
                    if second.broker.membership.shard_coordinator(second.broker.groups.shard(group_name)).id == 1
                ]
                assert moved
                await asyncio.sleep(2)
                for name in moved:
                    assert (await join(second, name, "n")).error_code is NONE

    run(story())


def test_a_group_moves_although_the_coordinator_lost_the_release() -> None:
    """As in a failover to a standby that lacks the newest changes."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared) as first:
            await create(first, "t")
            shards = first.broker.groups.shards
            names = [f"g{number}" for number in range(20)]
            for name in names:
                assert (await join(first, name, "m")).error_code is NONE
            async with broker(shared, seed=2) as second:
                await asyncio.sleep(3)
                moved = [
                    name for name in names if second.broker.membership.shard_coordinator(shards.number_of(name)).id == 1
                ]
                assert moved
                for number in {shards.number_of(name) for name in moved}:
                    shared.store.database.connection.execute(
                        "UPDATE lease SET node=?, node_epoch=? WHERE name=?",
                        (first.broker.membership.lease.node, first.broker.membership.lease.epoch, f"groups/{number}"),
                    )
                second.broker.groups.shards.drop_all()
                assert (await join(second, moved[0], "n")).error_code is ErrorCode.coordinator_load_in_progress
                await asyncio.sleep(HELD_SECONDS + 2 * CHECK_SECONDS)
                for name in moved:
                    assert (await join(second, name, "n")).error_code is NONE

    run(story())


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_sessions_expire_and_idle_groups_need_no_timer(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    async def story() -> None:
        async with broker(groups={"initial_rebalance_ms": 0, "shards": 4}) as asked:
            await create(asked, "t")
            coordinator = asked.broker.groups
            tick = coordinator.expiry.tick

            def counted(shard: Shard, group: Group) -> bool:
                looks.append(group.name)
                return tick(shard, group)

            monkeypatch.setattr(coordinator.expiry, "tick", counted)
            for number in range(100):
                if protocol == "consumer":
                    assert (await join(asked, f"g{number}", "m")).error_code is NONE
                else:
                    assert (await join_classic(asked, f"g{number}")).error_code is NONE
            await asyncio.sleep(8)
            assert not looks, "nothing is due"
            await asyncio.sleep(40)
            assert set(looks) == {f"g{number}" for number in range(100)}
            assert len(looks) <= 200
            # The group is not stored if its leader sends no assignments.
            left = {"Empty"} if protocol == "consumer" else set()
            assert {state for _, state in (await listed(asked)).values()} == left
            looks.clear()
            await asyncio.sleep(3600)
            assert not looks, "the groups are empty"
            assert not any(shard.timers for shard in coordinator.shards.owned())

    run(story())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_do_not_wait_for_writes_of_other_groups(protocol: str) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, groups={"initial_rebalance_ms": 3000, "consumer_session_ms": 10_000}) as asked:
            await create(asked, "t")
            now = asyncio.get_running_loop().time
            for number in range(8):
                name = f"old{number}"
                if protocol == "consumer":
                    await join(asked, name, "m")
                else:
                    member = (await join_classic(asked, name)).member_id
                    await asked.ask(
                        SYNC, 3, group_id=name, generation_id=1, member_id=member,
                        assignments=[{"member_id": member, "assignment": b"x"}],
                    )  # fmt: skip
            saves = 0
            stuck = asyncio.Event()

            async def save(*_: Any) -> None:
                nonlocal saves
                saves += 1
                await stuck.wait()
                raise UnavailableError("no answer")

            shared.store.groups.save_group = save  # type: ignore[assignment,method-assign]
            while not saves:
                await asyncio.sleep(0.1)
            began = now()
            async with asyncio.timeout(60):
                assert (await join_classic(asked, "new")).error_code is NONE
            assert now() - began < 4, "no longer than a new group waits for more members"
            stuck.set()

    run(story())


def test_members_with_heartbeats_stay_and_others_are_removed() -> None:
    async def story() -> None:
        async with broker() as asked:
            topic = await create(asked, "t")
            epoch = (await join(asked, "g", "m")).member_epoch
            await join(asked, "g", "silent")
            for _ in range(20):
                await asyncio.sleep(5)
                reply = await beat(asked, "g", "m", epoch)
                assert reply.error_code is NONE
                epoch = reply.member_epoch
            (group,) = (await asked.ask(DESCRIBE_CONSUMERS, 1, group_ids=("g",))).groups
            assert [participant.member_id for participant in group.members] == ["m"]
            assert group.members[0].assignment.topic_partitions[0].topic_id == topic

    run(story())


def test_the_lag_of_groups_is_reported_while_they_exist() -> None:
    async def story() -> None:
        async with broker(metrics_listen="127.0.0.1:0") as asked:
            await create(asked, "t")
            for _ in range(3):
                assert (await produce(asked, "t", 0, raw(5))).error_code is NONE
            assert await commit(asked, "lagging", "", -1, 4) is NONE
            await asyncio.sleep(SECONDS + TICK_SECONDS)
            assert lag("lagging") == 11
            assert await commit(asked, "lagging", "", -1, 15) is NONE
            await asyncio.sleep(SECONDS)
            assert lag("lagging") == 0
            await asked.ask(DELETE, 2, groups_names=("lagging",))
            await asyncio.sleep(SECONDS)
            assert lag("lagging") is None

    run(story())


def lag(group: str) -> float | None:
    return REGISTRY.get_sample_value("firn_broker_group_lag", {"group": group, "topic": "t"})


def test_a_dead_member_is_removed_after_a_change_of_protocol() -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t", 2)
            before = await join_classic(asked, "g")
            assert (await asked.ask(LEAVE, 2, group_id="g", member_id=before.member_id)).error_code is NONE
            joined = await join(asked, "g", "m")
            assert joined.error_code is NONE
            # Longer than the rest of the classic member's session.
            epoch = joined.member_epoch
            for _ in range(4):
                await asyncio.sleep(5)
                epoch = (await beat(asked, "g", "m", epoch)).member_epoch
            await asyncio.sleep(60)
            (described,) = (await asked.ask(DESCRIBE_CONSUMERS, 1, group_ids=("g",))).groups
            assert (described.group_state, described.members) == ("Empty", ())
            # And back to the other protocol: a joining member gets a reply.
            assert (await asyncio.wait_for(join_classic(asked, "g"), 30)).error_code is NONE

    run(story())


async def come(
    asked: Asked, instance: str = "i", member: str = "", protocols: tuple[str, ...] = ("range", "sticky")
) -> Any:
    return await asked.ask(
        JOIN_GROUP, 5, group_id="g", session_timeout=seconds(10), rebalance_timeout=seconds(10), member_id=member, group_instance_id=instance,
        protocol_type="consumer", protocols=[{"name": name, "metadata": b"x"} for name in protocols],
    )  # fmt: skip


async def synced(asked: Asked, joined: Any, instance: str = "i") -> Any:
    mine = {participant.member_id: participant.member_id.encode() for participant in joined.members}
    return await asked.ask(
        SYNC, 3, group_id="g", generation_id=joined.generation_id, member_id=joined.member_id, group_instance_id=instance,
        assignments=[{"member_id": id, "assignment": part} for id, part in mine.items()],
    )  # fmt: skip


async def heard(asked: Asked, joined: Any, instance: str = "i") -> ErrorCode:
    reply = await asked.ask(
        CLASSIC_HEARTBEAT, 3, group_id="g", generation_id=joined.generation_id, member_id=joined.member_id, group_instance_id=instance
    )  # fmt: skip
    code: ErrorCode = reply.error_code
    return code


AT_ONCE = {"initial_rebalance_ms": 0}


@pytest.mark.parametrize("protocols", [("range", "sticky"), ("sticky", "range")])
def test_a_static_member_gets_a_new_id_only_after_it_is_stored(protocols: tuple[str, ...]) -> None:
    """With or without a rebalance. A member whose new id is unknown later believes that it was replaced, and exits."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, groups=AT_ONCE) as asked:
            saves = Saves(shared)
            await synced(asked, await come(asked))
            saves.broken = True
            assert (await come(asked, protocols=protocols)).error_code is ErrorCode.coordinator_not_available
            saves.broken = False
            again = await come(asked, protocols=protocols)
            assert again.error_code is NONE
            saves.broken = True
            if protocols[0] == "sticky":
                assert (await synced(asked, again)).error_code is ErrorCode.coordinator_not_available
            asked.broker.groups.shards.drop_all()
            saves.broken = False
            in_rebalance = ErrorCode.rebalance_in_progress if protocols[0] == "sticky" else NONE
            assert await heard(asked, again) is in_rebalance
            last = await come(asked, member=again.member_id, protocols=protocols)
            assert (last.error_code, last.member_id) == (NONE, again.member_id)
            assert (await synced(asked, last)).assignment == again.member_id.encode()
            asked.broker.groups.shards.drop_all()
            assert await heard(asked, last) is NONE

    run(story())


def test_a_broker_that_may_have_lost_a_group_fences_no_client() -> None:
    """As after a jump of the coordinator's clock: its leases expire before the brokers notice."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, groups=AT_ONCE) as asked:
            await synced(asked, await come(asked))
            groups = asked.broker.groups
            shard = await groups.shards.acquire(groups.shard("g"))
            other = await shared.store.nodes.join(NodeAddress("other", 1), 60_000)
            await shared.store.nodes.release(shard.lease, shard.node)
            assert await shared.store.nodes.acquire(f"groups/{shard.number}", other)
            stranger = await asked.ask(
                CLASSIC_HEARTBEAT,
                3,
                group_id="g",
                generation_id=1,
                member_id="told by the other",
                group_instance_id="i",
            )
            assert stranger.error_code is ErrorCode.not_coordinator

    run(story())


def test_a_static_member_that_left_rejoins_after_an_outage() -> None:
    async def story() -> None:
        async with broker(Shared(), groups=AT_ONCE) as asked:
            first = await come(asked, "one")
            second, first = await asyncio.gather(come(asked, "two"), come(asked, "one", first.member_id))
            leader, other = sorted((("one", first), ("two", second)), key=lambda pair: not pair[1].members)
            await synced(asked, leader[1], leader[0])
            await asked.ask(LEAVE, 3, group_id="g", members=[{"member_id": "", "group_instance_id": other[0]}])
            back, _ = await asyncio.gather(come(asked, other[0]), come(asked, leader[0], leader[1].member_id))
            assert back.member_id != other[1].member_id
            asked.broker.groups.shards.drop_all()
            assert await heard(asked, back, other[0]) is ErrorCode.illegal_generation, "the member joins again"
            assert await heard(asked, other[1], other[0]) is ErrorCode.fenced_instance_id
            again = await asyncio.gather(
                come(asked, other[0], back.member_id), come(asked, leader[0], leader[1].member_id)
            )
            assert [reply.error_code for reply in again] == [NONE, NONE]

    run(story())


def test_concurrent_static_members_are_stored_together() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, groups={"initial_rebalance_ms": 1000}) as asked:
            await create(asked, "t")
            assert await commit(asked, "g", "", -1) is NONE
            saves = Saves(shared)
            joined = await asyncio.gather(*(come(asked, f"i{number}") for number in range(50)))
            assert {(reply.error_code, reply.generation_id) for reply in joined} == {(NONE, 1)}
            assert saves.count <= 3

    run(story())
