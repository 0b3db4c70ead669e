"""Lists of child objects do not undo what this process does while they are read."""

import asyncio
from typing import Any

import pytest

from firn.model import names
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
        self._version = 1

    async def call(self, method: str, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        self._version += 1
        if method == "PATCH":
            version = {"uid": name, "resourceVersion": str(self._version), "creationTimestamp": "2026-03-01T12:00:00Z"}
            self.objects[name] = args[1] | {"metadata": args[1]["metadata"] | version}
            return self.objects[name]
        if method == "DELETE":
            self.objects.pop(name, None)
            return {}
        page = {"items": list(self.objects.values()), "metadata": {"resourceVersion": str(self._version)}}
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
