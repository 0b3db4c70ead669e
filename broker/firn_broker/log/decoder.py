"""The decoding of records outside the event loop, where a long batch delays no other request.

Turns go round the addresses of clients. A turn decodes one batch at most, and `TURN_RECORDS` of its records. So a
client waits for one turn of each other address, however many requests these have."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from firn_broker.log.turns import Turns

T = TypeVar("T")

TURN_RECORDS = 10_000
"""Records that one turn of a search or of compaction decodes, which takes some 30 to 70 ms. Compacted topics accept no
larger batches."""
SEARCHES, SEARCHES_OF_ADDRESS = 8, 2
"""Searches for timestamps at the same time. Each holds a batch range in memory."""
OPENED = 2
"""Batches that searches have decompressed at the same time, each of another address. Each takes up to
`firn.records.contents.MAX_BYTES`."""
OWN = "broker"
"""The party of the broker's own work. It has no colon, so it is the address of no client."""


class Decoder:
    """Runs the decoding of one batch at a time in a thread of its own.

    More threads would decode no faster, because they would share the interpreter's lock.
    """

    def __init__(self, executor: Executor | None) -> None:
        """Decode in the only thread of ``executor``; None decodes in the event loop, with the same result in each
        simulation."""
        self._executor = executor
        self._turns = Turns(1, 1)
        self.searches = Turns(SEARCHES, SEARCHES_OF_ADDRESS)
        """Held by a search for a timestamp while it looks up, loads and decodes one batch range."""
        self.opened = Turns(OPENED, 1)
        """Held by a search for a timestamp while it decodes one batch."""

    async def run(self, work: Callable[[], T], address: str = OWN) -> T:
        """Return the result of ``work`` for a client at ``address``, during which other requests run."""
        async with self._turns.turn(address):
            if self._executor is None:
                await asyncio.sleep(0)
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
