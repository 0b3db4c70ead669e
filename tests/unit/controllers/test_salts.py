"""Columns with salted digests: the configuration has the salts by name, and only drivers and replays read their Secrets."""

from typing import Any

import pytest

from firn_controllers.ingestion_group import needs, settings
from firn_controllers.ports import Manifest
from tests import gen
from tests.fakes.world import World
from tests.unit.controllers.policy_stage import jobs, pass_time

SALTS: Manifest = {
    "people": {"value": {"secret": "salts", "key": "people"}},
    "vault": {"value": {"secret": "vault-salt", "key": "salt"}, "namespaces": ["vault"]},
}
PATH = "/etc/firn/secrets/salts/people"


def hashing(salt: str | None = "people", **spec: Any) -> Manifest:
    """Return an IcebergTopic whose table has digests of the mail addresses."""
    column = {"name": "mail_hash", "from": "$.mail", "with": "Sha256"} | ({"salt": salt} if salt else {})
    fields = [{"name": "mail", "type": "string"}]
    return gen.topic("flights", schema={"format": "Json", "fields": fields, "columns": [column]}, **spec)


async def world_with(topic: Manifest, **config: Any) -> World:
    world = World(gen.config(**{"salts": SALTS, **config}))
    world.cluster.create(topic)
    await world.settle()
    return world


def mounted(pod: Manifest) -> set[str]:
    return {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}


async def test_the_contract_names_the_salt_and_needs_a_driver_that_knows_columns() -> None:
    world = await world_with(hashing())
    job = world.job()
    assert (job.version, job.record_schema.salts) == (2, frozenset({"people"}))
    assert PATH not in job.model_dump_json(), "only the settings of the driver have the file"
    (group,) = (each for each in world.cluster.all("StatefulSet") if each["metadata"]["name"] == "firn-ingest-default")
    assert "salts" in mounted(group["spec"]["template"]["spec"])
    assert not {"salts", "vault-salt"} & set(world.config.secret_names()), (
        "the operator and the other runs do not read salts"
    )


@pytest.mark.parametrize(
    ("salt", "reason", "message"),
    [
        ("persons", "BadSchema", "spec.schema.columns: mail_hash: salt persons is not in the operator's configuration; add it to salts there, or"
                                 " choose one of people, vault"),
        ("vault", "NotAllowed", "namespace demo may not use salt vault"),
    ],
)  # fmt: skip
async def test_the_salt_must_be_configured_and_allowed(salt: str, reason: str, message: str) -> None:
    world = await world_with(hashing(salt))
    assert world.conditions()["SpecValid"] == ("False", reason)
    assert message in world.message("SpecValid")
    assert not world.cluster.contracts()


async def test_without_configured_salts_the_message_has_no_choice() -> None:
    world = await world_with(hashing(), salts={})
    assert world.message("SpecValid").endswith(
        "salt people is not in the operator's configuration; add it to salts there"
    )


async def test_a_wrong_salt_leaves_the_contract_in_force() -> None:
    world = await world_with(hashing())
    world.cluster.edit("flights", lambda topic: topic["spec"].update(hashing("persons")["spec"]))
    await world.settle()
    assert world.conditions()["SpecValid"] == ("False", "BadSchema")
    assert world.job().record_schema.salts == {"people"}


async def test_ingestion_stops_if_the_namespace_loses_the_salt() -> None:
    world = await world_with(hashing())
    people = {**SALTS["people"], "namespaces": ["vault"]}
    world.start(gen.config(salts={"people": people}))
    await world.settle()
    assert world.conditions()["SpecValid"] == ("False", "NotAllowed")
    assert world.job().suspended


def test_only_drivers_that_may_serve_its_namespaces_get_a_salt() -> None:
    config = gen.config(salts=SALTS)
    assert settings.group_settings(config, "default").salts == {
        "people": PATH,
        "vault": "/etc/firn/secrets/vault-salt/salt",
    }
    assert settings.group_settings(config, "big").salts == {"people": PATH}, "the group serves namespace demo only"
    assert needs.secret_names(config, "big", needs.allowed(config, "big")) == ["firn-postgres", "salts"]


def test_settings_without_salts_are_those_of_the_release_before() -> None:
    assert "salts" not in settings.group_settings(gen.config(), "default").model_dump(mode="json")


@pytest.mark.parametrize(("salt", "salts"), [("people", {"people": PATH}), (None, {})])
async def test_the_run_of_a_replay_reads_the_salts_of_its_topic(salt: str | None, salts: dict[str, str]) -> None:
    world = await world_with(hashing(salt))
    replay = gen.policy("mend", kind="DeadLetterReplay")
    replay["spec"] = {"topicRef": {"name": "flights"}}
    world.maintainer.hold = True
    world.cluster.create(replay)
    await pass_time(world, 60)
    (job,) = jobs(world)
    assert ("salts" in mounted(job["spec"]["template"]["spec"])) is bool(salts)
    world.maintainer.hold = False
    await pass_time(world, 60)
    (run,) = world.maintainer.done
    assert run.salts == salts
