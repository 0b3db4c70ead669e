"""The merges of a cluster: one broker at a time finds objects that are due, and starts a process for each selection."""

import asyncio

import structlog

from firn.model.errors import FencedError, UnavailableError
from firn_broker import metrics
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.jobs import run_job
from firn_broker.cluster.membership import Membership
from firn_broker.log_types import UNMERGED, NodeLease
from firn_broker.maintenance.merges import process as merge_process
from firn_broker.maintenance.merges.merging import LEVELS, SOURCES, Merged, Merging, Selection, select
from firn_broker.ports import MetadataStore, ObjectStore
from firn_broker.settings import BrokerSettings

log = structlog.get_logger()

LEASE = "merge"


class Merges:
    """Merges objects while this broker has the lease for it."""

    def __init__(
        self, store: MetadataStore, objects: ObjectStore, membership: Membership, identifiers: Identifiers,
        settings: BrokerSettings, *, own_process: bool,
    ) -> None:  # fmt: skip
        """Merge in a process, or in the event loop."""
        self._merges = store.merges
        self._membership = membership
        self._identifiers = identifiers
        self._settings = settings
        self._wait_ms = int(settings.upkeep.merge_seconds * 1000)
        self._own_process = own_process
        self._merging = Merging(store, objects, identifiers, settings.upkeep.merged_bytes)

    async def run(self) -> None:
        """Merge what is due in each interval while this broker holds the lease, until cancelled."""
        if self._settings.upkeep.merged_bytes:
            # Brokers of an earlier version may still run beside this one. They read a merged row as a whole.
            await asyncio.sleep(self._settings.upkeep.merge_seconds)
        while self._settings.upkeep.merged_bytes:
            await asyncio.sleep(self._settings.upkeep.interval_seconds)
            try:
                while (held := await self._membership.acquire(LEASE) is not None) and await self._merge_one():
                    pass
                if not held:
                    metrics.UNMERGED_SECONDS.set(0)
            except (UnavailableError, FencedError) as error:
                log.warning("merges postponed", error=str(error))
            except Exception:
                log.exception("merges failed")
        # Without merges, the task still runs: a broker with an ended task is not healthy.
        await asyncio.get_running_loop().create_future()

    async def _merge_one(self) -> bool:
        """Merge one selection; return whether there was one."""
        selection = await self._select()
        if selection is None:
            return False
        if selection.ends:
            await self._merges.finish([source.key for source in selection.sources])
            return True
        lease = self._membership.lease
        if self._own_process:
            merged = await self._in_process(lease, selection)
        else:
            merged = await self._merging.merge(lease, selection)
        metrics.MAINTENANCE.labels("merged objects").inc(merged.sources)
        metrics.MAINTENANCE.labels("merged bytes").inc(merged.bytes)
        log.info("merged objects", level=selection.level, **merged.report())
        return True

    async def _select(self) -> Selection | None:
        now = self._identifiers.now_ms()
        for level in range(LEVELS):
            age_ms = self._wait_ms if level == UNMERGED else 0
            sources = await self._merges.sources(level, age_ms, SOURCES)
            if level == UNMERGED:
                waiting = now - sources[0].made_ms - age_ms if sources else 0
                metrics.UNMERGED_SECONDS.set(max(waiting, 0) / 1000)
            selection = select(level, sources, self._settings.upkeep.merged_bytes, now, 2 * self._wait_ms)
            if selection is not None:
                return selection
        return None

    async def _in_process(self, lease: NodeLease, selection: Selection) -> Merged:
        """Merge in a process. Raises UnavailableError if it fails."""
        asked = merge_process.request(self._settings, lease, selection)
        advice = "raise its limit, or lower upkeep.mergedBytes"
        return Merged(**await run_job(merge_process.__name__, asked, work="merges objects", advice=advice))
