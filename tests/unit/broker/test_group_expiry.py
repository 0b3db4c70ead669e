"""Unused groups expire on time, and nothing else expires with them."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from firn_broker.groups import expiry
from firn_broker.log_types import CommittedOffset, Lease, Partition, StoredGroup
from firn_broker.settings import GroupSettings
from tests.fakes.virtual_time import run
from tests.unit.broker.test_group_coordination import (
    JOIN_GROUP,
    NONE,
    beat,
    commit,
    join,
    join_classic,
    listed,
    read,
    seconds,
)  # fmt: skip
from tests.unit.broker.whole import Asked, Shared, broker, create

LEAVE = 13
EXPIRE_SECONDS = 60.0
RETENTION = 350.0
SETTINGS = GroupSettings(offsets_seconds=RETENTION)
OVER = RETENTION * 8 / 7 + 2 * EXPIRE_SECONDS
"""Seconds after which a group whose expiry starts now has certainly expired."""


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "EXPIRE_SECONDS", EXPIRE_SECONDS)


async def stored(shared: Shared) -> tuple[list[str], list[str]]:
    """Return names of groups that have a state, and of groups that have offsets."""
    return [group.name for group in await shared.store.groups.load_groups()], list(
        await shared.store.groups.groups_with_offsets()
    )


async def join_first(asked: Asked, group: str, version: int, *protocols: str) -> Any:
    return await asked.ask(
        JOIN_GROUP, version, group_id=group, session_timeout=seconds(10), rebalance_timeout=seconds(10), member_id="",
        protocol_type="consumer", protocols=[{"name": protocol, "metadata": b""} for protocol in protocols],
    )  # fmt: skip


def test_a_rejected_join_creates_no_group() -> None:
    async def story() -> None:
        async with broker() as asked:
            assert (await join_first(asked, "g", 3)).error_code is ErrorCode.inconsistent_group_protocol
            assert await listed(asked) == {}

    run(story())


def test_a_group_without_members_is_deleted_with_its_last_pending_id() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            reply = await join_first(asked, "g", 4, "range")
            assert reply.error_code is ErrorCode.member_id_required
            assert list(await listed(asked)) == ["g"]
            await asyncio.sleep(11)
            assert await listed(asked) == {}
            reply = await join_first(asked, "h", 4, "range")
            left = await asked.ask(LEAVE, 3, group_id="h", members=[{"member_id": reply.member_id}])
            assert left.members[0].error_code is NONE
            assert await listed(asked) == {}
            assert await stored(shared) == ([], [])

    run(story())


def test_a_group_without_a_completed_rebalance_leaves_nothing() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            joined = await join_classic(asked, "g")
            left = await asked.ask(LEAVE, 3, group_id="g", members=[{"member_id": joined.member_id}])
            assert left.members[0].error_code is NONE
            await asyncio.sleep(11)
            assert await listed(asked) == {}
            assert await stored(shared) == ([], [])

    run(story())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alone", "consumer", "classic"])
def test_an_unused_group_expires_with_its_offsets(kind: str) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, groups=SETTINGS) as asked:
            await create(asked, "t")
            if kind == "consumer":
                await join(asked, "g", "m")
                assert await commit(asked, "g", "m", 1) is NONE
                assert (await beat(asked, "g", "m", -1)).error_code is NONE
            elif kind == "classic":
                await be_classic(asked, "g")
            else:
                assert await commit(asked, "g", "", -1) is NONE
            await asyncio.sleep(RETENTION)
            assert await stored(shared) == (["g"], ["g"])
            assert await read(asked, "g", None, -1) == (NONE, 1)
            await asyncio.sleep(OVER - RETENTION)
            assert await stored(shared) == ([], [])
            assert await listed(asked) == {}
            assert await commit(asked, "g", "", -1, 7) is NONE
            assert await read(asked, "g", None, -1) == (NONE, 7)

    run(story())


async def be_classic(asked: Asked, group: str) -> None:
    """Join as a classic member, get the assignment, commit and leave."""
    joined = await join_classic(asked, group)
    synced = await asked.ask(
        14, 3, group_id=group, generation_id=joined.generation_id, member_id=joined.member_id,
        assignments=[{"member_id": joined.member_id, "assignment": b"x"}],
    )  # fmt: skip
    assert (synced.error_code, synced.assignment) == (NONE, b"x")
    assert await commit(asked, group, joined.member_id, joined.generation_id) is NONE
    left = await asked.ask(LEAVE, 3, group_id=group, members=[{"member_id": joined.member_id}])
    assert left.members[0].error_code is NONE


@pytest.mark.parametrize("kind", ["alone", "classic"])
def test_a_wrong_clock_of_a_broker_deletes_no_group(kind: str) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, groups=SETTINGS) as asked:
            await create(asked, "t")
            if kind == "classic":
                await be_classic(asked, "g")
            else:
                assert await commit(asked, "g", "", -1) is NONE
            asked.broker.clock.skew = 8 * 86_400.0  # type: ignore[attr-defined]
            await asyncio.sleep(2 * EXPIRE_SECONDS)
            assert await stored(shared) == (["g"], ["g"])
            assert await read(asked, "g", None, -1) == (NONE, 1)
            await asyncio.sleep(OVER)
            assert await stored(shared) == ([], [])

    run(story())


def test_members_and_commits_keep_a_group_with_few_writes() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, groups=SETTINGS) as asked:
            await create(asked, "t")
            await join(asked, "member", "m")
            assert await commit(asked, "member", "m", 1) is NONE
            states: list[str] = []
            save = shared.store.groups.save_group

            async def count(held: Lease, shard: int, group: StoredGroup) -> None:
                states.append(group.name)
                await save(held, shard, group)

            shared.store.groups.save_group = count  # type: ignore[method-assign]
            deleted: list[str] = []

            async def delete(held: Lease, name: str, unused_ms: int | None = None) -> bool:
                deleted.append(name)
                return True

            shared.store.groups.delete_group = delete  # type: ignore[method-assign]
            for offset in range(int(OVER / 20)):
                assert await commit(asked, "alone", "", -1, offset) is NONE
                assert (await beat(asked, "member", "m", 1)).error_code is NONE
                await asyncio.sleep(20)
            assert await read(asked, "alone", None, -1) == (NONE, offset)
            assert await read(asked, "member", "m", 1) == (NONE, 1)
            assert set(states) == {"alone"}
            assert len(states) <= OVER / (RETENTION / 7) + 1
            assert not deleted

    run(story())


def test_another_broker_continues_the_expiry_time() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, groups=SETTINGS) as asked:
            await create(asked, "t")
            assert await commit(asked, "g", "", -1) is NONE
            await asyncio.sleep(RETENTION)
        async with broker(shared, groups=SETTINGS) as asked:
            assert await read(asked, "g", None, -1) == (NONE, 1)
            await asyncio.sleep(OVER - RETENTION)
            assert await stored(shared) == ([], [])

    run(story())


def test_a_shard_is_loaded_without_the_groups_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        names = [f"group {number}" for number in range(200)]
        async with broker(shared, groups=SETTINGS) as asked:
            topic = await create(asked, "t")
            for name in names:
                assert await commit(asked, name, "", -1) is NONE
            # As an earlier version saves them.
            await shared.store.groups.commit_offsets(None, "old", {Partition(topic, 0): CommittedOffset(5)})
        found: list[int] = []
        find = shared.store.groups.groups_with_offsets

        async def counted(*shard: int) -> Sequence[str]:
            names = await find(*shard)
            found.append(len(names))
            return names

        monkeypatch.setattr(shared.store.groups, "groups_with_offsets", counted)
        async with broker(shared, groups=SETTINGS) as asked:
            for number in range(SETTINGS.shards):
                await asked.broker.groups.shards.acquire(number)
            assert {group.name for shard in asked.broker.groups.shards.owned() for group in shard.groups.values()} == {
                *names, "old",
            }  # fmt: skip
        assert sum(found) == len(names) + SETTINGS.shards

    run(story())


def test_a_group_without_a_stored_time_starts_its_expiry_now() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, groups=SETTINGS) as asked:
            topic = await create(asked, "t")
            old: Mapping[Partition, CommittedOffset] = {Partition(topic, 0): CommittedOffset(5)}
            await shared.store.groups.commit_offsets(None, "old", old)
            await asyncio.sleep(EXPIRE_SECONDS + 1)
            assert await stored(shared) == (["old"], ["old"])
            await asyncio.sleep(RETENTION)
            assert await read(asked, "old", None, -1) == (NONE, 5)
            await asyncio.sleep(OVER - RETENTION)
            assert await stored(shared) == ([], [])

    run(story())


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["save_group", "delete_group"])
def test_an_unexpected_error_stops_no_background_task(broken: str) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, groups=SETTINGS) as asked:
            await create(asked, "t")
            await join(asked, "g", "m")
            assert await commit(asked, "alone", "", -1) is NONE
            failures: list[str] = []

            async def fail(*_: object) -> None:
                failures.append(broken)
                raise RuntimeError("what is this")

            setattr(shared.store.groups, broken, fail)
            await asyncio.sleep(OVER)
            assert failures
            assert asked.broker.healthy
            delattr(shared.store.groups, broken)
            await asyncio.sleep(OVER)
            assert await stored(shared) == ([], [])

    run(story())


def test_a_commit_during_the_deletion_is_kept() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, groups=SETTINGS) as asked:
            await create(asked, "t")
            assert await commit(asked, "g", "", -1) is NONE
            delete = shared.store.groups.delete_group
            begun, go = asyncio.Event(), asyncio.Event()

            async def slow(held: Lease, name: str, unused_ms: int | None = None) -> bool:
                begun.set()
                await go.wait()
                return await delete(held, name, unused_ms)

            shared.store.groups.delete_group = slow  # type: ignore[method-assign]
            await begun.wait()
            late = asyncio.ensure_future(commit(asked, "g", "", -1, 9))
            await asyncio.sleep(1)
            go.set()
            assert await late is NONE
            assert await read(asked, "g", None, -1) == (NONE, 9)
            assert await stored(shared) == (["g"], ["g"])

    run(story())
