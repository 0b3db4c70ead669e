"""The Kubernetes API (port `Cluster`): server-side apply, status, Events, and the state from the watches."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firn.model import names
from firn.model.errors import CommitConflictError
from firn_controllers.ports import JobState, PodState, StatefulSetState
from firn_operator.adapters.kube.api_client import (
    APPLY,
    JSON_PATCH,
    Api,
    ApiError,
    Manifest,
    path,
)
from firn_operator.adapters.kube.events import EventRecorder, EventSubject
from firn_operator.adapters.kube.lists import list_all, pages
from firn_operator.adapters.kube.workloads import Workloads

log = logging.getLogger(__name__)

ChildKind = tuple[str, str]


@dataclass(slots=True)
class _Children:
    """Our child objects of one kind by name: template hash and resource version."""

    read: float
    versions: dict[str, tuple[str | None, str]]


class KubeCluster:
    """Port `Cluster` over a real API server. Made and used on one event loop."""

    def __init__(
        self, api: Api, namespace: str, workloads: Workloads, resync: float = 300.0, instance: str = "firn-operator"
    ) -> None:
        """Use ``api``. ``resync``: seconds after which a list of child objects without a watch is read again."""
        self._api = api
        self._namespace = namespace
        self._workloads = workloads
        self._resync = resync
        self._children: dict[ChildKind, _Children] = {}
        self._reading: dict[ChildKind, asyncio.Task[_Children]] = {}
        self._recorder = EventRecorder(api, instance)

    async def run(self) -> None:
        """Send Events until cancelled."""
        await self._recorder.run()

    async def apply(self, manifest: Manifest) -> bool:
        """Apply an object server-side, unless its hash is the live one. Returns True if the object changed."""
        metadata = manifest["metadata"]
        kind = (manifest["apiVersion"], manifest["kind"])
        wanted_hash = metadata.get("annotations", {}).get(names.TEMPLATE_HASH)
        ours = metadata["namespace"] == self._namespace
        children = await self._known_children(kind) if ours else None
        live_hash, live_version = children.versions.get(metadata["name"], (None, "")) if children else (None, "")
        if kind[1] == "StatefulSet" and ours:
            live_hash = self._workloads.applied_hash(metadata["name"])
        if wanted_hash is not None and live_hash == wanted_hash:
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
            children.versions[metadata["name"]] = (wanted_hash, version)
        return version != live_version

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return an object; None if it does not exist."""
        try:
            return await self._api.call("GET", path(api_version, kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        """Delete an object. Succeed if it does not exist."""
        children = self._children.get((api_version, kind))
        if children is not None and namespace == self._namespace:
            children.versions.pop(name, None)
        try:
            await self._api.call(
                "DELETE", path(api_version, kind, namespace, name), {"propagationPolicy": "Background"}
            )
        except ApiError as error:
            if error.status != 404:
                raise

    async def stateful_set(self, name: str) -> StatefulSetState | None:
        """Return the state of a StatefulSet as the watches show it."""
        return self._workloads.stateful_set(name)

    async def pods(self, labels: Mapping[str, str]) -> Sequence[PodState]:
        """Return the pods with these labels as the watches show them."""
        return self._workloads.pods(labels)

    async def jobs(self, labels: Mapping[str, str]) -> Sequence[JobState]:
        """Return the Jobs with these labels as the watches show them."""
        return self._workloads.jobs(labels)

    async def list_names(self, api_version: str, kind: str, labels: Mapping[str, str]) -> Sequence[str]:
        """List the names of objects in the operator's namespace."""
        manifests, _ = await list_all(self._api, api_version, kind, self._namespace, labels, metadata_only=True)
        return [manifest["metadata"]["name"] for manifest in manifests]

    async def patch_status(
        self, namespace: str, name: str, status: Manifest, resource_version: str, kind: str = "IcebergTopic"
    ) -> Manifest | None:
        """Replace the status of a resource, if its resource version is still the given one."""
        place = path(names.API_VERSION, kind, namespace, name, "status")
        return await self._patch(place, "/status", status, resource_version)

    async def set_finalizers(
        self, namespace: str, name: str, finalizers: Sequence[str], resource_version: str
    ) -> Manifest | None:
        """Replace the finalizers of a resource, if its resource version is still the given one."""
        place = path(names.API_VERSION, "IcebergTopic", namespace, name)
        return await self._patch(place, "/metadata/finalizers", list(finalizers), resource_version)

    async def event(
        self, namespace: str, name: str, uid: str, kind: str, type_: str, reason: str, message: str
    ) -> None:
        """Send an Event in the background. It is dropped if too many wait."""
        self._recorder.record(EventSubject(namespace, name, uid, kind), type_, reason, message)

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
            # A patch whose test fails gets 422, too. Only the message distinguishes an invalid object.
            if error.status == 409 or (error.status == 422 and "is invalid" not in error.message):
                raise CommitConflictError(
                    f"Kubernetes API, PATCH {place}: the object changed after resourceVersion {resource_version}; the next reconcile retries"
                ) from error
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
        children = {}
        async for items, _ in pages(self._api, *kind, self._namespace, labels, metadata_only=True):
            for manifest in items:
                metadata = manifest["metadata"]
                hash_ = metadata.get("annotations", {}).get(names.TEMPLATE_HASH)
                children[metadata["name"]] = (hash_, metadata["resourceVersion"])
        self._children[kind] = _Children(time.monotonic(), children)
        return self._children[kind]
