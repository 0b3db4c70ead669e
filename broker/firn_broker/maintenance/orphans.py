"""The search for orphans: objects in the bucket that the coordinator does not know.

An upload can complete after its reservation was withdrawn and its key forgotten. No step of retention finds such an
object again. A coordinator that was restored to an earlier time does not know its newest objects either, and these hold
acknowledged records. The search cannot distinguish the two, so it deletes nothing.

Each part of the keys is due once a week, by the clock, so that the search goes on where another broker was.
"""

import structlog

from firn.model.clock import Clock
from firn_broker import metrics
from firn_broker.ports import ObjectStore, RetentionStore
from firn_broker.storage import wal

log = structlog.get_logger()

SWEEP_SECONDS = 7 * 86_400
"""Seconds in which all parts are examined."""
LOGGED = 10
"""Keys of a part that are logged."""


class OrphanSweep:
    """Examines the part of all keys that is due."""

    def __init__(self, retention: RetentionStore, objects: ObjectStore, clock: Clock) -> None:
        self._retention = retention
        self._objects = objects
        self._clock = clock
        self._turn = -1
        self._found: dict[wal.Part, int] = {}
        """Orphans that this broker found, by part."""

    async def step(self) -> None:
        """Examine the part that is due, if this broker has not. Raises UnavailableError."""
        turn = int(self._clock.now().timestamp() * len(wal.PARTS) / SWEEP_SECONDS)
        if turn == self._turn:
            return
        part = wal.PARTS[turn % len(wal.PARTS)]
        keys = await self.examine(part)
        self._turn = turn
        self._found[part] = len(keys)
        metrics.ORPHANS.set(sum(self._found.values()))
        if keys:
            log.warning(
                "the bucket has objects that the coordinator does not know. Run firn-broker fsck",
                objects=len(keys), keys=keys[:LOGGED],
            )  # fmt: skip

    async def examine(self, part: wal.Part) -> list[str]:
        """Return the keys of a part's orphans. Raises UnavailableError."""
        stored = await self._objects.list(part.prefix)
        # Brokers reserve keys before they upload, so the coordinator knows every key that was listed by now.
        known = await self._retention.list_objects(*part)
        return [key for key, _ in stored if key not in known and await self._exists(key)]

    async def _exists(self, key: str) -> bool:
        """Return whether the object was not deleted after it was listed."""
        try:
            await self._objects.size(key)
        except KeyError:
            return False
        return True

    def rest(self) -> None:
        """Reset the metric while another broker does maintenance."""
        self._found.clear()
        metrics.ORPHANS.set(0)
