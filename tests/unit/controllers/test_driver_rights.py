"""The ACLs of drivers and maintenance runs at brokers with ``access``: exactly those for their job contracts."""

from typing import Any

import pytest

from firn.model.config import Config
from firn.model.errors import AccessDeniedError
from firn.model.jobs import Adoption, RecordSchema, SchemaFormat, SinkCommits, TableTarget
from firn_controllers.cache.contracts import ContractCache, rules_of
from firn_controllers.ports import AclRule, Manifest, PrincipalState
from tests import gen
from tests.fakes.world import World

ACCESS = {"certificate": {"secret": "waves-tls"}, "issuer": "https://cluster"}
DEFAULT, BIG, RUNS = (f"system:serviceaccount:firn-system:firn-{name}" for name in ("ingest", "ingest-big", "maintain"))

OWN = AclRule("Topic", "audit-log", "Literal", "Write")
"""An ACL of an administrator."""


def config(**changes: Any) -> Config:
    profiles = {"classic": {}, "waves": gen.diskless(access=ACCESS, replicas=1)}
    return gen.config(profiles=profiles, defaultProfile="waves", **changes)


def sasl(username: str) -> dict[str, Any]:
    password = {"secret": username, "key": "password"}
    return {"sasl": {"mechanism": "SCRAM-SHA-512", "username": username, "password": password}}


def existing(**drivers: Any) -> Config:
    """Return a configuration with an existing Kafka, in which the operator and the drivers are different users."""
    drivers = {
        "groups": {name: sasl(f"ingest-{name}") for name in ("default", "big")},
        "maintenance": sasl("runs"),
        **drivers,
    }
    profile = {"bootstrapServers": "kafka:9092", "security": sasl("firn"), "drivers": drivers}
    return gen.config(profiles={"classic": profile})


def read(*topics: str) -> set[AclRule]:
    return {AclRule("Topic", topic, "Literal", "Read") for topic in topics}


def rights(world: World) -> dict[str, set[AclRule]]:
    return {user: set(rules) for (_, user), rules in world.access.acls.items() if rules}


async def world_with(*topics: Manifest, **changes: Any) -> World:
    world = World(config(**changes))
    for each in topics:
        world.cluster.create(each)
    await world.settle()
    return world


async def test_the_driver_of_each_group_reads_the_topics_of_its_contracts() -> None:
    world = await world_with(gen.topic(), gen.topic("large", ingestion={"group": "big"}))
    assert rights(world) == {
        DEFAULT: read("flights"),
        BIG: read("large"),
        RUNS: read("flights", "large"),
    }
    accounts = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]["serviceAccountName"]
        for each in world.cluster.all("StatefulSet")
        if "ingest" in each["metadata"]["name"]
    }
    assert accounts == {"firn-ingest-default": "firn-ingest", "firn-ingest-big": "firn-ingest-big"}


async def test_groups_with_one_account_share_its_rights() -> None:
    groups = {"default": {}, "big": {"serviceAccount": "firn-ingest"}}
    world = await world_with(gen.topic(), gen.topic("large", ingestion={"group": "big"}), groups=groups)
    assert rights(world)[DEFAULT] == read("flights", "large")


async def test_the_users_of_an_existing_kafka_read_the_topics_of_their_contracts() -> None:
    world = World(existing(manageAcls=True))
    world.access.put("classic", "runs", PrincipalState(frozenset({OWN, *read("stale")})))
    for each in (gen.topic(), gen.topic("large", ingestion={"group": "big"})):
        world.cluster.create(each)
    await world.settle()
    assert rights(world) == {
        "ingest-default": read("flights"),
        "ingest-big": read("large"),
        "runs": {OWN, *read("flights", "large")},
    }, "an ACL that an administrator made for other work stays"
    world.cluster.remove("large")
    await world.settle()
    assert rights(world) == {"ingest-default": read("flights"), "runs": {OWN, *read("flights")}}


async def test_an_existing_kafka_gets_acls_only_with_consent() -> None:
    world = World(existing())
    world.cluster.create(gen.topic())
    await world.settle()
    assert rights(world) == {}
    assert world.conditions()["Ready"] == ("True", "AllReady")


async def test_brokers_without_access_get_no_acls() -> None:
    world = await world_with(gen.topic(profile="classic"))
    assert rights(world) == {}


async def test_the_right_comes_before_the_contract() -> None:
    world = await world_with(gen.topic("first"))
    denied = (
        f"profile waves (localhost:9092): create ACLs of user {DEFAULT}: denied; grant the operator's user Alter and Describe on the"
        " cluster, and for TopicUsers also AlterConfigs and DescribeConfigs, or correct the profile's credentials"
    )
    world.access.problem["change_acls"] = AccessDeniedError(denied)
    world.cluster.create(gen.topic())
    await world.settle(60)
    assert "uid-demo-flights" not in world.cluster.contracts()
    assert world.conditions()["TopicReady"] == ("False", "AccessDenied")
    assert f"create ACLs of user {DEFAULT}: denied; grant the operator's user Alter" in world.message("TopicReady")
    world.access.problem.clear()
    await world.settle()
    assert world.conditions()["Ready"] == ("True", "AllReady")


async def test_a_comparison_before_the_contract_is_written_keeps_its_right(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await world_with(gen.topic("first"))
    rights_of_drivers = world.operator._context.rights
    apply, compared = world.cluster.apply, []

    async def compare_first(manifest: Manifest, *, always: bool = False) -> bool:
        if manifest["metadata"]["name"].startswith("firn-job"):
            rights_of_drivers.released("default", [])
            await rights_of_drivers.sync(["waves"])
            compared.append(rights(world)[DEFAULT])
        return await apply(manifest, always=always)

    monkeypatch.setattr(world.cluster, "apply", compare_first)
    world.cluster.create(gen.topic())
    await world.settle()
    assert compared[0] == read("first", "flights")
    assert rights(world)[DEFAULT] == read("first", "flights")


async def test_a_driver_keeps_the_rights_of_all_contracts_that_it_may_still_follow() -> None:
    cache, job = ContractCache(), (await world_with(gen.topic())).job("uid-demo-flights")
    for now, topic in enumerate(("one", "two", "three")):
        cache.put(job.uid, job.model_copy(update={"topic": topic}), float(now))
    assert cache.rules("waves")["default"] == read("one", "two", "three")
    cache.leave(job.uid, "default")
    assert cache.rules("waves")["default"] == read("three")


async def test_the_right_goes_after_the_driver_has_released_the_topic() -> None:
    world = await world_with(gen.topic("first"), gen.topic())
    world.cluster.remove("flights")
    for _ in range(3):
        await world.operator_only()
    assert not world.cluster.contracts().get("uid-demo-flights")
    assert rights(world)[DEFAULT] == read("first", "flights"), "the driver has not reported since"
    await world.settle()
    assert rights(world) == {DEFAULT: read("first"), RUNS: read("first")}


async def test_the_right_for_the_last_topic_of_a_group_goes_too() -> None:
    world = await world_with(gen.topic())
    world.cluster.remove("flights")
    await world.settle()
    assert rights(world) == {}


@pytest.mark.parametrize("before", [config(), existing(manageAcls=True)], ids=["access", "existing"])
async def test_the_rights_of_a_removed_group_go_after_its_driver(before: Config) -> None:
    world = World(before)
    for each in (gen.topic(), gen.topic("large", ingestion={"group": "big"})):
        world.cluster.create(each)
    await world.settle()
    profile = before.default_profile
    user, theirs = str(before.driver_user(profile, "big")), f"{before.driver_user(profile, 'big')}-2"
    world.access.acls[profile, user].add(OWN)
    world.access.put(profile, theirs, PrincipalState(frozenset(read("large"))))
    after = before.model_dump(by_alias=True, exclude_unset=True)
    for place in (after, after["profiles"][profile].get("drivers", after)):
        place["groups"].pop("big", None)
    world.start(Config.model_validate(after))
    world.access.problem["change_acls"] = AccessDeniedError("denied")
    with pytest.raises(AccessDeniedError, match="denied"):
        await world.settle(600)
    assert rights(world)[user] == {OWN, *read("large")}, "the brokers refuse the change"
    world.access.problem.clear()
    world.start()
    await world.settle()
    assert rights(world)[user] == {OWN}, "an ACL of an administrator"
    assert rights(world)[theirs] == read("large"), "an ACL of another user"
    names_ = {each["metadata"]["name"] for each in world.cluster.all("ConfigMap")}
    assert "firn-ingest-big" not in names_


async def test_a_removed_group_leaves_the_rights_of_an_account_that_others_use() -> None:
    groups = {"default": {}, "big": {"serviceAccount": "firn-ingest"}}
    world = await world_with(gen.topic(), gen.topic("large", ingestion={"group": "big"}), groups=groups)
    world.start(config(groups={"default": {}}))
    await world.settle()
    assert rights(world)[DEFAULT] == read("flights")


async def test_a_topic_that_moves_to_another_group_leaves_the_first_one() -> None:
    world = await world_with(gen.topic("first"), gen.topic())
    world.cluster.edit("flights", lambda topic: topic["spec"].update(ingestion={"group": "big"}))
    await world.settle()
    assert (rights(world)[DEFAULT], rights(world)[BIG]) == (read("first"), read("flights"))


async def test_a_lost_right_returns_and_a_foreign_one_goes() -> None:
    world = await world_with(gen.topic())
    world.access.put("waves", DEFAULT, PrincipalState(frozenset(read("payments"))))
    world.clock.advance(400)
    await world.settle()
    assert rights(world)[DEFAULT] == read("flights")


async def test_a_new_operator_takes_no_right_before_it_knows_all_contracts() -> None:
    world = await world_with(gen.topic(), gen.topic("other"))
    world.cluster.edit("other", lambda topic: topic["spec"].update(profile="missing"))
    await world.settle()
    world.start()
    for _ in range(20):
        await world.step()
        assert rights(world)[DEFAULT] == read("flights", "other")
        world.clock.advance(30.0)


async def test_many_topics_share_few_requests() -> None:
    world = World(config())
    for number in range(200):
        world.cluster.create(gen.topic(f"t{number}"))
    await world.settle()
    assert len(rights(world)[DEFAULT]) == 200
    before = world.access.calls.total()
    await world.settle(60)
    assert world.access.calls.total() == before, "nothing changed, and no comparison is due"


def test_a_connector_whose_table_continues_brings_its_rights() -> None:
    sink = SinkCommits(control_topic="control-iceberg", group="connect-sink")
    target = TableTarget(catalog="lake", namespace="demo", name="flights")
    job = gen.live_job("uid-demo-flights", 1, RecordSchema(format=SchemaFormat.RAW), target).job
    assert rules_of(job.model_copy(update={"adopt": Adoption(connect=sink)})) == {
        *read(job.topic, "control-iceberg"),
        AclRule("Group", "connect-sink", "Literal", "Describe"),
    }


@pytest.mark.parametrize("plaintext", ["Keep", "Close"])
async def test_a_driver_that_moves_to_the_secure_listener_has_its_rights(plaintext: str) -> None:
    world = World(gen.config(profiles={"classic": {}, "waves": gen.diskless(replicas=1)}, defaultProfile="waves"))
    world.cluster.create(gen.topic())
    await world.settle()
    assert rights(world) == {}
    profiles = {"classic": {}, "waves": gen.diskless(replicas=1, access={**ACCESS, "plaintext": plaintext})}
    world.start(gen.config(profiles=profiles, defaultProfile="waves"))
    await world.settle()
    assert rights(world)[DEFAULT] == read("flights")
