"""The processes that rebuild batches from data files for a broker.

Processes of their own do it, because decoding a row group takes as long as many requests, and needs libraries that a broker without such
topics does not load. All ranges of an entry go to one process, which keeps its rows for the next ones."""

import asyncio
import json
from collections.abc import Sequence
from zlib import crc32

from firn.model.errors import CorruptDataError, UnavailableError
from firn_broker.log.blocks import slot_of
from firn_broker.log.checks import AnsweringProcess
from firn_broker.log_types import BatchRange
from firn_broker.settings import BrokerSettings

DONE, DAMAGED, UNAVAILABLE = b"\x00", b"\x01", b"\x02"
"""First byte of an answer. The bytes of all ranges follow, or a message."""
NICENESS = 5
"""The rebuilding must not take a core from the broker's event loop."""
SECONDS = 60.0
"""Seconds after which a process counts as stuck. A row group takes a second."""


class HistoryWorkers:
    """`History` in processes. Each answers one request at a time."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings.model_dump_json(by_alias=True)
        count = settings.history.workers
        self._processes = [AnsweringProcess("firn_broker.history.rebuilding.worker", SECONDS) for _ in range(count)]
        self._turns = [asyncio.Lock() for _ in range(count)]

    async def start(self) -> None:
        """Start processes that do not run. Raises UnavailableError."""
        for number, process in enumerate(self._processes):
            if not process.running:
                await self._ask(number, ())

    async def rebuild(self, ranges: Sequence[BatchRange]) -> list[memoryview]:
        """Return the batches of each range."""
        content = await self._ask(crc32(slot_of(ranges[0])[0].encode()) % len(self._processes), ranges)
        found, place = [], 0
        for each in ranges:
            found.append(content[place : place + each.place.length])
            place += each.place.length
        return found

    async def _ask(self, number: int, ranges: Sequence[BatchRange]) -> memoryview:
        """Return the batches of ranges, one after the other, from a process. Raises CorruptDataError and UnavailableError."""
        frame = json.dumps({"settings": self._settings, "ranges": ranges}).encode()
        async with self._turns[number]:
            try:
                answer = memoryview(await self._processes[number].ask(frame))
            except (OSError, asyncio.IncompleteReadError) as error:
                raise UnavailableError(
                    f"the process that rebuilds batches ended or is stuck: {error!r}. The next request starts it again. If this repeats, the"
                    " pod has too little memory: raise its limit"
                ) from error
        status, content = bytes(answer[:1]), answer[1:]
        if status != DONE:
            kind = CorruptDataError if status == DAMAGED else UnavailableError
            raise kind(bytes(content).decode())
        return content

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()
