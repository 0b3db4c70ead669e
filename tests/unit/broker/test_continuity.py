"""A broker compares the coordinator with what it knows, also when answers are lost and calls overlap."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import FencedError, UnavailableError
from firn_broker.cluster import continuity
from firn_broker.cluster.guarded_store import GuardedStore
from firn_broker.log_types import BatchOutcome, Commit, Lookup, NodeLease, Progress, Topic
from firn_broker.metadata_store.sqlite.database import Inline
from firn_broker.metadata_store.sqlite.store import SqliteStore
from firn_broker.ports import WentBackError
from tests.contract.metadata_store.builders import ADDRESS, FIRST, TOPIC, TTL, batch, placed
from tests.fakes.clock import FakeClock


class Process:
    """A broker's view of the coordinator, with the coordinator behind it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = SqliteStore(":memory:", self.clock, "cluster", Inline())
        self.guarded = GuardedStore(self.store)
        self.lease = NodeLease(-1, -1)

    async def start(self) -> None:
        await self.store.start()
        await self.store.topics.create_topic(Topic(TOPIC, "t", 1, {}))
        await self.join()

    async def beside(self) -> "Process":
        """Return another process that has joined the same cluster."""
        made = Process()
        made.store, made.guarded = self.store, GuardedStore(self.store)
        await made.join()
        return made

    async def join(self) -> None:
        self.lease = await self.guarded.nodes.join(ADDRESS, TTL)
        await self.renew()

    async def renew(self) -> None:
        await self.guarded.nodes.renew(self.lease, TTL)

    async def commit(self, key: str) -> int:
        await self.guarded.log.reserve(self.lease, [key])
        (outcome,) = await self.guarded.log.commit(Commit(self.lease, key, 1000, placed([batch()])))
        return outcome.base_offset

    async def commit_losing_the_answer(self, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            losing(self, patched)
            with pytest.raises(UnavailableError):
                await self.commit(key)

    async def commit_without_answer(self, key: str) -> None:
        await self.guarded.log.reserve(self.lease, [key])
        await self.store.log.commit(Commit(self.lease, key, 1000, placed([batch()])))

    async def settle(self, key: str) -> None:
        await self.guarded.log.commit(Commit(self.lease, key, 1000, ()))

    async def commit_of_another(self, key: str) -> None:
        other = await self.store.nodes.join(ADDRESS, TTL)
        await self.store.log.reserve(other, [key])
        await self.store.log.commit(Commit(other, key, 1000, placed([batch()])))

    def backup(self) -> bytes:
        return self.store.database.connection.serialize()

    def go_back(self, backup: bytes) -> None:
        self.store.database.connection.deserialize(backup)


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    made = Process()
    await made.start()
    yield made
    await made.store.close()


def losing(process: Process, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lose the answer to the next commit; return the keys of the commits."""
    commit = process.store.log.commit
    keys: list[str] = []

    async def lossy(request: Commit) -> Sequence[BatchOutcome]:
        keys.append(request.key)
        if len(keys) > 1:
            return await commit(request)
        with suppress(WentBackError):
            await commit(request)
        raise UnavailableError("the answer was lost")

    monkeypatch.setattr(process.store.log, "commit", lossy)
    return keys


async def test_a_repeated_commit_without_an_answer_is_still_compared(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = process.backup()
    assert await process.commit("wal/1") == 0
    process.go_back(backup)
    await process.commit_of_another("wal/2")
    keys = losing(process, monkeypatch)
    for _ in range(2):
        with pytest.raises(WentBackError):
            await process.renew()
    assert keys == ["wal/1", "wal/1"]
    assert "acknowledged at offset 0, and would be at 1 now" in (await process.store.nodes.progress()).stopped


async def test_all_lost_commits_are_repeated_although_an_answer_is_lost(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = process.backup()
    assert [await process.commit(f"wal/{number}") for number in range(3)] == [0, 1, 2]
    process.go_back(backup)
    keys = losing(process, monkeypatch)
    with pytest.raises(WentBackError):
        await process.renew()
    await process.renew()
    assert keys == ["wal/0", "wal/0", "wal/1", "wal/2"]
    assert await process.commit("wal/3") == 3


async def test_the_cluster_stops_although_the_first_attempt_fails(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = process.backup()
    await process.commit("wal/1")
    process.go_back(backup)
    await process.commit_of_another("wal/2")
    stop, attempts = process.store.nodes.stop_serving, 0

    async def once(reason: str) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise UnavailableError("the coordinator cannot be reached")
        await stop(reason)

    monkeypatch.setattr(process.store.nodes, "stop_serving", once)
    for stopped in (False, True):
        with pytest.raises(WentBackError):
            await process.renew()
        assert bool((await process.store.nodes.progress()).stopped) is stopped


async def test_a_commit_during_the_comparison_is_no_loss(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = process.store.nodes.progress

    async def late() -> Progress:
        before = await progress()
        await process.commit("wal/1")
        return before

    monkeypatch.setattr(process.store.nodes, "progress", late)
    await process.renew()
    monkeypatch.undo()
    await process.renew()
    assert await process.commit("wal/2") == 1


async def test_a_broker_that_does_not_remember_its_commits_stops_the_cluster(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuity, "KEPT_BATCHES", 1)
    backup = process.backup()
    for number in range(2):
        await process.commit(f"wal/{number}")
    process.go_back(backup)
    with pytest.raises(WentBackError, match="remembers only some of its lost commits"):
        await process.renew()


async def test_while_the_broker_is_stopped_no_call_reaches_the_coordinator(process: Process) -> None:
    await process.store.nodes.stop_serving("CoordinatorWentBack: commits are lost")
    with pytest.raises(WentBackError):
        await process.renew()
    for call in (
        process.guarded.retention.dead_objects(0, 10),
        process.guarded.topics.load_topics(),
        process.guarded.groups.load_groups(),
        process.guarded.log.states([]),
        process.guarded.nodes.allocate_producer_ids(1),
        process.guarded.nodes.acquire("upkeep", process.lease),
    ):
        with pytest.raises(WentBackError, match="commits are lost"):
            await call


async def test_consumers_above_the_high_watermark_share_checks(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress, asked = process.store.nodes.progress, 0

    async def counted() -> Progress:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return await progress()

    monkeypatch.setattr(process.store.nodes, "progress", counted)
    await process.commit("wal/1")
    above = [Lookup(FIRST, 7, 1000)]
    found = await asyncio.gather(*(process.guarded.log.find(above, 10) for _ in range(100)))
    assert {result.error for results in found for result in results} == {ErrorCode.offset_out_of_range}
    assert 1 <= asked <= 3


async def test_all_consumers_that_share_a_check_learn_of_a_loss(process: Process) -> None:
    backup = process.backup()
    await process.commit("wal/1")
    process.go_back(backup)
    await process.commit_of_another("wal/2")
    above = [Lookup(FIRST, 7, 1000)]
    found = await asyncio.gather(*(process.guarded.log.find(above, 10) for _ in range(5)), return_exceptions=True)
    assert [type(each) for each in found] == [WentBackError] * 5


async def test_a_lost_settled_commit_stops_no_cluster(process: Process) -> None:
    """No producer has an acknowledgement for a commit without an answer."""
    backup = process.backup()
    await process.commit_without_answer("wal/1")
    await process.settle("wal/1")
    process.go_back(backup)
    for _ in range(2):
        await process.renew()
    assert await process.commit("wal/2") == 0


async def test_a_lost_settled_commit_leaves_no_gap_before_acknowledged_ones(process: Process) -> None:
    backup = process.backup()
    await process.commit_without_answer("wal/1")
    await process.settle("wal/1")
    assert await process.commit("wal/2") == 1
    process.go_back(backup)
    with pytest.raises(WentBackError, match="were acknowledged at offset 1, and would be at 0 now"):
        await process.renew()


async def test_a_commit_that_the_coordinator_counted_after_a_settled_one_is_repeated(process: Process) -> None:
    """Here, the acknowledged commit has the lower number, and in the coordinator the higher one."""
    await process.commit_without_answer("wal/1")
    backup = process.backup()
    assert await process.commit("wal/2") == 1
    await process.settle("wal/1")
    process.go_back(backup)
    await process.renew()
    await process.renew()
    assert await process.commit("wal/3") == 2
    process.go_back(backup)
    await process.renew()
    (state,) = await process.store.log.states([FIRST])
    assert state is not None
    assert state.high_watermark == 3


async def test_commits_that_the_coordinator_counted_after_one_without_an_answer_are_repeated(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await process.commit_losing_the_answer("wal/1", monkeypatch)
    backup = process.backup()
    assert [await process.commit(f"wal/{number}") for number in (2, 3)] == [1, 2]
    process.go_back(backup)
    await process.renew()
    await process.settle("wal/1")
    await process.renew()
    assert await process.commit("wal/4") == 3


async def test_a_commit_without_an_answer_does_not_hide_a_loss(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator has as many commits as the broker knows of, but one is the commit without an answer."""
    await process.commit_losing_the_answer("wal/1", monkeypatch)
    assert await process.commit("wal/2") == 1
    backup = process.backup()
    assert await process.commit("wal/3") == 2
    process.go_back(backup)
    assert await process.commit("wal/4") == 2
    await process.settle("wal/1")
    with pytest.raises(WentBackError, match="were acknowledged at offset 2, and would be at 3 now"):
        await process.renew()


async def test_a_lost_join_is_found_although_another_process_has_got_the_node_id(process: Process) -> None:
    backup = process.backup()
    first = await process.beside()
    assert await first.commit("wal/1") == 0
    process.go_back(backup)
    process.clock.advance(0.001)
    second = await process.beside()
    assert second.lease.node == first.lease.node
    assert [await second.commit(f"wal/{number}") for number in (2, 3)] == [0, 1]
    with pytest.raises(FencedError):
        await first.renew()
    with pytest.raises(WentBackError, match="cannot repeat its lost commits"):
        await first.guarded.nodes.join(ADDRESS, TTL)
    assert (await process.store.nodes.progress()).stopped


async def test_other_brokers_find_a_lost_join(process: Process) -> None:
    backup = process.backup()
    lost = await process.beside()
    await lost.commit("wal/1")
    await process.renew()
    process.go_back(backup)
    process.clock.advance(0.001)
    await process.beside()
    with pytest.raises(WentBackError, match=f"{lost.lease.commits} was 1 and is 0"):
        await process.renew()
