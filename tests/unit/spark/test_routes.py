"""The contracts of a topic's tables divide its records: each record goes to exactly one of them."""

import base64
import json
import random
from typing import Any

import pyarrow.compute as pc
import pytest

from firn import protoc
from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, IngestJob, RecordSchema, Route, SchemaFormat
from firn.schemas.columns import columns_of
from firn.schemas.routes import check_unchanged, value_schema
from firn_spark.worker.decoding import Decoded, Decoder
from firn_spark.worker.projections.routing import RouteValues
from tests.unit.spark.records import fetched, job

ORDERS, REFUNDS = "order", "refund.*"
FIELDS = ({"name": "id", "type": "long"}, {"name": "type", "type": "string"})
RAW = RecordSchema(format=SchemaFormat.RAW)
REST = "rest"


def json_schema(*fields: dict[str, Any]) -> RecordSchema:
    spec = {"schema": {"format": "Json", "fields": list(fields or FIELDS)}}
    return IcebergTopic.parse({"metadata": {"name": "t"}, "spec": spec}).record_schema()


def jobs(by: str, schema: RecordSchema, *matches: str, otherwise: str = "DeadLetter") -> dict[str, IngestJob]:
    """Return a contract for each expression, and one for the rest."""
    values = value_schema(schema, by)
    routes = {match: Route(values=values, match=match, before=matches[:at]) for at, match in enumerate(matches)}
    routes[REST] = Route(values=values, before=matches, otherwise=otherwise)
    plain = job(("a", "int")).model_copy(update={"record_schema": schema})
    return {name: plain.model_copy(update={"route": route}) for name, route in routes.items()}


def landed(found: Decoded) -> tuple[list[int], dict[int, str]]:
    """Return the offsets of rows, and the codes of dead letters by offset."""
    rows = [row["_kafka"]["offset"] for row in found.rows.to_pylist()]
    dead = [] if found.dead is None else found.dead.to_pylist()
    return rows, {letter["_kafka"]["offset"]: letter["error_code"] for letter in dead}


def divided(contracts: dict[str, IngestJob], values: list[Any], **columns: Any) -> dict[str, Any]:
    """Return rows and dead letters of each contract, after a check that each record is at exactly one place."""
    encoded = [value if value is None or isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    result, places = {}, []
    records, shared = fetched(encoded, **columns), RouteValues()
    for name, contract in contracts.items():
        found = Decoder(contract, ingested_at=1, route_values=shared).decode(records)
        rows, dead = result[name] = landed(found)
        assert found.unrouted == len(values) - len(rows) - len(dead)
        places += [*rows, *dead]
    assert sorted(places) == list(range(len(values)))
    return result


def test_the_first_route_that_matches_the_whole_value_takes_the_record() -> None:
    values = [{"id": 0, "type": text} for text in ("order", "orders", "refund", "refund-eu", "an order", "Order")]
    found = divided(jobs("$.type", json_schema(), ORDERS, REFUNDS, "refund-eu"), values)
    assert found[ORDERS] == ([0], {})
    assert found[REFUNDS] == ([2, 3], {})
    assert found["refund-eu"] == ([], {})
    assert found[REST] == ([], {1: "NoRoute", 4: "NoRoute", 5: "NoRoute"})


def test_the_tables_of_a_topic_compare_an_expression_with_a_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, options = [], pc.MatchSubstringOptions

    def counted(pattern: str) -> Any:
        compared.append(pattern)
        return options(pattern)

    monkeypatch.setattr(pc, "MatchSubstringOptions", counted)
    contracts = jobs("$.type", json_schema(), ORDERS, REFUNDS, "x")
    for _ in range(2):
        divided(contracts, [{"type": "order"}, {"type": "refund"}, {"type": "y"}])
    assert len(compared) == 2 * 3


def test_an_alternative_matches_the_whole_value_and_a_line_break_does_not_end_it() -> None:
    values = [{"type": text} for text in ("a", "b", "ab", "a\n", "xb")]
    assert divided(jobs("$.type", json_schema(), "a|b"), values)["a|b"] == ([0, 1], {})


def test_records_that_no_route_takes_become_rows_with_otherwise_table() -> None:
    values = [{"id": 1, "type": "x"}, {"id": 2}, {"id": 3, "type": None}, None, {"id": "no", "type": "y"}]
    found = divided(jobs("$.type", json_schema(), ORDERS, otherwise="Table"), values)
    assert found[REST] == ([0, 1, 2, 3], {4: "WrongKind"})


@pytest.mark.parametrize("value", [b"{", b"", b"[]", b'{"type": 5}', b'{"type": "order", "type": "order"}', b"\xff"])
def test_a_value_that_cannot_be_read_is_a_dead_letter_of_the_topic_only(value: bytes) -> None:
    rows, dead = divided(jobs("$.type", json_schema(), ORDERS, otherwise="Table"), [value])[REST]
    assert (rows, list(dead)) == ([], [0])


def test_other_members_of_the_struct_do_not_decide() -> None:
    """So the struct can have further members later, and the records still go to the same tables."""
    schema = json_schema({"name": "meta", "type": "struct<kind: string, n: int>"})
    values = [{"meta": {"kind": "order", "n": "x"}}, {"meta": {"kind": "order", "n": 1}}]
    assert divided(jobs("$.meta.kind", schema, ORDERS), values)[ORDERS] == ([1], {0: "WrongKind"})
    less = json_schema({"name": "meta", "type": "struct<kind: string>"})
    assert value_schema(schema, "$.meta.kind") == value_schema(less, "$.meta.kind")


def test_a_bad_record_of_a_route_is_a_dead_letter_of_its_table() -> None:
    found = divided(jobs("$.type", json_schema(), ORDERS), [{"type": "order", "id": "x"}, {"type": "order", "id": 1}])
    assert found[ORDERS] == ([1], {0: "WrongKind"})


def test_each_table_has_its_own_schema() -> None:
    contracts = jobs("$.type", json_schema(), ORDERS, REFUNDS)
    other = json_schema({"name": "reason", "type": "string", "required": True})
    contracts[REFUNDS] = contracts[REFUNDS].model_copy(update={"record_schema": other})
    found = divided(contracts, [{"type": "order"}, {"type": "refund", "reason": "r"}, {"type": "refund"}])
    assert found[ORDERS] == ([0], {})
    assert found[REFUNDS] == ([1], {2: "MissingRequired"})


def test_headers_keys_and_fields_that_are_no_columns_decide() -> None:
    headers = [[("kind", b"order")], [("kind", b"x"), ("kind", b"order")], [], None, [("kind", b"\xff")]]
    given = [None if each is None else [{"key": key, "value": value} for key, value in each] for each in headers]
    found = divided(jobs("header:kind", RAW, ORDERS), [b""] * 5, headers=given)
    assert found[ORDERS] == ([0, 1], {})
    assert found[REST] == ([], {2: "NoRoute", 3: "NoRoute", 4: "InvalidUtf8"})
    found = divided(jobs("key", RAW, ORDERS), [b"v", b"v"], key=[b"order", None])
    assert found[ORDERS] == ([0], {})
    values = [{"meta": {"type": "order"}}, {"meta": {}}, {"meta": 1}]
    assert divided(jobs("$.meta.type", json_schema(), ORDERS), values)[ORDERS] == ([0], {})
    assert divided(jobs("$.meta.type", RAW, ORDERS), values)[ORDERS] == ([0], {})


def test_integers_and_booleans_decide_by_their_text() -> None:
    fields = [{"name": "code", "type": "int"}, {"name": "test", "type": "boolean"}]
    values = [{"code": 7, "test": True}, {"code": 70}, {"code": None, "test": False}]
    assert divided(jobs("$.code", json_schema(*fields), "7"), values)["7"] == ([0], {})
    assert divided(jobs("$.test", json_schema(*fields), "true"), values)["true"] == ([0], {})


def test_fields_of_avro_and_protobuf_values_decide() -> None:
    record = {
        "type": "record",
        "name": "E",
        "fields": [{"name": "n", "type": "long"}, {"name": "kind", "type": "string"}],
    }
    avro = RecordSchema(format=SchemaFormat.AVRO, text=json.dumps(record))
    avro = avro.model_copy(update={"fields": columns_of(avro, "text")})
    values = [b"\x02\x0aorder", b"\x02\x02x", b"\x02"]
    found = divided(jobs("$.kind", avro, ORDERS, otherwise="Table"), values)
    assert found[ORDERS] == ([0], {})
    assert found[REST] == ([1], {2: "InvalidAvro"})


def avro_schema(*fields: dict[str, Any]) -> RecordSchema:
    text = json.dumps({"type": "record", "name": "E", "fields": [{"name": "kind", "type": "string"}, *fields]})
    schema = RecordSchema(format=SchemaFormat.AVRO, text=text)
    return schema.model_copy(update={"fields": columns_of(schema, "text")})


def protobuf_schema(*fields: str) -> RecordSchema:
    text = f'syntax = "proto3"; message E {{ {" ".join(fields)} }}'
    content = base64.b64encode(protoc.descriptors(text, ())).decode()
    schema = RecordSchema(format=SchemaFormat.PROTOBUF, text=text, descriptors=content)
    return schema.model_copy(update={"fields": columns_of(schema, "text")})


def test_all_contracts_of_a_topic_read_the_value_in_the_same_way() -> None:
    """They change one after the other, so a value that only one of them can read would have two tables, or none."""

    def check(before: RecordSchema, after: RecordSchema) -> None:
        check_unchanged(value_schema(before, "$.kind"), value_schema(after, "$.kind"), "$.kind")

    number = {"name": "n", "type": "int"}
    check(avro_schema(number), avro_schema({**number, "doc": "a number", "aliases": ["m"], "default": 0}))
    with pytest.raises(InvalidSpecError, match="so its encoding cannot change"):
        check(avro_schema(), avro_schema(number))
    with pytest.raises(InvalidSpecError, match="so its encoding cannot change"):
        check(avro_schema(), avro_schema().model_copy(update={"framing": "Registry"}))
    check(protobuf_schema("string kind = 1;"), protobuf_schema("string kind = 1;", "int32 n = 2;"))
    with pytest.raises(InvalidSpecError, match="so its encoding cannot change"):
        check(protobuf_schema("string kind = 1;"), protobuf_schema("string kind = 2;"))


def test_a_record_beyond_a_halt_and_a_letter_of_an_earlier_round_are_not_divided_again() -> None:
    contract = jobs("$.type", json_schema(), ORDERS)[ORDERS].model_copy(update={"on_bad_record": "Halt"})
    decoder = Decoder(contract, ingested_at=1)
    values = [{"type": "x"}, {"type": "order", "id": "bad"}, {"type": "order"}]
    found = decoder.decode(fetched([json.dumps(value).encode() for value in values]))
    assert (landed(found)[0], found.unrouted, [halt.offset for halt in found.halts]) == ([], 1, [1])


def test_random_values_are_divided_exactly_once() -> None:
    random_ = random.Random(13)
    words = ["order", "refund", "refund-x", "", "ü", "a.b", "a\nb", "order "]
    for _ in range(20):
        matches = random_.sample(["order", "refund.*", "a.b", ".*", "", "[^a-z]", "(?i)ORDER", "r|o"], 3)
        values: list[Any] = [
            random_.choice([{"type": random_.choice(words), "id": 1}, {"id": 2}, None, b"{", {"type": 1}])
            for _ in range(60)
        ]
        filled = [match or "x?" for match in matches]
        divided(jobs("$.type", json_schema(), *filled, otherwise=random_.choice(["Table", "DeadLetter"])), values)


def test_the_value_needs_a_field_with_one_form_as_text() -> None:
    schema = RecordSchema(format=SchemaFormat.JSON, fields=(Column(name="at", type="timestamptz"),))
    with pytest.raises(InvalidSpecError, match=r"\$.at has the type timestamptz"):
        value_schema(schema, "$.at")


def test_a_member_whose_name_no_column_can_have_decides() -> None:
    values = [
        {"event-type": "order"},
        {"meta": {"a.b": "order"}},
        {"event.type": "order", "meta": {"a": {"b": "order"}}},
    ]
    assert divided(jobs("$['event-type']", json_schema(), ORDERS), values)[ORDERS][0] == [0]
    assert divided(jobs("$.meta['a.b']", json_schema(), ORDERS), values)[ORDERS][0] == [1]
    schema = json_schema()
    assert value_schema(schema, "$['type']") == value_schema(schema, "$.type")
    with pytest.raises(
        InvalidSpecError, match="spec.routes.by: character 2 of the path .*: a name in brackets has single quotes"
    ):
        value_schema(schema, '$["event-type"]')
