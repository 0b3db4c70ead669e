"""An object store that flips a bit of an answer now and then."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random

from firn_broker.storage.objects import MemoryObjects


class FlippingObjects(MemoryObjects):
    """Flips one bit in about ``share`` of the answers, but not in two answers in a row for one task and object.

    The stored objects stay whole.
    """

    def __init__(self, chance: Random, faults: Counter[str]) -> None:
        super().__init__()
        self.share = 0.0
        self._chance = chance
        self._faults = faults
        self._flipped: set[tuple[asyncio.Task[object] | None, str]] = set()

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read byte ranges of the object."""
        contents = await super().get_ranges(key, ranges)
        reader = asyncio.current_task(), key
        if self._chance.random() >= self.share or reader in self._flipped:
            self._flipped.discard(reader)
            return contents
        self._flipped.add(reader)
        self._faults["bit flipped"] += 1
        contents = [memoryview(bytearray(content)) for content in contents]
        content = self._chance.choice(contents)
        content[self._chance.randrange(len(content))] ^= 1 << self._chance.randrange(8)
        return contents
