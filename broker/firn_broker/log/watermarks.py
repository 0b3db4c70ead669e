"""The fetches that wait for records, by partition, and the last known ends of partitions.

A fetch registers before it first looks for records, so that it misses no record between that look and its wait.

A fetch from the known end of a partition finds nothing there. It waits without a lookup until a poll of the coordinator
that began after its arrival has confirmed that end.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from firn_broker.log_types import Partition

KNOWN = 50_000
"""Partitions whose ends are remembered. Each takes about 320 bytes."""


class Watch(ABC):
    """The partitions of one waiting fetch."""

    def __init__(self, partitions: frozenset[Partition]) -> None:
        self.partitions = partitions
        self.confirmed = False
        """True if a poll that began after the registration has read the ends of the partitions."""

    @abstractmethod
    def wake(self, partition: Partition) -> None:
        """Note that the partition has grown. Must not register or unregister a watch."""


class Waiter(Watch):
    """A task that waits, and the partitions that have grown since its last `wait`."""

    def __init__(self, partitions: Iterable[Partition]) -> None:
        super().__init__(frozenset(partitions))
        self._grown: set[Partition] = set()
        self._event = asyncio.Event()

    def wake(self, partition: Partition) -> None:
        """Mark the partition as grown, and wake the fetch."""
        self._grown.add(partition)
        self._event.set()

    async def wait(self, seconds: float) -> frozenset[Partition]:
        """Return the partitions that have grown as soon as there are any; none after ``seconds``."""
        if not self._grown:
            try:
                async with asyncio.timeout(seconds):
                    await self._event.wait()
            except TimeoutError:
                pass
        self._event.clear()
        grown = frozenset(self._grown)
        self._grown.clear()
        return grown


class Watermarks:
    """All waiting fetches of a broker. Its own commits report new high watermarks at once; a poll finds those of other
    brokers (`watched`)."""

    def __init__(self) -> None:
        # A dict keeps the order of arrival, which a set does not: simulations with the same seed run the same way.
        self._watches: dict[Partition, dict[Watch, None]] = {}
        self._claims: dict[Watch, None] = {}
        self._known: OrderedDict[Partition, tuple[int, int]] = OrderedDict()
        """Log start and high watermark of partitions, the least recently used first."""

    @contextmanager
    def watch(self, partitions: Iterable[Partition]) -> Iterator[Waiter]:
        """Register a waiting fetch for as long as the block runs."""
        watch = Waiter(partitions)
        self.register(watch)
        try:
            yield watch
        finally:
            self.unregister(watch)

    def register(self, watch: Watch) -> None:
        """Register a waiting fetch."""
        for partition in watch.partitions:
            self._watches.setdefault(partition, {})[watch] = None

    def unregister(self, watch: Watch) -> None:
        """Remove a waiting fetch."""
        self._claims.pop(watch, None)
        for partition in watch.partitions:
            waiting = self._watches[partition]
            waiting.pop(watch, None)
            if not waiting:
                del self._watches[partition]

    def known(self, partition: Partition) -> tuple[int, int] | None:
        """Return the last known log start and high watermark, None if they are not known."""
        known = self._known.get(partition)
        if known is not None:
            self._known.move_to_end(partition)
        return known

    def claim(self, watch: Watch) -> None:
        """Let the next poll confirm the known ends of the partitions of this fetch."""
        self._claims[watch] = None

    def claims(self) -> Sequence[Watch]:
        """List the fetches whose ends no poll has confirmed."""
        return list(self._claims)

    def confirm(self, claims: Iterable[Watch]) -> None:
        """Note that a poll that began after these claims has read the ends of their partitions."""
        for watch in claims:
            watch.confirmed = True
            self._claims.pop(watch, None)

    def doubt(self, claims: Iterable[Watch]) -> None:
        """Wake these fetches after a failed poll, so that they look their partitions up and report the failure."""
        for watch in claims:
            for partition in watch.partitions:
                watch.wake(partition)

    def watched(self) -> Sequence[Partition]:
        """List the partitions that a fetch waits for."""
        return list(self._watches)

    def observe(self, partition: Partition, log_start: int, high_watermark: int, by: Watch | None = None) -> None:
        """Wake the fetches that do not know this high watermark yet, all but the one that read it (``by``).

        A fetch whose own read is still running is woken too, because that read may return an earlier state. A high
        watermark that is not newer than the last one wakes no fetch."""
        start, before = self._known.get(partition, (-1, -1))
        if high_watermark < before:
            return
        self._known[partition] = max(start, log_start), high_watermark
        self._known.move_to_end(partition)
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)
        if high_watermark > before:
            for watch in self._watches.get(partition, ()):
                if watch is not by:
                    watch.wake(partition)

    def poll(self, partition: Partition, log_start: int, high_watermark: int) -> None:
        """Use the bounds that a poll has read.

        If bounds are lower than the known bounds, a commit of this broker was faster than the poll, or the coordinator
        went back. Then each fetch reads the bounds again."""
        known = self._known.get(partition, (-1, -1))
        if log_start < known[0] or high_watermark < known[1]:
            self.forget(partition)
        else:
            self.observe(partition, log_start, high_watermark)

    def advance(self, partition: Partition, high_watermark: int) -> None:
        """Wake all fetches of the partition after a commit of this broker moved its high watermark."""
        known = self._known.get(partition)
        if known is not None and high_watermark > known[1]:
            self._known[partition] = known[0], high_watermark
        for watch in self._watches.get(partition, ()):
            watch.wake(partition)

    def forget(self, partition: Partition) -> None:
        """Wake all fetches of a partition whose known end is wrong, or which does not exist any more."""
        self._known.pop(partition, None)
        for watch in self._watches.get(partition, ()):
            watch.wake(partition)

    def wake(self) -> None:
        """Wake all fetches."""
        for partition, watches in self._watches.items():
            for watch in watches:
                watch.wake(partition)
