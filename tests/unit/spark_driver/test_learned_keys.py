"""The driver resolves GUIDs, and follows the schemas of keys beside those of values."""

from pathlib import Path
from typing import Any

import pytest

from firn.decoders.bad_records import Code
from firn.model.conditions import Reason
from firn.model.errors import ConflictError, InvalidSpecError, NotReadyError, UnavailableError
from firn.model.jobs import Column, Evolution, KeySchema, RecordSchema, Subject, WriterSchema
from firn.tables import rows
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.ingestion.writer_schemas import TableColumns, adapted, allowed, learn, with_keys
from firn_spark.schemas import registries as registries_module
from firn_spark.schemas.registries import Registries
from firn_spark.worker.formats.writer_schemas import Refusal
from tests.unit.spark_driver.test_learned_schemas import (
    Answers,
    Clock,
    answers,
    clock,
    registries,
    text,
    topic,
    wanted,
)
from tests.unit.spark_driver.topic import job

__all__ = ["answers", "clock"]
GUID = "01234567-89ab-cdef-0123-456789abcdef"


def test_a_guid_leads_to_the_schema_of_its_id_and_survives_the_process(answers: Answers, tmp_path: Path) -> None:
    answers.add(7, id="int")
    answers.ids[GUID] = 7
    orders = topic(("id", "int"), subject=Subject(registry="main", name="orders-value", id_in="Header"))
    orders.reading.writers.needed = {GUID}
    learn(orders, registries(tmp_path))
    assert orders.reading.writers.schemas == {GUID: 7, 7: WriterSchema(text=text(id="int"))}
    assert orders.reading.writers.needed == set()
    answers.problem = UnavailableError("away")
    assert registries(tmp_path).find(orders.job.record_schema, GUID) == 7


def test_a_guid_that_the_registry_lacks_twice_makes_bad_records(answers: Answers, clock: Clock) -> None:
    asking, schema = registries(), wanted()
    with pytest.raises(NotReadyError, match=f"does not have schema {GUID}"):
        asking.find(schema, GUID)
    clock.now += registries_module.MISSING_SECONDS
    refusal = asking.find(schema, GUID)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, GUID in refusal.detail) == (Code.UNKNOWN_SCHEMA, True)
    answers.problem = UnavailableError("away")
    with pytest.raises(UnavailableError):
        asking.find(schema, GUID)


def test_a_guid_of_a_registry_that_is_not_configured_is_an_error() -> None:
    with pytest.raises(InvalidSpecError, match="is not in the settings of this process"):
        Registries({}, None).find(wanted(), GUID)


def test_values_without_ids_have_the_schema_of_the_contract_only(answers: Answers) -> None:
    subject = Subject(registry="main", name="orders-value", id_in="None")
    orders = topic(("id", "int"), subject=subject, schema_id=2, text=text(id="int"))
    orders.reading.writers.schemas = {1: WriterSchema(text=text(before="int"))}
    learn(orders, registries())
    assert list(orders.reading.writers.schemas) == [2]
    assert answers.asked == []


def keyed(*columns: tuple[str, str], shape: Any = "Flat", form: str = "Avro", **changes: Any) -> Topic:
    """Return a topic with JSON values, and keys of a registry with these columns."""
    decoding = RecordSchema(format=form, framing="Registry", subject=Subject(registry="main", name="orders-key"))
    fields = tuple(Column(name=name, type=kind) for name, kind in columns)
    key = KeySchema(columns=shape, fields=fields, decoding=decoding)
    schema = RecordSchema(**{"format": "Json", "fields": (Column(name="a", type="int"),), "key": key, **changes})
    return Topic(job().model_copy(update={"record_schema": schema}))


def key_columns(schema: RecordSchema) -> dict[str, str]:
    return {column.name: column.type for column in rows.key_columns(schema.key)}


def test_schemas_of_keys_are_requested_under_their_subject(answers: Answers, clock: Clock) -> None:
    answers.add(7, id="int")
    answers.add(8, id="int")
    answers.subjects_of = {7: frozenset({"orders-key"}), 8: frozenset({"orders-value"})}
    orders, asking = keyed(("id", "int")), registries()
    orders.reading.key_writers.needed = {7, 8}
    with pytest.raises(NotReadyError):
        learn(orders, asking)
    clock.now += registries_module.MISSING_SECONDS
    learn(orders, asking)
    assert orders.reading.key_writers.schemas[7] == WriterSchema(text=text(id="int"))
    foreign = orders.reading.key_writers.schemas[8]
    assert isinstance(foreign, Refusal)
    assert "belongs to subject orders-value, and the topic has subject orders-key" in foreign.detail
    assert orders.reading.writers.schemas == {}
    answers.problem = UnavailableError("away")
    orders.reading.key_writers.needed = {9}
    with pytest.raises(UnavailableError):
        learn(orders, asking)
    assert orders.reading.key_writers.needed == {9}


@pytest.mark.parametrize(
    ("shape", "present", "expected"),
    [
        ("Flat", {}, {"key_id": "long", "key_more": "string"}),
        ("Flat", {"key_id": "int", "key_more": "string", "a": "int"}, {"key_id": "long", "key_more": "string"}),
        ("Flat", {"key_id": "long"}, {"key_id": "long", "key_more": "string"}),
        ("Struct", {"key": "struct<id: long>"}, {"key": "struct<id: long, more: string>"}),
    ],
)
def test_columns_of_keys_hold_those_of_all_schemas(
    shape: str, present: dict[str, str], expected: dict[str, str]
) -> None:
    orders = keyed(("id", "int"), shape=shape)
    orders.reading.key_writers.schemas = {
        1: WriterSchema(text=text(id="int")),
        2: WriterSchema(text=text(id="long", more="string")),
        3: Refusal(Code.UNKNOWN_SCHEMA, "gone"),
        GUID: 1,
    }
    schema, left_out = with_keys(orders, orders.job.record_schema, present)
    assert (key_columns(schema), left_out) == (expected, {})


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (text(id="string"), "field id has the type string, but column id has the type int"),
        ("{", "the schema is not JSON"),
        (text(id="int", b="int"), "field key_b of the values has the name of column key_b of the key"),
    ],
)
def test_a_schema_of_keys_that_the_table_cannot_hold_waits_or_makes_bad_records(schema: str, problem: str) -> None:
    fields = (Column(name="key_b", type="int"),)
    holding, passing = (
        keyed(("id", "int"), fields=fields),
        keyed(("id", "int"), fields=fields, incompatible="DeadLetter"),
    )
    for orders in (holding, passing):
        orders.reading.key_writers.schemas = {4: WriterSchema(text=schema)}
    with pytest.raises(ConflictError, match=problem) as error:
        with_keys(holding, holding.job.record_schema, {"key_id": "int"})
    assert error.value.reason == Reason.INCOMPATIBLE_SCHEMA
    assert "key schema 4 of schema registry main" in str(error.value)
    assert "incompatible: DeadLetter, or create" in str(error.value)
    kept, left_out = with_keys(passing, passing.job.record_schema, {"key_id": "int"})
    assert key_columns(kept) == {"key_id": "int"}
    assert left_out[4].code == Code.INCOMPATIBLE_SCHEMA


def test_a_later_field_of_values_cannot_take_the_column_of_a_key() -> None:
    key = KeySchema(columns="Flat", fields=(Column(name="id", type="int"),))
    orders = topic(("n", "int"), key=key)
    orders.reading.writers.schemas = {1: WriterSchema(text=text(n="int", key_id="int"))}
    with pytest.raises(ConflictError, match="field key_id of the values has the name of column key_id of the key"):
        adapted(orders, {"n": "int", "key_id": "int"})


IN_TABLE = {"a": "int", "key_id": "int"}
TABLE = TableColumns(
    tuple(
        {"id": n, "name": name, "required": False, "type": kind} for n, (name, kind) in enumerate(IN_TABLE.items(), 1)
    ),
    uuid="uuid",
    schema_id=3,
)


def governed(**policy: Any) -> Topic:
    """Return a topic whose keys have a schema that fits the table, one that needs a column, and one that needs a wider column."""
    incompatible = policy.pop("incompatible", "Hold")
    orders = keyed(("id", "int"), evolution=Evolution(**policy), incompatible=incompatible)
    orders.reading.key_writers.schemas = {
        1: WriterSchema(text=text(id="int")),
        2: WriterSchema(text=text(id="int", more="string")),
        3: WriterSchema(text=text(id="long")),
    }
    return orders


def test_columns_of_keys_change_at_once_without_a_policy() -> None:
    schema, *left_out = allowed(governed(), IN_TABLE, TABLE)
    assert (key_columns(schema), left_out) == ({"key_id": "long", "key_more": "string"}, [{}, {}])


def test_columns_of_keys_wait_for_an_approval() -> None:
    orders = governed(add="Propose", widen="Propose")
    with pytest.raises(ConflictError) as held:
        allowed(orders, IN_TABLE, TABLE)
    assert held.value.reason == Reason.PROPOSED
    proposed = orders.table.proposed
    assert proposed is not None
    assert proposed.changes == ("widen column key_id: int to long", "add column key_more: string")
    approved = governed(add="Propose", widen="Propose", approved=proposed.approve)
    schema, *_ = allowed(approved, IN_TABLE, TABLE)
    assert (key_columns(schema), approved.table.proposed) == ({"key_id": "long", "key_more": "string"}, None)


@pytest.mark.parametrize(("policy", "field"), [({"add": "Refuse"}, "add"), ({"widen": "Refuse"}, "widen")])
def test_refused_columns_of_keys_stop_the_topic(policy: Any, field: str) -> None:
    orders = governed(**policy)
    with pytest.raises(ConflictError, match=f"spec.schema.evolution.{field} is Refuse") as held:
        allowed(orders, IN_TABLE, TABLE)
    assert (held.value.reason, orders.table.proposed) == (Reason.INCOMPATIBLE_SCHEMA, None)


def test_keys_that_need_a_change_without_approval_can_make_bad_records() -> None:
    orders = governed(add="Refuse", incompatible="DeadLetter")
    schema, of_values, of_keys = allowed(orders, IN_TABLE, TABLE)
    assert (key_columns(schema), of_values) == ({"key_id": "long"}, {})
    assert {number: each.code for number, each in of_keys.items()} == {2: Code.INCOMPATIBLE_SCHEMA}
    assert "add column key_more: string" in of_keys[2].detail


def test_values_and_keys_have_one_approval() -> None:
    decoding = RecordSchema(format="Avro", framing="Registry", subject=Subject(registry="main", name="orders-key"))
    key = KeySchema(columns="Flat", fields=(Column(name="id", type="int"),), decoding=decoding)
    orders = topic(("a", "int"), key=key, evolution=Evolution(add="Propose"))
    orders.reading.writers.schemas = {7: WriterSchema(text=text(a="int", note="string"))}
    orders.reading.key_writers.schemas = {8: WriterSchema(text=text(id="int", more="string"))}
    with pytest.raises(ConflictError):
        allowed(orders, IN_TABLE, TABLE)
    assert orders.table.proposed is not None
    assert orders.table.proposed.changes == ("add column note: string", "add column key_more: string")
