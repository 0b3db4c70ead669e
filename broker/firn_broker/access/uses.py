"""The last use of each SCRAM credential, which the coordinator stores to the minute.

An open connection uses its credential all the time. So an administrator can see when the traffic of a replaced password
has ended."""

import asyncio
from typing import Protocol

import structlog

from firn.model.clock import Clock
from firn.model.errors import UnavailableError
from firn_broker.access_types import CredentialKey
from firn_broker.ports import AccessStore

log = structlog.get_logger()

FLUSH_SECONDS = 1.0
STORED_SECONDS = 60.0
"""Seconds between two times that a broker stores for a credential."""


class Uses(Protocol):
    """Notes uses of credentials."""

    def note(self, key: CredentialKey) -> None:
        """Note that a client uses the credential now."""
        ...


class CredentialUses:
    """Stores the last uses by clients of this broker."""

    def __init__(self, store: AccessStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._used: set[CredentialKey] = set()
        """Credentials used since the last flush."""
        self._stored: dict[CredentialKey, float] = {}
        """Monotonic time of the last write of each credential, at most `STORED_SECONDS` ago."""

    def note(self, key: CredentialKey) -> None:
        """Note that a client uses the credential now."""
        self._used.add(key)

    async def flush(self) -> None:
        """Store the uses whose last write is a minute ago. Raises UnavailableError."""
        now = self._clock.monotonic()
        self._stored = {key: at for key, at in self._stored.items() if now - at < STORED_SECONDS}
        due = [key for key in self._used if key not in self._stored]
        self._used.clear()
        if not due:
            return
        await self._store.note_uses(due, int(self._clock.now().timestamp() * 1000))
        self._stored.update(dict.fromkeys(due, now))

    async def keep(self) -> None:
        """Flush every second until cancelled. A live connection notes its use again after a failure."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self.flush()
            except UnavailableError as error:
                log.warning("cannot store the last uses of credentials", error=str(error))
            except Exception:
                log.exception("cannot store the last uses of credentials")
