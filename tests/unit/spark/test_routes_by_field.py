"""A field of the value decides about the route of a record, as the schema of its writer reads it."""

import base64
import io
import json
import random
import uuid
from typing import Any

import fastavro
import pytest

from firn import protoc
from firn.decoders.avro import RecordReader
from firn.decoders.bad_records import Code
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, IngestJob, RecordSchema, Rename, SchemaFormat, Subject, WriterSchema
from firn.schemas.avro import parse
from firn.schemas.routes import check_unchanged, registry_schema, value_schema
from firn_spark.worker.decoding import Decoder, Known
from firn_spark.worker.formats.writer_schemas import Refusal, SchemasNeededError, WriterSchemas
from tests.unit.spark.records import fetched, job
from tests.unit.spark.test_routes_by_message import REST, contracts, divided

GUID = uuid.UUID(int=5)
KIND = {"type": "enum", "name": "Kind", "symbols": ["sale", "refund"]}
META = {
    "type": "record",
    "name": "Meta",
    "fields": [{"name": "size", "type": "double"}, {"name": "type", "type": "int"}],
}
FIELDS: dict[int, Any] = {
    1: "string",
    2: KIND,
    3: ["null", "string"],
    4: None,
    5: "double",
    6: {"type": "array", "items": "string"},
    7: ["null", META],
    8: ["string", "int"],
    9: "boolean",
    10: {"type": "string", "logicalType": "uuid"},
    11: "long",
    12: "null",
}
"""The type of field ``type`` in each schema. None: the schema has another field, of which ``type`` is an alias."""


def record(number: int, *more: dict[str, Any]) -> dict[str, Any]:
    kind = FIELDS[number]
    other = {"name": "kind", "type": "string", "aliases": ["type"]}
    field = other if kind is None else {"name": "type", "type": kind}
    return {"type": "record", "name": "E", "fields": [{"name": "id", "type": "int"}, field, *more]}


AVRO: WriterSchemas = {
    **{number: WriterSchema(text=json.dumps(record(number))) for number in FIELDS},
    20: Refusal(Code.UNKNOWN_SCHEMA, "the registry does not have it"),
    21: WriterSchema(text='{"type": "record", "name": "E", "fields": 5}'),
    22: WriterSchema(text='"string"'),
    24: WriterSchema(text=json.dumps([record(1), {**record(4), "name": "F"}])),
    str(GUID): 1,
}
TEXT = """syntax = "proto3"; package shop;
message Sale { int32 id = 1; string type = 2; message Line { optional string type = 1; } }
message Refund { enum Kind { none = 0; refund = 1; } Kind type = 3; }
message Visit { int32 id = 1; }
message Wide { double type = 1; }
message Deep { Sale meta = 1; repeated int32 more = 2; }
"""


def protobuf(text: str) -> WriterSchema:
    return WriterSchema(text=text, descriptors=base64.b64encode(protoc.descriptors(text, ())).decode())


PROTOBUF: WriterSchemas = {
    1: protobuf(TEXT),
    2: protobuf('syntax = "proto3"; message Other { string type = 9; }'),
    3: WriterSchema(text="no"),
    20: Refusal(Code.UNKNOWN_SCHEMA, "the registry does not have it"),
}


def nested(levels: int) -> Any:
    kind: Any = "int"
    for level in range(levels):
        kind = {"type": "record", "name": f"L{level}", "fields": [{"name": "x", "type": kind}]}
    return kind


def filled(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"x": value}
    return value


def plain(number: int, content: Any, **more: Any) -> bytes:
    buffer = io.BytesIO()
    name = "kind" if FIELDS[number] is None else "type"
    fastavro.schemaless_writer(buffer, record(number), {"id": 1, name: content, **more})
    return buffer.getvalue()


def framed(number: int, content: bytes) -> bytes:
    return b"\0" + number.to_bytes(4) + content


def avro(number: int, content: Any) -> bytes:
    return framed(number, plain(number, content))


def test_each_avro_value_is_read_with_the_schema_of_its_writer() -> None:
    values = [avro(1, "sale"), avro(2, "refund"), avro(3, "sale"), avro(3, None), avro(2, "sale"), avro(1, "other")]
    found = divided(contracts(SchemaFormat.AVRO, "sale", "refund", by="$.type"), AVRO, values)
    assert found == {"sale": ([0, 2, 4], {}), "refund": ([1], {}), REST: ([], {3: "NoRoute", 5: "NoRoute"})}


def test_a_value_without_the_field_has_no_route() -> None:
    values = [avro(4, "sale"), avro(12, None), None, avro(1, "sale"), framed(22, b"\x08sale")]
    values.append(framed(24, b"\0" + plain(1, "sale")))
    found = divided(contracts(SchemaFormat.AVRO, "sale", by="$.type", otherwise="Table"), AVRO, values)
    assert found == {"sale": ([3], {}), REST: ([0, 1, 2, 4, 5], {})}
    found = divided(contracts(SchemaFormat.AVRO, "sale", by="$.type.kind"), AVRO, [avro(1, "sale")])
    assert found[REST] == ([], {0: "NoRoute"})


def test_integers_booleans_and_uuids_have_one_form_as_text() -> None:
    number = str(uuid.UUID(int=7))
    values = [avro(9, True), avro(10, number), avro(11, 42), avro(1, "42"), avro(1, "true")]
    found = divided(contracts(SchemaFormat.AVRO, "true", number, "42", by="$.type"), AVRO, values)
    assert found == {"true": ([0, 4], {}), number: ([1], {}), "42": ([2, 3], {}), REST: ([], {})}


def test_a_member_of_a_struct_decides() -> None:
    values = [avro(7, {"size": 1.0, "type": 5}), avro(7, {"size": 1.0, "type": 6}), avro(7, None)]
    found = divided(contracts(SchemaFormat.AVRO, "5", by="$.type.type"), AVRO, values)
    assert found == {"5": ([0], {}), REST: ([], {1: "NoRoute", 2: "NoRoute"})}


SIBLINGS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "contains itself": (
        [{"name": "parent", "type": ["null", "Meta"]}],
        {"parent": {"parent": None, "type": "other"}},
    ),
    "differ in case": ([{"name": "a", "type": "int"}, {"name": "A", "type": "string"}], {"a": 1, "A": "x"}),
    "deep": ([{"name": "deep", "type": nested(20)}], {"deep": filled(20)}),
    "of other types": (
        [{"name": "more", "type": {"type": "map", "values": ["null", "Meta"]}}, {"name": "n", "type": "null"}],
        {"more": {"x": None, "y": {"more": {}, "n": None, "type": "other"}}, "n": None},
    ),
}


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize(("fields", "more"), SIBLINGS.values(), ids=SIBLINGS)
def test_other_members_of_an_avro_record_need_no_column(
    fields: list[dict[str, Any]], more: dict[str, Any], nullable: bool
) -> None:
    meta = {"type": "record", "name": "Meta", "fields": [*fields, {"name": "type", "type": "string"}]}
    schema = {
        "type": "record",
        "name": "E",
        "fields": [{"name": "meta", "type": ["null", meta] if nullable else meta}, {"name": "id", "type": "int"}],
    }
    values: list[bytes] = []
    for kind in ("sale", "other"):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, schema, {"meta": {**more, "type": kind}, "id": 1})
        values.append(framed(1, buffer.getvalue()))
    values += [framed(1, b"\0\2")] if nullable else []
    values.append(values[0] + b"\0")
    known: WriterSchemas = {1: WriterSchema(text=json.dumps(schema))}
    found = divided(contracts(SchemaFormat.AVRO, "sale", by="$.meta.type", otherwise="Table"), known, values)
    last = len(values) - 1
    assert found == {"sale": ([0], {}), REST: (list(range(1, last)), {last: "InvalidAvro"})}
    read = parse(json.dumps(schema), read={"meta"}, paths={("meta", "type")})
    strict = RecordReader(read).read(values[0][5:])
    assert strict == {"meta": {**dict.fromkeys(more), "type": "sale"}, "id": None}


def test_a_member_of_a_branch_and_of_a_type_inside_itself_decides() -> None:
    node = {
        "type": "record",
        "name": "N",
        "fields": [{"name": "type", "type": "string"}, {"name": "next", "type": ["null", "N"]}],
    }
    schema = {"type": "record", "name": "E", "fields": [{"name": "x", "type": [node, "int", "null"]}]}
    values = []
    for content in ({"type": "first", "next": {"type": "sale", "next": {"type": "y", "next": None}}}, 5, None):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, schema, {"x": content})
        values.append(framed(1, buffer.getvalue()))
    known: WriterSchemas = {1: WriterSchema(text=json.dumps(schema))}
    for by, match in (("$.x.N.next.type", "sale"), ("$.x.N.type", "first")):
        found = divided(contracts(SchemaFormat.AVRO, match, by=by, otherwise="Table"), known, values)
        assert found == {match: ([0], {}), REST: ([1, 2], {})}
    found = divided(contracts(SchemaFormat.AVRO, "sale", by="$.x.N.next", otherwise="Table"), known, values)
    assert found[REST] == ([], dict.fromkeys(range(3), "IncompatibleSchema"))


def test_other_members_of_a_protobuf_message_need_no_column() -> None:
    text = """syntax = "proto3";
    message E { int32 id = 1; Meta meta = 2; }
    message Meta { Meta parent = 1; repeated Meta more = 2; int32 a = 3; int32 A = 4; string type = 5; }
    """
    known: WriterSchemas = {1: protobuf(text)}
    sale, other = b"\x2a\x04sale", b"\x2a\x05other"
    inner = b"\x0a\x07" + other + b"\x12\0\x18\1\x20\2"
    values = [framed(1, b"\0\x12" + bytes([len(meta)]) + meta) for meta in (inner + sale, inner + other, b"")]
    values += [framed(1, b"\0"), framed(1, b"\0\x12\x40")]
    found = divided(contracts(SchemaFormat.PROTOBUF, "sale", by="$.meta.type", otherwise="Table"), known, values)
    assert found == {"sale": ([0], {}), REST: ([1, 2, 3], {4: "InvalidProtobuf"})}
    found = divided(
        contracts(SchemaFormat.PROTOBUF, "other", by="$.meta.parent.type", otherwise="Table"), known, values
    )
    assert found == {"other": ([0, 1], {}), REST: ([2, 3], {4: "InvalidProtobuf"})}


def test_a_later_member_of_its_oneof_clears_a_protobuf_field() -> None:
    text = """syntax = "proto3";
    message E { oneof kind { string type = 2; int32 code = 1; E more = 3; } oneof other { int32 a = 4; int32 b = 5; } }
    message Deep { E meta = 7; }
    """
    known: WriterSchemas = {1: protobuf(text)}
    sale, code, more, others = b"\x12\x04sale", b"\x08\x05", b"\x1a\x02\x08\x05", b"\x20\x01\x28\x01"
    values = [sale, sale + code, code + sale, sale + more, more + sale, code, sale + others, b""]
    schemas = contracts(SchemaFormat.PROTOBUF, "sale", by="$.type", otherwise="Table")
    found = divided(schemas, known, [framed(1, b"\0" + each) for each in values])
    assert found == {"sale": ([0, 2, 4, 6], {}), REST: ([1, 3, 5, 7], {})}
    schemas = contracts(SchemaFormat.PROTOBUF, "sale", by="$.meta.type", otherwise="Table")
    deep = [b"\x02\x02" + b"\x3a" + bytes([len(each)]) + each for each in values]
    assert divided(schemas, known, [framed(1, each) for each in deep]) == found


def test_a_member_of_a_well_known_message_does_not_decide() -> None:
    text = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message E { google.protobuf.Timestamp at = 1; }'
    )
    found = divided(
        contracts(SchemaFormat.PROTOBUF, "5", by="$.at.seconds", otherwise="Table"),
        {1: protobuf(text)},
        [framed(1, b"\0\x0a\x02\x08\x05")],
    )
    assert found == {"5": ([], {}), REST: ([0], {})}


def test_a_path_is_at_most_as_long_as_a_column_is_deep() -> None:
    known: WriterSchemas = {
        1: WriterSchema(
            text=json.dumps({"type": "record", "name": "E", "fields": [{"name": "x", "type": nested(20)}]})
        ),
        2: protobuf('syntax = "proto3"; message E { E x = 1; string type = 2; }'),
    }
    avro_value, protobuf_value = framed(1, b"\x02"), framed(2, b"\0")
    found = divided(contracts(SchemaFormat.AVRO, "1", by="$.x" + ".x" * 20), known, [avro_value])
    assert found[REST] == ([], {0: "IncompatibleSchema"})
    found = divided(contracts(SchemaFormat.PROTOBUF, "1", by="$" + ".x" * 20 + ".type"), known, [protobuf_value])
    assert found[REST] == ([], {0: "IncompatibleSchema"})


def test_a_json_schema_of_a_registry_does_not_decide_what_the_members_are() -> None:
    subject = Subject(registry="main", name="s")
    schema = RecordSchema(format=SchemaFormat.JSON, subject=subject, text='{"$ref": "#"}')
    values = value_schema(schema, "$.meta.type")
    assert (values.text, values.subject, [field.type for field in values.fields]) == (
        "",
        None,
        ["struct<type: string>"],
    )


def test_a_record_whose_field_cannot_be_read_is_a_dead_letter_of_the_topic_only() -> None:
    values = [
        avro(5, 1.0),
        avro(6, ["sale"]),
        avro(7, {"size": 1.0, "type": 5}),
        avro(8, "sale"),
        avro(1, "sale"),
        framed(20, b"\2"),
        framed(21, b"\2"),
        b"no framing",
        b"",
        framed(1, b"\2\x63"),
    ]
    found = divided(contracts(SchemaFormat.AVRO, "sale", by="$.type", otherwise="Table"), AVRO, values)
    incompatible = dict.fromkeys([0, 1, 2, 3, 6], "IncompatibleSchema")
    unknown = {5: "UnknownSchema", 7: "UnknownSchema", 8: "EmptyPayload", 9: "InvalidAvro"}
    assert found == {"sale": ([4], {}), REST: ([], incompatible | unknown)}


def test_a_dead_letter_names_the_schema_and_the_type() -> None:
    made = contracts(SchemaFormat.AVRO, "sale", by="$.type")[REST]
    decoded = Decoder(made, ingested_at=1, known=known(AVRO)).decode(fetched([avro(5, 1.0)]))
    assert decoded.dead is not None
    (letter,) = decoded.dead.to_pylist()
    assert (
        "schema 5: field $.type has the type double, and routes read fields of type string, int, long, boolean or uuid"
        in (letter["error_detail"])
    )


def known(schemas: WriterSchemas) -> Known:
    return Known(route_schemas=schemas)


def test_ids_and_guids_of_headers_decide() -> None:
    header, guid = b"\0" + (1).to_bytes(4), b"\1" + GUID.bytes
    headers = [[{"key": "__value_schema_id", "value": each}] for each in (header, guid, b"\7")]
    values = [plain(1, "sale"), plain(1, "sale"), plain(1, "sale"), avro(2, "sale"), None]
    made = contracts(SchemaFormat.AVRO, "sale", id_in="Header", by="$.type")
    found = divided(made, AVRO, values, headers=[*headers, None, None])
    assert found == {"sale": ([0, 1, 3], {}), REST: ([], {2: "UnknownSchema", 4: "NoRoute"})}
    indexed = [[{"key": "__value_schema_id", "value": header + b"\2\2"}]]
    made = contracts(SchemaFormat.PROTOBUF, "refund", id_in="Header", by="$.type")
    assert divided(made, PROTOBUF, [b"\x18\1"], headers=indexed)["refund"] == ([0], {})


def test_each_protobuf_value_is_read_with_the_message_that_its_indexes_choose() -> None:
    values = [
        framed(1, b"\0\x12\x04sale"),
        framed(1, b"\2\0\x12\x04sale"),
        framed(1, b"\2\2\x18\1"),
        framed(1, b"\4\0\0\x0a\x04sale"),
        framed(2, b"\0\x4a\x06refund"),
        framed(1, b"\4\0\0"),
        framed(1, b"\2\4\x08\1"),
        framed(1, b"\0\x08\1"),
        None,
    ]
    found = divided(contracts(SchemaFormat.PROTOBUF, "sale", "refund", by="$.type"), PROTOBUF, values)
    assert (found["sale"], found["refund"]) == (([0, 1, 3], {}), ([2, 4], {}))
    assert found[REST] == ([], dict.fromkeys([5, 6, 7, 8], "NoRoute"))
    nested = framed(1, b"\2\x08\x0a\x06\x12\x04sale")
    assert divided(contracts(SchemaFormat.PROTOBUF, "sale", by="$.meta.type"), PROTOBUF, [nested])["sale"] == ([0], {})


def test_a_protobuf_record_whose_field_cannot_be_read_is_a_dead_letter_of_the_topic_only() -> None:
    values = [
        framed(1, b"\2\6"),
        framed(1, b"\2\x63"),
        framed(1, b"\x40"),
        framed(1, b""),
        framed(3, b"\0"),
        framed(1, b"\0\x12\x40"),
        framed(20, b"\0"),
        b"x",
    ]
    found = divided(contracts(SchemaFormat.PROTOBUF, "sale", by="$.type", otherwise="Table"), PROTOBUF, values)
    invalid = dict.fromkeys(range(1, 6), "InvalidProtobuf")
    unknown = {0: "IncompatibleSchema", 6: "UnknownSchema", 7: "UnknownSchema"}
    assert found == {"sale": ([], {}), REST: ([], invalid | unknown)}


@pytest.mark.parametrize("form", [SchemaFormat.AVRO, SchemaFormat.PROTOBUF])
def test_random_values_are_divided_exactly_once_and_blocks_do_not_change_that(form: SchemaFormat) -> None:
    random_ = random.Random(75)
    schemas = AVRO if form is SchemaFormat.AVRO else PROTOBUF
    numbers = [each for each in schemas if isinstance(each, int)]
    good = [avro(1, "sale"), avro(4, "sale"), avro(2, "refund")]
    if form is SchemaFormat.PROTOBUF:
        good = [framed(1, b"\0\x12\x04sale"), framed(1, b"\2\2\x18\1"), framed(1, b"\2\4\x08\1")]
    for _ in range(5):
        values: list[bytes | None] = [
            random_.choice([None, *good, framed(random_.choice(numbers), random_.randbytes(random_.randrange(6)))])
            for _ in range(200)
        ]
        made = contracts(form, "sale", "re.*", by="$.type", otherwise=random_.choice(["Table", "DeadLetter"]))
        whole = divided(made, schemas, values)
        for at in random_.sample(range(len(values)), 20):
            alone = divided(made, schemas, [values[at]])
            assert [name for name, (rows, dead) in alone.items() if rows or dead] == [
                name for name, (rows, dead) in whole.items() if at in rows or at in dead
            ]


def test_tables_with_other_columns_and_names_decide_alike() -> None:
    """Each table has a schema of its own, and its contract changes at another time."""
    made = contracts(SchemaFormat.AVRO, "sale", by="$.type")
    subject = Subject(registry="main", name="s")
    columns = (Column(name="kind", type="string"),)
    schema = RecordSchema(
        format=SchemaFormat.AVRO,
        framing="Registry",
        subject=subject,
        fields=columns,
        renames=(Rename(old="type", new="kind"),),
    )
    assert value_schema(schema, "$.type") == made[REST].route.values  # type: ignore[union-attr]
    made["sale"] = made["sale"].model_copy(update={"record_schema": schema})
    values = [avro(1, "sale"), avro(4, "sale")]
    decoder = Decoder(made["sale"], ingested_at=1, known=Known(writer_schemas=AVRO, route_schemas=AVRO))
    sale = decoder.decode(fetched(values))
    assert [row["kind"] for row in sale.rows.to_pylist()] == ["sale"]
    assert sale.unrouted == 1
    rest = Decoder(made[REST], ingested_at=1, known=known(AVRO)).decode(fetched(values))
    assert rest.unrouted == 1


@pytest.mark.parametrize(("form", "id_in"), [("Avro", "Payload"), ("Protobuf", "Payload"), ("Avro", "Header")])
def test_a_task_names_the_schemas_that_routes_need(form: str, id_in: str) -> None:
    made: IngestJob = contracts(SchemaFormat(form), "sale", id_in=id_in, by="$.type")[REST]
    decoder = Decoder(made, ingested_at=1, known=known({1: AVRO[1]}))
    given = fetched([framed(7, b"\0"), framed(8, b"\0"), avro(1, "sale")])
    if id_in == "Header":
        headers = [[{"key": "__value_schema_id", "value": b"\1" + uuid.UUID(int=6).bytes}], None, None]
        given = fetched([b"", framed(8, b"\0"), avro(1, "sale")], headers=headers)
    with pytest.raises(SchemasNeededError) as raised:
        decoder.decode(given)
    first = str(uuid.UUID(int=6)) if id_in == "Header" else 7
    assert (sorted(raised.value.ids, key=str), raised.value.reader) == (sorted([first, 8], key=str), "routes")
    assert {*decoder.missing(given)["routes"]} == {first, 8}


def test_a_field_needs_ids_and_the_same_registry() -> None:
    def schema(**subject: Any) -> RecordSchema:
        return RecordSchema(format=SchemaFormat.AVRO, subject=Subject(registry="main", name="s", **subject))

    with pytest.raises(InvalidSpecError, match=r"\$\.type needs the id of a schema in each record"):
        value_schema(schema(id_in="None"), "$.type")
    assert value_schema(schema(), "$['type']") == value_schema(schema(), "$.type")
    before, after = value_schema(schema(), "$.type"), value_schema(schema(id_in="Header"), "$.type")
    check_unchanged(before, registry_schema(SchemaFormat.AVRO, "main", "Payload", "$.type"), "$.type")
    with pytest.raises(InvalidSpecError, match=r"read \$\.type with the registry, format and idIn"):
        check_unchanged(before, after, "$.type")
    with pytest.raises(InvalidSpecError, match=r"read \$\.type with the registry, format and idIn"):
        check_unchanged(value_schema(job().record_schema, "$.type"), after, "$.type")
