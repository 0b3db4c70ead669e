"""Writes statuses and finalizers of IcebergTopics back, and announces their transitions as Events."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from firn_controllers.cache.topics import TopicEntry, topic_entry
from firn_controllers.conditions import announcements
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.iceberg_topic import status
from firn_controllers.iceberg_topic.failure import Failure
from firn_controllers.ports import Manifest
from firn_controllers.queue import Outcome
from firn_controllers.reconcilers.context import Context

log = logging.getLogger(__name__)


class TopicReports:
    """Writes statuses and finalizers that changed, and stores the API server's answers in the cache."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._refreshed: dict[str, float] = {}  # by uid, when a status was last written, in monotonic seconds
        self._owners: dict[str, str] = {}  # by uid, the message about an owner that was logged last
        self._expected: dict[str, float] = {}  # by uid, until when a first status waits, in monotonic seconds

    def log_owner(self, entry: TopicEntry, failure: Failure | None) -> None:
        """Log once which IcebergTopic of another namespace owns the topic or the table. The status must not name it."""
        owner = failure.owner if failure is not None else ""
        if owner and self._owners.get(entry.uid) != owner:
            log.warning("IcebergTopic %s/%s is refused: %s", *entry.name, owner)
        if owner:
            self._owners[entry.uid] = owner
        else:
            self._owners.pop(entry.uid, None)

    async def report(
        self, entry: TopicEntry, document: Manifest, done: Sequence[Announcement] = (), *, soon: bool = False
    ) -> Outcome:
        """Write the status if it differs, announce ``done`` and the transitions, and return when to reconcile again.

        A status in which only times and counts differ waits for the next refresh. ``soon``: the driver's next report makes a
        new topic Ready. Its first status waits for this report.
        """
        context = self._context
        now = context.ports.clock.monotonic()
        resync = context.resync()
        # They are true whether or not the status can be written, and the next reconcile does not find them again.
        await self.announce(entry, done)
        if document == entry.status:
            return resync
        if soon:
            wait = self._expected.setdefault(entry.uid, now + context.report_patience(entry.group)) - now
            if wait > 0:
                return Outcome(after=wait)
        if status.significant(document) == status.significant(entry.status):
            wait = self._refreshed.setdefault(entry.uid, now) + context.refresh_interval - now
            if wait > 0:
                return Outcome(after=min(wait, resync.after or wait))
        live = await context.ports.cluster.patch_status(*entry.name, document, entry.resource_version)
        self._refreshed[entry.uid] = now
        self._expected.pop(entry.uid, None)
        self._put(live, entry)
        await self.announce(entry, announcements.transitions(entry.status, document))
        return resync

    async def set_finalizers(self, entry: TopicEntry, finalizers: tuple[str, ...]) -> TopicEntry | None:
        """Replace the finalizers. Returns the resource after the change, or None if it was deleted."""
        cluster = self._context.ports.cluster
        return self._put(await cluster.set_finalizers(*entry.name, finalizers, entry.resource_version), entry)

    async def announce(self, entry: TopicEntry, done: Sequence[Announcement]) -> None:
        """Record one Event for each reason."""
        for item in _merged(done):
            await self._context.ports.cluster.event(
                *entry.name, entry.uid, "IcebergTopic", item.type, str(item.reason), item.message
            )

    def forget(self, uid: str) -> None:
        """Forget a deleted resource."""
        self._refreshed.pop(uid, None)
        self._expected.pop(uid, None)
        self._owners.pop(uid, None)

    def _put(self, live: Manifest | None, before: TopicEntry) -> TopicEntry | None:
        if live is None:
            return None
        entry = topic_entry(live, self._context.config, before)
        self._context.topic_written(entry)
        return entry


def _merged(items: Sequence[Announcement]) -> list[Announcement]:
    merged: dict[EventReason, Announcement] = {}
    for item in items:
        before = merged.get(item.reason)
        merged[item.reason] = replace(item, message=f"{before.message}; {item.message}") if before else item
    return list(merged.values())
