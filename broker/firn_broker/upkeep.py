"""Background work on what is stored: retention, runs that nobody can read any more, dead objects. One broker at a time does it."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from firn.model.errors import FencedError, UnavailableError
from firn_broker import configs, metrics
from firn_broker.catalogue import Catalogue
from firn_broker.compaction import Compaction
from firn_broker.configs import TopicConfigs
from firn_broker.membership import Membership
from firn_broker.ports import Coordinator, ObjectStore
from firn_broker.settings import UpkeepSettings

log = structlog.get_logger()

LEASE = "upkeep"
OBJECTS_AT_ONCE = 500


class Upkeep:
    """Rounds of bounded work."""

    def __init__(
        self,
        coordinator: Coordinator,
        objects: ObjectStore,
        membership: Membership,
        catalogue: Catalogue,
        topic_configs: TopicConfigs,
        compaction: Compaction,
        settings: UpkeepSettings,
    ) -> None:
        self._compaction = compaction
        self._coordinator = coordinator
        self._objects = objects
        self._membership = membership
        self._catalogue = catalogue
        self._configs = topic_configs
        self._settings = settings

    async def run(self) -> None:
        """A round now and then, for ever."""
        while True:
            await asyncio.sleep(self._settings.interval_seconds)
            try:
                if await self._coordinator.take(LEASE, self._membership.lease) is not None:
                    await self.round()
                else:
                    metrics.UPKEEP_BEHIND.set(0)
                    self._compaction.rest()
                    await self._compaction.settle()
            except (UnavailableError, FencedError) as error:
                log.warning("upkeep postponed", error=str(error))
            except Exception:
                log.exception("upkeep failed")

    async def round(self) -> None:
        """One of each. A crash anywhere leaves what the next round goes on with: log starts move first, then runs go, then objects."""
        limit = self._settings.round_runs
        for topic in list(self._catalogue.by_id.values()):
            if "delete" not in self._configs.get(topic, configs.CLEANUP_POLICY):
                continue
            oldest = int(self._configs.get(topic, configs.RETENTION_MS))
            size = int(self._configs.get(topic, configs.RETENTION_BYTES))
            if oldest >= 0 or size >= 0:
                moved = await self._coordinator.expire(topic.id, oldest, size, limit)
                metrics.UPKEEP.labels("expired partitions").inc(moved)
        dropped = await self._steps("dropped runs", self._coordinator.drop_runs)
        metrics.UPKEEP_BEHIND.set(dropped == limit)
        age = int(self._settings.abandon_seconds * 1000)
        await self._steps("forgotten replies", partial(self._coordinator.forget_replies, age))
        abandoned = await self._coordinator.abandon(age, limit)
        metrics.UPKEEP.labels("withdrawn reservations").inc(abandoned)
        forgotten = await self._coordinator.forget_producers(int(self._settings.producer_seconds * 1000), limit)
        metrics.UPKEEP.labels("forgotten producers").inc(forgotten)
        await self._bury(int(self._settings.grace_seconds * 1000))
        # Last: it is the most that can fail, and room is made whatever becomes of it.
        await self._compaction.round([it for it in self._catalogue.by_id.values() if self._configs.compacted(it)])

    async def _steps(self, name: str, step: Callable[[int], Awaitable[int]]) -> int:
        """Take bounded steps until nothing is left, but no longer than a round is: whatever is written a second, as much may go. What the
        last step did; the limit, if something may be left."""
        limit = self._settings.round_runs
        clock = asyncio.get_running_loop().time
        end = clock() + self._settings.interval_seconds
        done = limit
        while done == limit and clock() < end:
            done = await step(limit)
            metrics.UPKEEP.labels(name).inc(done)
        return done

    async def _bury(self, grace_ms: int) -> None:
        while keys := await self._coordinator.dead_objects(grace_ms, OBJECTS_AT_ONCE):
            gone = await self._objects.delete(keys)
            await self._coordinator.forget_objects(gone)
            metrics.UPKEEP.labels("deleted objects").inc(len(gone))
            if len(gone) < len(keys):
                return
