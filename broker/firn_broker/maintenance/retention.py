"""Maintenance of stored batches: retention, unreadable batch ranges, dead objects, compaction, orphans. One broker at a
time does it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

import structlog

from firn.model.errors import CorruptDataError, FencedError, UnavailableError
from firn_broker import metrics
from firn_broker.cluster.membership import Membership
from firn_broker.log_types import BatchEntry, Topic
from firn_broker.maintenance import uncommitted
from firn_broker.maintenance.compaction import Compaction
from firn_broker.maintenance.orphans import OrphanSweep
from firn_broker.ports import ObjectStore, RetentionStore
from firn_broker.settings import MaintenanceSettings
from firn_broker.storage import wal
from firn_broker.topics import configs
from firn_broker.topics.configs import TopicConfigs
from firn_broker.topics.topic_metadata import TopicMetadata

log = structlog.get_logger()

T = TypeVar("T")
LEASE = "upkeep"
OBJECTS_AT_ONCE = 1_000
"""Objects that one request deletes."""
DELETES = 4
"""Concurrent requests that delete objects."""
LONGEST_POSTPONEMENT_MS = 3_600_000
"""Milliseconds after which the deletion of an object that failed is tried again at the latest."""


class Maintenance:
    """Maintains stored batches in rounds of bounded work."""

    def __init__(
        self,
        retention_store: RetentionStore,
        objects: ObjectStore,
        membership: Membership,
        topic_metadata: TopicMetadata,
        topic_configs: TopicConfigs,
        compaction: Compaction,
        orphans: OrphanSweep,
        settings: MaintenanceSettings,
    ) -> None:
        self._compaction = compaction
        self._orphans = orphans
        self._retention_store = retention_store
        self._objects = objects
        self._membership = membership
        self._topic_metadata = topic_metadata
        self._configs = topic_configs
        self._settings = settings
        self._behind: set[str] = set()
        """The parts of the last round that left work."""
        metrics.DEAD_OBJECTS_GRACE.set(settings.grace_seconds)
        self._failed: UUID | None = None
        """The topic whose expiry failed last. The next round starts with the topic after it."""

    async def run(self) -> None:
        """Do a round in each interval while this broker holds the lease, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.interval_seconds)
            try:
                if await self._membership.acquire(LEASE) is not None:
                    await self.round()
                else:
                    self._rest()
                    await self._compaction.settle()
            except (UnavailableError, FencedError) as error:
                log.warning("maintenance postponed", error=str(error))
            except Exception:
                log.exception("maintenance failed")

    async def round(self) -> None:
        """Do each part once, within an interval each; a part that fails does not stop the others.

        Log starts move first, then batch ranges are dropped, then objects are deleted. So the next round continues
        after a crash anywhere."""
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "expiry": self._expire_and_drop,
            "replies": self._forget_replies,
            "reservations": self._withdraw_reservations,
            "producers": self._forget_producers,
            "time marks": self._mark_times,
            "objects": self._delete_dead_objects,
            "compaction": self._compact,
            "orphans": self._orphans.step,
        }
        for name, part in parts.items():
            await _attempt(part, part=name)

    def _rest(self) -> None:
        """Reset the metrics while another broker does maintenance."""
        self._report("expiry", behind=False)
        self._report("objects", behind=False)
        metrics.DEAD_OBJECTS.set(0)
        metrics.DEAD_OBJECTS_AGE.set(0)
        metrics.POSTPONED_OBJECTS.set(0)
        metrics.UNCOMMITTED_OBJECTS.set(0)
        self._compaction.rest()
        self._orphans.rest()

    def _report(self, part: str, *, behind: bool) -> None:
        (self._behind.add if behind else self._behind.discard)(part)
        metrics.MAINTENANCE_BEHIND.set(bool(self._behind))

    async def _expire_and_drop(self) -> None:
        """Move log starts and drop batch ranges, one step for each topic in turn. Topics that need more steps share one
        interval."""
        clock = asyncio.get_running_loop().time
        due = [topic for topic in self._topic_metadata.by_id.values() if self._expires(topic)]
        turn = next((number for number, topic in enumerate(due, 1) if topic.id == self._failed), 0)
        topics = await self._expire(due[turn:] + due[:turn])
        end = clock() + self._settings.interval_seconds
        dropped = await self._steps("dropped runs", self._retention_store.drop_ranges, end)
        while topics and clock() < end:
            topics = await self._expire(topics)
            dropped = await self._steps("dropped runs", self._retention_store.drop_ranges, end)
        self._report("expiry", behind=bool(topics) or dropped == self._settings.round_runs)

    def _bounds(self, topic: Topic) -> tuple[int, int]:
        return (
            int(self._configs.get(topic, configs.RETENTION_MS)),
            int(self._configs.get(topic, configs.RETENTION_BYTES)),
        )

    def _expires(self, topic: Topic) -> bool:
        return "delete" in self._configs.get(topic, configs.CLEANUP_POLICY) and max(self._bounds(topic)) >= 0

    async def _expire(self, topics: Sequence[Topic]) -> list[Topic]:
        """Do one step for each topic; return those that may need more. The next round retries a topic that fails."""
        limit = self._settings.round_runs
        more, failed = [], False
        for topic in topics:
            step = partial(self._retention_store.expire, topic.id, *self._bounds(topic), limit)
            passed = await _attempt(step, part="expiry", topic=topic.name)
            if passed is None and failed:
                # Two failures in a row: the cause is probably the coordinator, not the topic.
                self._failed = topic.id
                break
            if failed := passed is None:
                self._failed = topic.id
            metrics.MAINTENANCE.labels("expired runs").inc(passed or 0)
            if passed == limit:
                more.append(topic)
        return more

    async def _forget_replies(self) -> None:
        step = partial(self._retention_store.forget_replies, int(self._settings.abandon_seconds * 1000))
        await self._steps(
            "forgotten replies", step, asyncio.get_running_loop().time() + self._settings.interval_seconds
        )

    async def _withdraw_reservations(self) -> None:
        age = int(self._settings.abandon_seconds * 1000)
        clock = asyncio.get_running_loop().time
        end = clock() + self._settings.interval_seconds
        unused = []
        keep_ms = int(self._settings.uncommitted_seconds * 1000)
        for key in await self._retention_store.stale_reservations(age, self._settings.round_runs):
            batches = await self._batches(key)
            if key.endswith((wal.MERGED, wal.HISTORY)):
                # Its sources have the records, unless the coordinator comes from a backup. Then a recovery needs the object.
                await self._retention_store.withdraw_reservations([key], keep_ms)
            elif batches is not None and not batches:
                unused.append(key)
            elif batches is not None and all(await self._retention_store.contains(key, batches)):
                await self._accept(key)
            # The coordinator may have lost the commit of a complete object.
            elif await self._retention_store.withdraw_reservations([key], None):
                log.warning(
                    "an object without a commit is kept: it may hold acknowledged records. Run firn-broker fsck",
                    key=key,
                )
                metrics.MAINTENANCE.labels("kept uncommitted objects").inc()
            if clock() >= end:
                break
        withdrawn = await self._retention_store.withdraw_reservations(unused)
        metrics.MAINTENANCE.labels("withdrawn reservations").inc(withdrawn)

    async def _accept(self, key: str) -> None:
        """Give a complete object up whose batches the producers have sent again. It stays as long as after the decision
        of an administrator."""
        keep_ms = int(self._settings.uncommitted_seconds * 1000)
        if await self._retention_store.withdraw_reservations([key], keep_ms):
            log.info("an object without a commit is accepted: the producers have sent all its batches again", key=key)
            metrics.MAINTENANCE.labels("accepted uncommitted objects").inc()

    async def _batches(self, key: str) -> list[BatchEntry] | None:
        """Return the batches of producers in an object: none if it does not exist or has no such batches, None if it is
        damaged. Raises UnavailableError."""
        if wal.is_copy(key):
            return []
        try:
            _, indexed = await uncommitted.read_index(self._objects, key)
        except KeyError:
            return []
        except CorruptDataError as error:
            # An upload stores all of an object or nothing, so the damage came later. Another read may find the records.
            log.warning("an object without a commit is damaged", key=key, error=str(error))
            return None
        return [uncommitted.entry(batch) for batch in indexed]

    async def _forget_producers(self) -> None:
        age, limit = int(self._settings.producer_seconds * 1000), self._settings.round_runs
        metrics.MAINTENANCE.labels("forgotten producers").inc(await self._retention_store.forget_producers(age, limit))

    async def _mark_times(self) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + self._settings.interval_seconds
        while await self._retention_store.mark_times(self._settings.round_runs) and clock() < end:
            pass

    async def _delete_dead_objects(self) -> None:
        grace = int(self._settings.grace_seconds * 1000)
        clock = asyncio.get_running_loop().time
        end = clock() + self._settings.interval_seconds
        while keys := await self._retention_store.dead_objects(grace, DELETES * OBJECTS_AT_ONCE):
            chunks = [keys[start : start + OBJECTS_AT_ONCE] for start in range(0, len(keys), OBJECTS_AT_ONCE)]
            deleted = [key for gone in await asyncio.gather(*map(self._objects.delete, chunks)) for key in gone]
            await self._retention_store.forget_objects(deleted)
            metrics.MAINTENANCE.labels("deleted objects").inc(len(deleted))
            if left := sorted(set(keys).difference(deleted)):
                log.warning("the object store did not delete all objects", objects=len(left), first=left[0])
                await self._retention_store.postpone_objects(left, LONGEST_POSTPONEMENT_MS)
            # If it deletes nothing, the object store is probably down.
            if not deleted or clock() >= end:
                break
        self._report("objects", behind=len(keys) == DELETES * OBJECTS_AT_ONCE)
        backlog = await self._retention_store.dead_backlog()
        metrics.DEAD_OBJECTS.set(backlog.objects)
        metrics.DEAD_OBJECTS_AGE.set(backlog.oldest_ms / 1000)
        metrics.POSTPONED_OBJECTS.set(backlog.postponed)
        metrics.UNCOMMITTED_OBJECTS.set(backlog.kept)

    async def _compact(self) -> None:
        topics = [topic for topic in self._topic_metadata.by_id.values() if self._configs.compacted(topic)]
        await self._compaction.round(topics, self._settings.interval_seconds)

    async def _steps(self, name: str, step: Callable[[int], Awaitable[int]], end: float) -> int:
        """Do bounded steps until nothing is left, or until ``end`` by the event loop's clock; at least one.

        Return what the last step did: the limit, if something may be left.
        """
        limit = self._settings.round_runs
        clock = asyncio.get_running_loop().time
        while True:
            done = await step(limit)
            metrics.MAINTENANCE.labels(name).inc(done)
            if done < limit or clock() >= end:
                return done


async def _attempt(work: Callable[[], Awaitable[T]], **subject: str) -> T | None:
    """Return the result of ``work``; log a failure with ``subject`` and return None."""
    try:
        return await work()
    except (UnavailableError, FencedError) as error:
        log.warning("maintenance postponed", error=str(error), **subject)
    except Exception:
        log.exception("maintenance failed", **subject)
    return None
