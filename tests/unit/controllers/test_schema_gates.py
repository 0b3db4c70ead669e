"""Topics whose brokers check schema ids at produce."""

import json
from typing import Any

import pytest

from tests import gen
from tests.fakes.world import World

REGISTRIES = {"main": {"url": "http://registry:8081"}, "other": {"url": "http://other:8081"}}
PROFILES = {
    "classic": {},
    "theirs": {"bootstrapServers": "kafka:9092"},
    "waves": gen.diskless(registries=["main"]),
    "closed": gen.diskless(),
}
SCHEMA = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
GATED = {"firn.schema.gate": "Id", "firn.schema.registry": "main", "firn.schema.subject": "flights-value"}


def spec(profile: str = "waves", gate: str = "Id", **registry: str) -> dict[str, Any]:
    schema = {"format": "Avro", "registry": {"name": "main", **registry}, "gate": gate}
    return {"profile": profile, "schema": schema, "config": {"retention.ms": "1000"}}


async def created(**given: Any) -> World:
    """Return a world with the topic."""
    live = World(gen.config(registries=REGISTRIES, profiles=PROFILES))
    for subject in ("flights-value", "shared"):
        live.schemas.register(subject, SCHEMA)
    live.cluster.create(gen.topic("flights", **given))
    await live.settle()
    return live


def configs(live: World) -> dict[str, str]:
    return dict(live.topics.topics["waves", "flights"].configs)


async def change(live: World, given: dict[str, Any]) -> None:
    live.cluster.edit("flights", lambda manifest: manifest.update(spec=given))
    await live.settle()


async def test_the_kafka_topic_gets_the_configs_of_the_gate() -> None:
    live = await created(**spec())
    assert live.conditions()["SpecValid"] == ("True", "Valid")
    assert configs(live) == {"retention.ms": "1000", **GATED}


async def test_the_gate_follows_the_spec_and_its_end_removes_the_configs() -> None:
    live = await created(**spec(gate="None"))
    assert configs(live) == {"retention.ms": "1000"}
    job = live.job()
    await change(live, spec(subject="shared"))
    assert configs(live) == {"retention.ms": "1000", **GATED, "firn.schema.subject": "shared"}
    await change(live, spec(gate="None", subject="shared"))
    assert configs(live) == {"retention.ms": "1000"}
    assert live.job().record_schema.fields == job.record_schema.fields


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (spec("classic"), "only diskless brokers can check records at produce, and profile classic has Kafka brokers"),
        (spec("theirs"), "only diskless brokers can check records at produce, and profile theirs has Kafka brokers"),
        (spec("closed"), "do not ask schema registry main; add it to profiles.closed.registries"),
        (spec("waves", name="other"), "do not ask schema registry other; add it to profiles.waves.registries"),
    ],
)
async def test_brokers_that_cannot_check_records_refuse_the_spec(given: dict[str, Any], message: str) -> None:
    live = await created(**given)
    assert live.conditions()["SpecValid"] == ("False", "BadSchema")
    assert message in live.message("SpecValid")


def test_a_profile_names_configured_registries() -> None:
    with pytest.raises(ValueError, match=r"profiles.waves.registries: main is not in registries"):
        gen.config(profiles={"classic": {}, "waves": gen.diskless(registries=["main"])})
