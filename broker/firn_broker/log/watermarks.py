"""Who waits for records of which partition. A waiter registers before its first look, so that nothing falls between look and wait."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from firn_broker.log_types import Partition


class Watch:
    """One waiter's partitions, and which of them have grown since it last asked."""

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self.partitions = frozenset(partitions)
        self._grown: set[Partition] = set()
        self._event = asyncio.Event()

    def wake(self, partition: Partition) -> None:
        """The partition has grown."""
        self._grown.add(partition)
        self._event.set()

    async def wait(self, seconds: float) -> frozenset[Partition]:
        """The partitions that have grown, as soon as there are any; none when the time is over."""
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
    """All waiters of a broker. High watermarks come from its own commits at once, from those of others by polling (`watched`)."""

    def __init__(self) -> None:
        # In the order in which they came, and not that of a set: the same story each time.
        self._watches: dict[Partition, dict[Watch, None]] = {}
        self._seen: dict[Partition, int] = {}

    @contextmanager
    def watch(self, partitions: Iterable[Partition]) -> Iterator[Watch]:
        """A waiter for as long as the block runs."""
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
        """Partitions that somebody waits for."""
        return list(self._watches)

    def saw(self, partition: Partition, high_watermark: int, by: Watch | None = None) -> None:
        """Somebody read this high watermark, ``by`` whom it is no news to. All others hear of it when it is new, those too whose own look is
        still under way: it may tell of an earlier time. An older one that is read late says nothing."""
        watches = self._watches.get(partition)
        if watches and high_watermark > self._seen.get(partition, -1):
            self._seen[partition] = high_watermark
            for watch in watches:
                if watch is not by:
                    watch.wake(partition)

    def grew(self, partition: Partition, high_watermark: int) -> None:
        """This broker's own commit moved the high watermark."""
        watches = self._watches.get(partition)
        if watches:
            self._seen[partition] = max(high_watermark, self._seen.get(partition, -1))
            for watch in watches:
                watch.wake(partition)

    def gone(self, partition: Partition) -> None:
        """The partition is no more: who waits for it should look."""
        for watch in self._watches.get(partition, ()):
            watch.wake(partition)

    def wake(self) -> None:
        """Everybody should look."""
        for partition, watches in self._watches.items():
            for watch in watches:
                watch.wake(partition)
