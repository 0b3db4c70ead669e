"""Claims of namespaces: one release manages the resources of a namespace, also if another release watches it too.

A claim is the Lease ``firn-operator`` in the namespace, and its holder is the namespace of the release. The first release
that asks gets the claim and renews the Lease. Another release can follow after the Lease was deleted, or after hours
without a renewal.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from firn.model import names
from firn.model.errors import AccessDeniedError, UnavailableError
from firn_operator.adapters.kube.api_client import JSON, Api, ApiError, Manifest, path

log = logging.getLogger(__name__)

SECONDS = 6 * 3600
"""Time without a renewal after which another release may take the claim.

Drivers of a release land records while its operator is down, and no other release can see them. So an outage must not
pass on the claim.
"""
TRUSTED = SECONDS / 2
"""Seconds after a renewal for which a release has the claim without asking for it again."""
RENEWAL = 60.0
"""Seconds between two renewals."""
_LOOK_AGAIN = 15.0
"""Seconds between two reads of the claim of another release."""
_LEASE = ("coordination.k8s.io/v1", "Lease")


@dataclass(slots=True)
class _Rival:
    """The claim of another release, as this process saw it. Clocks of two nodes are never compared."""

    holder: str
    version: str
    since: float
    looked: float


class Claims:
    """The claims of one release."""

    def __init__(self, api: Api, holder: str) -> None:
        self._api = api
        self._holder = holder
        self._held: dict[str, float] = {}
        """Namespace -> time of the last renewal of its claim."""
        self._rivals: dict[str, _Rival] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def rival(self, namespace: str) -> str | None:
        """Claim a namespace. Return the namespace of the release that has the claim, or None if it is this release."""
        if self._has(namespace):
            return None
        async with self._locks.setdefault(namespace, asyncio.Lock()):
            known = self._rivals.get(namespace)
            if known is None or time.monotonic() - known.looked >= _LOOK_AGAIN:
                try:
                    await self._look(namespace)
                except (ApiError, AccessDeniedError) as error:
                    if not _ending(error):
                        raise
                    return None
            if self._has(namespace):
                return None
            known = self._rivals.get(namespace)
            if known is None:
                raise UnavailableError(
                    f"another process changes the claim of namespace {namespace}; the next reconcile retries"
                )
            return known.holder

    async def run(self) -> None:
        """Renew the claims until cancelled."""
        while True:
            await asyncio.sleep(RENEWAL)
            for namespace in sorted(self._held):
                try:
                    await self._look(namespace)
                except (ApiError, UnavailableError, AccessDeniedError) as error:
                    if _ending(error):
                        self._held.pop(namespace, None)
                        continue
                    log.warning("cannot renew the claim of namespace %s; the next try follows: %s", namespace, error)

    def _has(self, namespace: str) -> bool:
        renewed = self._held.get(namespace)
        return renewed is not None and time.monotonic() - renewed < TRUSTED

    async def _look(self, namespace: str) -> None:
        """Create, renew or take over the claim, or note its holder."""
        now = time.monotonic()
        live = await self._lease(namespace)
        holder = (live["spec"].get("holderIdentity") or self._holder) if live is not None else self._holder
        if live is not None and holder != self._holder:
            version = live["metadata"]["resourceVersion"]
            known = self._rivals.get(namespace)
            since = known.since if known is not None and known.version == version else now
            if now - since < SECONDS:
                self._note(namespace, _Rival(holder, version, since, now))
                return
        if await self._write(namespace, live):
            self._rivals.pop(namespace, None)
            self._held[namespace] = now
        else:  # another process was faster; the next read shows its claim
            self._held.pop(namespace, None)
            self._rivals.pop(namespace, None)

    def _note(self, namespace: str, rival: _Rival) -> None:
        if namespace not in self._rivals:
            log.warning(
                "the release in namespace %s manages the resources of namespace %s, so this operator leaves them alone; remove the namespace"
                " from watchNamespaces of one of the two releases, or delete its Lease firn-operator if that release is uninstalled",
                rival.holder,
                namespace,
            )
        self._rivals[namespace] = rival
        self._held.pop(namespace, None)

    async def _lease(self, namespace: str) -> Manifest | None:
        try:
            return await self._api.call("GET", path(*_LEASE, namespace, names.CLAIM))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _write(self, namespace: str, live: Manifest | None) -> bool:
        """Write the claim. Returns False if the Lease has changed since it was read."""
        spec = {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": SECONDS,
            "renewTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        }
        metadata = {"name": names.CLAIM, "namespace": namespace}
        if live is not None:
            metadata["resourceVersion"] = live["metadata"]["resourceVersion"]
        lease = {"apiVersion": _LEASE[0], "kind": _LEASE[1], "metadata": metadata, "spec": spec}
        place = path(*_LEASE, namespace, names.CLAIM if live is not None else "")
        try:
            await self._api.call("PUT" if live is not None else "POST", place, None, lease, JSON)
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        return True


def _ending(error: Exception) -> bool:
    """Return whether the namespace does not exist or is being deleted. No other release can claim it then."""
    return (isinstance(error, ApiError) and error.status == 404) or "because it is being terminated" in str(error)
