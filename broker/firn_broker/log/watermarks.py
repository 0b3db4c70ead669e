"""The fetches that wait for records, by partition.

A fetch registers before it first looks for records, so that it misses no record between that look and its wait.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from firn_broker.log_types import Partition


class Watch:
    """The partitions of one waiting fetch, and those of them that have grown since its last `wait`."""

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self.partitions = frozenset(partitions)
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
        self._seen: dict[Partition, int] = {}

    @contextmanager
    def watch(self, partitions: Iterable[Partition]) -> Iterator[Watch]:
        """Register a waiting fetch for as long as the block runs."""
        watch = Watch(partitions)
        for partition in watch.partitions:
            self._watches.setdefault(partition, {})[watch] = None
        try:
            yield watch
        finally:
            for partition in watch.partitions:
                waiting = self._watches[partition]
                waiting.pop(watch, None)
                if not waiting:
                    del self._watches[partition]
                    self._seen.pop(partition, None)

    def watched(self) -> Sequence[Partition]:
        """List the partitions that a fetch waits for."""
        return list(self._watches)

    def observe(self, partition: Partition, high_watermark: int, by: Watch | None = None) -> None:
        """Wake the fetches that do not know this high watermark yet, all but the one that read it (``by``).

        A fetch whose own read is still running is woken too, because that read may return an earlier state. A high
        watermark that is not newer than the last one wakes no fetch."""
        watches = self._watches.get(partition)
        if watches and high_watermark > self._seen.get(partition, -1):
            self._seen[partition] = high_watermark
            for watch in watches:
                if watch is not by:
                    watch.wake(partition)

    def advance(self, partition: Partition, high_watermark: int) -> None:
        """Wake all fetches of the partition after a commit of this broker moved its high watermark."""
        watches = self._watches.get(partition)
        if watches:
            self._seen[partition] = max(high_watermark, self._seen.get(partition, -1))
            for watch in watches:
                watch.wake(partition)

    def wake_partition(self, partition: Partition) -> None:
        """Wake all fetches of a partition that does not exist any more."""
        for watch in self._watches.get(partition, ()):
            watch.wake(partition)

    def wake(self) -> None:
        """Wake all fetches."""
        for partition, watches in self._watches.items():
            for watch in watches:
                watch.wake(partition)
