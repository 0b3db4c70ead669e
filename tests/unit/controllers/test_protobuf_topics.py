"""Topics whose schema is a .proto text, which the operator compiles."""

from typing import Any

import pytest

from firn.model import durations
from firn.model.errors import NotReadyError
from firn.schemas import protobuf
from tests import gen
from tests.fakes.world import World

KILLED = "protoc ended with the code -9; Firn tries again. Give it more memory, or make the text smaller"
TWO = "message Line { int64 id = 1; } message Other { string name = 1; }"


def text(body: str, more: str = "") -> str:
    return (
        f'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto"; message Order {{ {body} }} {more}'
    )


def schema_of(body: str, more: str = "", **changes: Any) -> dict[str, Any]:
    return {"format": "Protobuf", "text": text(body, more), **changes}


async def create(live: World, schema: dict[str, Any], **spec: Any) -> None:
    live.cluster.create(gen.topic("flights", schema=schema, **spec))
    await live.settle()


async def change(live: World, **spec: Any) -> None:
    live.cluster.edit("flights", lambda manifest: manifest["spec"].update(spec))
    await live.settle()


def columns(live: World) -> list[tuple[str, str]]:
    return [(field.name, field.type) for field in live.job().record_schema.fields]


async def test_the_contract_has_the_columns_and_descriptors_of_the_text() -> None:
    live = World()
    body = "int64 id = 1; google.protobuf.Timestamp at = 2;"
    await create(live, schema_of(body, framing="Registry"), table={"partitionBy": ["day(at)"]})
    schema = live.job().record_schema
    assert (schema.format, schema.text, schema.framing, schema.message) == ("Protobuf", text(body), "Registry", "")
    assert columns(live) == [("id", "long"), ("at", "timestamptz")]
    assert protobuf.message_of(schema).name == "shop.Order"
    assert live.conditions()["Ready"] == ("True", "AllReady")


async def test_the_message_chooses_the_columns() -> None:
    live = World()
    await create(live, schema_of("int64 id = 1;", TWO, message="shop.Other"))
    assert columns(live) == [("name", "string")]
    assert live.job().record_schema.message == "shop.Other"


ABOVE = 'syntax = "proto3"; package shop; message Item { int64 sku = 1; string title = 2; } '
"""The begin of a text whose first message is not that of the topic."""


async def test_a_message_above_that_of_the_topic_changes_no_column() -> None:
    live = World()
    await create(live, schema_of("int64 id = 1; string note = 2;"))
    assert live.job().record_schema.found_message == "shop.Order"
    later = ABOVE + "message Order { int64 id = 1; string note = 2; Item item = 3; }"
    await change(live, schema={"format": "Protobuf", "text": later})
    assert live.conditions()["Ready"] == ("True", "AllReady")
    found = [("id", "long"), ("note", "string"), ("item", "struct<sku: long, title: string>")]
    assert columns(live) == found
    assert protobuf.message_of(live.job().record_schema).name == "shop.Order"
    # The name stays if the spec names the message for a while.
    await change(live, schema={"format": "Protobuf", "text": later, "message": "shop.Order"})
    await change(live, schema={"format": "Protobuf", "text": later})
    assert columns(live) == found


async def test_a_message_above_that_of_framed_values_is_refused() -> None:
    """Values in the log have the indexes [0], and become bad records if the message has the indexes [1]."""
    live = World()
    await create(live, schema_of("int64 id = 1;", framing="Registry"))
    before = live.job()
    later = {"format": "Protobuf", "text": ABOVE + "message Order { int64 id = 1; }", "framing": "Registry"}
    await change(live, schema=later)
    assert live.conditions()["SpecValid"] == ("False", "IncompatibleSchema")
    assert live.message("SpecValid").startswith(
        "spec.schema: the indexes of message shop.Order cannot change from [0] to [1], because records with the earlier indexes would"
        " become bad records; declare other messages below it, or set spec.schema.message: shop.Order, which accepts all indexes."
    )
    assert live.job() == before
    await change(live, schema=schema_of("int64 id = 1;", "message Item { int64 sku = 1; }", framing="Registry"))
    assert live.conditions()["SpecValid"] == ("True", "Valid")
    await change(live, schema={**later, "message": "shop.Order"})
    assert live.conditions()["SpecValid"] == ("True", "Valid")
    assert live.job().record_schema.text == later["text"]


async def test_a_message_above_that_of_framed_keys_is_refused() -> None:
    live = World()
    key = {"format": "Protobuf", "columns": "Flat", "framing": "Registry", "text": text("int64 id = 1;")}
    values = {"format": "Json", "fields": [{"name": "a", "type": "int"}]}
    await create(live, {**values, "key": key})
    before = live.job()
    later = {**key, "text": ABOVE + "message Order { int64 id = 1; }"}
    await change(live, schema={**values, "key": later})
    assert live.conditions()["SpecValid"] == ("False", "IncompatibleSchema")
    assert live.message("SpecValid").startswith(
        "spec.schema.key.text: the indexes of message shop.Order cannot change from [0] to [1]"
    )
    assert live.job() == before
    await change(live, schema={**values, "key": {**later, "message": "shop.Order"}})
    assert live.conditions()["SpecValid"] == ("True", "Valid")


async def test_a_contract_without_the_name_of_its_message_gets_that_of_its_own_text() -> None:
    live = World()
    await create(live, schema_of("int64 id = 1;"))
    schema = live.job().record_schema
    bare = live.job().model_copy(update={"record_schema": schema.model_copy(update={"found_message": ""})})
    live.cluster.contracts()["uid-demo-flights"]["data"]["job.json"] = bare.model_dump_json()
    live.start()
    await change(live, schema={"format": "Protobuf", "text": ABOVE + "message Order { int64 id = 1; }"})
    assert live.job().record_schema.found_message == "shop.Order"
    assert columns(live) == [("id", "long")]


async def test_only_a_text_with_one_message_can_rename_it() -> None:
    live = World()
    await create(live, schema_of("int64 id = 1;"))
    renamed = ABOVE + "message Purchase { int64 id = 1; }"
    await change(live, schema={"format": "Protobuf", "text": renamed})
    assert live.conditions()["SpecValid"] == ("False", "BadSchema")
    assert live.message("SpecValid").startswith(
        "spec.schema.text: the text has no message shop.Order, whose fields are the columns of the table; restore the message, or set"
    )
    await change(live, schema={"format": "Protobuf", "text": renamed, "message": "shop.Purchase"})
    assert (live.conditions()["SpecValid"], columns(live)) == (("True", "Valid"), [("id", "long")])
    only = 'syntax = "proto3"; package shop; message Sale { int64 id = 1; }'
    await change(live, schema={"format": "Protobuf", "text": only})
    assert (live.conditions()["SpecValid"], columns(live)) == (("True", "Valid"), [("id", "long")])
    assert live.job().record_schema.found_message == "shop.Sale"


async def test_an_unchanged_text_is_not_compiled_again() -> None:
    live = World()
    await create(live, schema_of("int64 id = 1;"))
    live.schemas.compiled.clear()
    live.start()
    await change(live, ingestion={"freshness": "2m"})
    assert live.job().freshness_ms == 120_000
    assert live.schemas.compiled == []
    await change(live, schema=schema_of("int64 id = 1; string note = 2;"))
    assert columns(live) == [("id", "long"), ("note", "string")]
    assert set(live.schemas.compiled) == {text("int64 id = 1; string note = 2;")}


@pytest.mark.parametrize(
    ("schema", "reason", "words"),
    [
        ({"text": "message"}, "BadSchema", "spec.schema.text: protoc rejects the text: schema.proto:1:8: "),
        (schema_of("int64 id = 1;", message="shop.Ordr"), "BadSchema", "the text has no message shop.Ordr; set schema.message to shop.Order"),
        (schema_of("Order id = 1;"), "BadSchema", "spec.schema.text: field id: type shop.Order contains itself"),
        (schema_of("int64 id = 2;"), "IncompatibleSchema", "field id cannot change its number from 1 to 2"),
        (schema_of("string id = 1;"), "IncompatibleSchema", "field id cannot change from long to string"),
    ],
)  # fmt: skip
async def test_a_text_that_does_not_fit_leaves_the_earlier_one_in_force(
    schema: dict[str, Any], reason: str, words: str
) -> None:
    live = World()
    await create(live, schema_of("int64 id = 1; string note = 2;"))
    before = live.job()
    await change(live, schema={"format": "Protobuf", **schema})
    assert live.conditions()["SpecValid"] == ("False", reason)
    assert words in live.message("SpecValid")
    assert live.job() == before
    await change(live, schema=schema_of("int64 id = 1;"))
    assert live.conditions()["Ready"] == ("True", "AllReady")
    assert columns(live) == [("id", "long")]


async def test_a_field_with_the_same_number_renames_its_column() -> None:
    live = World()
    await create(live, schema_of("int64 id = 1; Part part = 2; message Part { int32 no = 1; }"))
    later = schema_of("int64 key = 1; Part piece = 2; message Part { int32 number = 1; }")
    await change(live, schema=later)
    assert live.conditions()["Ready"] == ("True", "AllReady")
    assert columns(live) == [("key", "long"), ("piece", "struct<number: int>")]
    named = [(each.old, each.new, each.by_schema) for each in live.job().record_schema.renames]
    assert named == [("id", "key", True), ("part", "piece", True), ("piece.no", "piece.number", True)]
    await change(live, ingestion={"freshness": "2m"})
    assert [(each.old, each.new, each.by_schema) for each in live.job().record_schema.renames] == named


async def test_a_rename_of_the_spec_outlives_its_removal() -> None:
    live = World()
    await create(live, schema_of("int64 id = 1;"))
    await change(live, schema={**schema_of("int64 id = 1;"), "renames": [{"from": "id", "to": "key"}]})
    assert columns(live) == [("key", "long")]
    await change(live, schema=schema_of("int64 id = 1;"))
    assert live.job().record_schema.renames == ()


async def test_a_compiler_that_does_not_answer_stops_no_topic_with_a_contract() -> None:
    live = World()
    await create(live, schema_of("int64 id = 1;"))
    live.schemas.problem = NotReadyError(KILLED)
    live.cluster.create(gen.topic("later", schema=schema_of("int64 id = 1;")))
    await change(live, ingestion={"freshness": "2m"})
    assert live.conditions("later")["TableReady"] == ("False", "Pending")
    assert live.job().freshness_ms == 120_000
    assert live.conditions()["Ready"] == ("True", "AllReady")
    live.schemas.problem = None
    live.clock.advance(durations.milliseconds(live.config.resync) / 1000)
    await live.settle()
    assert live.conditions("later")["Ready"] == ("True", "AllReady")


@pytest.mark.parametrize(
    ("term", "reason"), [("day(departed)", "UnknownColumn"), ("rate", "BadTransform"), ("bucket(4, id)", None)]
)
async def test_partitioning_is_checked_with_the_columns_of_the_text(term: str, reason: str | None) -> None:
    live = World()
    await create(live, schema_of("int64 id = 1; double rate = 2;"), table={"partitionBy": [term]})
    if reason is None:
        assert live.conditions()["Ready"] == ("True", "AllReady")
    else:
        assert live.conditions()["SpecValid"] == ("False", reason)
    if term == "rate":
        assert "rate can be NaN in Protobuf" in live.message("SpecValid")


async def test_a_policy_is_checked_with_the_columns_of_the_text() -> None:
    live = World()
    live.cluster.create(gen.policy("sorting", strategy="Sort", columns=["departed"], selector={"matchLabels": {}}))
    await create(live, schema_of("int64 id = 1;"))
    assert live.conditions()["PoliciesResolved"] == ("False", "PolicyInvalid")
    await change(live, schema=schema_of("int64 id = 1; int64 departed = 2;"))
    assert live.conditions()["PoliciesResolved"][0] == "True"


async def test_a_schema_too_large_for_a_contract_is_refused() -> None:
    live = World()
    members = " ".join(f"int32 {'x' * 90}{number} = {number + 1};" for number in range(90))
    await create(
        live, schema_of(" ".join(f"W f{number} = {number + 1};" for number in range(90)), f"message W {{ {members} }}")
    )
    assert live.conditions()["SpecValid"] == ("False", "BadSchema")
    assert "a topic has at most 700000 bytes; remove fields" in live.message("SpecValid")


STRUCT = 'import "google/protobuf/struct.proto"; '
READ = [{"name": "order", "from": "$.id"}]


async def test_a_field_that_no_column_reads_refuses_no_text() -> None:
    live = World()
    body = "int64 id = 1; google.protobuf.Struct extra = 2; Order parent = 3; string ID = 4;"
    schema = {"format": "Protobuf", "text": text(body).replace("message Order", STRUCT + "message Order")}
    await create(live, schema | {"columns": READ})
    assert columns(live) == [("id", "long")]
    await change(live, schema=schema | {"columns": [*READ, {"name": "other", "from": "$.ID"}]})
    assert "message shop.Order has the fields id and ID" in live.message("SpecValid")
    await change(live, schema=schema | {"columns": [*READ, {"name": "extra", "from": "$.extra"}]})
    assert "field extra.fields.value" in live.message("SpecValid")
    assert "contains itself" in live.message("SpecValid")


async def test_a_column_reads_a_field_that_got_another_name() -> None:
    live = World()
    await create(live, schema_of("int64 id = 1; string note = 2;", columns=READ))
    await change(live, schema=schema_of("int64 number = 1; string note = 2;", columns=READ))
    assert columns(live) == [("number", "long")]
    assert live.conditions()["SpecValid"][0] == "True"
