"""Nodes, leases and producer ids in SQLite."""

from collections.abc import Callable, Sequence

from firn.model.errors import FencedError
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
from firn_broker.metadata_store.sqlite.database import Database


class SqliteNodes:
    """`NodeStore` over SQLite."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def join(self, address: NodeAddress, ttl_ms: int, node_id: int | None = None) -> NodeLease:
        database = self._database

        def work() -> NodeLease:
            now = database.now_ms()
            node = node_id
            if node is None:
                live = {
                    row[0] for row in database.connection.execute("SELECT id FROM node WHERE expires_ms > ?", (now,))
                }
                node = next(number for number in range(len(live) + 1) if number not in live)
            row = database.row("SELECT epoch FROM node WHERE id=?", node)
            epoch = (row[0] if row else 0) + 1 + now % EPOCH_STEPS
            external = address.external or (None, None)
            database.connection.execute(
                "INSERT OR REPLACE INTO node VALUES (?,?,?,?,?,?,?,?,?)",
                (node, epoch, address.host, address.port, address.zone, now + ttl_ms, *external, ttl_ms),
            )
            database.connection.execute("DELETE FROM node_listener WHERE node=?", (node,))
            database.connection.executemany(
                "INSERT INTO node_listener VALUES (?,?,?,?,?)",
                [(node, epoch, name, *place) for name, place in address.others.items()],
            )
            lease = NodeLease(node, epoch)
            database.raise_counter(lease.commits, 0)
            of_node = "FROM counter WHERE name GLOB ?1 || '*'"
            database.connection.execute(
                f"DELETE {of_node} AND name NOT IN (SELECT name {of_node} ORDER BY CAST(substr(name, length(?1) + 1) AS INTEGER) DESC"
                " LIMIT ?2)",
                (f"{COMMITS}{node}/", KEPT_EPOCHS),
            )
            return lease

        return await database.run(work)

    async def renew(self, lease: NodeLease, ttl_ms: int) -> Sequence[Node]:
        database = self._database

        def work() -> Sequence[Node]:
            now = database.now_ms()
            changed = database.connection.execute(
                "UPDATE node SET expires_ms=?, ttl_ms=? WHERE id=? AND epoch=?",
                (now + ttl_ms, ttl_ms, lease.node, lease.epoch),
            ).rowcount
            if not changed:
                raise FencedError(f"another broker process holds the lease of node {lease.node} with a newer epoch")
            database.connection.execute("UPDATE node SET expires_ms=?1+ttl_ms WHERE expires_ms > ?1+ttl_ms", (now,))
            rows = database.connection.execute(
                "SELECT id, host, port, zone, external_host, external_port, (SELECT json_group_object(name, json_array(l.host, l.port))"
                " FROM node_listener l WHERE l.node=id AND l.node_epoch=epoch) FROM node WHERE expires_ms > ? ORDER BY id",
                (now,),
            )
            return [Node.from_columns(row[0], row[1], row[2], row[3], (row[4], row[5]), row[6]) for row in rows]

        return await database.run(work)

    async def leave(self, lease: NodeLease) -> None:
        database = self._database

        def work() -> None:
            database.connection.execute(
                "UPDATE node SET expires_ms=0 WHERE id=? AND epoch=?", (lease.node, lease.epoch)
            )

        await database.run(work)

    async def acquire(self, name: str, lease: NodeLease) -> Lease | None:
        database = self._database

        def work() -> Lease | None:
            now = database.now_ms()
            if not database.row("SELECT 1 FROM node WHERE id=? AND epoch=?", lease.node, lease.epoch):
                raise FencedError(f"another broker process holds the lease of node {lease.node} with a newer epoch")
            row = database.row("SELECT node, node_epoch, epoch FROM lease WHERE name=?", name)
            epoch = 0
            if row:
                node, node_epoch, epoch = row
                if (node, node_epoch) == (lease.node, lease.epoch):
                    return Lease(name, epoch)
                if database.row("SELECT 1 FROM node WHERE id=? AND epoch=? AND expires_ms > ?", node, node_epoch, now):
                    return None
            database.connection.execute(
                "INSERT OR REPLACE INTO lease VALUES (?,?,?,?)", (name, lease.node, lease.epoch, epoch + 1)
            )
            return Lease(name, epoch + 1)

        return await database.run(work)

    async def release(self, held: Lease, lease: NodeLease) -> None:
        database = self._database

        def work() -> None:
            # The row stays, so that epochs never repeat.
            database.connection.execute("UPDATE lease SET node=-1 WHERE name=? AND epoch=?", (held.name, held.epoch))

        await database.run(work)

    async def held(self, lease: NodeLease) -> Sequence[str]:
        database = self._database

        def work() -> Sequence[str]:
            rows = database.connection.execute(
                "SELECT name FROM lease WHERE node=? AND node_epoch=? ORDER BY name", (lease.node, lease.epoch)
            )
            return [row[0] for row in rows]

        return await database.run(work, write=False)

    async def allocate_producer_ids(self, count: int) -> int:
        return await self._database.run(lambda: self._database.raise_counter(PRODUCERS, count))

    async def progress(self) -> Progress:
        database = self._database

        def work() -> Progress:
            (stopped,) = database.row("SELECT stopped FROM cluster")
            return Progress(dict(database.connection.execute("SELECT name, value FROM counter").fetchall()), stopped)

        return await database.run(work, write=False)

    async def raise_counter(self, name: str, value: int) -> None:
        database = self._database

        def work() -> None:
            database.connection.execute(
                "INSERT INTO counter VALUES (?1, ?2) ON CONFLICT(name) DO UPDATE SET value=max(value, ?2)",
                (name, value),
            )

        await database.run(work)

    async def stop_serving(self, reason: str) -> None:
        database = self._database

        def work() -> None:
            database.connection.execute("UPDATE cluster SET stopped=? WHERE stopped=''", (reason,))

        await database.run(work)

    async def stop_idle(self, reason: str) -> bool:
        database = self._database

        def stop() -> None:
            database.connection.execute("UPDATE cluster SET stopped=? WHERE stopped=''", (reason,))

        return await self._while_idle(stop)

    async def allow_serving(self) -> bool:
        database = self._database

        def allow() -> None:
            database.connection.execute("UPDATE cluster SET stopped=''")
            database.raise_counter(PRODUCERS, LOST_PRODUCERS)
            database.raise_counter(REPAIRS)
            database.connection.execute(
                "UPDATE counter SET value=max(value, ?) WHERE name=?", (database.now_ms(), REPAIRS)
            )

        return await self._while_idle(allow)

    async def _while_idle(self, change: Callable[[], None]) -> bool:
        """Make a change unless a broker is live; return whether it was made."""
        database = self._database

        def work() -> bool:
            if database.row("SELECT 1 FROM node WHERE expires_ms > ?", database.now_ms()):
                return False
            change()
            return True

        return await database.run(work)
