"""The Kubernetes API (port `Cluster`): server-side apply, status, Events, and the state from the watches."""

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firn.model import names
from firn.model.errors import AccessDeniedError, CommitConflictError, ConflictError, InvalidSpecError, UnavailableError
from firn_controllers.fleet.access import API_SERVER_KEYS
from firn_controllers.ports import JobState, PodState, StatefulSetState
from firn_operator.adapters.kube import field_managers
from firn_operator.adapters.kube.api_client import (
    APPLY,
    JSON_PATCH,
    KEY_SET,
    Api,
    ApiError,
    Manifest,
    path,
)
from firn_operator.adapters.kube.claims import Claims
from firn_operator.adapters.kube.events import EventRecorder, EventSubject
from firn_operator.adapters.kube.lists import list_all, pages
from firn_operator.adapters.kube.workloads import Applied, Workloads

log = logging.getLogger(__name__)

ChildKind = tuple[str, str]
LONGEST_LOG = 16 * 2**20
"""Bytes of a pod's log that the operator reads at most."""


@dataclass(slots=True)
class _Children:
    """Our child objects of one kind by name, and the time of the list."""

    read: float
    live: dict[str, Applied]


class KubeCluster:
    """Port `Cluster` over a real API server. Made and used on one event loop."""

    def __init__(
        self, api: Api, namespace: str, workloads: Workloads, resync: float = 300.0, instance: str = "firn-operator"
    ) -> None:
        """Use ``api``. ``resync``: seconds after which a list of child objects is read again."""
        self._api = api
        self._namespace = namespace
        self._workloads = workloads
        self._resync = resync
        self._children: dict[ChildKind, _Children] = {}
        self._applied: dict[tuple[str, str], str] = {}
        """Kind and name -> edition of the object after the last apply of this process."""
        self._reading: dict[ChildKind, asyncio.Task[_Children]] = {}
        self._changed: dict[ChildKind, set[str]] = {}
        """Names of objects that were applied, deleted or shown by a watch since the last read of their kind began."""
        self._recorder = EventRecorder(api, instance)
        self._claims = Claims(api, namespace)

    async def run(self) -> None:
        """Send Events and renew claims until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._recorder.run())
            tasks.create_task(self._claims.run())

    async def rival(self, namespace: str) -> str | None:
        """Claim the resources of a namespace, or return the namespace of the release that has claimed them."""
        return await self._claims.rival(namespace)

    async def apply(self, manifest: Manifest, *, always: bool = False) -> bool:
        """Apply an object server-side. Returns True if the object changed.

        The request is skipped if the live object has the hash of the manifest, and no client has edited the object since
        this process applied it. ``always`` sends it in any case. A Job is applied once, because its template is fixed.
        Fields that other clients added to the spec of a kind in `field_managers.RESTORED` are removed.
        """
        metadata = manifest["metadata"]
        kind = (manifest["apiVersion"], manifest["kind"])
        name = metadata["name"]
        wanted_hash = metadata.get("annotations", {}).get(names.TEMPLATE_HASH)
        ours = metadata["namespace"] == self._namespace
        children = await self._known_children(kind) if ours else None
        live = children.live.get(name) if children else None
        if kind[1] == "StatefulSet" and ours:
            live = self._workloads.applied(name)
        same = wanted_hash is not None and live is not None and live.hash == wanted_hash
        untouched = live is not None and self._applied.get((kind[1], name)) == live.edition
        if same and (kind[1] == "Job" or untouched) and not always:
            return False
        try:
            answer = await self._sent(manifest)
        except (AccessDeniedError, ApiError) as error:
            if not same or always:
                raise
            # The object has our template. Health must not wait for the repair of an edit.
            log.warning("%s %s may have been edited, and cannot be restored: %s", kind[1], name, error)
            return False
        restored = await self._restored(manifest, answer)
        answer = restored or answer
        if kind[1] in ("StatefulSet", "Job") and ours:
            self._workloads.seen({**answer, "kind": kind[1]})
        applied = Applied.of(answer)
        if ours:
            self._note(kind, name, applied, settled=restored is not None)
        return live is None or applied.version != live.version

    async def _sent(self, manifest: Manifest) -> Manifest:
        place = path(
            manifest["apiVersion"], manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        )
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        return await self._api.call("PATCH", place, query, manifest, APPLY)

    async def _restored(self, manifest: Manifest, live: Manifest) -> Manifest | None:
        """Remove the fields that other clients added to the spec of an applied object.

        Returns the object, or None if that failed, for example because the object changed meanwhile.
        """
        managers = field_managers.added_by(live) if manifest["kind"] in field_managers.RESTORED else []
        if not managers:
            return live
        metadata = live["metadata"]
        log.warning(
            "%s %s: remove the fields of spec that %s added", manifest["kind"], metadata["name"], ", ".join(managers)
        )
        place = path(manifest["apiVersion"], manifest["kind"], metadata["namespace"], metadata["name"])
        try:
            await self._patch(
                place, "/metadata/managedFields", field_managers.taken_over(live), metadata["resourceVersion"]
            )
            return await self._sent(manifest)
        except (AccessDeniedError, ApiError, CommitConflictError) as error:
            log.warning("%s %s: these fields cannot be removed now: %s", manifest["kind"], metadata["name"], error)
            return None

    def seen(self, manifest: Manifest, *, gone: bool) -> bool:
        """Store the state of a child object that a watch shows. Return False if this state or a newer one is known."""
        kind = (manifest["apiVersion"], manifest["kind"])
        name = manifest["metadata"]["name"]
        children = self._children.get(kind)
        if children is None:
            return False  # this process has applied no object of this kind yet; the first apply lists the kind
        shown, known = Applied.of(manifest), children.live.get(name)
        if known is not None and int(shown.version) <= int(known.version):
            return False
        self._changed.setdefault(kind, set()).add(name)
        if gone:
            children.live.pop(name, None)
        else:
            children.live[name] = shown
        return True

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
        if namespace == self._namespace:
            self._note((api_version, kind), name, None)
        try:
            await self._api.call(
                "DELETE", path(api_version, kind, namespace, name), {"propagationPolicy": "Background"}
            )
        except ApiError as error:
            if error.status != 404:
                raise

    async def token_keys(self) -> str:
        """Return the public keys of the tokens of ServiceAccounts. Raises AccessDeniedError and UnavailableError."""
        try:
            answer = await self._api.call("GET", API_SERVER_KEYS, accept=KEY_SET)
        except ApiError as error:
            raise UnavailableError(f"Kubernetes API, GET {API_SERVER_KEYS}: {error}") from error
        return json.dumps(answer, sort_keys=True)

    async def stateful_set(self, name: str) -> StatefulSetState | None:
        """Return the state of a StatefulSet as the watches show it."""
        return self._workloads.stateful_set(name)

    async def pods(self, labels: Mapping[str, str]) -> Sequence[PodState]:
        """Return the pods with these labels as the watches show them."""
        return self._workloads.pods(labels)

    async def pod_log(self, name: str, seconds: int) -> str:
        """Return the end of a pod's log. Raises AccessDeniedError and UnavailableError."""
        place = path("v1", "Pod", self._namespace, name, "log")
        query = {"sinceSeconds": str(seconds), "limitBytes": str(LONGEST_LOG)}
        try:
            text = await self._api.read_text(place, query)
        except ApiError as error:
            raise UnavailableError(f"Kubernetes API, GET {place}: {error}") from error
        if len(text.encode()) >= LONGEST_LOG:
            raise UnavailableError(f"the log of pod {name} has more than {LONGEST_LOG >> 20} MiB for {seconds} s")
        return text

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

    async def apply_topic(self, manifest: Manifest, *, create: bool) -> Manifest:
        """Apply an IcebergTopic of a TopicSet server-side. Returns the live object."""
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        if create and await self.get(names.API_VERSION, "IcebergTopic", namespace, name) is not None:
            raise ConflictError(f"IcebergTopic {name} exists already")
        # Without force, an object that another client creates at the same time keeps its fields.
        query = {"fieldManager": names.TOPIC_SET_MANAGER, "force": "false" if create else "true"}
        place = path(names.API_VERSION, "IcebergTopic", namespace, name)
        try:
            return await self._api.call("PATCH", place, query, manifest, APPLY)
        except ApiError as error:
            # An object with another uid is a conflict, or a change of an immutable field, depending on whether it exists.
            if error.status == 409 or (error.status == 422 and "metadata.uid:" in error.message):
                raise ConflictError(f"IcebergTopic {name} was created or replaced by another client") from error
            if error.status in (400, 422):
                raise InvalidSpecError(f"the API server refuses IcebergTopic {name}: {error.message}") from error
            raise

    async def delete_topic(self, namespace: str, name: str, uid: str) -> None:
        """Delete an IcebergTopic if it still has this uid."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._api.call("DELETE", path(names.API_VERSION, "IcebergTopic", namespace, name), body=body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def set_finalizers(
        self, namespace: str, name: str, finalizers: Sequence[str], resource_version: str, kind: str = "IcebergTopic"
    ) -> Manifest | None:
        """Replace the finalizers of a resource, if its resource version is still the given one."""
        place = path(names.API_VERSION, kind, namespace, name)
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

    def _note(self, kind: ChildKind, name: str, applied: Applied | None, *, settled: bool = True) -> None:
        """Remember the state of a child object after a write of this process; None if the process deleted the object.

        If not ``settled``, the next apply sends the object again.
        """
        self._changed.setdefault(kind, set()).add(name)
        children = self._children.get(kind)
        live = children.live if children is not None else {}
        live.pop(name, None)
        self._applied.pop((kind[1], name), None)
        if applied is not None:
            live[name] = applied
            if settled:
                self._applied[kind[1], name] = applied.edition

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
        changed = self._changed[kind] = set()
        async for items, _ in pages(self._api, *kind, self._namespace, labels, metadata_only=True):
            for manifest in items:
                children[manifest["metadata"]["name"]] = Applied.of(manifest)
        # The list may be older than writes of this process after the request for the list.
        before = self._children.get(kind)
        for name in changed:
            children.pop(name, None)
            if before is not None and name in before.live:
                children[name] = before.live[name]
        self._children[kind] = _Children(time.monotonic(), children)
        for place in [place for place in self._applied if place[0] == kind[1] and place[1] not in children]:
            del self._applied[place]
        return self._children[kind]
