"""Detects that the coordinator went back to an earlier state, as after a failover to a standby that lacked the newest
commits, and stops this broker until that is repaired.

The coordinator's counters never fall. Each broker remembers the highest values that it saw, and compares them with each
renewal of its lease, before each commit, and when a consumer is ahead of a log. When a counter has fallen, no call
reaches the coordinator any more, so that clients get the answers of an outage, and nothing is deleted. Then:

- A broker repeats its own commits of the last minute that are missing, in order and by key. Usually each batch gets the
  acknowledged offset, and nothing is lost.
- A broker waits until the others have repeated theirs.
- If a batch would get another offset, the broker commits nothing of its object. It stops the whole cluster, and so
  does any broker that finds a counter too low for long. An administrator decides (``firn-broker fsck``).
- A broker that could not reach the coordinator until the end of such a repair knows a past that is over. It ends.

Two brokers that commit to the same partition may find the loss in any order. Then offsets differ, and the cluster stops.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from firn.model.errors import FencedError
from firn_broker import metrics
from firn_broker.log_types import (
    ACCESS,
    COMMITS,
    KEPT_EPOCHS,
    PRODUCERS,
    REPAIRS,
    TOPICS,
    BatchOutcome,
    Commit,
    NodeLease,
)
from firn_broker.ports import MetadataStore, WentBackError

log = structlog.get_logger()

REASON = "CoordinatorWentBack"
KEPT_SECONDS = 60.0
"""Seconds for which a broker can repeat an acknowledged commit."""
KEPT_BATCHES = 20_000
"""Batches of all commits that a broker can repeat at most, which is some 10 MiB."""
NO_LEASE = NodeLease(-1, -1)
PATIENCE_LEASES = 2
PATIENCE_SECONDS = 60.0
"""A broker waits for the duration of this many leases, and for at least these seconds, until the other brokers have
repeated their commits.

After a failover, another broker may need a minute until it reaches the new server.
"""


@dataclass(frozen=True, slots=True)
class _Acknowledged:
    number: int
    """The value of the lease's counter after this commit."""
    at: float
    commit: Commit
    outcomes: Sequence[BatchOutcome]
    after: int
    """The value of the lease's counter before the first attempt of this commit."""


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A commit that has no answer yet. The coordinator may have counted it at any time since its first attempt."""

    lease: NodeLease
    after: int
    """The value of the lease's counter before the first attempt."""


Fallen = Mapping[str, tuple[int, int]]
"""Counters that have fallen: their remembered and their present values."""


class Continuity:
    """Knowledge of one process about the coordinator's past."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lease = NO_LEASE
        self._patience = PATIENCE_SECONDS
        self._ttl_seconds = 0.0
        self._counters: dict[str, int] = {}
        self._own: set[str] = set()
        """Counters of this process's leases, which only its own acknowledged commits raise here: the coordinator may
        count a commit whose answer is under way."""
        self._unknown: dict[str, _Unknown] = {}
        """Commits of this process without an answer, by object."""
        self._kept: deque[_Acknowledged] = deque()
        self._batches = 0
        self._repeating: dict[int, _Acknowledged] = {}
        """Lost commits of this process by number, until they are repeated and compared."""
        self._failure: str | None = None
        """Why the loss cannot be repaired. It stays until the process ends, as the cluster has to stop."""
        self._since: float | None = None
        """The time since which this broker waits for others to repeat their commits."""
        self._repairs: int | None = None
        """The counter of repairs at the first comparison."""
        self._checking = asyncio.Lock()
        self.outlived = asyncio.Event()
        """Set if a repair ended while this process, as a node, could not reach the coordinator. Then the process has to
        end, because all that it remembers is from before the repair."""
        self.stopped = ""
        """Why this broker serves no client now; empty if it does."""

    @property
    def noticed_seconds(self) -> float:
        """Return the time within which every live broker notices that its commits are lost; 0 for a single broker."""
        others = {_node_of(name)[0] for name in self._counters} - {-1, self._lease.node}
        return self._ttl_seconds if others else 0.0

    def require(self) -> None:
        """Raise WentBackError while this broker may not use the coordinator."""
        if self.stopped:
            raise WentBackError(self.stopped)

    def saw(self, name: str, value: int) -> None:
        """Remember that a counter had this value."""
        self._counters[name] = max(value, self._counters.get(name, 0))

    async def commit(self, commit: Commit) -> Sequence[BatchOutcome]:
        """Commit, and remember the commit. Raises as `LogStore.commit` does."""
        name = commit.lease.commits
        self._own.add(name)
        known = self._counters.get(name, 0)
        attempted = self._unknown.get(commit.key, _Unknown(commit.lease, known))
        if commit.batches:
            # The coordinator never counts a commit whose first attempt has no batches.
            self._unknown[commit.key] = attempted
        try:
            outcomes = await self._store.log.commit(replace(commit, after=known))
        except WentBackError as error:
            self._stop(f"{REASON}: {error}")
            raise
        except FencedError:
            self._unknown.pop(commit.key, None)
            raise
        self._unknown.pop(commit.key, None)
        if any(outcome.changed for outcome in outcomes):
            self._counters[name] = self._counters.get(name, 0) + 1
            at = asyncio.get_running_loop().time()
            self._keep(_Acknowledged(self._counters[name], at, commit, outcomes, attempted.after))
        return outcomes

    def _keep(self, acknowledged: _Acknowledged) -> None:
        self._kept.append(acknowledged)
        self._batches += len(acknowledged.outcomes)
        while self._kept and (self._kept[0].at < acknowledged.at - KEPT_SECONDS or self._batches > KEPT_BATCHES):
            self._batches -= len(self._kept.popleft().outcomes)

    async def check(self, lease: NodeLease | None = None, ttl_ms: int = 0) -> None:
        """Compare the coordinator with the values that this process remembers, and repair it if possible.

        ``lease`` is the one of this process, if it has another than before. Raises WentBackError, UnavailableError.
        """
        async with self._checking:
            if self.outlived.is_set():
                self.require()
            if lease is not None:
                self._lease, self._ttl_seconds = lease, ttl_ms / 1000
                self._patience = max(PATIENCE_SECONDS, PATIENCE_LEASES * self._ttl_seconds)
                self._own.add(lease.commits)
            fallen, stopped = await self._compare()
            if not stopped and (fallen or self._repeating or self._failure):
                await self._repair(fallen)
                fallen, stopped = await self._compare()
            if stopped:
                self._stop(stopped)
            elif fallen:
                await self._wait_for_others(fallen)
            elif not self._repeating and not self._failure:
                self._resume()
            self.require()

    async def _compare(self) -> tuple[Fallen, str]:
        """Return the counters that have fallen, and why the cluster is stopped. Remember the values of all others."""
        # Only what this process knew before the coordinator answers.
        known = dict(self._counters)
        progress = await self._store.nodes.progress()
        if self._outlived(progress.counters.get(REPAIRS, 0)):
            self.require()
        known = {name: value for name, value in known.items() if name in self._counters}
        epochs: dict[int, list[int]] = {}
        for node, epoch in map(_node_of, progress.counters):
            epochs.setdefault(node, []).append(epoch)
        fallen = {}
        for name, value in known.items():
            node, epoch = _node_of(name)
            if name not in progress.counters and sum(each > epoch for each in epochs.get(node, ())) >= KEPT_EPOCHS:
                # The coordinator keeps the counters of a node's newest epochs only. With fewer newer ones, it lost the join.
                self._counters.pop(name, None)
            elif progress.counters.get(name, 0) < value:
                fallen[name] = (value, progress.counters.get(name, 0))
        for name in progress.counters.keys() - self._own:
            self.saw(name, progress.counters[name])
        return fallen, progress.stopped

    def _outlived(self, repairs: int) -> bool:
        """Return whether a repair ended since this process became a node. It forgets all that it knew before."""
        before, self._repairs = self._repairs, repairs
        if before is None or repairs <= before:
            return False
        self._counters.clear()
        if self._lease == NO_LEASE:
            # It waited for the end of the repair.
            return False
        self._kept.clear()
        self._unknown.clear()
        self._repeating.clear()
        self._batches, self._failure = 0, None
        self._stop(f"{REASON}: the coordinator was repaired while this broker could not reach it, so this broker ends")
        self.outlived.set()
        return True

    async def _repair(self, fallen: Fallen) -> None:
        """Repeat the lost commits of this process, and stop the cluster if that fails."""
        if fallen:
            self._stop(f"{REASON}: the coordinator lost changes that it had acknowledged: {_listed(fallen)}")
        own = fallen.get(self._lease.commits)
        if own is not None:
            self._plan(own[1])
        await self._repeat()
        if self._failure is not None:
            await self._stop_cluster(self._failure)
            return
        for name in fallen.keys() & {TOPICS, PRODUCERS, ACCESS}:
            # Above what any broker knows, so that each loads the topics, credentials, ACLs and quotas that exist.
            await self._store.nodes.raise_counter(name, fallen[name][0] + 1)

    def _plan(self, value: int) -> None:
        """Plan to repeat this process's commits after number ``value``."""
        lease = self._lease
        unknown = [each.after for each in self._unknown.values() if each.lease == lease and each.after < value]
        settled = [kept.after for kept in self._kept if _is_settled(kept, lease)]
        # The coordinator counted commits without an answer before later ones that have a lower number here, or none yet.
        value = max(value - len(unknown) - len(settled), 0)
        # Such a commit hid the loss of a later one until it had its answer. Commits may have followed since.
        first = min([value, *unknown, *settled])
        missing = {kept.number: kept for kept in self._kept if kept.commit.lease == lease and kept.number > first}
        if not missing.keys() >= set(range(value + 1, self._counters[lease.commits] + 1)):
            self._failure = f"node {lease.node} remembers only some of its lost commits"
        self._repeating |= missing

    @property
    def _settled(self) -> int:
        """Count the kept commits of this lease whose first answer was lost: they were repeated without batches, so that
        they cannot be committed again. No producer has an acknowledgement for them."""
        return sum(_is_settled(kept, self._lease) for kept in self._kept)

    async def _repeat(self) -> None:
        """Commit the planned commits again. Each stays planned until its offsets are known to be the acknowledged ones:
        the answer to a repeated commit may be lost too. Raises UnavailableError."""
        settled = self._settled if self._repeating else 0
        try:
            for number, kept in sorted(self._repeating.items()):
                if self._failure is not None:
                    return
                await self._store.log.reserve(kept.commit.lease, [kept.commit.key])
                acknowledged = kept.outcomes if kept.commit.batches else ()
                required = {
                    index: outcome.base_offset for index, outcome in enumerate(acknowledged) if not outcome.error
                }
                after = max(number - 1 - settled, 0)
                outcomes = await self._store.log.commit(replace(kept.commit, after=after, required=required))
                self._failure = _difference(kept, outcomes)
                if self._failure is None:
                    del self._repeating[number]
            if settled and self._failure is None:
                name = self._lease.commits
                await self._store.nodes.raise_counter(name, self._counters[name])
        except (FencedError, WentBackError) as error:
            self._failure = f"node {self._lease.node} cannot repeat its lost commits: {error}"

    async def _wait_for_others(self, fallen: Fallen) -> None:
        """Give the brokers of these counters time to repeat their commits. Then stop the cluster."""
        self._stop(f"{REASON}: the coordinator lost changes that it had acknowledged: {_listed(fallen)}")
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._patience:
            self._failure = f"no broker repeated them: {_listed(fallen)}"
            await self._stop_cluster(self._failure)

    async def _stop_cluster(self, why: str) -> None:
        self._stop(f"{REASON}: the coordinator lost acknowledged commits: {why}")
        await self._store.nodes.stop_serving(self.stopped)

    def _stop(self, why: str) -> None:
        if not self.stopped:
            log.error("this broker serves no client", reason=why)
        self.stopped = why
        metrics.WENT_BACK.set(1)

    def _resume(self) -> None:
        if self.stopped:
            log.warning("the coordinator has all acknowledged commits again")
        self.stopped, self._since = "", None
        metrics.WENT_BACK.set(0)


def _is_settled(kept: _Acknowledged, lease: NodeLease) -> bool:
    return not kept.commit.batches and kept.commit.lease == lease


def _difference(kept: _Acknowledged, outcomes: Sequence[BatchOutcome]) -> str | None:
    """Return which batch has another outcome than the acknowledged one; None if all have the same."""
    for entry, told, outcome in zip(kept.commit.batches, kept.outcomes, outcomes, strict=False):
        if (told.error, told.base_offset) != (outcome.error, outcome.base_offset):
            return (
                f"records of topic {entry.partition.topic}, partition {entry.partition.index}, were acknowledged at offset"
                f" {told.base_offset}, and are at {outcome.base_offset} now"
            )
    return None


def _node_of(counter: str) -> tuple[int, int]:
    """Return node and epoch of a counter of commits, and (-1, 0) for another counter."""
    if not counter.startswith(COMMITS):
        return -1, 0
    node, epoch = counter.removeprefix(COMMITS).split("/")
    return int(node), int(epoch)


def _listed(counters: Fallen) -> str:
    return ", ".join(f"{name} was {known} and is {value}" for name, (known, value) in sorted(counters.items()))
