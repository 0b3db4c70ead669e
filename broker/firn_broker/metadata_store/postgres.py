"""The coordinator of a fleet: PostgreSQL. A commit is one round trip, to a function that locks in one order and works on arrays."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID, uuid4

import asyncpg
from kio.schema.errors import ErrorCode

from firn.model.errors import FencedError, InvalidSpecError, UnavailableError
from firn_broker.log_types import (
    FOUND_RUNS,
    KEPT_REPLIES,
    MAX_TIMESTAMP,
    RUN_BYTES,
    BatchOutcome,
    Commit,
    CommittedOffset,
    Found,
    Lease,
    LogState,
    Node,
    NodeAddress,
    NodeLease,
    Partition,
    Rewrite,
    Run,
    StoredGroup,
    Topic,
    TopicLag,
    Topics,
    WalRange,
    Wanted,
)
from firn_broker.metadata_store.migrations import FUNCTIONS, SCRIPTS, mismatch
from firn_broker.settings import PostgresSettings, secret

T = TypeVar("T")

RELEASE_SECONDS = 1.0
"""How long a connection may take to become usable again after a call that was given up; it is closed then."""

FENCED = "FN001"
PASSING = ("08", "25", "28", "3D", "40", "42501", "53", "55", "57", "58", "XX")
"""Beginnings of SQLSTATEs that may be gone later: connection, a server that only reads since another leads, a password that is rotated, a
database or a right that is being restored, rollback (deadlock), resources, locks, shutdown, I/O."""
READ_ONLY = "25006"
BEGINNING = (-1, -1)
"""Before all (log, producer)."""


class PostgresCoordinator:
    """`Coordinator` over a PostgreSQL schema that all brokers share."""

    def __init__(self, settings: PostgresSettings, *, migrates: bool = True) -> None:
        self._settings = settings
        self._migrates = migrates
        self._user = secret("coordinator.userFile", settings.user_file) if settings.user_file else settings.user
        self._password = secret("coordinator.passwordFile", settings.password_file) if settings.password_file else None
        self._pool: Any = None
        self._looks = asyncio.Semaphore(max(1, settings.connections // 4))
        """Looks through whole partitions, which may not take the connections that leases and commits need."""
        self._walked = BEGINNING

    async def start(self) -> None:
        """See `Coordinator.start`."""
        settings = self._settings
        try:
            self._pool = await asyncpg.create_pool(
                settings.uri, user=self._user, password=self._password, min_size=2, max_size=settings.connections,
                command_timeout=settings.timeout_seconds, timeout=settings.timeout_seconds,
                server_settings={"search_path": settings.schema_name, "application_name": "firn-broker", "jit": "off"},
            )  # fmt: skip
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            raise UnavailableError(f"coordinator: {error}") from error
        try:
            await self._use(self._migrate if self._migrates else self._check)
        except BaseException:
            # Who begins anew makes another.
            self._pool.terminate()
            raise

    async def _migrate(self, db: Any) -> None:
        schema = self._settings.schema_name
        async with db.transaction():
            # Brokers of a fleet begin at the same time: one migrates, the others find it done.
            await db.execute("SELECT pg_advisory_xact_lock(hashtext('firn_broker ' || $1))", schema)
            await db.execute("SET LOCAL lock_timeout = '5s'")
            await db.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
            await db.execute("CREATE TABLE IF NOT EXISTS schema_version(version int NOT NULL)")
            version = await db.fetchval("SELECT coalesce(max(version), 0) FROM schema_version")
            for number, script in enumerate(SCRIPTS[version:], version + 1):
                await db.execute(script)
                await db.execute("INSERT INTO schema_version VALUES ($1)", number)
            if version < len(SCRIPTS):
                await db.execute(FUNCTIONS)
            await db.execute("INSERT INTO cluster VALUES ($1) ON CONFLICT DO NOTHING", str(uuid4()))

    async def _check(self, db: Any) -> None:
        schema = self._settings.schema_name
        there = await db.fetchval("SELECT to_regclass($1) IS NOT NULL", f'"{schema}".schema_version')
        version = await db.fetchval("SELECT coalesce(max(version), 0) FROM schema_version") if there else 0
        if version != len(SCRIPTS):
            raise InvalidSpecError(mismatch(f"schema {schema!r} at {self._settings.uri}", version, len(SCRIPTS)))

    async def _use(self, work: Callable[[Any], Awaitable[T]]) -> T:
        try:
            db = await self._pool.acquire(timeout=self._settings.timeout_seconds)
            try:
                return await work(db)
            except TimeoutError:
                # The server's machine may be gone, and with it all other connections.
                await self._pool.expire_connections()
                raise
            finally:
                # A connection that does not get ready again is closed, which is nothing to who has an answer.
                with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    await self._pool.release(db, timeout=RELEASE_SECONDS)
        except asyncpg.PostgresError as error:
            state = error.sqlstate or ""
            if state == FENCED:
                raise FencedError(str(error)) from error
            if state == READ_ONLY:
                # Every connection may lead to the server that was the primary until now.
                await self._pool.expire_connections()
            if state.startswith(PASSING):
                raise UnavailableError(f"coordinator: {error}") from error
            raise
        except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            # The last: a connection that the server ended at a bad moment.
            raise UnavailableError(f"coordinator: {type(error).__name__} {error}") from error

    async def _rows(self, sql: str, *values: Any) -> Sequence[Any]:
        async def work(db: Any) -> Sequence[Any]:
            rows: Sequence[Any] = await db.fetch(sql, *values)
            return rows

        return await self._use(work)

    async def _value(self, sql: str, *values: Any) -> Any:
        rows = await self._rows(sql, *values)
        return rows[0][0] if rows else None

    async def close(self) -> None:
        """See `Coordinator.close`."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._pool.close()
        except TimeoutError:
            # It has told those who use them, and waits for a server that does not answer.
            self._pool.terminate()

    async def cluster_id(self) -> str:
        """See `Coordinator.cluster_id`."""
        return str(await self._value("SELECT id FROM cluster"))

    # Nodes and leases

    async def join(self, address: NodeAddress, ttl_ms: int, wanted: int | None = None) -> NodeLease:
        """See `Coordinator.join`."""

        async def work(db: Any) -> NodeLease:
            async with db.transaction():
                await db.execute("LOCK TABLE node IN SHARE ROW EXCLUSIVE MODE")
                node = wanted
                if node is None:
                    live = {row[0] for row in await db.fetch("SELECT id FROM node WHERE expires_ms > now_ms()")}
                    node = next(number for number in range(len(live) + 1) if number not in live)
                epoch = await db.fetchval(
                    "INSERT INTO node AS n VALUES ($1, 1, $2, $3, $4, now_ms() + $5, $6, $7) ON CONFLICT (id) DO UPDATE SET"
                    " epoch = n.epoch + 1, host = $2, port = $3, zone = $4, expires_ms = now_ms() + $5, external_host = $6,"
                    " external_port = $7 RETURNING epoch",
                    node, address.host, address.port, address.zone, ttl_ms, *(address.external or (None, None)),
                )  # fmt: skip
                return NodeLease(node, epoch)

        return await self._use(work)

    async def renew(self, lease: NodeLease, ttl_ms: int) -> Sequence[Node]:
        """See `Coordinator.renew`. It does not wait for an answer for longer than there is time to ask again; connections that went silent, as
        those to a server whose machine is gone, are then given up, all at once."""
        try:
            async with asyncio.timeout(ttl_ms / 2000):
                return await self._renewed(lease, ttl_ms)
        except TimeoutError as error:
            await self._pool.expire_connections()
            raise UnavailableError(f"coordinator: no answer for {ttl_ms / 2000:.1f} s") from error

    async def _renewed(self, lease: NodeLease, ttl_ms: int) -> Sequence[Node]:
        changed = await self._value(
            "UPDATE node SET expires_ms = now_ms() + $3 WHERE id = $1 AND epoch = $2 RETURNING id",
            lease.node,
            lease.epoch,
            ttl_ms,
        )
        if changed is None:
            raise FencedError(f"node {lease.node} has a newer holder")
        await self._rows("UPDATE node SET expires_ms = now_ms() + $1 WHERE expires_ms > now_ms() + $1", ttl_ms)
        rows = await self._rows(
            "SELECT id, host, port, zone, external_host, external_port FROM node WHERE expires_ms > now_ms() ORDER BY id"
        )
        return [Node.of(*row) for row in rows]

    async def leave(self, lease: NodeLease) -> None:
        """See `Coordinator.leave`."""
        await self._rows("UPDATE node SET expires_ms = 0 WHERE id = $1 AND epoch = $2", lease.node, lease.epoch)

    async def take(self, name: str, lease: NodeLease) -> Lease | None:
        """See `Coordinator.take`."""

        async def work(db: Any) -> Lease | None:
            async with db.transaction():
                if not await db.fetchval("SELECT 1 FROM node WHERE id = $1 AND epoch = $2", lease.node, lease.epoch):
                    raise FencedError(f"node {lease.node} has a newer holder")
                await db.execute("INSERT INTO lease VALUES ($1, -1, -1, 0) ON CONFLICT DO NOTHING", name)
                row = await db.fetchrow("SELECT node, node_epoch, epoch FROM lease WHERE name = $1 FOR UPDATE", name)
                if (row["node"], row["node_epoch"]) == (lease.node, lease.epoch):
                    return Lease(name, row["epoch"])
                if await db.fetchval(
                    "SELECT 1 FROM node WHERE id = $1 AND epoch = $2 AND expires_ms > now_ms()",
                    row["node"],
                    row["node_epoch"],
                ):
                    return None
                await db.execute(
                    "UPDATE lease SET node = $2, node_epoch = $3, epoch = epoch + 1 WHERE name = $1",
                    name,
                    lease.node,
                    lease.epoch,
                )
                return Lease(name, row["epoch"] + 1)

        return await self._use(work)

    async def release(self, held: Lease, lease: NodeLease) -> None:
        """See `Coordinator.release`."""
        # The row stays, so that epochs never repeat.
        await self._rows("UPDATE lease SET node = -1 WHERE name = $1 AND epoch = $2", held.name, held.epoch)

    async def _guarded(self, held: Lease, *statements: tuple[str, Sequence[Any]]) -> None:
        """Run statements if ``held`` is still held, which nobody can change meanwhile."""

        async def work(db: Any) -> None:
            async with db.transaction():
                if not await db.fetchval(
                    "SELECT 1 FROM lease WHERE name = $1 AND epoch = $2 AND node >= 0 FOR SHARE", held.name, held.epoch
                ):
                    raise FencedError(f"{held.name} has a newer holder than epoch {held.epoch}")
                for sql, values in statements:
                    await db.execute(sql, *values)

        await self._use(work)

    # Topics

    async def topics(self, known: int = -1) -> Topics | None:
        """See `Coordinator.topics`."""

        async def work(db: Any) -> Topics | None:
            async with db.transaction(isolation="repeatable_read", readonly=True):
                version = await db.fetchval("SELECT value FROM counter WHERE name = 'topics'") or 0
                if version == known:
                    return None
                rows = await db.fetch("SELECT id, name, partitions, configs FROM topic ORDER BY name")
            return Topics(
                version, [Topic(_uuid(id), name, parts, json.loads(configs)) for id, name, parts, configs in rows]
            )

        return await self._use(work)

    async def _change_topics(self, sql: str, *values: Any, logs: Callable[[Any], Awaitable[None]] | None = None) -> Any:
        """Run a statement that returns a row when it changed a topic; raise the topics' version with it."""

        async def work(db: Any) -> Any:
            async with db.transaction():
                row = await db.fetchrow(sql, *values)
                if row is not None:
                    if logs is not None:
                        await logs(db)
                    await db.execute("SELECT raise_counter('topics', 1)")
                return row

        return await self._use(work)

    async def create_topic(self, topic: Topic) -> bool:
        """See `Coordinator.create_topic`."""

        async def logs(db: Any) -> None:
            await _add_logs(db, topic.id, topic.partitions)

        row = await self._change_topics(
            "INSERT INTO topic VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING RETURNING id",
            topic.id, topic.name, topic.partitions, json.dumps(dict(topic.configs)), logs=logs,
        )  # fmt: skip
        return row is not None

    async def grow_topic(self, topic: UUID, partitions: int) -> bool:
        """See `Coordinator.grow_topic`."""

        async def logs(db: Any) -> None:
            await _add_logs(db, topic, partitions)

        row = await self._change_topics(
            "UPDATE topic SET partitions = greatest(partitions, $2) WHERE id = $1 RETURNING id",
            topic,
            partitions,
            logs=logs,
        )
        return row is not None

    async def configure_topic(self, topic: UUID, known: Mapping[str, str], configs: Mapping[str, str]) -> bool:
        """See `Coordinator.configure_topic`."""
        row = await self._change_topics(
            "UPDATE topic SET configs = $3 WHERE id = $1 AND configs = $2 RETURNING id",
            topic, json.dumps(dict(known)), json.dumps(dict(configs)),
        )  # fmt: skip
        return row is not None

    async def delete_topic(self, topic: UUID) -> bool:
        """See `Coordinator.delete_topic`."""

        async def logs(db: Any) -> None:
            await db.execute("SELECT 1 FROM log WHERE topic_id = $1 ORDER BY topic_id, part FOR UPDATE", topic)
            await db.execute("UPDATE log SET deleted = true WHERE topic_id = $1", topic)
            await db.execute("DELETE FROM grp_offset WHERE topic_id = $1", topic)

        return await self._change_topics("DELETE FROM topic WHERE id = $1 RETURNING id", topic, logs=logs) is not None

    # The log

    async def reserve(self, lease: NodeLease, keys: Sequence[str]) -> None:
        """See `Coordinator.reserve`."""
        await self._rows(
            "INSERT INTO wal(key, node, node_epoch, state, size, runs, made_ms) SELECT key, $2, $3, 0, -1, 0, now_ms()"
            " FROM unnest($1::text[]) key ON CONFLICT DO NOTHING",
            list(keys), lease.node, lease.epoch,
        )  # fmt: skip

    async def commit(self, commit: Commit) -> Sequence[BatchOutcome]:
        """See `Coordinator.commit`."""
        columns: list[list[Any]] = [[] for _ in range(10)]
        for it in commit.batches:
            for column, value in zip(
                columns,
                (
                    it.partition.topic, it.partition.index, it.position, it.length, it.records, it.max_timestamp, it.append_time,
                    it.producer_id, it.producer_epoch, it.base_sequence,
                ),
                strict=True,
            ):  # fmt: skip
                column.append(value)
        reply = await self._value(
            "SELECT commit_wal($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15)",
            commit.key, commit.lease.node, commit.lease.epoch, commit.size, *columns, RUN_BYTES,
        )  # fmt: skip
        return [BatchOutcome(ErrorCode(error), *rest) for error, *rest in json.loads(reply)]

    async def rewrite(self, rewrite: Rewrite) -> bool:
        """See `Coordinator.rewrite`."""

        async def work(db: Any) -> bool:
            async with db.transaction():
                return await _rewrite(db, rewrite)

        return await self._use(work)

    async def find(self, wanted: Sequence[Wanted], runs: int = FOUND_RUNS) -> Sequence[Found]:
        """See `Coordinator.find`."""
        rows = await self._rows(
            f"""
            SELECT w.n, log.log_start, log.hw, r.* FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::bigint[])
              WITH ORDINALITY AS w(topic, part, off, budget, n)
            JOIN log ON log.topic_id = w.topic AND log.part = w.part AND NOT deleted
            LEFT JOIN LATERAL (
              SELECT {_RUN} FROM (
                SELECT *, sum(len) OVER (ORDER BY last_offset) - len AS before
                FROM (SELECT * FROM run WHERE run.log = log.id AND last_offset >= w.off ORDER BY last_offset LIMIT $5) few
              ) run JOIN wal ON wal.id = run.wal WHERE before < w.budget
            ) r ON w.off >= log.log_start AND w.off <= log.hw
            ORDER BY w.n, r.last_offset
            """,
            [it.partition.topic for it in wanted], [it.partition.index for it in wanted], [it.offset for it in wanted],
            [max(it.max_bytes, 1) for it in wanted], runs,
        )  # fmt: skip
        found: list[Found] = [Found(ErrorCode.unknown_topic_or_partition)] * len(wanted)
        of_each: list[list[Run]] = [[] for _ in wanted]
        for number, start, high, *row in rows:
            at = number - 1
            if row[0] is not None:
                of_each[at].append(_run(row))
            inside = start <= wanted[at].offset <= high
            found[at] = Found(ErrorCode.none if inside else ErrorCode.offset_out_of_range, start, high, of_each[at])
        return found

    async def states(self, partitions: Sequence[Partition]) -> Sequence[LogState | None]:
        """See `Coordinator.states`."""
        rows = await self._rows(
            "SELECT w.n, log_start, hw, bytes FROM unnest($1::uuid[], $2::int[]) WITH ORDINALITY AS w(topic, part, n)"
            " JOIN log ON log.topic_id = w.topic AND log.part = w.part AND NOT deleted",
            [it.topic for it in partitions], [it.index for it in partitions],
        )  # fmt: skip
        found: list[LogState | None] = [None] * len(partitions)
        for number, start, high, size in rows:
            found[number - 1] = LogState(start, high, size)
        return found

    async def find_by_time(self, partition: Partition, timestamp: int, since: int = 0) -> Run | None:
        """See `Coordinator.find_by_time`."""
        order = "max_ts DESC, last_offset" if timestamp == MAX_TIMESTAMP else "last_offset"
        async with self._looks:
            rows = await self._rows(
                f"SELECT {_RUN} FROM log JOIN run ON run.log = log.id JOIN wal ON wal.id = run.wal WHERE topic_id = $1 AND part = $2"
                f" AND NOT deleted AND last_offset >= greatest(log_start, $4) AND ($3 = {MAX_TIMESTAMP} OR max_ts >= $3)"
                f" ORDER BY {order} LIMIT 1",
                partition.topic, partition.index, timestamp, since,
            )  # fmt: skip
        return _run(rows[0]) if rows else None

    async def advance_start(self, partition: Partition, offset: int) -> LogState | None:
        """See `Coordinator.advance_start`."""
        rows = await self._rows(
            "UPDATE log SET log_start = greatest(log_start, least(hw, $3)) WHERE topic_id = $1 AND part = $2 AND NOT deleted"
            " RETURNING log_start, hw, bytes",
            partition.topic, partition.index, offset,
        )  # fmt: skip
        return LogState(*rows[0]) if rows else None

    async def expire(self, topic: UUID, retention_ms: int, retention_bytes: int, limit: int) -> int:
        """See `Coordinator.expire`."""
        return int(await self._value("SELECT expire_logs($1, $2, $3, $4)", topic, retention_ms, retention_bytes, limit))

    async def drop_runs(self, limit: int) -> int:
        """See `Coordinator.drop_runs`."""
        return int(await self._value("SELECT drop_runs($1)", limit))

    async def abandon(self, age_ms: int, limit: int) -> int:
        """See `Coordinator.abandon`."""
        rows = await self._rows(
            "UPDATE wal SET state = 2, dead_ms = now_ms() WHERE state = 0 AND id IN (SELECT id FROM wal WHERE state = 0"
            " AND made_ms <= (SELECT now_ms() - $1) AND NOT EXISTS (SELECT 1 FROM node WHERE node.id = wal.node AND node.epoch = wal.node_epoch"
            " AND expires_ms > now_ms()) ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING id",
            age_ms, limit,
        )  # fmt: skip
        return len(rows)

    async def forget_replies(self, age_ms: int, limit: int) -> int:
        """See `Coordinator.forget_replies`."""
        # Only an epoch's newest replies may be asked for again; whose epoch is over does not ask. (A volatile now_ms() uses no index.)
        rows = await self._rows(
            f"""
            UPDATE wal SET reply = NULL WHERE id IN (
              SELECT old.id FROM node CROSS JOIN LATERAL (
                SELECT id FROM wal WHERE reply IS NOT NULL AND wal.node = node.id AND node_epoch = node.epoch
                  AND made_ms <= (SELECT now_ms() - $1) AND made_ms < (
                    SELECT made_ms FROM wal WHERE reply IS NOT NULL AND wal.node = node.id AND node_epoch = node.epoch
                    ORDER BY made_ms DESC OFFSET {KEPT_REPLIES - 1} LIMIT 1)
                UNION ALL
                SELECT id FROM wal WHERE reply IS NOT NULL AND wal.node = node.id AND node_epoch < node.epoch
                  AND made_ms <= (SELECT now_ms() - $1)
                LIMIT $2
              ) old LIMIT $2) RETURNING id
            """,
            age_ms, limit,
        )  # fmt: skip
        return len(rows)

    async def dead_objects(self, grace_ms: int, limit: int) -> Sequence[str]:
        """See `Coordinator.dead_objects`."""
        rows = await self._rows(
            "SELECT key FROM wal WHERE state = 2 AND dead_ms <= (SELECT now_ms() - $1) ORDER BY dead_ms LIMIT $2",
            grace_ms,
            limit,
        )
        return [row[0] for row in rows]

    async def forget_objects(self, keys: Sequence[str]) -> None:
        """See `Coordinator.forget_objects`."""
        await self._rows("DELETE FROM wal WHERE key = ANY($1::text[]) AND state = 2", list(keys))

    async def objects(self) -> Mapping[str, tuple[int, int]]:
        """See `Coordinator.objects`."""
        return {key: (size, runs) for key, size, runs in await self._rows("SELECT key, size, runs FROM wal")}

    # Producers and groups

    async def producer_ids(self, count: int) -> int:
        """See `Coordinator.producer_ids`."""
        return int(await self._value("SELECT raise_counter('producer', $1)", count))

    async def forget_producers(self, age_ms: int, limit: int) -> int:
        """See `Coordinator.forget_producers`."""
        # A walk, as an index on touched_ms would make every commit write to indexes. Never waits for a commit: who is being written to is not
        # old.
        rows = await self._rows(
            "WITH seen AS (SELECT log, pid FROM producer WHERE (log, pid) > ($3, $4) ORDER BY log, pid LIMIT $2),"
            " gone AS (DELETE FROM producer WHERE (log, pid) IN (SELECT log, pid FROM seen JOIN producer USING (log, pid)"
            " WHERE touched_ms <= (SELECT now_ms() - $1) FOR UPDATE OF producer SKIP LOCKED) RETURNING 1)"
            " SELECT log, pid, (SELECT count(*) FROM gone), (SELECT count(*) FROM seen) FROM seen ORDER BY log DESC, pid DESC LIMIT 1",
            age_ms, limit, *self._walked,
        )  # fmt: skip
        if not rows:
            self._walked = BEGINNING
            return 0
        log, pid, forgotten, seen = rows[0]
        self._walked = (log, pid) if seen == limit else BEGINNING
        return int(forgotten)

    async def groups(self, shard: int | None = None) -> Sequence[StoredGroup]:
        """See `Coordinator.groups`."""
        rows = await self._rows(
            "SELECT name, version, state FROM grp WHERE $1::int IS NULL OR shard = $1 ORDER BY name", shard
        )
        return [StoredGroup(*row) for row in rows]

    async def save_group(self, held: Lease, shard: int, group: StoredGroup) -> None:
        """See `Coordinator.save_group`."""
        await self._guarded(
            held,
            (
                "INSERT INTO grp VALUES ($1, $2, $3, $4) ON CONFLICT (name) DO UPDATE SET shard = $2, version = $3, state = $4"
                " WHERE grp.version < $3",
                (group.name, shard, group.version, group.state),
            ),
        )

    async def delete_group(self, held: Lease, name: str) -> None:
        """See `Coordinator.delete_group`."""
        await self._guarded(
            held,
            ("DELETE FROM grp WHERE name = $1", (name,)),
            ("DELETE FROM grp_offset WHERE grp = $1", (name,)),
        )

    async def commit_offsets(
        self, held: Lease | None, group: str, offsets: Mapping[Partition, CommittedOffset]
    ) -> None:
        """See `Coordinator.commit_offsets`."""
        # In one order: two commits of the same partitions must not wait for each other.
        pairs = sorted(offsets.items())
        statement = (
            "INSERT INTO grp_offset SELECT $1, it.*, now_ms() FROM unnest($2::uuid[], $3::int[], $4::bigint[], $5::int[], $6::text[])"
            # The topic stays until this is done, and then takes its offsets with it.
            " AS it(topic_id, part, off, leader_epoch, metadata) JOIN topic ON topic.id = it.topic_id ORDER BY it.topic_id, it.part"
            " FOR KEY SHARE OF topic ON CONFLICT (grp, topic_id, part) DO UPDATE SET off = excluded.off, leader_epoch = excluded.leader_epoch,"
            " metadata = excluded.metadata, committed_ms = excluded.committed_ms"
        )
        values = (
            group, [at.topic for at, _ in pairs], [at.index for at, _ in pairs], [it.offset for _, it in pairs],
            [it.leader_epoch for _, it in pairs], [it.metadata for _, it in pairs],
        )  # fmt: skip
        if held is None:
            await self._rows(statement, *values)
        else:
            await self._guarded(held, (statement, values))

    async def offsets(self, group: str) -> Mapping[Partition, CommittedOffset]:
        """See `Coordinator.offsets`."""
        rows = await self._rows(
            "SELECT topic_id, part, off, leader_epoch, metadata FROM grp_offset WHERE grp = $1", group
        )
        return {Partition(_uuid(topic), part): CommittedOffset(*rest) for topic, part, *rest in rows}

    async def delete_offsets(self, held: Lease, group: str, partitions: Sequence[Partition]) -> None:
        """See `Coordinator.delete_offsets`."""
        await self._guarded(
            held,
            (
                "DELETE FROM grp_offset USING unnest($2::uuid[], $3::int[]) AS it(topic_id, part) WHERE grp = $1"
                " AND grp_offset.topic_id = it.topic_id AND grp_offset.part = it.part",
                (group, [at.topic for at in partitions], [at.index for at in partitions]),
            ),
        )

    async def offset_groups(self) -> Sequence[str]:
        """See `Coordinator.offset_groups`."""
        return [row[0] for row in await self._rows("SELECT DISTINCT grp FROM grp_offset ORDER BY grp")]

    async def lags(self, groups: Sequence[str], limit: int) -> Sequence[TopicLag]:
        """See `Coordinator.lags`."""
        rows = await self._rows(
            "SELECT grp, topic_id, sum(greatest(hw - off, 0))::bigint AS records FROM grp_offset JOIN log USING (topic_id, part)"
            " WHERE NOT deleted AND grp = ANY($1::text[]) GROUP BY grp, topic_id ORDER BY records DESC, grp, topic_id LIMIT $2",
            list(groups), limit,
        )  # fmt: skip
        return [TopicLag(*row) for row in rows]


async def _rewrite(db: Any, rewrite: Rewrite) -> bool:
    # Objects first and in order, then the log, as everywhere. Appends to this log wait for a few statements.
    keys = sorted({rewrite.key, *(it.place.key for it in rewrite.old)})
    await db.execute("SELECT 1 FROM wal WHERE key = ANY($1::text[]) ORDER BY id FOR UPDATE", keys)
    own = await db.fetchrow("SELECT id, state, node, node_epoch, reply FROM wal WHERE key = $1", rewrite.key)
    if own is None:
        raise FencedError(f"object {rewrite.key} is not reserved")
    if own["reply"] is not None:
        return bool(json.loads(own["reply"]))
    if own["state"] != 0:
        raise FencedError(f"the reservation of object {rewrite.key} was withdrawn")
    lease = rewrite.lease
    if (own["node"], own["node_epoch"]) != (lease.node, lease.epoch) or not await db.fetchval(
        "SELECT 1 FROM node WHERE id = $1 AND epoch = $2", lease.node, lease.epoch
    ):
        raise FencedError(f"node {lease.node} has a newer holder")
    log = await db.fetchval(
        "SELECT id FROM log WHERE topic_id = $1 AND part = $2 AND NOT deleted FOR UPDATE",
        rewrite.partition.topic,
        rewrite.partition.index,
    )
    span = log, rewrite.old[0].base_offset, rewrite.old[-1].last_offset
    there = await db.fetch(
        f"SELECT {_RUN} FROM run JOIN wal ON wal.id = run.wal WHERE log = $1 AND last_offset BETWEEN $2 AND $3 ORDER BY last_offset",
        *span,
    )
    done = [_run(list(row)) for row in there] == list(rewrite.old)
    if done:
        await db.execute(
            "WITH gone AS (DELETE FROM run WHERE log = $1 AND last_offset BETWEEN $2 AND $3 RETURNING wal)"
            " UPDATE wal SET runs = wal.runs - it.runs, state = CASE WHEN wal.runs = it.runs THEN 2 ELSE state END,"
            " dead_ms = CASE WHEN wal.runs = it.runs THEN now_ms() ELSE dead_ms END"
            " FROM (SELECT gone.wal, count(*)::int AS runs FROM gone GROUP BY gone.wal) it WHERE wal.id = it.wal",
            *span,
        )
        await db.executemany(
            "INSERT INTO run(log, last_offset, base_offset, wal, pos, len, max_ts, append_ms) VALUES ($1,$2,$3,$4,$5,$6,$7,$8)",
            [
                (
                    log,
                    it.last_offset,
                    it.base_offset,
                    own["id"],
                    it.place.position,
                    it.place.length,
                    it.max_timestamp,
                    it.append_ms,
                )
                for it in rewrite.new
            ],
        )
        added = sum(it.place.length for it in rewrite.new) - sum(it.place.length for it in rewrite.old)
        await db.execute("UPDATE log SET bytes = bytes + $2 WHERE id = $1", log, added)
    await db.execute(
        "UPDATE wal SET state = $2, size = $3, runs = $4, dead_ms = CASE WHEN $5::boolean THEN NULL ELSE now_ms() END,"
        " made_ms = now_ms(), reply = to_jsonb($5::boolean) WHERE id = $1",
        own["id"], 1 if done else 2, rewrite.size, len(rewrite.new) if done else 0, done,
    )  # fmt: skip
    return done


_RUN = "run.base_offset, run.last_offset, wal.key, run.pos, run.len, run.max_ts, run.append_ms"


def _run(row: Sequence[Any]) -> Run:
    base, last, key, position, length, newest, append_ms = row
    return Run(base, last, WalRange(key, position, length), newest, append_ms)


def _uuid(value: UUID) -> UUID:
    """The driver's own subclass hashes and compares like ours but prints differently."""
    return UUID(int=value.int)


async def _add_logs(db: Any, topic: UUID, partitions: int) -> None:
    await db.execute(
        "INSERT INTO log(topic_id, part) SELECT $1, part FROM generate_series(0, $2::int - 1) part ON CONFLICT DO NOTHING",
        topic,
        partitions,
    )
