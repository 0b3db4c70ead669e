"""The requests to the Kubernetes API that the deletion of a topic costs."""

from typing import Any

import pytest

from firn.model import names
from tests import gen
from tests.fakes.world import World


@pytest.mark.parametrize(
    "spec", [{}, {"deletionPolicy": {"topic": "Delete", "table": "Delete"}}], ids=["keep", "delete"]
)
async def test_a_deletion_asks_for_the_contract_once(monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]) -> None:
    world = World()
    world.cluster.create(gen.topic("orders", **spec))
    await world.settle()
    contract = names.job(world.cluster.topic("orders")["metadata"]["uid"])
    requests: list[str] = []
    for method in ("get", "delete"):
        original = getattr(world.cluster, method)

        async def recorded(*args: Any, method: str = method, original: Any = original) -> Any:
            if args[-1] == contract:
                requests.append(method)
            return await original(*args)

        monkeypatch.setattr(world.cluster, method, recorded)
    world.cluster.remove("orders")
    await world.settle()
    assert requests.count("get") <= 1
    assert requests.count("delete") <= 2
    assert contract not in {manifest["metadata"]["name"] for manifest in world.cluster.all("ConfigMap")}


async def test_a_deletion_that_ends_soon_writes_no_status() -> None:
    world = World()
    world.cluster.create(gen.topic("orders", deletionPolicy={"topic": "Delete", "table": "Delete"}))
    await world.settle()
    before = len(world.faults.log)
    world.cluster.remove("orders")
    await world.settle()
    assert not world.tables.tables
    assert "status orders" not in world.faults.log[before:]
