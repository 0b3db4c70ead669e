"""The profiles, catalogs, registries and salts that each driver gets, and the restarts that new ones cause."""

from typing import Any

import pytest

from firn.model.config import Config
from firn_controllers import children
from firn_controllers.ingestion_group import settings
from firn_controllers.ingestion_group.needs import UNUSED_SECONDS
from firn_controllers.ingestion_group.restarts import PATIENCE
from firn_controllers.ports import Manifest
from tests import gen
from tests.fakes.world import World

KAFKA: Manifest = {"bootstrapServers": "kafka.example:9093", "security": {
    "tls": True, "ca": {"secret": "kafka-ca", "key": "ca.crt"},
    "sasl": {"mechanism": "PLAIN", "username": "u", "password": {"secret": "kafka-user", "key": "password"}}}}  # fmt: skip


def catalog(secret: str, **more: Any) -> Manifest:
    secrets = {"password": {"secret": secret, "key": "password"}}
    return {"type": "rest", "uri": "http://rest", "warehouse": "w", "secretProperties": secrets, **more}


def config(**changes: Any) -> Config:
    """Return a configuration in which each catalog and profile but the defaults has Secrets of its own."""
    catalogs = {
        "lake": catalog("lake"),
        "archive": catalog("archive"),
        "vault": catalog("vault", namespaces=["vault"]),
        **changes.pop("catalogs", {}),
    }
    profiles = {"classic": {}, "secure": KAFKA, **changes.pop("profiles", {})}
    return gen.config(catalogs=catalogs, profiles=profiles, **changes)


def template(world: World, group: str = "default") -> str:
    (found,) = [each for each in world.cluster.all("StatefulSet") if each["metadata"]["name"] == f"firn-ingest-{group}"]
    return children.template_hash(found)


def mounted(world: World, group: str = "default") -> set[str]:
    (found,) = [each for each in world.cluster.all("StatefulSet") if each["metadata"]["name"] == f"firn-ingest-{group}"]
    return {
        volume["secret"]["secretName"] for volume in found["spec"]["template"]["spec"]["volumes"] if "secret" in volume
    }


def names(world: World, group: str = "default") -> tuple[set[str], set[str]]:
    """Return the profiles and the catalogs in the settings of a driver."""
    found = settings.read(world.cluster.objects["v1", "ConfigMap", "firn-system", f"firn-ingest-{group}"])
    assert found is not None
    return set(found.kafka), set(found.catalogs)


async def world_with(*topics: Manifest, **changes: Any) -> World:
    world = World(config(**changes))
    for each in topics:
        world.cluster.create(each)
    await world.settle()
    return world


async def test_a_driver_has_only_what_topics_of_its_group_use() -> None:
    world = await world_with(
        gen.topic(), gen.topic("far", profile="secure", table={"catalog": "archive"}, ingestion={"group": "big"})
    )
    assert names(world) == ({"classic"}, {"lake"})
    assert mounted(world) == {"lake"}
    assert names(world, "big") == ({"secure"}, {"archive"})
    assert mounted(world, "big") == {"archive", "kafka-ca", "kafka-user"}


async def test_a_new_catalog_and_a_new_profile_restart_no_driver() -> None:
    world = await world_with(gen.topic(), gen.topic("large", ingestion={"group": "big"}))
    before = dict(world.cluster.pod_states)
    world.start(config(catalogs={"new": catalog("new")}, profiles={"new": {**KAFKA, "bootstrapServers": "new:9092"}}))
    await world.settle()
    assert world.cluster.pod_states == before


async def test_the_first_topic_of_a_catalog_restarts_only_the_driver_of_its_group() -> None:
    world = await world_with(gen.topic(), gen.topic("large", ingestion={"group": "big"}))
    before, of_big = template(world), template(world, "big")
    world.cluster.create(gen.topic("old", table={"catalog": "archive"}))
    await world.settle()
    assert (template(world) != before, template(world, "big") != of_big) == (True, False)
    assert mounted(world) == {"lake", "archive"}
    assert world.conditions("old")["Ready"] == ("True", "AllReady")


async def test_a_topic_that_may_not_use_a_catalog_brings_no_secret() -> None:
    world = await world_with(gen.topic(), gen.topic("curious", table={"catalog": "vault"}))
    assert world.conditions("curious")["SpecValid"] == ("False", "NotAllowed")
    assert mounted(world) == {"lake"}


async def test_a_group_for_other_namespaces_gets_nothing_for_a_topic() -> None:
    world = await world_with(
        gen.topic(), gen.topic("alien", namespace="vault", table={"catalog": "vault"}, ingestion={"group": "big"})
    )
    assert world.conditions("alien", "vault")["SpecValid"] == ("False", "NotAllowed")
    assert mounted(world, "big") == set()


async def test_a_namespace_that_loses_a_catalog_takes_it_from_the_driver() -> None:
    world = await world_with(gen.topic(), gen.topic("old", table={"catalog": "archive"}))
    world.start(config(catalogs={"archive": catalog("archive", namespaces=["vault"])}))
    await world.settle()
    world.clock.advance(UNUSED_SECONDS)
    await world.settle()
    assert world.job("uid-demo-old").suspended
    assert mounted(world) == {"lake"}


async def test_an_unused_catalog_leaves_after_a_while() -> None:
    world = await world_with(gen.topic(), gen.topic("old", table={"catalog": "archive"}))
    before = template(world)
    world.cluster.remove("old")
    await world.settle(UNUSED_SECONDS / 2)
    assert template(world) == before, "a topic that is created again must not restart the driver"
    world.clock.advance(UNUSED_SECONDS)
    await world.settle()
    assert mounted(world) == {"lake"}


async def test_a_refused_change_keeps_what_the_contract_in_force_needs() -> None:
    world = await world_with(gen.topic(), gen.topic("old", table={"catalog": "archive"}))
    before = template(world)
    world.cluster.edit("old", lambda topic: topic["spec"].update(profile="missing"))
    await world.settle()
    world.clock.advance(UNUSED_SECONDS)
    await world.settle()
    assert world.conditions("old")["SpecValid"][0] == "False"
    assert template(world) == before


async def test_a_new_operator_keeps_the_members_of_contracts_that_it_has_not_read() -> None:
    world = await world_with(gen.topic(), gen.topic("old", table={"catalog": "archive"}))
    world.cluster.edit("old", lambda topic: topic["spec"].update(profile="missing"))
    await world.settle()
    world.start(config(groups={"default": {"cores": 3}, "big": {}}))
    await world.operator_only()
    assert mounted(world) == {"lake", "archive"}
    await world.settle()
    world.clock.advance(UNUSED_SECONDS)
    await world.settle()
    assert mounted(world) == {"lake", "archive"}


# One group at a time

NEWER = {"spark": {"image": "firn-spark:2"}, "kafka": {"image": "kafka:4.2"}}


async def with_two_groups() -> tuple[World, dict[str, str]]:
    world = await world_with(gen.topic(), gen.topic("large", ingestion={"group": "big"}))
    return world, {group: template(world, group) for group in ("default", "big")}


def changed(world: World, before: dict[str, str]) -> set[str]:
    return {group for group, hash_ in before.items() if template(world, group) != hash_}


async def test_drivers_restart_one_after_the_other() -> None:
    world, before = await with_two_groups()
    world.start(config(images=NEWER))
    world.pods_run = False
    for _ in range(5):
        await world.step()
        world.clock.advance(5.0)
    assert len(changed(world, before)) == 1
    world.pods_run = True
    await world.settle()
    assert changed(world, before) == {"default", "big"}


async def test_a_driver_that_does_not_answer_delays_the_others_for_a_limited_time() -> None:
    world, before = await with_two_groups()
    world.cluster.broken_images.add("firn-spark:2")
    world.start(config(images=NEWER))
    await world.settle(PATIENCE - 30)
    assert len(changed(world, before)) == 1
    world.clock.advance(PATIENCE)
    await world.settle()
    assert changed(world, before) == {"default", "big"}


async def test_a_broken_driver_does_not_wait_for_its_correction() -> None:
    world = World(config(images=NEWER))
    world.cluster.broken_images.add("firn-spark:2")
    world.cluster.create(gen.topic())
    world.cluster.create(gen.topic("large", ingestion={"group": "big"}))
    await world.settle(300)
    before = {group: template(world, group) for group in ("default", "big")}
    world.start(config())
    world.pods_run = False
    for _ in range(3):
        await world.step()
        world.clock.advance(5.0)
    assert changed(world, before) == {"default", "big"}


@pytest.mark.parametrize(("servers", "waits"), [("other.example:9093", False), ("kafka.example:9093", True)])
async def test_a_driver_whose_brokers_moved_does_not_wait(servers: str, waits: bool) -> None:
    far: Manifest = {"profile": "secure"}
    world = await world_with(gen.topic(**far), gen.topic("large", ingestion={"group": "big"}, **far))
    before = {group: template(world, group) for group in ("default", "big")}
    world.start(config(profiles={"secure": {**KAFKA, "bootstrapServers": servers}}, images=NEWER))
    world.pods_run = False
    for _ in range(5):
        await world.step()
        world.clock.advance(5.0)
    assert (len(changed(world, before)) == 1) is waits
