"""The embedded coordinator: SQLite in one worker thread, each call one transaction, durable when it returns (WAL mode, synchronous=FULL).

In memory (path ":memory:", run inline) it is what simulations and unit tests of brokers use: the same rules, and no thread.
"""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from firn.model.clock import Clock
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
from firn_broker.metadata_store import idempotence
from firn_broker.metadata_store.idempotence import KnownBatch, ProducerState
from firn_broker.metadata_store.migrations import mismatch

T = TypeVar("T")

RESERVED, LIVE, DEAD = 0, 1, 2
BEGINNING = (-1, -1)
"""Before all (log, producer)."""
TIMED_RUNS = 5_000
"""Runs whose times are compared without a commit in between, a few milliseconds."""

MIGRATIONS = (
    """
    CREATE TABLE counter(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE cluster(id TEXT NOT NULL);
    CREATE TABLE node(id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, host TEXT NOT NULL, port INTEGER NOT NULL, zone TEXT NOT NULL,
      expires_ms INTEGER NOT NULL);
    CREATE TABLE lease(name TEXT PRIMARY KEY, node INTEGER NOT NULL, node_epoch INTEGER NOT NULL, epoch INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE topic(id BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL, configs TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE log(id INTEGER PRIMARY KEY, topic_id BLOB NOT NULL, part INTEGER NOT NULL, log_start INTEGER NOT NULL DEFAULT 0,
      hw INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, deleted INTEGER NOT NULL DEFAULT 0, UNIQUE(topic_id, part));
    CREATE INDEX log_deleted ON log(deleted) WHERE deleted;
    CREATE TABLE wal(id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, node INTEGER NOT NULL, node_epoch INTEGER NOT NULL,
      state INTEGER NOT NULL, size INTEGER NOT NULL, runs INTEGER NOT NULL, made_ms INTEGER NOT NULL, dead_ms INTEGER, reply TEXT);
    CREATE INDEX wal_dead ON wal(dead_ms) WHERE state = 2;
    CREATE INDEX wal_reserved ON wal(made_ms) WHERE state = 0;
    CREATE INDEX wal_reply ON wal(made_ms) WHERE reply IS NOT NULL;
    CREATE TABLE run(log INTEGER NOT NULL, last_offset INTEGER NOT NULL, base_offset INTEGER NOT NULL, wal INTEGER NOT NULL,
      pos INTEGER NOT NULL, len INTEGER NOT NULL, max_ts INTEGER NOT NULL, append_ms INTEGER NOT NULL,
      PRIMARY KEY(log, last_offset)) WITHOUT ROWID;
    CREATE TABLE producer(log INTEGER NOT NULL, pid INTEGER NOT NULL, epoch INTEGER NOT NULL, batches TEXT NOT NULL,
      touched_ms INTEGER NOT NULL, PRIMARY KEY(log, pid)) WITHOUT ROWID;
    CREATE TABLE grp(name TEXT PRIMARY KEY, shard INTEGER NOT NULL, version INTEGER NOT NULL, state TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE grp_offset(grp TEXT NOT NULL, topic_id BLOB NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL,
      leader_epoch INTEGER NOT NULL, metadata TEXT NOT NULL, committed_ms INTEGER NOT NULL, PRIMARY KEY(grp, topic_id, part)) WITHOUT ROWID;
    CREATE INDEX grp_offset_topic ON grp_offset(topic_id);
    """,
    """
    ALTER TABLE node ADD COLUMN external_host TEXT;
    ALTER TABLE node ADD COLUMN external_port INTEGER;
    """,
    """
    DROP INDEX wal_reply;
    CREATE INDEX wal_reply ON wal(node, node_epoch, made_ms) WHERE reply IS NOT NULL;
    """,
    """
    DELETE FROM grp_offset WHERE topic_id NOT IN (SELECT id FROM topic);
    """,
)
"""One script a version of the schema; ``user_version`` says how many have run. Never change one that was released: add another.

`wal.made_ms` is when an object was reserved, and once it has a reply, when that was given.
"""


class Inline(Executor):
    """Runs what it is given at once, where it stands: no thread, so that simulations repeat themselves."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """See `Executor.submit`."""
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class SqliteCoordinator:
    """`Coordinator` over one file, for one process at a time."""

    def __init__(
        self, path: str, clock: Clock, new_cluster_id: str, executor: Executor | None = None, *, migrates: bool = True
    ) -> None:
        self._path = path
        self._migrates = migrates
        self._clock = clock
        self._new_cluster_id = new_cluster_id
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="coordinator")
        self._db: sqlite3.Connection
        self._walked = BEGINNING

    async def _run(self, work: Callable[[], T], *, write: bool = True) -> T:
        """``work`` in the worker, inside one transaction."""

        def transaction() -> T:
            try:
                self._db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                try:
                    result = work()
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
            except sqlite3.OperationalError as error:
                # Full disk, locked file, I/O error. A COMMIT that failed is rolled back before anything else happens.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise UnavailableError(f"coordinator: {error}") from error
            return result

        if isinstance(self._executor, Inline):
            await asyncio.sleep(0)
            return transaction()
        return await asyncio.get_running_loop().run_in_executor(self._executor, transaction)

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    async def start(self) -> None:
        """See `Coordinator.start`."""

        def connect() -> None:
            if not self._migrates and not Path(self._path).is_file():
                raise InvalidSpecError(mismatch(self._path, 0, len(MIGRATIONS)))
            self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, cached_statements=256)
            if self._migrates:
                self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("PRAGMA busy_timeout=5000")

        await asyncio.wrap_future(self._executor.submit(connect))

        def migrate() -> None:
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if not self._migrates:
                if version != len(MIGRATIONS):
                    raise InvalidSpecError(mismatch(self._path, version, len(MIGRATIONS)))
                return
            for number, script in enumerate(MIGRATIONS[version:], version + 1):
                for statement in script.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version={number}")
            if not self._db.execute("SELECT 1 FROM cluster").fetchone():
                self._db.execute("INSERT INTO cluster VALUES (?)", (self._new_cluster_id,))

        await self._run(migrate, write=self._migrates)

    async def close(self) -> None:
        """See `Coordinator.close`."""
        await asyncio.wrap_future(self._executor.submit(self._db.close))
        self._executor.shutdown()

    async def cluster_id(self) -> str:
        """See `Coordinator.cluster_id`."""
        return await self._run(lambda: str(self._one("SELECT id FROM cluster")[0]), write=False)

    def _one(self, sql: str, *values: Any) -> Any:
        return self._db.execute(sql, values).fetchone()

    def _count(self, name: str, step: int = 1) -> int:
        """Raise a counter; its value before."""
        row = self._one("SELECT value FROM counter WHERE name=?", name)
        value = int(row[0]) if row else 0
        self._db.execute(
            "INSERT INTO counter VALUES (?1, ?2) ON CONFLICT(name) DO UPDATE SET value=?2", (name, value + step)
        )
        return value

    # Nodes and leases

    async def join(self, address: NodeAddress, ttl_ms: int, wanted: int | None = None) -> NodeLease:
        """See `Coordinator.join`."""

        def work() -> NodeLease:
            now = self._now()
            node = wanted
            if node is None:
                live = {row[0] for row in self._db.execute("SELECT id FROM node WHERE expires_ms > ?", (now,))}
                node = next(number for number in range(len(live) + 1) if number not in live)
            row = self._one("SELECT epoch FROM node WHERE id=?", node)
            epoch = (row[0] if row else 0) + 1
            self._db.execute(
                "INSERT OR REPLACE INTO node VALUES (?,?,?,?,?,?,?,?)",
                (
                    node,
                    epoch,
                    address.host,
                    address.port,
                    address.zone,
                    now + ttl_ms,
                    *(address.external or (None, None)),
                ),
            )
            return NodeLease(node, epoch)

        return await self._run(work)

    async def renew(self, lease: NodeLease, ttl_ms: int) -> Sequence[Node]:
        """See `Coordinator.renew`."""

        def work() -> Sequence[Node]:
            now = self._now()
            changed = self._db.execute(
                "UPDATE node SET expires_ms=? WHERE id=? AND epoch=?", (now + ttl_ms, lease.node, lease.epoch)
            ).rowcount
            if not changed:
                raise FencedError(f"node {lease.node} has a newer holder")
            self._db.execute("UPDATE node SET expires_ms=?1 WHERE expires_ms > ?1", (now + ttl_ms,))
            rows = self._db.execute(
                "SELECT id, host, port, zone, external_host, external_port FROM node WHERE expires_ms > ? ORDER BY id",
                (now,),
            )
            return [Node.of(*row) for row in rows]

        return await self._run(work)

    async def leave(self, lease: NodeLease) -> None:
        """See `Coordinator.leave`."""

        def work() -> None:
            self._db.execute("UPDATE node SET expires_ms=0 WHERE id=? AND epoch=?", (lease.node, lease.epoch))

        await self._run(work)

    async def take(self, name: str, lease: NodeLease) -> Lease | None:
        """See `Coordinator.take`."""

        def work() -> Lease | None:
            now = self._now()
            if not self._one("SELECT 1 FROM node WHERE id=? AND epoch=?", lease.node, lease.epoch):
                raise FencedError(f"node {lease.node} has a newer holder")
            row = self._one("SELECT node, node_epoch, epoch FROM lease WHERE name=?", name)
            epoch = 0
            if row:
                node, node_epoch, epoch = row
                if (node, node_epoch) == (lease.node, lease.epoch):
                    return Lease(name, epoch)
                if self._one("SELECT 1 FROM node WHERE id=? AND epoch=? AND expires_ms > ?", node, node_epoch, now):
                    return None
            self._db.execute(
                "INSERT OR REPLACE INTO lease VALUES (?,?,?,?)", (name, lease.node, lease.epoch, epoch + 1)
            )
            return Lease(name, epoch + 1)

        return await self._run(work)

    async def release(self, held: Lease, lease: NodeLease) -> None:
        """See `Coordinator.release`."""

        def work() -> None:
            # The row stays, so that epochs never repeat.
            self._db.execute("UPDATE lease SET node=-1 WHERE name=? AND epoch=?", (held.name, held.epoch))

        await self._run(work)

    def _check(self, held: Lease) -> None:
        if not self._one("SELECT 1 FROM lease WHERE name=? AND epoch=? AND node>=0", held.name, held.epoch):
            raise FencedError(f"{held.name} has a newer holder than epoch {held.epoch}")

    # Topics

    async def topics(self, known: int = -1) -> Topics | None:
        """See `Coordinator.topics`."""

        def work() -> Topics | None:
            row = self._one("SELECT value FROM counter WHERE name='topics'")
            version = row[0] if row else 0
            if version == known:
                return None
            rows = self._db.execute("SELECT id, name, partitions, configs FROM topic ORDER BY name")
            return Topics(
                version,
                [Topic(UUID(bytes=id), name, parts, json.loads(configs)) for id, name, parts, configs in rows],
            )

        return await self._run(work, write=False)

    async def create_topic(self, topic: Topic) -> bool:
        """See `Coordinator.create_topic`."""

        def work() -> bool:
            if self._one("SELECT 1 FROM topic WHERE name=?", topic.name):
                return False
            self._db.execute(
                "INSERT INTO topic VALUES (?,?,?,?)",
                (topic.id.bytes, topic.name, topic.partitions, json.dumps(dict(topic.configs))),
            )
            self._add_logs(topic.id, 0, topic.partitions)
            self._count("topics")
            return True

        return await self._run(work)

    def _add_logs(self, topic: UUID, start: int, end: int) -> None:
        self._db.executemany(
            "INSERT INTO log(topic_id, part) VALUES (?,?)", [(topic.bytes, part) for part in range(start, end)]
        )

    async def grow_topic(self, topic: UUID, partitions: int) -> bool:
        """See `Coordinator.grow_topic`."""

        def work() -> bool:
            row = self._one("SELECT partitions FROM topic WHERE id=?", topic.bytes)
            if row is None:
                return False
            if row[0] < partitions:
                self._db.execute("UPDATE topic SET partitions=? WHERE id=?", (partitions, topic.bytes))
                self._add_logs(topic, row[0], partitions)
                self._count("topics")
            return True

        return await self._run(work)

    async def configure_topic(self, topic: UUID, known: Mapping[str, str], configs: Mapping[str, str]) -> bool:
        """See `Coordinator.configure_topic`."""

        def work() -> bool:
            row = self._one("SELECT configs FROM topic WHERE id=?", topic.bytes)
            if row is None or json.loads(row[0]) != dict(known):
                return False
            self._db.execute("UPDATE topic SET configs=? WHERE id=?", (json.dumps(dict(configs)), topic.bytes))
            self._count("topics")
            return True

        return await self._run(work)

    async def delete_topic(self, topic: UUID) -> bool:
        """See `Coordinator.delete_topic`."""

        def work() -> bool:
            if not self._db.execute("DELETE FROM topic WHERE id=?", (topic.bytes,)).rowcount:
                return False
            self._db.execute("UPDATE log SET deleted=1 WHERE topic_id=?", (topic.bytes,))
            self._db.execute("DELETE FROM grp_offset WHERE topic_id=?", (topic.bytes,))
            self._count("topics")
            return True

        return await self._run(work)

    # The log

    async def reserve(self, lease: NodeLease, keys: Sequence[str]) -> None:
        """See `Coordinator.reserve`."""

        def work() -> None:
            now = self._now()
            self._db.executemany(
                "INSERT OR IGNORE INTO wal(key, node, node_epoch, state, size, runs, made_ms) VALUES (?,?,?,0,-1,0,?)",
                [(key, lease.node, lease.epoch, now) for key in keys],
            )

        await self._run(work)

    async def commit(self, commit: Commit) -> Sequence[BatchOutcome]:
        """See `Coordinator.commit`."""
        return await self._run(partial(self._commit, commit))

    def _commit(self, commit: Commit) -> Sequence[BatchOutcome]:
        wal, reply = self._reserved(commit.key, commit.lease)
        if reply is not None:
            return [BatchOutcome(ErrorCode(error), *rest) for error, *rest in json.loads(reply)]
        now = self._now()
        logs: dict[Partition, _Log | None] = {}
        outcomes = []
        for entry in commit.batches:
            if entry.partition not in logs:
                logs[entry.partition] = self._log(entry.partition)
            log = logs[entry.partition]
            if log is None:
                outcomes.append(BatchOutcome(ErrorCode.unknown_topic_or_partition))
                continue
            append_ms = now if entry.append_time else -1
            verdict: ErrorCode | KnownBatch | None = None
            producer: ProducerState | None = None
            if entry.producer_id >= 0:
                producer = self._producer(log, entry.producer_id)
                verdict = idempotence.judge(producer, entry.producer_epoch, entry.base_sequence, entry.records)
            if isinstance(verdict, KnownBatch):
                outcomes.append(
                    BatchOutcome(ErrorCode.none, verdict.base_offset, verdict.append_ms, log.start, duplicate=True)
                )
            elif verdict is not None:
                outcomes.append(BatchOutcome(verdict, log_start=log.start))
            else:
                base = log.append(
                    entry.position, entry.length, entry.records, append_ms if entry.append_time else entry.max_timestamp,
                    append_ms,
                )  # fmt: skip
                if entry.producer_id >= 0:
                    log.producers[entry.producer_id] = idempotence.remember(
                        producer, entry.producer_epoch, entry.base_sequence, entry.records, base, append_ms
                    )
                    log.touched.add(entry.producer_id)
                outcomes.append(BatchOutcome(ErrorCode.none, base, append_ms, log.start))
        runs = 0
        for log in logs.values():
            if log is not None and log.runs:
                runs += len(log.runs)
                self._db.execute("UPDATE log SET hw=?, bytes=bytes+? WHERE id=?", (log.hw, log.added, log.id))
                self._db.executemany(
                    "INSERT INTO run VALUES (?,?,?,?,?,?,?,?)",
                    [(log.id, last, base, wal, pos, size, ts, at) for base, last, pos, size, ts, at in log.runs],
                )
                self._db.executemany(
                    "INSERT OR REPLACE INTO producer VALUES (?,?,?,?,?)",
                    [(log.id, pid, log.producers[pid].epoch, json.dumps(log.producers[pid].batches), now)  # type: ignore[union-attr]
                     for pid in log.touched],
                )  # fmt: skip
        self._db.execute(
            "UPDATE wal SET state=?, size=?, runs=?, dead_ms=?, made_ms=?, reply=? WHERE id=?",
            (LIVE if runs else DEAD, commit.size, runs, None if runs else now, now, json.dumps(outcomes), wal),
        )
        return outcomes

    async def rewrite(self, rewrite: Rewrite) -> bool:
        """See `Coordinator.rewrite`."""
        return await self._run(lambda: self._rewrite(rewrite))

    def _rewrite(self, rewrite: Rewrite) -> bool:
        wal, reply = self._reserved(rewrite.key, rewrite.lease)
        if reply is not None:
            return bool(json.loads(reply))
        log = self._log(rewrite.partition)
        first, last = rewrite.old[0].base_offset, rewrite.old[-1].last_offset
        there = self._db.execute(
            f"SELECT run.wal, {_RUN} FROM run JOIN wal ON wal.id=run.wal WHERE log=? AND last_offset>=? AND last_offset<=?"
            " ORDER BY last_offset",
            (log.id if log else -1, first, last),
        ).fetchall()
        done = log is not None and [_run(row[1:]) for row in there] == list(rewrite.old)
        now = self._now()
        if log is not None and done:
            self._db.execute("DELETE FROM run WHERE log=? AND last_offset>=? AND last_offset<=?", (log.id, first, last))
            for old, *_ in there:
                self._db.execute("UPDATE wal SET runs=runs-1 WHERE id=?", (old,))
                self._db.execute("UPDATE wal SET state=2, dead_ms=? WHERE id=? AND runs=0 AND state=1", (now, old))
            self._db.executemany(
                "INSERT INTO run VALUES (?,?,?,?,?,?,?,?)",
                [
                    (
                        log.id,
                        it.last_offset,
                        it.base_offset,
                        wal,
                        it.place.position,
                        it.place.length,
                        it.max_timestamp,
                        it.append_ms,
                    )
                    for it in rewrite.new
                ],
            )
            added = sum(it.place.length for it in rewrite.new) - sum(it.place.length for it in rewrite.old)
            self._db.execute("UPDATE log SET bytes=bytes+? WHERE id=?", (added, log.id))
        self._db.execute(
            "UPDATE wal SET state=?, size=?, runs=?, dead_ms=?, made_ms=?, reply=? WHERE id=?",
            (
                LIVE if done else DEAD,
                rewrite.size,
                len(rewrite.new) if done else 0,
                None if done else now,
                now,
                json.dumps(done),
                wal,
            ),
        )
        return done

    def _reserved(self, key: str, lease: NodeLease) -> tuple[int, str | None]:
        """The object's row and its stored reply, if it has one. Raises FencedError when ``lease`` may not commit it."""
        row = self._one("SELECT id, state, node, node_epoch, reply FROM wal WHERE key=?", key)
        if row is None:
            raise FencedError(f"object {key} is not reserved")
        wal, state, node, node_epoch, reply = row
        if reply is not None:
            return wal, reply
        if state != RESERVED:
            raise FencedError(f"the reservation of object {key} was withdrawn")
        if (node, node_epoch) != (lease.node, lease.epoch) or not self._one(
            "SELECT 1 FROM node WHERE id=? AND epoch=?", node, node_epoch
        ):
            raise FencedError(f"node {lease.node} has a newer holder")
        return wal, None

    def _log(self, partition: Partition) -> "_Log | None":
        row = self._one(
            "SELECT id, log_start, hw FROM log WHERE topic_id=? AND part=? AND NOT deleted",
            partition.topic.bytes, partition.index,
        )  # fmt: skip
        return _Log(*row) if row else None

    def _producer(self, log: "_Log", pid: int) -> ProducerState | None:
        if pid not in log.producers:
            row = self._one("SELECT epoch, batches FROM producer WHERE log=? AND pid=?", log.id, pid)
            log.producers[pid] = ProducerState(row[0], [KnownBatch(*it) for it in json.loads(row[1])]) if row else None
        return log.producers[pid]

    async def find(self, wanted: Sequence[Wanted], runs: int = FOUND_RUNS) -> Sequence[Found]:
        """See `Coordinator.find`."""
        return await self._run(lambda: [self._find(one, runs) for one in wanted], write=False)

    def _find(self, wanted: Wanted, limit: int) -> Found:
        log = self._log(wanted.partition)
        if log is None:
            return Found(ErrorCode.unknown_topic_or_partition)
        if not log.start <= wanted.offset <= log.hw:
            return Found(ErrorCode.offset_out_of_range, log.start, log.hw)
        runs = []
        if wanted.offset < log.hw:
            budget = wanted.max_bytes
            # A cursor that is left early has read no more than it gave.
            for row in self._db.execute(
                f"SELECT {_RUN} FROM run JOIN wal ON wal.id=run.wal WHERE log=? AND last_offset>=? ORDER BY last_offset LIMIT ?",
                (log.id, wanted.offset, limit),
            ):
                runs.append(_run(row))
                budget -= row[4]
                if budget <= 0:
                    break
        return Found(ErrorCode.none, log.start, log.hw, runs)

    async def states(self, partitions: Sequence[Partition]) -> Sequence[LogState | None]:
        """See `Coordinator.states`."""

        def work() -> Sequence[LogState | None]:
            return [self._state(partition) for partition in partitions]

        return await self._run(work, write=False)

    def _state(self, partition: Partition) -> LogState | None:
        row = self._one(
            "SELECT log_start, hw, bytes FROM log WHERE topic_id=? AND part=? AND NOT deleted",
            partition.topic.bytes, partition.index,
        )  # fmt: skip
        return LogState(*row) if row else None

    async def find_by_time(self, partition: Partition, timestamp: int, since: int = 0) -> Run | None:
        """See `Coordinator.find_by_time`."""

        found: tuple[Any, ...] | None = None
        offset: int | None = since

        def step() -> None:
            nonlocal found, offset
            log = self._log(partition)
            if log is None:
                found = offset = None
                return
            # Its own transaction, so that commits come in between.
            start = max(log.start, offset or 0)
            some = "SELECT * FROM run WHERE log=? AND last_offset>=? ORDER BY last_offset LIMIT ?"
            (offset,) = self._one(f"SELECT max(last_offset) + 1 FROM ({some})", log.id, start, TIMED_RUNS)
            sql = f"SELECT {_RUN} FROM ({some}) run JOIN wal ON wal.id=run.wal"
            if timestamp == MAX_TIMESTAMP:
                row = self._one(f"{sql} ORDER BY max_ts DESC, last_offset LIMIT 1", log.id, start, TIMED_RUNS)
                if row and (found is None or row[5] > found[5]):
                    found = row
            else:
                found = self._one(
                    f"{sql} WHERE max_ts>=? ORDER BY last_offset LIMIT 1", log.id, start, TIMED_RUNS, timestamp
                )
                if found:
                    offset = None

        while offset is not None:
            await self._run(step, write=False)
        return _run(found) if found else None

    async def advance_start(self, partition: Partition, offset: int) -> LogState | None:
        """See `Coordinator.advance_start`."""

        def work() -> LogState | None:
            self._db.execute(
                "UPDATE log SET log_start=max(log_start, min(hw, ?)) WHERE topic_id=? AND part=? AND NOT deleted",
                (offset, partition.topic.bytes, partition.index),
            )
            return self._state(partition)

        return await self._run(work)

    async def expire(self, topic: UUID, retention_ms: int, retention_bytes: int, limit: int) -> int:
        """See `Coordinator.expire`."""

        def work() -> int:
            too_old = self._now() - retention_ms if retention_ms >= 0 else None
            passed = waiting = 0
            logs = self._db.execute(
                "SELECT id, log_start, bytes FROM log WHERE topic_id=? AND NOT deleted AND hw > log_start ORDER BY part",
                (topic.bytes,),
            ).fetchall()
            for log, start, size in logs:
                if passed >= limit:
                    break
                excess = 0
                if retention_bytes >= 0 and waiting < limit:
                    # Bytes count runs that are still there; those below the start are on their way out already. While they are too many,
                    # none follow.
                    below, runs = self._one(
                        "SELECT coalesce(sum(len), 0), count(*) FROM (SELECT len FROM run WHERE log=? AND last_offset<? LIMIT ?)",
                        log, start, limit - waiting,
                    )  # fmt: skip
                    waiting += runs
                    excess = size - below - retention_bytes if waiting < limit else 0
                end = start
                # Records without time are as old as what they are in.
                for last, length, newest in self._db.execute(
                    "SELECT last_offset, len, CASE WHEN max_ts < 0 THEN (SELECT made_ms FROM wal WHERE id=run.wal) ELSE max_ts END FROM run"
                    " WHERE log=? AND last_offset>=? ORDER BY last_offset LIMIT ?",
                    (log, start, limit - passed),
                ):
                    if not (too_old is not None and newest < too_old) and excess < length:
                        break
                    excess -= length
                    end = last + 1
                    passed += 1
                if end > start:
                    self._db.execute("UPDATE log SET log_start=? WHERE id=?", (end, log))
            return passed

        return await self._run(work)

    async def drop_runs(self, limit: int) -> int:
        """See `Coordinator.drop_runs`."""

        def work() -> int:
            rows = self._db.execute(
                "SELECT log, last_offset, wal, len FROM log CROSS JOIN run ON run.log=log.id AND last_offset < log_start UNION ALL"
                " SELECT log, last_offset, wal, len FROM log CROSS JOIN run ON run.log=log.id AND last_offset >= log_start WHERE deleted LIMIT ?",
                (limit,),
            ).fetchall()
            now = self._now()
            for log, last, wal, length in rows:
                self._db.execute("DELETE FROM run WHERE log=? AND last_offset=?", (log, last))
                self._db.execute("UPDATE log SET bytes=bytes-? WHERE id=?", (length, log))
                self._db.execute("UPDATE wal SET runs=runs-1 WHERE id=?", (wal,))
                self._db.execute("UPDATE wal SET state=2, dead_ms=? WHERE id=? AND runs=0 AND state=1", (now, wal))
            gone = "SELECT id FROM log WHERE deleted AND NOT EXISTS (SELECT 1 FROM run WHERE run.log=log.id)"
            self._db.execute(f"DELETE FROM producer WHERE log IN ({gone})")
            self._db.execute(f"DELETE FROM log WHERE id IN ({gone})")
            return len(rows)

        return await self._run(work)

    async def abandon(self, age_ms: int, limit: int) -> int:
        """See `Coordinator.abandon`."""

        def work() -> int:
            now = self._now()
            return self._db.execute(
                "UPDATE wal SET state=2, dead_ms=? WHERE id IN (SELECT id FROM wal WHERE state=0 AND made_ms<=? AND NOT EXISTS"
                " (SELECT 1 FROM node WHERE node.id=wal.node AND node.epoch=wal.node_epoch AND expires_ms>?) LIMIT ?)",
                (now, now - age_ms, now, limit),
            ).rowcount

        return await self._run(work)

    async def forget_replies(self, age_ms: int, limit: int) -> int:
        """See `Coordinator.forget_replies`."""

        def work() -> int:
            forgotten = 0
            # Only an epoch's newest replies may be asked for again; whose epoch is over does not ask.
            for node, epoch in self._db.execute("SELECT id, epoch FROM node").fetchall():
                theirs = "SELECT id FROM wal WHERE reply IS NOT NULL AND node=?1 AND made_ms<=?3"
                newest = (
                    "SELECT made_ms FROM wal WHERE reply IS NOT NULL AND node=?1 AND node_epoch=?2 ORDER BY made_ms DESC"
                    f" LIMIT 1 OFFSET {KEPT_REPLIES - 1}"
                )
                for which in (f"node_epoch=?2 AND made_ms<({newest})", "node_epoch<?2"):
                    forgotten += self._db.execute(
                        f"UPDATE wal SET reply=NULL WHERE id IN ({theirs} AND {which} LIMIT ?4)",
                        (node, epoch, self._now() - age_ms, limit - forgotten),
                    ).rowcount
            return forgotten

        return await self._run(work)

    async def dead_objects(self, grace_ms: int, limit: int) -> Sequence[str]:
        """See `Coordinator.dead_objects`."""

        def work() -> Sequence[str]:
            rows = self._db.execute(
                "SELECT key FROM wal WHERE state=2 AND dead_ms<=? ORDER BY dead_ms LIMIT ?",
                (self._now() - grace_ms, limit),
            )
            return [row[0] for row in rows]

        return await self._run(work, write=False)

    async def forget_objects(self, keys: Sequence[str]) -> None:
        """See `Coordinator.forget_objects`."""

        def work() -> None:
            self._db.executemany("DELETE FROM wal WHERE key=? AND state=2", [(key,) for key in keys])

        await self._run(work)

    async def objects(self) -> Mapping[str, tuple[int, int]]:
        """See `Coordinator.objects`."""

        def work() -> Mapping[str, tuple[int, int]]:
            return {key: (size, runs) for key, size, runs in self._db.execute("SELECT key, size, runs FROM wal")}

        return await self._run(work, write=False)

    # Producers and groups

    async def producer_ids(self, count: int) -> int:
        """See `Coordinator.producer_ids`."""
        return await self._run(lambda: self._count("producer", count))

    async def forget_producers(self, age_ms: int, limit: int) -> int:
        """See `Coordinator.forget_producers`."""

        def work() -> int:
            # A walk, as an index on touched_ms would make every commit write to it.
            seen = self._db.execute(
                "SELECT log, pid, touched_ms FROM producer WHERE (log, pid) > (?, ?) ORDER BY log, pid LIMIT ?",
                (*self._walked, limit),
            ).fetchall()
            old = [(log, pid) for log, pid, touched in seen if touched <= self._now() - age_ms]
            self._db.executemany("DELETE FROM producer WHERE log=? AND pid=?", old)
            self._walked = seen[-1][:2] if len(seen) == limit else BEGINNING
            return len(old)

        return await self._run(work)

    async def groups(self, shard: int | None = None) -> Sequence[StoredGroup]:
        """See `Coordinator.groups`."""

        def work() -> Sequence[StoredGroup]:
            rows = self._db.execute(
                "SELECT name, version, state FROM grp WHERE ?1 IS NULL OR shard=?1 ORDER BY name", (shard,)
            )
            return [StoredGroup(*row) for row in rows]

        return await self._run(work, write=False)

    async def save_group(self, held: Lease, shard: int, group: StoredGroup) -> None:
        """See `Coordinator.save_group`."""

        def work() -> None:
            self._check(held)
            self._db.execute(
                "INSERT INTO grp VALUES (?1,?2,?3,?4) ON CONFLICT(name) DO UPDATE SET shard=?2, version=?3, state=?4 WHERE version<?3",
                (group.name, shard, group.version, group.state),
            )

        await self._run(work)

    async def delete_group(self, held: Lease, name: str) -> None:
        """See `Coordinator.delete_group`."""

        def work() -> None:
            self._check(held)
            self._db.execute("DELETE FROM grp WHERE name=?", (name,))
            self._db.execute("DELETE FROM grp_offset WHERE grp=?", (name,))

        await self._run(work)

    async def commit_offsets(
        self, held: Lease | None, group: str, offsets: Mapping[Partition, CommittedOffset]
    ) -> None:
        """See `Coordinator.commit_offsets`."""

        def work() -> None:
            if held is not None:
                self._check(held)
            now = self._now()
            self._db.executemany(
                "INSERT OR REPLACE INTO grp_offset SELECT ?1,?2,?3,?4,?5,?6,?7 WHERE EXISTS (SELECT 1 FROM topic WHERE id=?2)",
                [
                    (group, at.topic.bytes, at.index, it.offset, it.leader_epoch, it.metadata, now)
                    for at, it in offsets.items()
                ],
            )

        await self._run(work)

    async def offsets(self, group: str) -> Mapping[Partition, CommittedOffset]:
        """See `Coordinator.offsets`."""

        def work() -> Mapping[Partition, CommittedOffset]:
            rows: Iterable[Any] = self._db.execute(
                "SELECT topic_id, part, off, leader_epoch, metadata FROM grp_offset WHERE grp=?", (group,)
            )
            return {Partition(UUID(bytes=topic), part): CommittedOffset(*rest) for topic, part, *rest in rows}

        return await self._run(work, write=False)

    async def delete_offsets(self, held: Lease, group: str, partitions: Sequence[Partition]) -> None:
        """See `Coordinator.delete_offsets`."""

        def work() -> None:
            self._check(held)
            self._db.executemany(
                "DELETE FROM grp_offset WHERE grp=? AND topic_id=? AND part=?",
                [(group, at.topic.bytes, at.index) for at in partitions],
            )

        await self._run(work)

    async def offset_groups(self) -> Sequence[str]:
        """See `Coordinator.offset_groups`."""

        def work() -> Sequence[str]:
            return [row[0] for row in self._db.execute("SELECT DISTINCT grp FROM grp_offset ORDER BY grp")]

        return await self._run(work, write=False)

    async def lags(self, groups: Sequence[str], limit: int) -> Sequence[TopicLag]:
        """See `Coordinator.lags`."""

        def work() -> Sequence[TopicLag]:
            rows = self._db.execute(
                "SELECT grp, topic_id, sum(max(hw - off, 0)) AS records FROM grp_offset JOIN log USING (topic_id, part)"
                " WHERE NOT deleted AND grp IN (SELECT value FROM json_each(?)) GROUP BY grp, topic_id"
                " ORDER BY records DESC, grp, topic_id LIMIT ?",
                (json.dumps(list(groups)), limit),
            )
            return [TopicLag(group, UUID(bytes=topic), records) for group, topic, records in rows]

        return await self._run(work, write=False)


_RUN = "run.base_offset, run.last_offset, wal.key, run.pos, run.len, run.max_ts, run.append_ms"


def _run(row: Sequence[Any]) -> Run:
    base, last, key, position, length, newest, append_ms = row
    return Run(base, last, WalRange(key, position, length), newest, append_ms)


class _Log:
    """A partition inside one commit: offsets are given from ``hw`` on, and batches that lie together become runs."""

    __slots__ = ("added", "hw", "id", "producers", "runs", "start", "touched")

    def __init__(self, id: int, start: int, hw: int) -> None:
        self.id = id
        self.start = start
        self.hw = hw
        self.added = 0
        self.runs: list[tuple[int, int, int, int, int, int]] = []
        self.producers: dict[int, ProducerState | None] = {}
        self.touched: set[int] = set()

    def append(self, position: int, length: int, records: int, newest: int, append_ms: int) -> int:
        """The batch's base offset."""
        base = self.hw
        self.hw += records
        self.added += length
        if self.runs:
            first, _, start, size, before, at = self.runs[-1]
            if start + size == position and at == append_ms and size + length <= RUN_BYTES:
                self.runs[-1] = (first, self.hw - 1, start, size + length, max(before, newest), at)
                return base
        self.runs.append((base, self.hw - 1, position, length, newest, append_ms))
        return base
