"""The connections to the coordinator: reads that wait delay neither the lease of the node nor commits."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from firn.model.errors import UnavailableError
from firn_broker.log_types import Commit, CommittedOffset, Lease, Node, NodeAddress, NodeLease
from firn_broker.metadata_store.postgres import lanes
from firn_broker.metadata_store.postgres.database import Database
from firn_broker.metadata_store.postgres.groups import PostgresGroups
from firn_broker.metadata_store.postgres.logs.log import PostgresLog
from firn_broker.metadata_store.postgres.nodes import PostgresNodes
from firn_broker.metadata_store.sqlite.store import SqliteStore
from firn_broker.settings import PostgresSettings
from tests.fakes.clock import FakeClock
from tests.unit.broker.rig import FIRST

LEASE = NodeLease(0, 1)


class Pool:
    """A pool of connections whose lookups of records wait for ``gate``."""

    def __init__(self, size: int) -> None:
        self._free = asyncio.Semaphore(size)
        self.gate = asyncio.Event()
        self.reads = 0
        self.standby = False

    async def expire_connections(self) -> None:
        self.standby = False

    async def acquire(self, timeout: float) -> "Pool":  # noqa: ASYNC109
        async with asyncio.timeout(timeout):
            await self._free.acquire()
        return self

    async def release(self, _connection: object, timeout: float) -> None:  # noqa: ASYNC109
        self._free.release()

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def execute(self, *_values: Any) -> None:
        pass

    async def fetchrow(self, *_values: Any) -> dict[str, int]:
        return {"node": LEASE.node, "node_epoch": LEASE.epoch, "epoch": 7}

    async def fetchval(self, *_values: Any) -> int:
        return 3

    async def fetch(self, sql: str, *_values: Any) -> Sequence[Any]:
        if "commit_wal" in sql:
            return [("[]",)]
        if "pg_is_in_recovery" in sql:
            return [("", "topics", 3, self.standby)]
        if "UPDATE node" in sql or "INSERT INTO grp_offset" in sql:
            return [(1,)]
        if "SELECT id, host" in sql:
            return [(0, "h", 1, "", None, None, None)]
        if "UPDATE lease" in sql:
            return []
        self.reads += 1
        await self.gate.wait()
        return []


def connected(connections: int) -> tuple[Pool, PostgresLog, PostgresNodes]:
    database = Database(PostgresSettings(uri="postgresql://h/d", user="u", connections=connections))
    database._pool = pool = Pool(database.lanes.connections)
    return pool, PostgresLog(database), PostgresNodes(database)


@pytest.mark.parametrize("connections", [2, 8])
async def test_waiting_reads_delay_neither_leases_nor_commits(connections: int) -> None:
    pool, log, nodes = connected(connections)
    reads = [asyncio.create_task(log.states([FIRST])) for _ in range(100)]
    async with asyncio.timeout(20):
        while not pool.reads:
            await asyncio.sleep(0)
        assert [node.id for node in await nodes.renew(LEASE, 60_000)] == [0]
        assert (await nodes.progress()).counters == {"topics": 3}, "it is part of each renewal"
        assert await log.commit(Commit(LEASE, "k", 0, ())) == []
        assert not any(read.done() for read in reads)
        pool.gate.set()
        await asyncio.wait(reads)


async def test_waiting_reads_delay_neither_a_new_lease_nor_groups() -> None:
    pool, log, nodes = connected(2)
    groups = PostgresGroups(log._database)
    reads = [asyncio.create_task(log.states([FIRST])) for _ in range(100)]
    async with asyncio.timeout(20):
        while not pool.reads:
            await asyncio.sleep(0)
        assert await nodes.join(NodeAddress("h", 1), 60_000, 0) == NodeLease(0, 3)
        held = await nodes.acquire("shard", LEASE)
        assert held == Lease("shard", 7)
        await groups.commit_offsets(held, "g", {FIRST: CommittedOffset(1)})
        await groups.commit_offsets(None, "g", {FIRST: CommittedOffset(2)})
        await nodes.release(held, LEASE)
        assert not any(read.done() for read in reads)
        pool.gate.set()
        await asyncio.wait(reads)


async def test_a_blocked_group_delays_no_renewal() -> None:
    pool, _, nodes = connected(2)
    pool.fetchrow = lambda *_: pool.gate.wait()  # type: ignore[method-assign, assignment]
    async with asyncio.timeout(20):
        blocked = asyncio.create_task(nodes.acquire("shard", LEASE))
        await asyncio.sleep(0.01)
        assert [node.id for node in await nodes.renew(LEASE, 60_000)] == [0]
        assert not blocked.done()
        blocked.cancel()
        await asyncio.wait([blocked])


async def test_a_standby_proves_nothing_about_lost_commits() -> None:
    pool, _, nodes = connected(4)
    pool.standby = True
    with pytest.raises(UnavailableError, match="is a standby"):
        await nodes.progress()
    assert (await nodes.progress()).counters == {"topics": 3}, "the connections were replaced"


async def test_reads_that_would_wait_too_long_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "WAITING", 10)
    pool, log, nodes = connected(4)
    reads = [asyncio.create_task(log.states([FIRST])) for _ in range(11)]
    async with asyncio.timeout(20):
        while not pool.reads:
            await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="10 calls wait"):
            await log.states([FIRST])
        assert isinstance((await nodes.renew(LEASE, 60_000))[0], Node)
        pool.gate.set()
        await asyncio.wait(reads)
        await asyncio.wait([asyncio.create_task(log.states([FIRST]))])
        assert pool.reads == 12


async def test_a_long_read_of_sqlite_delays_no_write(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "coordinator.db"), FakeClock(), "cluster")
    await store.start()
    passes, begun = Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> bool:
        store.database.row("SELECT * FROM cluster")
        loop.call_soon_threadsafe(begun.set)
        return passes.wait(20)

    read = asyncio.create_task(store.database.run(work, write=False))
    await begun.wait()
    lease = await store.nodes.join(NodeAddress("h", 1), 60_000)
    assert [node.id for node in await store.nodes.renew(lease, 60_000)] == [lease.node]
    passes.set()
    assert await read, "the write did not wait for the read"
    await store.close()
