"""Lists of child objects do not undo what this process does while they are read."""

import asyncio
from typing import Any

import pytest

from firn.model import names
from firn_operator.adapters.kube.api_client import JSON_PATCH, ApiError
from firn_operator.adapters.kube.cluster import KubeCluster
from firn_operator.adapters.kube.workloads import Workloads

NAMESPACE = "firn-system"


def job(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": {names.TEMPLATE_HASH: "h"}, "labels": {}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {}}


class SlowLists:
    """An API server that answers a list only when a test lets it, with the objects of the time when it was asked."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.answer = asyncio.Event()
        self.listing = asyncio.Event()
        self.version = 1

    async def call(self, method: str, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        self.version += 1
        if method == "PATCH":
            version = {"uid": name, "resourceVersion": str(self.version), "creationTimestamp": "2026-03-01T12:00:00Z"}
            self.objects[name] = args[1] | {"metadata": args[1]["metadata"] | version}
            return self.objects[name]
        if method == "DELETE":
            self.objects.pop(name, None)
            return {}
        page = {"items": list(self.objects.values()), "metadata": {"resourceVersion": str(self.version)}}
        self.listing.set()
        await self.answer.wait()
        return page


@pytest.fixture
async def api() -> SlowLists:
    api = SlowLists()
    api.answer.set()
    return api


@pytest.fixture
async def cluster(api: SlowLists) -> KubeCluster:
    """Return a cluster that lists its objects again at each apply."""
    return KubeCluster(api, NAMESPACE, Workloads(), resync=0.0)  # type: ignore[arg-type]


def service(version: int, template: str = "h") -> dict[str, Any]:
    metadata = {
        "name": "firn-broker-classic",
        "namespace": NAMESPACE,
        "uid": "firn-broker-classic",
        "resourceVersion": str(version),
        "annotations": {names.TEMPLATE_HASH: template},
        "labels": {},
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {}}


@pytest.mark.parametrize("gone", [False, True], ids=["edited", "deleted"])
async def test_an_object_that_a_watch_shows_as_changed_is_applied_again(api: SlowLists, gone: bool) -> None:
    cluster = KubeCluster(api, NAMESPACE, Workloads())  # type: ignore[arg-type]
    assert await cluster.apply(service(0))
    version = int(api.objects["firn-broker-classic"]["metadata"]["resourceVersion"])
    assert not cluster.seen(service(version), gone=False), "the watch shows what this process did"
    assert not await cluster.apply(service(0))
    assert cluster.seen(service(version + 9), gone=gone)
    assert gone or not cluster.seen(service(version), gone=False), "an older state"
    api.version += 20
    assert await cluster.apply(service(0))
    assert not await cluster.apply(service(0))


class Contended(SlowLists):
    """An API server on which another client added a field, and changes the object before each repair, so many times."""

    def __init__(self, conflicts: int) -> None:
        super().__init__()
        self.answer.set()
        self.conflicts = conflicts
        self.added = True
        self.applied = 0

    async def call(self, method: str, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if method == "PATCH" and args[-1] == JSON_PATCH:
            if self.conflicts:
                self.conflicts -= 1
                raise ApiError(409, "Conflict", "the object has been modified")
            self.added = False
            return {}
        live = await super().call(method, path, *args, **kwargs)
        if method == "PATCH":
            self.applied += 1
            ours = {"manager": names.FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {"f:type": {}}}}
            theirs = {"manager": "edit", "operation": "Update", "fieldsV1": {"f:spec": {"f:externalIPs": {}}}}
            live["metadata"]["managedFields"] = [ours, theirs] if self.added else [ours]
        return live


async def test_additions_that_cannot_be_removed_now_are_removed_by_the_next_apply() -> None:
    api = Contended(conflicts=1)
    cluster = KubeCluster(api, NAMESPACE, Workloads())  # type: ignore[arg-type]
    assert await cluster.apply(service(0)), "our own change is made all the same"
    assert api.added
    await cluster.apply(service(0))
    assert (api.added, api.applied) == (False, 3)
    assert not await cluster.apply(service(0))
    assert api.applied == 3


async def test_a_job_deleted_during_a_list_is_created_again(api: SlowLists, cluster: KubeCluster) -> None:
    await cluster.apply(job("run"))
    api.answer.clear()
    api.listing.clear()
    listing = asyncio.create_task(cluster.apply(job("other")))
    await api.listing.wait()
    await cluster.delete("batch/v1", "Job", NAMESPACE, "run")
    again = asyncio.create_task(cluster.apply(job("run")))
    api.answer.set()
    await listing
    assert await again
    assert "run" in api.objects
