"""A coordinator that loses up to its last second in the middle of a story, as in a failover to a standby that lacked it.

Brokers commit the lost batches again. If they cannot, an administrator recovers the coordinator from the objects.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from firn_broker.cluster.continuity import PATIENCE_SECONDS, REASON
from firn_broker.log_types import NodeLease
from firn_broker.maintenance import fsck, recovery
from firn_broker.storage import wal
from firn_broker.storage.objects import MemoryObjects
from firn_broker.topics.configs import TopicConfigs
from tests.simulation.broker import wire
from tests.simulation.broker.clients import Admin
from tests.simulation.broker.history import POLL_SECONDS, History, Log, Sent
from tests.simulation.broker.world import LEASE_SECONDS, Host, World

SHARE = 0.3
"""Share of stories in which the coordinator loses commits."""
SPARED = 0.8
"""Share of losses whose brokers live until they have repeated their commits."""
MOST = 2
"""Times at most that it does so in a story."""
PAUSE_SECONDS = 16.0
"""Longest time before each loss."""
DECIDED_SECONDS = PATIENCE_SECONDS + 8 * LEASE_SECONDS
"""Time limit for brokers to repeat lost commits, or to stop."""


def how_often(seed: int) -> int:
    """Return how often the coordinator loses commits in the story of a seed."""
    chance = Random(f"losses of {seed}")
    return chance.randint(1, MOST) if chance.random() < SHARE else 0


@dataclass
class _Lost:
    """A lost commit: the broker that made it, unless it is dead, its lease, the lost time, and its ranges of offsets."""

    owner: Host | None
    lease: NodeLease
    since: float
    restart: float
    ranges: list[tuple[Log, int, int]]


class Losses:
    """The lost commits of a story."""

    def __init__(self, world: World, history: History, admin: Admin) -> None:
        self._world = world
        self._history = history
        self._admin = admin
        self._lost: dict[str, _Lost] = {}
        """Commits that no broker has repeated yet, by object."""

    async def run(self, count: int) -> None:
        """Take the coordinator's last commits back ``count`` times."""
        for _ in range(count):
            await asyncio.sleep(4 + self._world.chance.random() * PAUSE_SECONDS)
            await self._lose()
            # The topic's deletion or creation may be lost.
            await self._admin.remake()

    async def _lose(self) -> None:
        world = self._world
        since, backup, before = world.now(), world.backup(), self._commits()
        await asyncio.sleep(world.chance.random())
        spared = world.chance.random() < SPARED
        for key, lease in self._commits().items():
            if key not in before:
                self._lost[key] = lost = _Lost(self._owner(lease), lease, since, world.now(), self._ranges(key))
                if lost.owner is not None:
                    lost.owner.spared |= spared
        self._history.lost_seconds.append((since, world.now()))
        world.faults["lost commits"] += 1
        await world.restart_coordinator(backup)

    def _commits(self) -> dict[str, NodeLease]:
        """Return the objects of all commits in the coordinator, with the leases of their brokers."""
        rows = self._world.store.database.connection.execute("SELECT key, node, node_epoch FROM wal WHERE size >= 0")
        return {key: NodeLease(*lease) for key, *lease in rows.fetchall()}

    def _owner(self, lease: NodeLease) -> Host | None:
        return next((host for host in self._world.hosts if host.broker.membership.lease == lease), None)

    def _ranges(self, key: str) -> list[tuple[Log, int, int]]:
        rows = self._world.store.database.connection.execute(
            "SELECT name, part, base_offset, last_offset FROM run JOIN wal ON wal.id = run.wal JOIN log ON log.id = run.log"
            " JOIN topic ON topic.id = log.topic_id WHERE key = ?",
            (key,),
        )
        return [((topic, part), base, last) for topic, part, base, last in rows.fetchall()]

    async def broken(self) -> None:
        """Wait until an administrator has to act: brokers have stopped, or a broker died with the only knowledge of its commits."""
        while not await self._is_broken():
            await asyncio.sleep(POLL_SECONDS)

    async def decided(self) -> bool:
        """Wait until brokers have repeated all lost commits, or an administrator has to act; return whether they have."""
        # Only renewals of leases show a loss of records of a topic that the story re-creates. It may stop the cluster, too:
        # the coordinator cannot tell a topic that was deleted after the loss from one whose creation is lost.
        await asyncio.sleep(LEASE_SECONDS)
        while not await self._is_broken():
            serving = not any(map(self._reason, self._world.hosts))
            if serving and not any(map(self._is_acknowledged, self._lost.values())):
                return True
            await asyncio.sleep(POLL_SECONDS)
        return False

    async def _is_broken(self) -> bool:
        if await self._stopped():
            return True
        repeated = self._commits()
        self._lost = {key: lost for key, lost in self._lost.items() if key not in repeated}
        for host in self._world.hosts:
            host.spared &= bool(self._reason(host)) or any(lost.owner is host for lost in self._lost.values())
        self._note_absent()
        missing = {key: lost for key, lost in self._lost.items() if self._is_acknowledged(lost)}
        latest = max((lost.since for lost in missing.values()), default=self._world.now())
        assert self._world.now() - latest < DECIDED_SECONDS, (
            f"no broker repeated the lost commits of {sorted(missing)}, and the brokers have not stopped"
        )
        return any(lost.owner is None or lost.owner.dead for lost in missing.values())

    def _note_absent(self) -> None:
        """Note the lost commits whose brokers are not live."""
        now, connection = self._world.now(), self._world.store.database.connection
        for lost in self._lost.values():
            live = connection.execute(
                "SELECT 1 FROM node WHERE id = ? AND epoch = ? AND expires_ms > ?",
                (lost.lease.node, lost.lease.epoch, self._world.store.database.now_ms()),
            ).fetchone()
            if live is None:
                self._history.absent += ((log, first, last, now) for log, first, last in lost.ranges)

    def _reason(self, host: Host) -> str:
        """Return why a broker serves no client; empty if it does."""
        return host.broker.metadata_store.continuity.stopped

    def _is_acknowledged(self, lost: _Lost) -> bool:
        """Return whether a client knows that a record of the commit has its offset, and the log has another record there, or
        none.

        The log may have the record there: its broker never had the answer to the lost commit, so a later one has the offset.
        A topic that the story re-creates does not count.
        """
        return any(
            sent.log == log
            and sent.began <= lost.restart
            and sent.acknowledged > lost.since
            and base <= sent.offset <= last
            for log, base, last in lost.ranges
            if log[0] not in self._history.made_anew
            for sent in self._history.sent
            if sent.offset is not None and not self._has(sent)
        )

    def _has(self, sent: Sent) -> bool:
        """Return whether the log has a batch at its acknowledged offset, or has deleted this offset."""
        connection = self._world.store.database.connection
        assert sent.offset is not None
        row = connection.execute(
            "SELECT log_start, key, pos, len, base_offset FROM run JOIN wal ON wal.id = run.wal JOIN log ON log.id = run.log"
            " JOIN topic ON topic.id = log.topic_id WHERE name = ? AND part = ? AND last_offset >= ? ORDER BY last_offset LIMIT 1",
            (*sent.log, sent.offset),
        ).fetchone()
        if row is None:
            return False
        start, key, position, length, offset = row
        for batch in wire.batches(memoryview(self._world.objects.objects[key])[position : position + length]):
            if offset == sent.offset:
                return (batch.producer, batch.number) == (sent.producer, sent.number)
            offset += batch.records
        return bool(sent.offset + sent.records <= start)

    async def _stopped(self) -> str:
        return (await self._world.store.nodes.progress()).stopped

    async def recover(self) -> None:
        """Do as an administrator does: stop all brokers, commit the objects without a commit again, and start brokers."""
        world, nodes = self._world, self._world.store.nodes
        if await self._stopped():
            async with asyncio.timeout(DECIDED_SECONDS):
                while not all((host.broker.not_ready or "").startswith(REASON) for host in world.hosts):
                    await asyncio.sleep(0.1)
        await self._without_brokers()
        while not await nodes.stop_idle("a recovery runs"):
            await self._without_brokers()
        findings = await fsck.check(world.store.retention, world.objects, read=True)
        keys = [*findings.uncommitted, *findings.newer]
        await self._note_unproven(keys)
        await recovery.recover(world.store, world.objects, keys, TopicConfigs({}))
        while not await nodes.allow_serving():
            await self._without_brokers()
        self._history.recovered = True
        self._lost.clear()

    async def _note_unproven(self, keys: Sequence[str]) -> None:
        """Note the batches of objects without a commit that the coordinator cannot find in the log: it allocated their producer ids
        after it reserved the object, or does not know the reservation."""
        connection, whole = self._world.store.database.connection, MemoryObjects()
        whole.objects = self._world.objects.objects
        topics = dict(connection.execute("SELECT id, name FROM topic").fetchall())
        for key in keys:
            if wal.is_copy(key):
                continue
            row = connection.execute("SELECT coalesce(producers, 0) FROM wal WHERE key = ?", (key,)).fetchone()
            allocated = row[0] if row else 0
            data = memoryview(whole.objects[key])
            for batch in await wal.read_batches(whole, key, len(data)):
                if batch.producer_id >= allocated and batch.partition.topic.bytes in topics:
                    log = topics[batch.partition.topic.bytes], batch.partition.index
                    (read,) = wire.batches(data[batch.position : batch.position + batch.length])
                    self._history.unproven.add((log, read.producer, read.number))

    async def _without_brokers(self) -> None:
        for host in list(self._world.hosts):
            self._world.kill(host)
        await asyncio.sleep(0.5)


def forget_reports(world: World) -> None:
    """Drop the errors that brokers have to report after a loss."""
    reports = ("this broker serves no client", "the coordinator went back")
    world.errors[:] = [
        error for error in world.errors if not isinstance(error, dict) or error.get("event") not in reports
    ]
