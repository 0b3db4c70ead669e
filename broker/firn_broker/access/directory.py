"""This broker's copy of credentials, ACLs and quotas. The broker refreshes it from the coordinator every second, and
after each change that it makes itself.

While the coordinator cannot be reached, the broker goes on with the copy that it has."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import TypeVar

import structlog

from firn.model.errors import UnavailableError
from firn_broker.access_types import AccessVersion, Acl, Entity, ScramCredential, ScramMechanism
from firn_broker.ports import AccessStore

log = structlog.get_logger()
K = TypeVar("K")
V = TypeVar("V", Sequence[ScramCredential], Sequence[Acl], Mapping[str, float])

REFRESH_SECONDS = 1.0
SECRET_BYTES = 32
"""Bytes of the secret of a cluster."""


class AccessDirectory:
    """Credentials by user, ACLs by principal, and quotas by entity. Each refresh that changes one replaces the mapping."""

    def __init__(self, store: AccessStore) -> None:
        self._store = store
        self._known: AccessVersion | None = None
        self._loading = asyncio.Lock()
        self.credentials: Mapping[str, Sequence[ScramCredential]] = {}
        self.acls: Mapping[str, Sequence[Acl]] = {}
        self.quotas: Mapping[Entity, Mapping[str, float]] = {}
        self.secret = b""
        """The secret that all brokers of the cluster share; empty before the first refresh."""
        self.version = 0
        """Rises with each change that this broker has loaded. It says nothing about the coordinator's version."""

    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return the credential of a user, without ``User:``."""
        for credential in self.credentials.get(user, ()):
            if credential.key.mechanism is mechanism:
                return credential
        return None

    async def refresh(self) -> None:
        """Load what has changed. Afterwards the copy has all changes that ended before this call. Raises
        UnavailableError."""
        # One load at a time: an earlier answer must not replace a later one.
        async with self._loading:
            if not self.secret:
                self.secret = await self._store.secret(secrets.token_bytes(SECRET_BYTES))
            loaded = await self._store.load_access(self._known)
            if loaded is None:
                return
            self.credentials = _merged(self.credentials, loaded.credentials, whole=loaded.whole)
            self.acls = _merged(self.acls, loaded.acls, whole=loaded.whole)
            self.quotas = _merged(self.quotas, loaded.quotas, whole=loaded.whole)
            self._known = loaded.version
            self.version += 1

    async def keep(self) -> None:
        """Refresh every second until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self.refresh()
            except UnavailableError as error:
                log.warning("cannot refresh credentials, ACLs and quotas", error=str(error))
            except Exception:
                log.exception("cannot refresh credentials, ACLs and quotas")


def _merged(old: Mapping[K, V], loaded: Mapping[K, V], *, whole: bool) -> Mapping[K, V]:
    """Return ``old`` with the loaded keys replaced, and without those that have nothing any more."""
    if not loaded and not whole:
        return old
    merged = dict(loaded) if whole else {**old, **loaded}
    return {key: value for key, value in merged.items() if value}
