"""Measures the maintenance debt of every table at an interval, under the policy that governs it, and puts it on the
board.

The survey runs beside the work queue. A measurement waits for catalog and object store, and must not delay any
reconcile.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from firn.api.v1alpha1 import CompactionPolicy
from firn.model import durations
from firn.model.config import Config
from firn.model.errors import FirnError, InvalidSpecError
from firn.model.jobs import TableTarget
from firn.model.maintenance import CompactionWork
from firn_controllers.board import Board
from firn_controllers.cache.policies import PolicyCache
from firn_controllers.cache.topics import Name, TopicCache, TopicEntry
from firn_controllers.ports import Debts, TableDebt

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Parallel measurements: as many as a catalog can answer with one query.

The adapter limits how many of them read objects at a time.
"""
GIVEN_UP = 5
"""Number of failures in a row after which the other tables of a catalog wait for the next round, because each could run
into a timeout.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A measured debt of a topic's table."""

    name: Name
    target: TableTarget
    debt: TableDebt
    since: datetime | None
    """Creation time of the governing CompactionPolicy. None without a policy."""

    def lag_seconds(self, now: datetime) -> float | None:
        """Return the compaction lag: for how long files have been due under the governing policy, counted from its
        creation at the earliest.

        None without a policy, because no compaction is planned.
        """
        if self.since is None:
            return None
        oldest = self.debt.oldest_due
        return max(0.0, (now - max(oldest, self.since)).total_seconds()) if oldest is not None else 0.0


class Survey:
    """Measures debts. ``changed`` is called with each topic whose debt changed."""

    def __init__(
        self,
        config: Config,
        debts: Debts,
        index: TopicCache,
        policies: PolicyCache,
        board: Board,
        changed: Callable[[Name], None],
    ) -> None:
        self._config = config
        self._debts = debts
        self._index = index
        self._policies = policies
        self._board = board
        self._changed = changed
        self._interval = durations.milliseconds(config.maintenance.debt_interval) / 1000
        self._first = 0
        self._failures: dict[str, int] = {}
        self._failing: dict[str, str] = {}
        self.findings: dict[str, Finding] = {}
        """Findings by uid of the topic."""

    async def run(self) -> None:
        """Measure all tables in every interval, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await self.round()
            await asyncio.sleep(max(0.0, begun + self._interval - loop.time()))

    async def round(self) -> None:
        """Measure every table once."""
        tables = list(self._tables())
        self._failures.clear()
        self._forget({entry.uid: target for entry, target in tables})
        # Each round starts at another table, so that a failing catalog does not skip the same tables every time.
        self._first = (self._first + AT_ONCE) % max(1, len(tables))
        waiting = iter(tables[self._first :] + tables[: self._first])

        async def work() -> None:
            for entry, target in waiting:
                if self._failures.get(target.catalog, 0) < GIVEN_UP:
                    await self._measure(entry, target)

        await asyncio.gather(*(work() for _ in range(min(AT_ONCE, len(tables)))))

    def _tables(self) -> Iterator[tuple[TopicEntry, TableTarget]]:
        for entry in self._index.all():
            resource = entry.resource
            if resource is None or entry.table_claim is None or resource.metadata.deletion_timestamp is not None:
                continue
            holder = self._index.holder(entry.table_claim)
            if holder is None or holder.uid != entry.uid:
                continue
            try:
                target = resource.table_target(self._config.default_catalog)
            except InvalidSpecError:
                continue
            if target.catalog in self._config.catalogs:
                yield entry, target

    def _forget(self, tables: dict[str, TableTarget]) -> None:
        for uid in self.findings.keys() - tables.keys():
            self._drop(uid)
        for uid in self._failing.keys() - tables.keys():
            del self._failing[uid]

    def _drop(self, uid: str) -> None:
        gone = self.findings.pop(uid, None)
        self._board.debts.pop(uid, None)
        if gone is not None:
            self._debts.forget(gone.target)

    def _work(self, entry: TopicEntry) -> tuple[CompactionWork, datetime | None]:
        """Return the settings to measure with, and the creation time of the policy that sets them."""
        resolution = self._policies.resolve("CompactionPolicy", entry)
        if resolution.followed and resolution.policy is not None:
            resource = resolution.policy.resource
            if isinstance(resource, CompactionPolicy):
                return resource.work(), resolution.policy.created
        return CompactionWork(), None

    async def _measure(self, entry: TopicEntry, target: TableTarget) -> None:
        work, since = self._work(entry)
        try:
            debt = await self._debts.measure(target, work)
        except FirnError as error:
            self._failures[target.catalog] = self._failures.get(target.catalog, 0) + 1
            self._fail(entry, str(error))
            return
        except Exception:
            # A table that cannot be read must not keep the others from being measured.
            log.exception("measuring the maintenance debt of topic %s/%s failed", *entry.name)
            return
        self._failures[target.catalog] = 0
        self._failing.pop(entry.uid, None)
        now = self._index.get(entry.name)
        if now is None or now.uid != entry.uid:
            return
        if debt is None:
            self._drop(entry.uid)
            return
        self.findings[entry.uid] = Finding(entry.name, target, debt, since)
        if self._board.debts.get(entry.uid) != debt:
            self._board.debts[entry.uid] = debt
            self._changed(entry.name)

    def _fail(self, entry: TopicEntry, problem: str) -> None:
        """Keep the earlier measurement, and log a problem once, when it begins."""
        if self._failing.get(entry.uid) != problem:
            self._failing[entry.uid] = problem
            log.warning("%s", problem)
