"""The check of a value at produce refuses exactly the values that tasks make bad records of, with the same cause and place."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from firn.decoders.bad_records import BadRecordError
from firn.decoders.checks import check_of, packed, unpacked
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, RecordSchema, Rename
from firn.schemas import avro
from firn.schemas.columns import columns_of
from firn_spark.worker.formats.registry import open_format
from tests.unit.spark import protobuf_values
from tests.unit.spark.avro_values import Schemas, Values
from tests.unit.spark.records import fetched
from tests.unit.spark.test_avro_decoders import damaged, schema_of, with_id
from tests.unit.spark.test_protobuf_records import schema_of as protobuf_schema

FRAME = b"\0\0\0\0\x07"
FIELDS = (
    Column(name="id", type="long", required=True), Column(name="at", type="timestamptz"), Column(name="tags", type="list<string>"),
    Column(name="place", type="struct<lat: double, price: decimal(9, 2)>"), Column(name="key", type="uuid"),
)  # fmt: skip
VALUES = [
    {"id": 1}, {"id": None}, {"id": "1"}, {"id": 2**63}, {}, {"id": 1, "other": 2}, {"id": 1, "at": "2026-01-31T12:00:00Z"},
    {"id": 1, "at": "yesterday"}, {"id": 1, "tags": ["a", 1]}, {"id": 1, "place": {"lat": 1e400, "price": "1.234"}},
    {"id": 1, "place": {"lat": 1, "price": "1.23"}}, {"id": 1, "key": "not a uuid"}, [], 7, None, {"number": 1},
]  # fmt: skip


def verdicts(schema: RecordSchema, values: Sequence[bytes | None]) -> list[Any]:
    check = check_of(schema)
    found: list[Any] = []
    for value in values:
        try:
            check(value)
            found.append(None)
        except BadRecordError as error:
            found.append((error.code, error.path))
    return found


def of_tasks(schema: RecordSchema, values: Sequence[bytes | None]) -> list[Any]:
    errors = open_format(schema, {}).decode(fetched(values)).errors
    return [(errors[index].code, errors[index].path) if index in errors else None for index in range(len(values))]


@pytest.mark.parametrize("unknown_fields", ["Ignore", "DeadLetter"])
def test_json_values(unknown_fields: Any) -> None:
    rename = Rename(old="number", new="id")
    schema = RecordSchema(format="Json", fields=FIELDS, unknown_fields=unknown_fields, renames=(rename,))
    texts = [json.dumps(value).encode() for value in VALUES]
    values = [
        *texts,
        *(FRAME + text for text in texts),
        None,
        b"",
        b" ",
        b"\xff",
        b"{",
        b'{"id": NaN}',
        b"[" * 100,
        FRAME,
    ]
    expected = of_tasks(schema, values)
    assert verdicts(schema, values) == expected
    assert 5 < sum(each is None for each in expected) < len(expected) - 5


@pytest.mark.parametrize("seed", range(3))
def test_avro_values(seed: int) -> None:
    pick = random.Random(seed)
    made = Values(pick)
    for _ in range(5):
        record, schema = schema_of(with_id(Schemas(pick).record()))
        inputs = [made.make(record)[1] for _ in range(20)]
        values = [*inputs, *(damaged(pick, value) for value in inputs), b"", None]
        assert verdicts(schema, values) == of_tasks(schema, values)
        framed = schema.model_copy(update={"framing": "Registry"})
        values = [value if value is None or pick.random() < 0.1 else FRAME + value for value in values]
        assert verdicts(framed, values) == of_tasks(framed, values)


def test_an_avro_value_that_is_one_number() -> None:
    text = '"long"'
    schema = RecordSchema(format="Avro", text=text, fields=avro.columns(avro.parse(text)))
    values = [b"\x02", b"", b"\x02\x02", b"\x80", None]
    assert verdicts(schema, values) == of_tasks(schema, values)
    assert verdicts(schema, values)[0] is None


@pytest.mark.parametrize("seed", range(3))
def test_protobuf_values(seed: int) -> None:
    pick = random.Random(seed)
    schemas, made = protobuf_values.Schemas(pick, "proto2" if seed % 2 else "proto3"), protobuf_values.Values(pick)
    for _ in range(5):
        one = schemas.make()
        inputs = [made.make(one) for _ in range(20)]
        values = [*inputs, *(damaged(pick, value) for value in inputs), b"", None]
        schema = one.record_schema()
        if pick.random() < 0.5:
            keeping = schema.model_copy(update={"nanoseconds": True})
            schema = keeping.model_copy(update={"fields": columns_of(keeping, "text")})
        assert verdicts(schema, values) == of_tasks(schema, values)


def test_message_indexes_and_fields_without_a_column() -> None:
    given = "int32 a = 1; E e = 2; repeated E many = 3; map<string, E> named = 4; S s = 5;"
    types = "message E {} message S { int32 b = 1; E e = 2; }"
    schema = protobuf_schema(given, types, framing="Registry").model_copy(update={"schema_id": 7})
    bodies = [
        b"",
        b"\x08\x05",
        b"\x10\x05",
        b"\x1a\x00",
        b"\x2a\x02\x10\x05",
        b"\x22\x00",
        b"\x2a\x02\x08\x05",
        b"\xff",
    ]
    values = [FRAME + indexes + body for indexes in (b"\0", b"\x02\x02", b"\x01") for body in bodies]
    expected = of_tasks(schema, [*values, b"", FRAME, None])
    assert verdicts(schema, [*values, b"", FRAME, None]) == expected
    assert None in expected[:8]


def test_a_check_leaves_no_columns_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    _, schema = schema_of(with_id(Schemas(random.Random(5)).record()))
    parsed: list[str] = []
    parse = avro.parse

    def count(text: str, *more: Any, **named: Any) -> avro.Record:
        parsed.append(text)
        return parse(text, *more, **named)

    monkeypatch.setattr(avro, "parse", count)
    check_of(schema)
    first = len(parsed)
    check_of(schema)
    assert len(parsed) == 2 * first


def test_a_schema_without_columns_has_no_check() -> None:
    empty = json.dumps({"type": "record", "name": "R", "fields": []})
    recursive = json.dumps({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]})
    for text in (empty, recursive, '"null"', "{"):
        with pytest.raises(InvalidSpecError):
            check_of(RecordSchema(format="Avro", text=text))


def test_a_packed_schema_has_the_same_verdicts_and_says_nothing_else() -> None:
    schema = RecordSchema(
        format="Json", fields=FIELDS, unknown_fields="DeadLetter", renames=(Rename(old="number", new="id"),)
    )
    texts = [json.dumps(value).encode() for value in VALUES]
    assert verdicts(unpacked(packed(schema)), texts) == of_tasks(schema, texts)
    assert unpacked(packed(schema)) == schema
    assert packed(schema) == packed(schema.model_copy(update={"incompatible": "DeadLetter", "schema_id": 3}))


@pytest.mark.parametrize("text", ["{}", "eA==", packed(RecordSchema(format="Json"))[:-8]])
def test_damaged_packed_schemas_are_not_schemas(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpacked(text)


def test_a_packed_schema_is_not_unpacked_to_any_size() -> None:
    bomb = packed(RecordSchema(format="Avro", text=" " * (4 << 20)))
    assert len(bomb) < 32_000
    with pytest.raises(ValueError, match="more than 1 MiB"):
        unpacked(bomb)


def test_a_check_accepts_members_of_a_json_schema_whose_names_no_column_can_have() -> None:
    members = {"order-id": {"type": "integer"}, "user": {"properties": {"@id": {"type": "string"}}}}
    schema = RecordSchema(format="Json", text=json.dumps({"properties": members}), schema_id=7)
    values = [b'{"order-id": 1, "user": {"@id": "a"}}', b'{"order-id": "a"}', b'{"user": {"@id": 1}}']
    assert [found and found[1] for found in verdicts(schema, values)] == [None, "$['order-id']", "$.user['@id']"]


def test_a_packed_schema_keeps_names_that_no_column_can_have() -> None:
    fields = (Column(name="order-id", type="long"), Column(name="x", type=r"struct<'it\'s': int>"))
    schema = unpacked(packed(RecordSchema(format="Json", fields=fields)))
    values = [b'{"order-id": 1, "x": {"it\'s": 2}}', b'{"order-id": "a"}', b'{"x": {"it\'s": "a"}}']
    assert verdicts(schema, values) == of_tasks(schema, values)
    assert [found and found[1] for found in verdicts(schema, values)] == [None, "$['order-id']", r"$.x['it\'s']"]
