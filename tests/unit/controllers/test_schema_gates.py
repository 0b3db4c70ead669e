"""Topics whose brokers check schema ids at produce."""

import json
from random import Random
from typing import Any

import pytest

from firn.decoders.checks import unpacked
from firn.model.jobs import RecordSchema
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
        (
            spec("classic", "Decode"),
            "only diskless brokers can check records at produce, and profile classic has Kafka brokers",
        ),
        (spec("theirs"), "only diskless brokers can check records at produce, and profile theirs has Kafka brokers"),
        (spec("closed"), "do not ask schema registry main; add it to profiles.closed.registries"),
        (spec("waves", name="other"), "do not ask schema registry other; add it to profiles.waves.registries"),
    ],
)
async def test_brokers_that_cannot_check_records_refuse_the_spec(given: dict[str, Any], message: str) -> None:
    live = await created(**given)
    assert live.conditions()["SpecValid"] == ("False", "BadSchema")
    assert message in live.message("SpecValid")


FIELDS: list[dict[str, Any]] = [{"name": "id", "type": "long", "required": True}, {"name": "at", "type": "timestamptz"}]


def decoding(fields: list[dict[str, Any]] = FIELDS, **schema: Any) -> dict[str, Any]:
    return {"profile": "waves", "schema": {"format": "Json", "fields": fields, "gate": "Decode", **schema}}


async def test_brokers_get_the_schema_of_a_topic_by_which_they_decode() -> None:
    live = await created(**decoding(unknownFields="DeadLetter"))
    assert live.conditions()["SpecValid"] == ("True", "Valid")
    assert configs(live).keys() == {"firn.schema.gate", "firn.schema.contract"}
    found = unpacked(configs(live)["firn.schema.contract"])
    assert (found.fields, found.unknown_fields) == (live.job().record_schema.fields, "DeadLetter")
    await change(live, decoding([*FIELDS, {"name": "note", "type": "string"}]))
    assert [field.name for field in unpacked(configs(live)["firn.schema.contract"]).fields] == ["id", "at", "note"]
    await change(live, decoding([*FIELDS, {"name": "note", "type": "string"}], gate="None"))
    assert configs(live) == {}


async def test_brokers_get_the_format_of_a_topic_with_a_registry() -> None:
    live = await created(**spec(gate="Decode"))
    contract = configs(live).pop("firn.schema.contract")
    assert configs(live) == {
        "retention.ms": "1000",
        **GATED,
        "firn.schema.gate": "Decode",
        "firn.schema.contract": contract,
    }
    assert unpacked(contract) == RecordSchema(format="Avro", framing="Registry")


async def test_brokers_decode_the_message_of_the_table() -> None:
    text = 'syntax = "proto3"; message Order { int64 id = 1; }'
    schema = {"format": "Protobuf", "text": text, "gate": "Decode"}
    live = await created(profile="waves", schema=schema)
    later = text.replace("message Order", "message Item { string sku = 1; } message Order")
    await change(live, {"profile": "waves", "schema": {**schema, "text": later}})
    assert unpacked(configs(live)["firn.schema.contract"]).found_message == "Order"


OTHER = {"format": "Json", "fields": [{"name": "order", "type": "uuid", "required": True}]}
OTHER_SCHEMA = "spec.schema.gate: brokers check all records of the topic by spec.schema, and spec.routes.tables[0] has values of another"


def routed(given: dict[str, Any], schema: dict[str, Any] | None) -> dict[str, Any]:
    own = {} if schema is None else {"schema": schema}
    return {**given, "routes": {"by": "header:kind", "tables": [{"match": "a", "name": "a", **own}]}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (routed(decoding(), OTHER), OTHER_SCHEMA),
        (routed(spec(), spec(gate="None", subject="shared")["schema"]), OTHER_SCHEMA),
        (routed(spec(gate="Decode"), OTHER), OTHER_SCHEMA),
        (routed(spec(), spec(gate="None", idIn="Header")["schema"]), OTHER_SCHEMA),
    ],
)
async def test_a_gate_that_does_not_know_the_schemas_of_routes_is_refused(given: dict[str, Any], message: str) -> None:
    live = await created(**given)
    assert live.conditions()["SpecValid"] == ("False", "BadSchema")
    assert message in live.message("SpecValid")
    assert ("waves", "flights") not in live.topics.topics


@pytest.mark.parametrize(
    "given",
    [
        routed(decoding(), None),
        routed(spec(), spec(gate="None")["schema"]),
        routed(decoding(gate="None"), OTHER),
        routed(decoding(), {**decoding(gate="None")["schema"], "filter": "id > 5"}),
    ],
)
async def test_a_gate_serves_routes_with_values_of_its_schema(given: dict[str, Any]) -> None:
    live = await created(**given)
    assert live.conditions()["SpecValid"] == ("True", "Valid")


async def test_a_schema_that_is_too_large_for_a_topic_config_is_refused() -> None:
    chance = Random(1)
    many = [{"name": f"f{chance.randbytes(30).hex()}", "type": "string"} for _ in range(900)]
    live = await created(**decoding(many))
    assert live.conditions()["SpecValid"] == ("False", "BadSchema")
    assert "more than 32000; make it smaller, register it in a schema registry, or remove gate" in live.message(
        "SpecValid"
    )


def test_a_profile_names_configured_registries() -> None:
    with pytest.raises(ValueError, match=r"profiles.waves.registries: main is not in registries"):
        gen.config(profiles={"classic": {}, "waves": gen.diskless(registries=["main"])})


async def test_a_gate_that_decodes_needs_fields_that_can_all_become_columns() -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "before", "type": ["null", "Order"]}]
    text = json.dumps({"type": "record", "name": "Order", "fields": fields})
    schema = {"format": "Avro", "text": text, "columns": [{"name": "id", "from": "$.id"}]}
    live = await created(profile="waves", schema=schema)
    assert live.conditions()["SpecValid"][0] == "True"
    await change(live, {"profile": "waves", "schema": schema | {"gate": "Decode"}})
    assert "brokers decode all fields" in live.message("SpecValid")
    assert "field before[1]: type Order contains itself" in live.message("SpecValid")
