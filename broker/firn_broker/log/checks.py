"""The check of batches for compacted topics: it decodes every record.

A process of its own does it, because decoding threads share the interpreter's lock with the event loop. Turns go round the
addresses of clients.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from functools import partial

import structlog
from kio.schema.errors import ErrorCode

from firn.records import keys
from firn.records.record_batch import Batch, InvalidBatchError
from firn_broker.log.decoder import Decoder
from firn_broker.log.turns import Turns

log = structlog.get_logger()

SECONDS = 10.0
"""Seconds after which the process counts as stuck. A batch takes a twentieth of a second."""


class AnsweringProcess:
    """A process that answers one frame at a time (`firn_broker.log.check_process.serve`). It starts with the first frame."""

    def __init__(self, module: str, seconds: float = SECONDS) -> None:
        """``module`` is the program of the process. It counts as stuck after ``seconds`` without an answer."""
        self._module = module
        self._seconds = seconds
        self._process: Process | None = None

    @property
    def running(self) -> bool:
        """Return whether the process was started, and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def ask(self, *frame: bytes) -> bytes:
        """Return the answer to a frame, which has these parts. The caller waits for it before it sends another one.

        Raises OSError or IncompleteReadError if the process ended or is stuck. The next frame starts it again.
        """
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self._module, stdin=PIPE, stdout=PIPE
            )
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        try:
            async with asyncio.timeout(self._seconds):
                requests.write(sum(map(len, frame)).to_bytes(4, "big"))
                for part in frame:
                    requests.write(part)
                await requests.drain()
                return await answers.readexactly(int.from_bytes(await answers.readexactly(4), "big"))
        except BaseException:
            self.close()  # the answer to this frame must not become that to the next one
            raise

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()


class Checks:
    """Checks one batch at a time."""

    def __init__(self, decoder: Decoder, *, own_process: bool) -> None:
        """Check in a process, or with ``decoder`` if there is none or it fails."""
        self._decoder = decoder
        self._own_process = own_process
        self._turns = Turns(1, 1)
        self._process = AnsweringProcess("firn_broker.log.check_process")
        self._stopped = False

    async def require(self, batch: Batch, address: str) -> None:
        """Check a batch of the client at ``address``. Raises InvalidBatchError, as `firn.records.keys.require` does."""
        if self._own_process:
            async with self._turns.turn(address):
                try:
                    return await self._ask(batch)
                except (OSError, asyncio.IncompleteReadError) as error:
                    if not self._stopped:
                        log.warning(
                            "the process that checks batches ended or is stuck; the next batch starts it again",
                            error=repr(error),
                        )
        await self._decoder.run(partial(keys.require, batch), address)

    async def _ask(self, batch: Batch) -> None:
        answered = await self._process.ask(bytes(batch.data))
        if answered:
            raise InvalidBatchError(ErrorCode(int.from_bytes(answered[:2], "big", signed=True)), answered[2:].decode())

    def close(self) -> None:
        """End the process, because the broker stops."""
        self._stopped = True
        self._process.close()
