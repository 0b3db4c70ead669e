"""A value may name its schema in a header, or in no place at all."""

import base64
import io
import json
import uuid
from typing import Any

import fastavro
import pytest

from firn import protoc
from firn.decoders.bad_records import Code
from firn.model.jobs import Column, KeySchema, RecordSchema, Subject, WriterSchema
from firn_spark.worker.decoding import Decoder, Known
from firn_spark.worker.formats.registry import open_format
from firn_spark.worker.formats.writer_schemas import Refusal, SchemasNeededError, WriterSchemas
from firn_spark.worker.landing import Kind, LandingPlan, TopicLanding, land
from tests.unit.spark import records, tables
from tests.unit.spark.records import fetched

VALUE, KEY = "__value_schema_id", "__key_schema_id"
GUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
OTHER = uuid.UUID(int=7)
GONE = Refusal(Code.UNKNOWN_SCHEMA, "no schema with this GUID")


def avro(name: str = "a", kind: str = "long") -> WriterSchema:
    return WriterSchema(text=json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]}))


def value(content: Any, writer: WriterSchema) -> bytes:
    schema = json.loads(writer.text)
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, {schema["fields"][0]["name"]: content})
    return buffer.getvalue()


def by_id(number: int, more: bytes = b"", name: str = VALUE) -> list[dict[str, Any]]:
    return [{"key": name, "value": b"\0" + number.to_bytes(4) + more}]


def by_guid(guid: uuid.UUID, more: bytes = b"", name: str = VALUE) -> list[dict[str, Any]]:
    return [{"key": name, "value": b"\1" + guid.bytes + more}]


def schema(id_in: Any = "Header", **changes: Any) -> RecordSchema:
    subject = Subject(registry="main", name="s", id_in=id_in)
    fields = (Column(name="a", type="long"),)
    return RecordSchema(**{"format": "Avro", "framing": "Registry", "subject": subject, "fields": fields, **changes})


KNOWN: WriterSchemas = {1: avro(), 2: avro(kind="int"), str(GUID): 2, str(OTHER): GONE}


def test_ids_and_guids_of_headers_name_the_schemas() -> None:
    values = [value(5, avro()), value(6, avro()), b"\0\0\0\0\1" + value(7, avro()), None]
    headers = [by_id(1), by_guid(GUID), None, by_id(1)]
    columns = open_format(schema(), KNOWN).decode(fetched(values, headers=headers))
    assert columns.errors == {}
    assert columns.arrays[0].to_pylist() == [5, 6, 7, None]
    assert columns.schema_ids is not None
    assert columns.schema_ids.tolist() == [1, 2, 1, -1]


def test_the_last_header_of_the_name_counts() -> None:
    headers = [[*by_id(99), *by_guid(OTHER, name="other"), *by_id(1)]]
    assert open_format(schema(), KNOWN).decode(fetched([value(5, avro())], headers=headers)).errors == {}


@pytest.mark.parametrize(
    ("headers", "code", "problem"),
    [
        (None, Code.UNKNOWN_SCHEMA, "the record has no header __value_schema_id, and no schema id before its value"),
        (by_id(1, name=KEY), Code.UNKNOWN_SCHEMA, "the record has no header __value_schema_id"),
        ([{"key": VALUE, "value": None}], Code.UNKNOWN_SCHEMA, "the record has no header __value_schema_id"),
        ([{"key": VALUE, "value": b""}], Code.UNKNOWN_SCHEMA, "header __value_schema_id has 0 bytes; an id has 5"),
        ([{"key": VALUE, "value": b"\0\0\1"}], Code.UNKNOWN_SCHEMA, "has 3 bytes and begins with 0"),
        (by_id(1, b"\0"), Code.UNKNOWN_SCHEMA, "has 6 bytes and begins with 0"),
        ([{"key": VALUE, "value": b"\1" + bytes(15)}], Code.UNKNOWN_SCHEMA, "has 16 bytes and begins with 1"),
        ([{"key": VALUE, "value": b"\2" + bytes(4)}], Code.UNKNOWN_SCHEMA, "has 5 bytes and begins with 2"),
        (by_guid(OTHER), Code.UNKNOWN_SCHEMA, "no schema with this GUID"),
    ],
)
def test_a_header_without_an_id_makes_a_dead_letter_with_its_bytes(headers: Any, code: Code, problem: str) -> None:
    job = records.job().model_copy(update={"record_schema": schema()})
    values = [value(5, avro()), value(6, avro())]
    decoded = Decoder(job, ingested_at=0, known=Known(KNOWN)).decode(fetched(values, headers=[headers, by_id(1)]))
    assert decoded.rows["a"].to_pylist() == [6]
    assert decoded.dead is not None
    (letter,) = decoded.dead.to_pylist()
    assert (letter["error_code"], letter["value"]) == (code, values[0])
    assert problem in letter["error_detail"]


def test_unknown_guids_and_ids_are_asked_for() -> None:
    opened = open_format(schema(), {1: avro()})
    with pytest.raises(SchemasNeededError) as needed:
        opened.decode(fetched([b"\2", b"\2"], headers=[by_guid(GUID), by_guid(OTHER)]))
    assert set(needed.value.ids) == {str(GUID), str(OTHER)}
    with pytest.raises(SchemasNeededError) as needed:
        opened.decode(fetched([b"\2"], headers=[by_id(4)]))
    assert needed.value.ids == [4]


PROTO = 'syntax = "proto3"; message A { int64 other = 1; } message B { int64 a = 1; }'


@pytest.mark.parametrize(
    ("indexes", "code"),
    [
        (b"\2\2", None),
        (b"\0", Code.INVALID_PROTOBUF),
        (b"", Code.INVALID_PROTOBUF),
        (b"\4\2", Code.INVALID_PROTOBUF),
        (b"\2\2\0", Code.INVALID_PROTOBUF),
    ],
)
def test_the_indexes_of_a_protobuf_message_are_in_the_header(indexes: bytes, code: Code | None) -> None:
    writer = WriterSchema(text=PROTO, descriptors=base64.b64encode(protoc.descriptors(PROTO, ())).decode())
    opened = open_format(schema(format="Protobuf", message="B"), {1: writer, str(GUID): 1})
    headers = [by_id(1, indexes), by_guid(GUID, indexes)]
    columns = opened.decode(fetched([b"\x08\x05", b"\x08\x06"], headers=headers))
    assert {error.code for error in columns.errors.values()} == ({code} if code is not None else set())
    assert columns.arrays[0].to_pylist() == ([None, None] if code is not None else [5, 6])


def test_json_values_have_only_the_header() -> None:
    columns = open_format(schema(format="Json"), KNOWN).decode(
        fetched([b'{"a": 5}', b'{"a": 6}'], headers=[by_id(1), by_guid(GUID)])
    )
    assert (columns.errors, columns.arrays[0].to_pylist()) == ({}, [5, 6])


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ("Avro", [value(5, avro()), b"\0\0\0\0\1\x0a", None]),
        ("Json", [b'{"a": 5}', b"x", None]),
    ],
)
def test_the_latest_schema_reads_values_without_ids(form: str, values: list[bytes | None]) -> None:
    latest = schema("None", format=form, schema_id=1)
    job = records.job().model_copy(update={"record_schema": latest})
    decoded = Decoder(job, ingested_at=0, known=Known(KNOWN)).decode(fetched(values))
    assert decoded.rows["a"].to_pylist() == [5, None]
    assert [row["schema_id"] for row in decoded.rows["_kafka"].to_pylist()] == [1, None]
    assert decoded.dead is not None
    assert decoded.dead["error_code"].to_pylist() == [f"Invalid{form if form == 'Avro' else 'Json'}"]


# Keys


def keyed(columns: Any = "Flat", id_in: Any = "Payload", **changes: Any) -> Any:
    decoding = schema(id_in, fields=(), **changes)
    key = KeySchema(columns=columns, fields=(Column(name="a", type="long"),), decoding=decoding)
    job = records.job(("n", "int"))
    return job.model_copy(update={"record_schema": job.record_schema.model_copy(update={"key": key})})


@pytest.mark.parametrize("shape", ["Flat", "Struct"])
def test_keys_are_decoded_like_values(shape: str) -> None:
    keys = [b"\0\0\0\0\1" + value(5, avro()), None, b"\0\0\0\0\1\x80", b"plain", b"", b"\0\0\0\0\x09" + b"\2"]
    job = keyed(shape)
    decoder = Decoder(
        job, ingested_at=0, known=Known(key_schemas={1: avro(), 9: Refusal(Code.UNKNOWN_SCHEMA, "of another subject")})
    )
    decoded = decoder.decode(fetched([b'{"n": 1}'] * len(keys), key=keys))
    found = decoded.rows["key_a"].to_pylist() if shape == "Flat" else decoded.rows["key"].to_pylist()
    assert found == ([5, None] if shape == "Flat" else [{"a": 5}, None])
    assert decoded.dead is not None
    assert [(letter["error_code"], letter["error_path"], letter["key"]) for letter in decoded.dead.to_pylist()] == [
        ("InvalidAvro", "$key.a", keys[2]), ("UnknownSchema", "$key", keys[3]), ("EmptyPayload", "$key", keys[4]),
        ("UnknownSchema", "$key", keys[5]),
    ]  # fmt: skip
    assert decoded.dead["error_detail"].to_pylist()[3] == "of another subject"


def test_a_key_has_a_header_of_its_own() -> None:
    job = keyed(id_in="Header")
    headers = [[*by_id(7), *by_id(1, name=KEY)], by_id(1)]
    decoded = Decoder(job, ingested_at=0, known=Known(key_schemas={1: avro()})).decode(
        fetched([b'{"n": 1}'] * 2, key=[value(5, avro())] * 2, headers=headers)
    )
    assert decoded.rows["key_a"].to_pylist() == [5]
    assert decoded.dead is not None
    assert "no header __key_schema_id" in decoded.dead["error_detail"].to_pylist()[0]


def test_a_text_of_the_spec_reads_keys() -> None:
    text = RecordSchema(format="Avro", text=avro().text)
    key = KeySchema(columns="Flat", fields=(Column(name="a", type="long"),), decoding=text)
    job = records.job(("n", "int"))
    job = job.model_copy(update={"record_schema": job.record_schema.model_copy(update={"key": key})})
    decoded = Decoder(job, ingested_at=0).decode(fetched([b'{"n": 1}'] * 2, key=[value(5, avro()), b"\x80"]))
    assert decoded.rows["key_a"].to_pylist() == [5]
    assert decoded.dead is not None
    assert decoded.dead["error_code"].to_pylist() == ["InvalidAvro"]


@pytest.mark.parametrize(("kind", "content"), [("string", "DE-1"), ("long", 2**40), ("boolean", True), ("double", 0.5)])
def test_a_key_is_one_text_or_number(kind: str, content: Any) -> None:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, kind, content)
    text = RecordSchema(format="Avro", text=json.dumps(kind))
    key = KeySchema(columns="Flat", fields=(Column(name="value", type=kind),), decoding=text)
    job = records.job(("n", "int"))
    job = job.model_copy(update={"record_schema": job.record_schema.model_copy(update={"key": key})})
    keys = [buffer.getvalue(), buffer.getvalue() + b"x", None]
    decoded = Decoder(job, ingested_at=0).decode(fetched([b'{"n": 1}'] * 3, key=keys))
    assert decoded.rows["key_value"].to_pylist() == [content, None]
    assert decoded.dead is not None
    assert decoded.dead["error_code"].to_pylist() == ["InvalidAvro"]


def test_large_keys_are_decoded_in_portions() -> None:
    item = {"type": "record", "name": "I", "fields": [{"name": f"c{n}", "type": "double"} for n in range(50)]}
    items = {"type": "array", "items": ["null", item]}
    decoding = RecordSchema(
        format="Avro", text=json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": items}]})
    )
    job, kind = keyed(), f"list<struct<{', '.join(f'c{n}: double' for n in range(50))}>>"
    key = KeySchema(columns="Flat", fields=(Column(name="a", type=kind),), decoding=decoding)
    job = job.model_copy(update={"record_schema": job.record_schema.model_copy(update={"key": key})})
    decoder = Decoder(job, ingested_at=0)
    given = fetched([b'{"n": 1}'] * 4, key=[bytes(2**20)] * 4)
    portions = list(decoder.portions(given))
    assert len(portions) > 1
    assert sum(map(len, portions)) == 4
    assert len(list(decoder.portions(fetched([b'{"n": 1}'] * 4, key=[b"k"] * 4)))) == 1


def test_a_task_names_the_schemas_of_keys_that_it_needs(tmp_path: Any) -> None:
    job = keyed()
    plan = LandingPlan({"t": TopicLanding(job, tables.table_of(job, tmp_path))}, ingested_at=0)
    batch = records.batch([b'{"n": 1}'], key=[b"\0\0\0\0\1\x02"])
    assert dict(tables.results(land(iter([batch]), plan))["t"]) == {
        Kind.SCHEMAS_NEEDED: [{"ids": [1], "reader": "keys"}]
    }
