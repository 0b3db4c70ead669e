"""Topics that take their schema from a subject of a schema registry."""

import json
from typing import Any

import pytest

from firn.model import durations
from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, UnavailableError
from firn.model.jobs import Column
from firn.schema_registry import UnusableSchemaError
from firn.schemas import protobuf
from firn.tables import rows
from tests import gen
from tests.fakes.world import World

REGISTRIES = {"main": {"url": "http://registry:8081"}, "private": {"url": "http://other", "namespaces": ["vault"]}}
SUBJECT = "flights-value"
URL_STEP = "; check that the registry runs, and that registries.main.url is the base URL of its API"
SECRET_STEP = (
    "; correct registries.main in the operator's configuration and its Secret, or grant the right to read schemas"
)


def text(*fields: tuple[str, Any]) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    )


def world(**changes: Any) -> World:
    return World(gen.config(registries=REGISTRIES, **changes))


async def create(world: World, registry: Any = None, **spec: Any) -> None:
    schema = {"format": "Avro", "registry": registry or {"name": "main"}, **spec.pop("schema", {})}
    world.cluster.create(gen.topic("flights", schema=schema, **spec))
    await world.settle()


async def resynced(world: World) -> None:
    """Let the operator reconcile all topics without an event."""
    world.clock.advance(durations.milliseconds(world.config.resync) / 1000)
    await world.settle()


async def test_the_latest_schema_of_the_subject_has_the_columns() -> None:
    live = world()
    reference = json.dumps({"type": "enum", "name": "Carrier", "symbols": ["AA", "UA"]})
    number = live.schemas.register(SUBJECT, text(("id", "long"), ("carrier", "Carrier")), reference)
    await create(live, table={"partitionBy": ["bucket(4, carrier)"]})
    schema = live.job().record_schema
    assert [(field.name, field.type) for field in schema.fields] == [("id", "long"), ("carrier", "string")]
    assert (schema.schema_id, schema.references) == (number, (reference,))
    assert schema.subject is not None
    assert (schema.subject.registry, schema.subject.name) == ("main", SUBJECT)
    assert live.conditions()["Ready"] == ("True", "AllReady")


PROTO = 'syntax = "proto3"; package shop; import "money.proto"; message Order { int64 id = 1; Money price = 2; }'
MONEY = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'


async def test_a_protobuf_text_has_the_columns_of_its_message() -> None:
    live = world()
    number = live.schemas.register(SUBJECT, PROTO, kind="PROTOBUF", **{"money.proto": MONEY})
    await create(live, schema={"format": "Protobuf", "message": "shop.Order"}, table={"partitionBy": ["bucket(4, id)"]})
    schema = live.job().record_schema
    assert [(field.name, field.type) for field in schema.fields] == [("id", "long"), ("price", "struct<cents: long>")]
    assert (schema.format, schema.schema_id, schema.message) == ("Protobuf", number, "shop.Order")
    assert live.conditions()["Ready"] == ("True", "AllReady")
    # The contract has the descriptors, also for the next operator.
    live.schemas.compiled.clear()
    live.start()
    await resynced(live)
    assert live.schemas.compiled == []
    # Each value is read with the text of its writer, so a name and a type of a number may change.
    live.schemas.register(
        SUBJECT, 'syntax = "proto3"; package shop; message Order { sint64 id = 7; string note = 2; }', kind="PROTOBUF"
    )
    await resynced(live)
    assert [(field.name, field.type) for field in live.job().record_schema.fields] == [
        ("id", "long"),
        ("note", "string"),
    ]


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("message {", "BadSchema", "subject flights-value of schema registry main: protoc rejects the text: schema.proto:1:"),
        (PROTO.replace("Order", "Refund"), "BadSchema", "the text has no message shop.Order; set schema.message to shop."),
        (PROTO.replace("int64 id", "string id"), "IncompatibleSchema", "field id cannot change from long to string"),
        (PROTO.replace("id = 1; Money price", "price = 1; Money id"), "BadSchema", "field price has the number 1 of field id, but"),
    ],
)  # fmt: skip
async def test_a_protobuf_text_that_does_not_fit_leaves_the_earlier_one_in_force(
    text: str, reason: str, words: str
) -> None:
    live = world()
    live.schemas.register(SUBJECT, PROTO, kind="PROTOBUF", **{"money.proto": MONEY})
    await create(live, schema={"format": "Protobuf", "message": "shop.Order"})
    before = live.job()
    live.schemas.register(SUBJECT, text, kind="PROTOBUF", **{"money.proto": MONEY})
    await resynced(live)
    assert live.conditions()["SpecValid"] == ("False", reason)
    assert words in live.message("SpecValid")
    assert live.job() == before


async def test_a_message_above_that_of_the_table_changes_no_column() -> None:
    live = world()
    live.schemas.register(SUBJECT, PROTO, kind="PROTOBUF", **{"money.proto": MONEY})
    await create(live, schema={"format": "Protobuf"})
    assert live.job().record_schema.found_message == "shop.Order"
    later = PROTO.replace("message Order", "message Buyer { string email = 1; } message Order")
    live.schemas.register(SUBJECT, later, kind="PROTOBUF", **{"money.proto": MONEY})
    await resynced(live)
    schema = live.job().record_schema
    assert [(field.name, field.type) for field in schema.fields] == [("id", "long"), ("price", "struct<cents: long>")]
    assert protobuf.indexes_of(schema) == (1,)
    live.schemas.register(SUBJECT, later.replace("Order", "Sale"), kind="PROTOBUF", **{"money.proto": MONEY})
    await resynced(live)
    assert live.conditions()["SpecValid"] == ("False", "BadSchema")
    assert f"subject {SUBJECT} of schema registry main: the text has no message shop.Order" in live.message("SpecValid")
    # Another subject has the message of the table, too.
    live.schemas.register("other", later, kind="PROTOBUF", **{"money.proto": MONEY})
    other = {"format": "Protobuf", "registry": {"name": "main", "subject": "other"}}
    live.cluster.edit("flights", lambda manifest: manifest["spec"].update(schema=other))
    await live.settle()
    assert live.job().record_schema.found_message == "shop.Order"


async def test_a_text_that_renames_the_message_cannot_exchange_the_names_of_fields() -> None:
    live = world()
    proto = 'syntax = "proto3"; message Order { string a = 1; string b = 2; }'
    live.schemas.register(SUBJECT, proto, kind="PROTOBUF")
    await create(live, schema={"format": "Protobuf"})
    before = live.job()
    live.schemas.register(SUBJECT, 'syntax = "proto3"; message Sale { string b = 1; string a = 2; }', kind="PROTOBUF")
    await resynced(live)
    assert live.conditions()["SpecValid"] == ("False", "BadSchema")
    assert "field b has the number 1 of field a, but a field b had the number 2" in live.message("SpecValid")
    assert live.job() == before
    live.schemas.register(SUBJECT, 'syntax = "proto3"; message Sale { string c = 1; string b = 2; }', kind="PROTOBUF")
    await resynced(live)
    schema = live.job().record_schema
    assert [field.name for field in schema.fields] == ["c", "b"]
    assert [(each.old, each.new) for each in schema.renames] == [("a", "c")]
    # The spec can name another message, whose fields rename no column.
    other = 'syntax = "proto3"; message Refund { string d = 1; string b = 2; } message Sale { string c = 1; }'
    live.schemas.register(SUBJECT, other, kind="PROTOBUF")
    named = {"format": "Protobuf", "registry": {"name": "main"}, "message": "Refund"}
    live.cluster.edit("flights", lambda manifest: manifest["spec"].update(schema=named))
    await live.settle()
    assert {"d", "b"} <= {field.name for field in live.job().record_schema.fields}
    assert ("c", "d") not in {(each.old, each.new) for each in live.job().record_schema.renames}


async def test_a_json_schema_has_the_columns_of_its_members() -> None:
    live = world()
    money = json.dumps({"type": "integer"})
    members: dict[str, Any] = {"id": {"type": "integer"}, "price": {"$ref": "money.json"}}
    number = live.schemas.register(
        SUBJECT, json.dumps({"type": "object", "properties": members}), kind="JSON", **{"money.json": money}
    )
    await create(live, schema={"format": "Json"}, table={"partitionBy": ["bucket(4, id)"]})
    schema = live.job().record_schema
    assert [(field.name, field.type) for field in schema.fields] == [("id", "long"), ("price", "long")]
    assert (schema.format, schema.schema_id, schema.names) == ("Json", number, ("money.json",))
    later = {"id": {"type": "integer"}, "note": {"type": "string"}}
    live.schemas.register(SUBJECT, json.dumps({"type": "object", "properties": later}), kind="JSON")
    await resynced(live)
    assert [(field.name, field.type) for field in live.job().record_schema.fields] == [
        ("id", "long"),
        ("note", "string"),
    ]
    assert live.conditions()["Ready"] == ("True", "AllReady")
    live.schemas.register(SUBJECT, json.dumps({"type": "object", "properties": {"id": {}}}), kind="JSON")
    await resynced(live)
    assert live.conditions()["SpecValid"] == ("False", "BadSchema")
    problem = "subject flights-value of schema registry main: field id: the schema does not say what the value is"
    assert live.message("SpecValid").startswith(problem)


async def test_a_json_schema_without_one_type_has_a_variant_in_format_version_3() -> None:
    live = world()
    live.schemas.register(SUBJECT, json.dumps({"properties": {"id": {"type": "integer"}, "more": {}}}), kind="JSON")
    await create(live, schema={"format": "Json"})
    assert live.conditions()["SpecValid"] == ("False", "BadSchema")
    assert "field more: the schema does not say what the value is" in live.message("SpecValid")
    assert "set spec.table.formatVersion: 3" in live.message("SpecValid")
    live.cluster.edit("flights", lambda m: m["spec"].update(table={"formatVersion": 3}))
    await live.settle()
    assert live.conditions()["Ready"] == ("True", "AllReady")
    before = live.job()
    assert before.record_schema.variants
    fields = before.record_schema.fields
    assert [(field.name, field.type) for field in fields] == [("id", "long"), ("more", "variant")]
    # A type is an incompatible change.
    later = {"id": {"type": "integer"}, "more": {"type": "string"}}
    live.schemas.register(SUBJECT, json.dumps({"properties": later}), kind="JSON")
    await resynced(live)
    assert live.conditions()["SpecValid"] == ("False", "IncompatibleSchema")
    assert "field more cannot change from variant to string" in live.message("SpecValid")
    assert live.job() == before


async def test_a_new_schema_adds_columns_and_keeps_the_width_of_the_table() -> None:
    live = world()
    live.schemas.register(SUBJECT, text(("id", "long"), ("gone", "string")))
    await create(live)
    live.schemas.register(SUBJECT, text(("id", "int"), ("more", "string")))
    await resynced(live)
    assert [(field.name, field.type) for field in live.job().record_schema.fields] == [
        ("id", "long"),
        ("more", "string"),
    ]


async def test_a_subject_without_a_schema_makes_the_table_wait() -> None:
    live = world()
    await create(live, {"name": "main", "subject": "shop"})
    assert live.conditions()["TableReady"] == ("False", Reason.SCHEMA_MISSING)
    assert "subject shop of schema registry main has no schema" in live.message("TableReady")
    live.schemas.register("shop", text(("id", "long")))
    await live.settle()
    assert live.conditions()["Ready"] == ("True", "AllReady")


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (
            UnavailableError(
                f"schema registry main: HTTP 503 from http://registry{URL_STEP}", reason=Reason.REGISTRY_UNREACHABLE
            ),
            "RegistryUnreachable",
        ),
        (
            AccessDeniedError(f"schema registry main rejects the credentials or the request (HTTP 401){SECRET_STEP}"),
            "AccessDenied",
        ),
    ],
)
async def test_a_registry_that_fails_makes_new_topics_wait_and_stops_no_other(problem: Any, reason: str) -> None:
    live = world()
    live.schemas.register(SUBJECT, text(("id", "long")))
    await create(live)
    before = live.job()
    live.schemas.problem = problem
    live.cluster.create(gen.topic("later", schema={"format": "Avro", "registry": {"name": "main", "subject": SUBJECT}}))
    live.cluster.edit("flights", lambda manifest: manifest["spec"].update(ingestion={"freshness": "2m"}))
    await live.settle()
    assert live.conditions("later")["TableReady"] == ("False", reason)
    assert live.job().record_schema == before.record_schema
    assert live.job().freshness_ms == 120_000
    assert live.conditions()["Ready"] == ("True", "AllReady")
    live.schemas.problem = None
    await live.settle()
    assert live.conditions("later")["Ready"] == ("True", "AllReady")


@pytest.mark.parametrize(
    ("latest", "kind", "reason", "words"),
    [
        ("{", "AVRO", "BadSchema", "subject flights-value of schema registry main: the schema is not JSON"),
        ("message M {}", "PROTOBUF", "BadSchema", "has the type PROTOBUF"),
        (text(("id", "string")), "AVRO", "IncompatibleSchema", "field id cannot change from long to string"),
    ],
)
async def test_a_schema_that_does_not_fit_leaves_the_earlier_one_in_force(
    latest: str, kind: str, reason: str, words: str
) -> None:
    live = world()
    live.schemas.register(SUBJECT, text(("id", "long")))
    await create(live)
    before = live.job()
    live.schemas.register(SUBJECT, latest, kind=kind)
    await resynced(live)
    assert live.conditions()["SpecValid"] == ("False", reason)
    assert words in live.message("SpecValid")
    assert live.job() == before


async def test_a_schema_that_is_too_large_leaves_the_earlier_one_in_force() -> None:
    live = world()
    live.schemas.register(SUBJECT, text(("id", "long")))
    await create(live)
    before = live.job()
    problem = "schema registry main: an answer has more than 8 MiB at /subjects/flights-value/versions/latest; register a smaller schema"
    live.schemas.problem = UnusableSchemaError(problem, reason="BadSchema")
    await resynced(live)
    assert live.conditions()["SpecValid"] == ("False", "BadSchema")
    assert live.message("SpecValid") == problem
    assert live.job() == before


async def test_each_topic_with_a_registry_has_a_condition_about_its_schema() -> None:
    live = world()
    await create(live)
    assert live.conditions()["SchemaCompatible"] == ("Unknown", "Pending")
    live.schemas.register(SUBJECT, text(("id", "long")))
    await live.settle()
    assert live.conditions()["SchemaCompatible"] == ("True", "Compatible")
    live.schemas.register(SUBJECT, text(("id", "string")))
    await resynced(live)
    assert live.conditions()["SchemaCompatible"] == ("False", "IncompatibleSchema")
    live.schemas.register(SUBJECT, text(("id", "long")))
    await resynced(live)
    assert live.conditions()["SchemaCompatible"] == ("True", "Compatible")


async def test_a_record_with_an_incompatible_schema_that_holds_the_topic_is_in_the_condition() -> None:
    live = world()
    live.schemas.register(SUBJECT, text(("id", "long")))
    await create(live)
    problem = (
        "field id cannot change from long to string; all records of the topic wait. Set spec.schema.evolution.incompatible: DeadLetter, or"
        " create this IcebergTopic again with another topicName and table.name"
    )
    live.driver.report_fields["uid-demo-flights"] = {
        "state": "BackingOff", "reason": "IncompatibleSchema", "message": problem,
    }  # fmt: skip
    await live.settle()
    assert live.conditions()["SchemaCompatible"] == ("False", "IncompatibleSchema")
    assert live.message("SchemaCompatible") == problem
    del live.driver.report_fields["uid-demo-flights"]
    await live.settle()
    assert live.conditions()["SchemaCompatible"] == ("True", "Compatible")


async def test_a_field_with_another_type_keeps_its_column_if_the_table_gets_another_one() -> None:
    live = world()
    live.schemas.register(SUBJECT, text(("id", "long")))
    await create(live, schema={"evolution": {"incompatible": "NewColumn"}})
    number = live.schemas.register(SUBJECT, text(("id", "string"), ("note", "string")))
    await resynced(live)
    assert live.conditions()["Ready"] == ("True", "AllReady")
    schema = live.job().record_schema
    assert (schema.incompatible, schema.schema_id) == ("NewColumn", number)
    assert [(field.name, field.type) for field in schema.fields] == [("id", "long"), ("note", "string")]


async def test_the_registry_must_be_configured_and_allowed() -> None:
    live = world()
    await create(live, {"name": "other"})
    assert live.conditions()["SpecValid"] == ("False", "RegistryNotFound")
    assert "add it to registries there, or choose one of main, private" in live.message("SpecValid")
    live = world()
    await create(live, {"name": "private"})
    assert live.conditions()["SpecValid"] == ("False", "NotAllowed")
    assert "may not use schema registry private" in live.message("SpecValid")


async def test_partitioning_is_checked_with_the_columns_of_the_subject() -> None:
    live = world()
    live.schemas.register(SUBJECT, text(("id", "long")))
    await create(live, table={"partitionBy": ["day(departed)"]})
    assert live.conditions()["SpecValid"] == ("False", "UnknownColumn")


async def test_a_policy_is_checked_with_the_columns_of_the_subject() -> None:
    live = world()
    live.cluster.create(gen.policy("sorting", strategy="Sort", columns=["departed"], selector={"matchLabels": {}}))
    live.schemas.register(SUBJECT, text(("id", "long")))
    await create(live)
    assert live.conditions()["PoliciesResolved"] == ("False", "PolicyInvalid")
    live.schemas.register(SUBJECT, text(("id", "long"), ("departed", "long")))
    await resynced(live)
    assert live.conditions()["PoliciesResolved"][0] == "True"


async def test_a_dropped_time_of_day_keeps_its_column_in_the_contract() -> None:
    live = world()
    at = {"type": "int", "logicalType": "time-millis"}
    live.schemas.register(SUBJECT, text(("id", "long"), ("at", at), ("gone", "int")))
    await create(live)
    live.schemas.register(SUBJECT, text(("id", "long")))
    await resynced(live)
    assert [field.name for field in live.job().record_schema.fields] == ["id", "at"]
    assert live.conditions()["Ready"] == ("True", "AllReady")


async def test_a_new_schema_is_compared_with_the_table_before_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    live = world()
    live.schemas.register(SUBJECT, text(("id", "long")))
    await create(live)
    before = live.job()
    # The driver has added a column for another schema.
    target = before.table
    live.tables.tables[target.identifier].schema = before.record_schema.model_copy(
        update={"fields": (*before.record_schema.fields, Column(name="x", type="int"))}
    )
    live.schemas.register(SUBJECT, text(("id", "long"), ("x", "string")))
    live.cluster.edit(
        "flights", lambda manifest: manifest["metadata"].setdefault("labels", {}).update(a="b"), spec=False
    )
    await live.settle()
    assert live.conditions()["SpecValid"] == ("False", "IncompatibleSchema")
    assert live.job().record_schema == before.record_schema
    live.schemas.register(SUBJECT, text(("id", "long"), ("x", "int")))
    await resynced(live)
    assert live.conditions()["Ready"] == ("True", "AllReady")


async def test_columns_are_computed_from_the_latest_schema() -> None:
    live = world()
    live.schemas.register(SUBJECT, text(("id", "int"), ("old", "string")))
    await create(live, schema={"columns": [{"name": "number", "from": "$.id"}, {"name": "old", "from": "$.old"}]})

    def columns() -> dict[str, str]:
        return {column.name: column.type for column in rows.schema_columns(live.job().record_schema)}

    assert columns() == {"number": "int", "old": "string"}
    live.schemas.register(SUBJECT, text(("id", "long"), ("more", "string")))
    await resynced(live)
    assert columns() == {"number": "long", "old": "string"}, "producers no longer write the field old"
    live.schemas.problem = UnavailableError("schema registry main: HTTP 503", reason="RegistryUnreachable")
    live.cluster.edit(
        "flights", lambda manifest: manifest["spec"]["schema"]["columns"].append({"name": "m", "from": "$.missing"})
    )
    await live.settle()
    assert live.conditions()["SpecValid"] == ("False", Reason.BAD_SCHEMA)
    assert "spec.schema.columns: m: $ has no field missing" in live.message("SpecValid")
    live.cluster.edit(
        "flights", lambda manifest: manifest["spec"]["schema"]["columns"][2].update({"from": "$.more", "with": "Mask"})
    )
    await live.settle()
    assert columns() == {"number": "long", "old": "string", "m": "string"}


async def test_a_change_of_the_policy_works_without_the_registry() -> None:
    live = world()
    live.schemas.register(SUBJECT, text(("id", "long")))
    await create(live)
    live.schemas.problem = UnavailableError(
        f"schema registry main: HTTP 503 from http://registry{URL_STEP}", reason="RegistryUnreachable"
    )
    live.cluster.edit(
        "flights", lambda manifest: manifest["spec"]["schema"].update(evolution={"incompatible": "DeadLetter"})
    )
    await live.settle()
    assert live.job().record_schema.incompatible == "DeadLetter"


@pytest.mark.parametrize(
    ("registry", "message", "subject"),
    [
        ({"subjectStrategy": "TopicName"}, None, SUBJECT),
        ({"subjectStrategy": "RecordName"}, "shop.Order", "shop.Order"),
        ({"subjectStrategy": "TopicRecordName"}, "shop.Order", "flights-shop.Order"),
        ({"subject": "own"}, None, "own"),
    ],
)
@pytest.mark.parametrize("form", ["Avro", "Json"])
async def test_the_strategy_names_the_subject(registry: Any, message: str | None, subject: str, form: str) -> None:
    live = world()
    schema = {"format": form, **({"message": message} if message else {})}
    content = text(("id", "long")) if form == "Avro" else json.dumps({"properties": {"id": {"type": "integer"}}})
    live.schemas.register(subject, content, kind=form.upper())
    await create(live, {"name": "main", **registry}, schema=schema)
    found = live.job().record_schema
    assert found.subject is not None
    assert (found.subject.name, found.message) == (subject, "")
    assert live.conditions()["Ready"] == ("True", "AllReady")


async def test_another_place_of_the_id_keeps_the_columns() -> None:
    live = world()
    live.schemas.register(SUBJECT, text(("id", "long")))
    await create(live)
    live.schemas.register(SUBJECT, text(("id", "int"), ("more", "string")))
    live.cluster.edit("flights", lambda manifest: manifest["spec"]["schema"]["registry"].update(idIn="Header"))
    await live.settle()
    await resynced(live)
    schema = live.job().record_schema
    assert schema.subject is not None
    assert schema.subject.id_in == "Header"
    assert [(field.name, field.type) for field in schema.fields] == [("id", "long"), ("more", "string")]


KEY_SUBJECT = "flights-key"


async def test_the_latest_schema_of_keys_has_their_columns() -> None:
    live = world()
    live.schemas.register(SUBJECT, text(("id", "long")))
    number = live.schemas.register(KEY_SUBJECT, text(("carrier", "string")))
    key = {"format": "Avro", "columns": "Flat", "registry": {"name": "main"}}
    await create(live, schema={"key": key}, table={"partitionBy": ["key_carrier"]})
    found = live.job().record_schema.key
    assert found is not None
    assert found.decoding is not None
    assert (found.decoding.schema_id, found.decoding.fields) == (number, ())
    assert [(field.name, field.type) for field in found.fields] == [("carrier", "string")]
    assert [subject.name for subject in live.job().record_schema.subjects] == [SUBJECT, KEY_SUBJECT]
    live.schemas.register(KEY_SUBJECT, text(("carrier", "string"), ("number", "int")))
    live.schemas.problem = UnavailableError("away")
    await resynced(live)
    assert live.job().record_schema.key == found, "the contract keeps the schema of keys while the registry is away"
    live.schemas.problem = None
    await resynced(live)
    later = live.job().record_schema.key
    assert later is not None
    assert [field.name for field in later.fields] == ["carrier", "number"]
    live.schemas.register(KEY_SUBJECT, text(("number", "long")))
    await resynced(live)
    latest = live.job().record_schema.key
    assert latest is not None
    assert [(field.name, field.type) for field in latest.fields] == [("number", "long"), ("carrier", "string")]
    assert live.conditions()["Ready"] == ("True", "AllReady")


async def test_keys_in_protobuf_beside_json_values() -> None:
    live = world()
    proto = 'syntax = "proto3"; message K { int64 id = 1; } message L { string carrier = 1; }'
    key = {"format": "Protobuf", "columns": "Struct", "text": proto, "message": "L"}
    live.cluster.create(
        gen.topic("flights", schema={"format": "Json", "fields": [{"name": "a", "type": "int"}], "key": key})
    )
    await live.settle()
    found = live.job().record_schema.key
    assert found is not None
    assert found.decoding is not None
    assert found.decoding.descriptors
    assert [column.type for column in rows.key_columns(found)] == ["struct<carrier: string>"]


async def test_a_message_above_that_of_the_keys_changes_no_column() -> None:
    proto = 'syntax = "proto3"; message K { int64 id = 1; }'
    above = proto.replace("message K", "message J { int64 sku = 1; } message K")
    live = world()
    live.schemas.register(SUBJECT, text(("v", "long")))
    live.schemas.register(KEY_SUBJECT, proto, kind="PROTOBUF")
    given = {"format": "Protobuf", "columns": "Flat"}

    def fields_of_key() -> list[str]:
        key = live.job().record_schema.key
        assert key is not None
        assert key.decoding is not None
        assert key.decoding.found_message == "K"
        return [field.name for field in key.fields]

    await create(live, schema={"key": {**given, "registry": {"name": "main"}}})
    assert fields_of_key() == ["id"]
    live.schemas.register(KEY_SUBJECT, above, kind="PROTOBUF")
    await resynced(live)
    assert fields_of_key() == ["id"]
    for later in (proto, above):
        key = {**given, "text": later}
        live.cluster.edit("flights", lambda one: one["spec"]["schema"].update(key=key))  # noqa: B023
        await live.settle()
        found = live.job().record_schema.key
        assert found is not None
        assert found.record_schema.text == later
        assert fields_of_key() == ["id"]
    live.cluster.edit(
        "flights", lambda one: one["spec"]["schema"]["key"].update(text=above.replace("message K", "message L"))
    )
    await live.settle()
    assert live.conditions()["SpecValid"] == ("False", "BadSchema")
    assert "spec.schema.key.text: the text has no message K" in live.message("SpecValid")


@pytest.mark.parametrize(
    ("key", "texts", "reason", "message"),
    [
        (
            {"registry": {"name": "main"}},
            {},
            "SchemaMissing",
            "subject flights-key of schema registry main has no schema",
        ),
        ({"registry": {"name": "other"}}, {}, "RegistryNotFound", "spec.schema.key.registry.name: other is not in"),
        ({"registry": {"name": "private"}}, {}, "NotAllowed", "may not use schema registry private"),
        ({"text": "{"}, {}, "BadSchema", "spec.schema.key.text: "),
        (
            {"registry": {"name": "main"}},
            {
                KEY_SUBJECT: text(*((f"field_{number}", "long") for number in range(999)))[:-2]
                + ", "
                + json.dumps({"name": "x", "type": "long", "doc": "d" * 150_000})
                + "]}"
            },
            "BadSchema",
            "a key has at most 150000 bytes",
        ),
        (
            {"registry": {"name": "main"}},
            {KEY_SUBJECT: text(("at", {"type": "long", "logicalType": "time-micros"}))},
            "BadSchema",
            "the schema has a field of the type time, which is not allowed in a key",
        ),
        (
            {"registry": {"name": "main"}},
            {KEY_SUBJECT: text(("id", "int")), SUBJECT: text(("key_id", "long"))},
            "BadSchema",
            "field key_id of the values has the name of column key_id of the key",
        ),
    ],
)
async def test_a_schema_of_keys_that_cannot_be_used_is_named(
    key: Any, texts: dict[str, str], reason: str, message: str
) -> None:
    live = world()
    for subject, content in {SUBJECT: text(("id", "long")), **texts}.items():
        live.schemas.register(subject, content)
    await create(live, schema={"key": {"format": "Avro", "columns": "Flat", **key}})
    kinds = [kind for kind, (_, found) in live.conditions().items() if found == reason]
    assert message in live.message(kinds[0])
