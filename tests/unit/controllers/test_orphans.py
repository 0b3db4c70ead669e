"""Objects that nothing refers to are removed, and one that cannot be judged delays no other."""

import copy

import pytest

from firn.model import names
from firn.model.errors import AccessDeniedError
from firn_controllers.ports import Manifest
from tests import gen
from tests.fakes.world import World

ORPHANS = ("orphans",)


async def settled(world: World) -> World:
    world.cluster.create(gen.topic())
    await world.settle()
    return world


def run_contract(name: str) -> Manifest:
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY, "app.kubernetes.io/component": "maintenance"}
    return {"metadata": {"name": name, "namespace": "firn-system", "labels": labels, "annotations": {}}, "data": {}}


async def test_a_denied_read_keeps_the_contract_and_delays_no_other_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await settled(World(gen.config(groups={"default": {}, "old": {}})))
    world.operator.topics.remove(("demo", "flights"), "uid-demo-flights")
    world.operator.topics.clear_deleted(("demo", "flights"), "uid-demo-flights")
    place = ("v1", "ConfigMap", "firn-system", "firn-run-gone")
    world.cluster.objects[place] = run_contract("firn-run-gone")
    read = world.cluster.get

    async def denied(api_version: str, kind: str, namespace: str, name: str) -> Manifest | None:
        if kind == "IcebergTopic":
            raise AccessDeniedError("403 Forbidden")
        return await read(api_version, kind, namespace, name)

    monkeypatch.setattr(world.cluster, "get", denied)
    await world.operator.reconcile(ORPHANS)
    assert "uid-demo-flights" in world.cluster.contracts()
    assert place not in world.cluster.objects


async def test_a_failed_kind_delays_no_other_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await settled(World())
    place = ("v1", "ConfigMap", "firn-system", "firn-run-gone")
    world.cluster.objects[place] = run_contract("firn-run-gone")
    listed = world.cluster.list_names

    async def fails(api_version: str, kind: str, labels: dict[str, str]) -> object:
        if labels == {names.LABEL_MANAGED_BY: names.MANAGED_BY}:
            raise AccessDeniedError("403 Forbidden")
        return await listed(api_version, kind, labels)

    monkeypatch.setattr(world.cluster, "list_names", fails)
    with pytest.raises(AccessDeniedError):
        await world.operator.reconcile(ORPHANS)
    assert place not in world.cluster.objects


async def test_contracts_of_a_namespace_that_is_no_longer_watched_are_removed() -> None:
    world = await settled(World())
    contracts = copy.deepcopy(world.cluster.contracts())
    world.cluster.watch = []
    world.start(gen.config(watchNamespaces=["other"]))
    world.operator.topics.remove(("demo", "flights"), "uid-demo-flights")
    world.operator.topics.clear_deleted(("demo", "flights"), "uid-demo-flights")
    await world.operator.reconcile(ORPHANS)
    assert contracts
    assert not world.cluster.contracts()
    assert world.tables.tables, "the data stays"
