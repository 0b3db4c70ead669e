"""Nodes, leases and producer ids in PostgreSQL."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from firn.model.errors import FencedError, UnavailableError
from firn_broker.log_types import (
    COMMITS,
    EPOCH_STEPS,
    KEPT_EPOCHS,
    LOST_PRODUCERS,
    PRODUCERS,
    REPAIRS,
    Lease,
    Node,
    NodeAddress,
    NodeLease,
    Progress,
)
from firn_broker.metadata_store.postgres.database import Database


class PostgresNodes:
    """`NodeStore` over PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def join(self, address: NodeAddress, ttl_ms: int, node_id: int | None = None) -> NodeLease:
        async def work(db: Any) -> NodeLease:
            async with db.transaction():
                await db.execute("LOCK TABLE node IN SHARE ROW EXCLUSIVE MODE")
                node = node_id
                if node is None:
                    live = {row[0] for row in await db.fetch("SELECT id FROM node WHERE expires_ms > now_ms()")}
                    node = next(number for number in range(len(live) + 1) if number not in live)
                epoch = await db.fetchval(
                    "INSERT INTO node AS n VALUES ($1, 1 + now_ms() % $8, $2, $3, $4, now_ms() + $5, $6, $7, $5) ON CONFLICT (id) DO UPDATE SET"
                    " epoch = n.epoch + excluded.epoch, host = $2, port = $3, zone = $4, expires_ms = now_ms() + $5, external_host = $6,"
                    " external_port = $7, ttl_ms = $5 RETURNING epoch",
                    node, address.host, address.port, address.zone, ttl_ms, *(address.external or (None, None)), EPOCH_STEPS,
                )  # fmt: skip
                await db.execute("DELETE FROM node_listener WHERE node = $1", node)
                for name, place in address.others.items():
                    await db.execute("INSERT INTO node_listener VALUES ($1, $2, $3, $4, $5)", node, epoch, name, *place)
                lease = NodeLease(node, epoch)
                await db.execute("SELECT raise_counter($1, 0)", lease.commits)
                of_node = "FROM counter WHERE starts_with(name, $1)"
                await db.execute(
                    f"DELETE {of_node} AND name NOT IN (SELECT name {of_node} ORDER BY substr(name, length($1) + 1)::int DESC LIMIT $2)",
                    f"{COMMITS}{node}/", KEPT_EPOCHS,
                )  # fmt: skip
                return lease

        return await self._database.use(work, self._database.lanes.lease)

    async def renew(self, lease: NodeLease, ttl_ms: int) -> Sequence[Node]:
        # Give up while there is still time for another attempt. Connections to a machine that is gone are silent:
        # replace them all at once.
        seconds = ttl_ms / 2000
        try:
            async with asyncio.timeout(seconds):
                return await self._renew(lease, ttl_ms)
        except TimeoutError as error:
            await self._database.expire_connections()
            raise UnavailableError(f"coordinator: no answer for {seconds:.1f} s") from error

    async def _renew(self, lease: NodeLease, ttl_ms: int) -> Sequence[Node]:
        database = self._database
        changed = await database.value(
            "UPDATE node SET expires_ms = now_ms() + $3, ttl_ms = $3 WHERE id = $1 AND epoch = $2 RETURNING id",
            lease.node, lease.epoch, ttl_ms, lane=database.lanes.lease,
        )  # fmt: skip
        if changed is None:
            raise FencedError(f"another broker process holds the lease of node {lease.node} with a newer epoch")
        await database.rows(
            "UPDATE node SET expires_ms = now_ms() + ttl_ms WHERE expires_ms > now_ms() + ttl_ms",
            lane=database.lanes.lease,
        )
        rows = await database.rows(
            "SELECT id, host, port, zone, external_host, external_port, (SELECT json_object_agg(name, json_build_array(l.host, l.port))::text"
            " FROM node_listener l WHERE l.node = id AND l.node_epoch = epoch) FROM node WHERE expires_ms > now_ms() ORDER BY id",
            lane=database.lanes.lease,
        )
        return [Node.from_columns(row[0], row[1], row[2], row[3], (row[4], row[5]), row[6]) for row in rows]

    async def leave(self, lease: NodeLease) -> None:
        await self._database.rows(
            "UPDATE node SET expires_ms = 0 WHERE id = $1 AND epoch = $2", lease.node, lease.epoch,
            lane=self._database.lanes.lease,
        )  # fmt: skip

    async def acquire(self, name: str, lease: NodeLease) -> Lease | None:
        async def work(db: Any) -> Lease | None:
            async with db.transaction():
                if not await db.fetchval("SELECT 1 FROM node WHERE id = $1 AND epoch = $2", lease.node, lease.epoch):
                    raise FencedError(f"another broker process holds the lease of node {lease.node} with a newer epoch")
                await db.execute("INSERT INTO lease VALUES ($1, -1, -1, 0) ON CONFLICT DO NOTHING", name)
                row = await db.fetchrow("SELECT node, node_epoch, epoch FROM lease WHERE name = $1 FOR UPDATE", name)
                if (row["node"], row["node_epoch"]) == (lease.node, lease.epoch):
                    return Lease(name, row["epoch"])
                if await db.fetchval(
                    "SELECT 1 FROM node WHERE id = $1 AND epoch = $2 AND expires_ms > now_ms()",
                    row["node"], row["node_epoch"],
                ):  # fmt: skip
                    return None
                await db.execute(
                    "UPDATE lease SET node = $2, node_epoch = $3, epoch = epoch + 1 WHERE name = $1",
                    name, lease.node, lease.epoch,
                )  # fmt: skip
                return Lease(name, row["epoch"] + 1)

        return await self._database.use(work, self._database.lanes.groups)

    async def release(self, held: Lease, lease: NodeLease) -> None:
        # The row stays, so that epochs never repeat.
        await self._database.rows(
            "UPDATE lease SET node = -1 WHERE name = $1 AND epoch = $2", held.name, held.epoch,
            lane=self._database.lanes.groups,
        )  # fmt: skip

    async def held(self, lease: NodeLease) -> Sequence[str]:
        rows = await self._database.rows(
            "SELECT name FROM lease WHERE node = $1 AND node_epoch = $2 ORDER BY name", lease.node, lease.epoch,
            lane=self._database.lanes.groups,
        )  # fmt: skip
        return [row[0] for row in rows]

    async def allocate_producer_ids(self, count: int) -> int:
        return int(await self._database.value("SELECT raise_counter($1, $2)", PRODUCERS, count))

    async def progress(self) -> Progress:
        # One statement, so that both parts are of the same state.
        # It is part of each renewal, and must not wait behind reads.
        rows = await self._database.rows(
            "SELECT stopped, name, value, pg_is_in_recovery() FROM cluster LEFT JOIN counter ON true",
            lane=self._database.lanes.lease,
        )
        if rows[0][3]:
            # A standby may lag behind. It proves nothing.
            await self._database.expire_connections()
            raise UnavailableError("coordinator: this PostgreSQL server is a standby")
        return Progress({name: value for _, name, value, _ in rows if name is not None}, rows[0][0])

    async def raise_counter(self, name: str, value: int) -> None:
        await self._database.rows(
            "INSERT INTO counter AS c VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = greatest(c.value, $2)",
            name, value, lane=self._database.lanes.lease,
        )  # fmt: skip

    async def stop_serving(self, reason: str) -> None:
        lane = self._database.lanes.lease
        await self._database.rows("UPDATE cluster SET stopped = $1 WHERE stopped = ''", reason, lane=lane)

    async def stop_idle(self, reason: str) -> bool:
        async def stop(db: Any) -> None:
            await db.execute("UPDATE cluster SET stopped = $1 WHERE stopped = ''", reason)

        return await self._while_idle(stop)

    async def allow_serving(self) -> bool:
        async def allow(db: Any) -> None:
            await db.execute("UPDATE cluster SET stopped = ''")
            await db.execute("SELECT raise_counter($1, $2)", PRODUCERS, LOST_PRODUCERS)
            await db.execute("SELECT raise_counter($1, 1)", REPAIRS)
            await db.execute("UPDATE counter SET value = greatest(value, now_ms()) WHERE name = $1", REPAIRS)

        return await self._while_idle(allow)

    async def _while_idle(self, change: Callable[[Any], Awaitable[None]]) -> bool:
        """Make a change unless a broker is live; return whether it was made."""

        async def work(db: Any) -> bool:
            async with db.transaction():
                await db.execute("LOCK TABLE node IN SHARE ROW EXCLUSIVE MODE")
                if await db.fetchval("SELECT 1 FROM node WHERE expires_ms > now_ms() LIMIT 1"):
                    return False
                await change(db)
                return True

        return await self._database.use(work)
