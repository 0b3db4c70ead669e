"""Progress reports of ingestion applications (port `Progress`): ``/progress`` of each group's Service."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
from pydantic import ValidationError

from firn.model import names
from firn.model.progress import GroupProgress, ReportReader

log = logging.getLogger(__name__)

PORT = 8080
_TIMEOUT = aiohttp.ClientTimeout(total=5, connect=2)


def service_address(namespace: str) -> Callable[[str], str]:
    """Return a function from a group to the progress URL of its application in ``namespace``."""
    return lambda group: f"http://{names.ingestion(group)}.{namespace}.svc:{PORT}/progress"


@dataclass(slots=True)
class _Last:
    asked: float = float("-inf")
    answer: tuple[GroupProgress, float] | None = None
    reader: ReportReader = field(default_factory=ReportReader)


class HttpProgress:
    """Port `Progress` over HTTP. If a group stops answering, the last answer stays, with its time."""

    def __init__(self, address: Callable[[str], str]) -> None:
        self._address = address
        self._last: dict[str, _Last] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._session: aiohttp.ClientSession | None = None

    async def read(self, group: str, max_age: float) -> tuple[GroupProgress, float] | None:
        """Return a report of a group and its monotonic time; None if there is no report."""
        async with self._locks.setdefault(group, asyncio.Lock()):
            now = asyncio.get_running_loop().time()
            last = self._last.setdefault(group, _Last())
            if now - last.asked >= max_age:
                await self._ask(group, last)
                # The calls that waited for a driver that hangs share its failure.
                last.asked = asyncio.get_running_loop().time()
            return last.answer

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, group: str, last: _Last) -> None:
        """Ask the driver, and store its answer."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        try:
            async with self._session.get(self._address(group)) as response:
                response.raise_for_status()
                text = await response.read()
            last.answer = last.reader.read(text), time.monotonic()
        except (aiohttp.ClientError, TimeoutError) as error:
            log.debug("ingestion group %s does not answer on /progress: %s", group, error)
        except ValidationError as error:
            log.error("ingestion group %s sends an invalid progress document: %s", group, error)
