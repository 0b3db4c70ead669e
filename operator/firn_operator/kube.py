"""The Kubernetes API (port `Cluster`): server-side apply, status, Events, and what the watches know."""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from firn.model import names
from firn.model.errors import AccessDeniedError, CommitConflictError, UnavailableError
from firn_controllers.ports import JobState, PodState, StatefulSetState
from firn_operator.api_client import APPLY, JSON_PATCH, MERGE_PATCH, PLURALS, Api, ApiError, Manifest, RateLimit, path
from firn_operator.workloads import Workloads

log = logging.getLogger(__name__)

_PAGE = 200
_EVENTS_KEPT = 2000
_EVENTS_WAITING = 5000
_EVENTS_PER_SECOND, _EVENTS_AT_ONCE = 25.0, 100
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

ChildKind = tuple[str, str]


@dataclass(slots=True)
class _Children:
    """Our children of one kind by name: hash and version. Metadata only."""

    read: float
    known: dict[str, tuple[str | None, str]]


class KubeCluster:
    """Port `Cluster` over a real API server. Made and used on one event loop."""

    def __init__(
        self, api: Api, namespace: str, workloads: Workloads, resync: float = 300.0, instance: str = "firn-operator"
    ) -> None:
        """``resync``: seconds for which a list of our own children is believed, where no watch keeps it fresh."""
        self._api = api
        self._namespace = namespace
        self._workloads = workloads
        self._resync = resync
        self._children: dict[ChildKind, _Children] = {}
        self._reading: dict[ChildKind, asyncio.Task[_Children]] = {}
        self._recorder = _Recorder(api, instance)

    async def run(self) -> None:
        """Send Events until cancelled."""
        await self._recorder.run()

    async def apply(self, manifest: Manifest) -> bool:
        """See `firn_controllers.ports.Cluster.apply`."""
        metadata = manifest["metadata"]
        kind = (manifest["apiVersion"], manifest["kind"])
        wanted = metadata.get("annotations", {}).get(names.TEMPLATE_HASH)
        ours = metadata["namespace"] == self._namespace
        children = await self._known_children(kind) if ours else None
        live_hash, live_version = children.known.get(metadata["name"], (None, "")) if children else (None, "")
        if kind[1] == "StatefulSet" and ours:
            live_hash = self._workloads.applied_hash(metadata["name"])
        if wanted is not None and live_hash == wanted:
            return False
        applied = await self._api.call(
            "PATCH",
            path(*kind, metadata["namespace"], metadata["name"]),
            {"fieldManager": names.FIELD_MANAGER, "force": "true"},
            manifest,
            APPLY,
        )
        version: str = applied["metadata"]["resourceVersion"]
        if kind[1] in ("StatefulSet", "Job") and ours:
            self._workloads.seen({**applied, "kind": kind[1]})
        if children is not None:
            children.known[metadata["name"]] = (wanted, version)
        return version != live_version

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Manifest | None:
        """See `firn_controllers.ports.Cluster.get`."""
        try:
            return await self._api.call("GET", path(api_version, kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        """See `firn_controllers.ports.Cluster.delete`."""
        children = self._children.get((api_version, kind))
        if children is not None and namespace == self._namespace:
            children.known.pop(name, None)
        try:
            await self._api.call(
                "DELETE", path(api_version, kind, namespace, name), {"propagationPolicy": "Background"}
            )
        except ApiError as error:
            if error.status != 404:
                raise

    async def stateful_set(self, name: str) -> StatefulSetState | None:
        """See `firn_controllers.ports.Cluster.stateful_set`."""
        return self._workloads.stateful_set(name)

    async def pods(self, labels: Mapping[str, str]) -> Sequence[PodState]:
        """See `firn_controllers.ports.Cluster.pods`."""
        return self._workloads.pods(labels)

    async def jobs(self, labels: Mapping[str, str]) -> Sequence[JobState]:
        """See `firn_controllers.ports.Cluster.jobs`."""
        return self._workloads.jobs(labels)

    async def list_names(self, api_version: str, kind: str, labels: Mapping[str, str]) -> Sequence[str]:
        """See `firn_controllers.ports.Cluster.list_names`."""
        found, _ = await list_all(self._api, api_version, kind, self._namespace, labels, metadata_only=True)
        return [manifest["metadata"]["name"] for manifest in found]

    async def patch_status(
        self, namespace: str, name: str, status: Manifest, resource_version: str, kind: str = "IcebergTopic"
    ) -> Manifest | None:
        """See `firn_controllers.ports.Cluster.patch_status`."""
        place = path(names.API_VERSION, kind, namespace, name, "status")
        return await self._patch(place, "/status", status, resource_version)

    async def set_finalizers(
        self, namespace: str, name: str, finalizers: Sequence[str], resource_version: str
    ) -> Manifest | None:
        """See `firn_controllers.ports.Cluster.set_finalizers`."""
        place = path(names.API_VERSION, "IcebergTopic", namespace, name)
        return await self._patch(place, "/metadata/finalizers", list(finalizers), resource_version)

    async def event(
        self, namespace: str, name: str, uid: str, kind: str, type_: str, reason: str, message: str
    ) -> None:
        """See `firn_controllers.ports.Cluster.event`. Sent in the background; dropped when far too many wait."""
        self._recorder.record(_Subject(namespace, name, uid, kind), type_, reason, message)

    async def _patch(self, place: str, pointer: str, value: object, resource_version: str) -> Manifest | None:
        operations = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": resource_version},
            {"op": "add", "path": pointer, "value": value},
        ]
        try:
            return await self._api.call("PATCH", place, {"fieldManager": names.FIELD_MANAGER}, operations, JSON_PATCH)
        except ApiError as error:
            if error.status == 404:
                return None
            # 422 is also what a patch gets whose test fails; an invalid object is told by its message.
            if error.status == 409 or (error.status == 422 and "is invalid" not in error.message):
                raise CommitConflictError(f"{place} changed since {resource_version}") from error
            raise

    async def _known_children(self, kind: ChildKind) -> _Children:
        children = self._children.get(kind)
        if children is not None and time.monotonic() - children.read < self._resync:
            return children
        task = self._reading.get(kind)
        if task is None or task.done():
            task = self._reading[kind] = asyncio.create_task(self._read_children(kind))
        return await asyncio.shield(task)

    async def _read_children(self, kind: ChildKind) -> _Children:
        labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY}
        known = {}
        async for items, _ in pages(self._api, *kind, self._namespace, labels, metadata_only=True):
            for manifest in items:
                metadata = manifest["metadata"]
                hash_ = metadata.get("annotations", {}).get(names.TEMPLATE_HASH)
                known[metadata["name"]] = (hash_, metadata["resourceVersion"])
        self._children[kind] = _Children(time.monotonic(), known)
        return self._children[kind]


async def pages(
    api: Api,
    api_version: str,
    kind: str,
    namespace: str | None,
    labels: Mapping[str, str],
    *,
    metadata_only: bool = False,
) -> AsyncIterator[tuple[list[Manifest], int]]:
    """All objects with these labels, page by page, each with the resource version that the whole list shows.

    Raises UnavailableError when the list expires before it is complete (410): begin again."""
    query = {"limit": str(_PAGE)}
    if labels:
        query["labelSelector"] = ",".join(f"{key}={value}" for key, value in labels.items())
    while True:
        try:
            page = await api.call(
                "GET",
                path(api_version, kind, namespace),
                query,
                accept=_METADATA_ONLY if metadata_only else "application/json",
            )
        except ApiError as error:
            if error.status == 410:
                raise UnavailableError(f"Kubernetes API: the list of {kind} expired before it was complete") from error
            raise
        items = [{**item, "apiVersion": api_version, "kind": kind} for item in page["items"] or ()]
        yield items, int(page["metadata"]["resourceVersion"])
        token = page["metadata"].get("continue")
        if not token:
            return
        query["continue"] = token


async def list_all(
    api: Api,
    api_version: str,
    kind: str,
    namespace: str | None,
    labels: Mapping[str, str],
    *,
    metadata_only: bool = False,
) -> tuple[list[Manifest], int]:
    """What `pages` gives, at once: for kinds of which there are few."""
    found: list[Manifest] = []
    version = 0
    async for items, shown in pages(api, api_version, kind, namespace, labels, metadata_only=metadata_only):
        version = shown
        found += items
    return found, version


@dataclass(frozen=True, slots=True)
class _Subject:
    namespace: str
    name: str
    uid: str
    kind: str


@dataclass(slots=True)
class _Sent:
    """An Event that exists: its name, first time and count."""

    name: str
    first: str
    count: int


class _Recorder:
    """Events, one by one in the background; the same one again only raises its count."""

    def __init__(self, api: Api, instance: str) -> None:
        self._api = api
        self._instance = instance
        self._limit = RateLimit(_EVENTS_PER_SECOND, _EVENTS_AT_ONCE)
        self._waiting: asyncio.Queue[tuple[_Subject, str, str, str]] = asyncio.Queue(_EVENTS_WAITING)
        self._sent: OrderedDict[bytes, _Sent] = OrderedDict()

    def record(self, subject: _Subject, type_: str, reason: str, message: str) -> None:
        try:
            self._waiting.put_nowait((subject, type_, reason, message))
        except asyncio.QueueFull:
            log.warning("event dropped: %s of %s %s/%s", reason, subject.kind, subject.namespace, subject.name)

    async def run(self) -> None:
        while True:
            item = await self._waiting.get()
            try:
                await self._send(*item)
            except (ApiError, UnavailableError, AccessDeniedError) as error:
                log.warning("event not recorded: %s", error)
            except Exception:
                log.exception("event not recorded")

    async def _send(self, subject: _Subject, type_: str, reason: str, message: str) -> None:
        key = hashlib.blake2b("\0".join((subject.uid, type_, reason, message)).encode(), digest_size=12).digest()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        sent = self._sent.pop(key, None)
        if sent is not None and await self._count(subject, sent, now):
            self._sent[key] = sent
            return
        sent = _Sent(f"{subject.name[:200]}.{key.hex()}{time.time_ns() // 1_000_000:x}", now, 1)
        apiversion = next((version for version, kind in PLURALS if kind == subject.kind), "v1")
        await self._api.call(
            "POST",
            path("v1", "Event", subject.namespace),
            body={
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": sent.name, "namespace": subject.namespace},
                "involvedObject": {
                    "apiVersion": apiversion,
                    "kind": subject.kind,
                    "namespace": subject.namespace,
                    "name": subject.name,
                    "uid": subject.uid,
                },
                "type": type_,
                "reason": reason,
                "message": message[:1024],
                "count": 1,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "source": {"component": names.FIELD_MANAGER},
                "reportingComponent": names.FIELD_MANAGER,
                "reportingInstance": self._instance,
            },
            limit=self._limit,
        )
        self._sent[key] = sent
        if len(self._sent) > _EVENTS_KEPT:
            self._sent.popitem(last=False)

    async def _count(self, subject: _Subject, sent: _Sent, now: str) -> bool:
        """Raise the count of an Event that was sent before; False where it has expired."""
        body = {"count": sent.count + 1, "lastTimestamp": now}
        try:
            await self._api.call(
                "PATCH",
                path("v1", "Event", subject.namespace, sent.name),
                body=body,
                content_type=MERGE_PATCH,
                limit=self._limit,
            )
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        sent.count += 1
        return True
