"""Values that name their schema are decoded with the schema of their writer, into the columns of the table."""

import io
import json
import random
from typing import Any

import fastavro
import pytest

from firn.decoders.bad_records import Code
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, KeySchema, RecordSchema, Subject, WriterSchema
from firn_spark.worker.decoding import Decoder, Known
from firn_spark.worker.fetched import Fetched
from firn_spark.worker.formats.registry import open_format
from firn_spark.worker.formats.writer_schemas import Refusal, SchemasNeededError, WriterSchemas
from firn_spark.worker.landing import Kind, LandingPlan, TopicLanding, land
from tests.unit.spark import records, tables
from tests.unit.spark.records import fetched

NARROW = [{"name": "a", "type": "int"}]
WIDE = [{"name": "b", "type": ["null", "string"]}, {"name": "a", "type": "long"}]
GONE = Refusal(Code.UNKNOWN_SCHEMA, "the registry has no schema 9")


def record(fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": fields}


def writer(fields: Any) -> WriterSchema:
    return WriterSchema(text=json.dumps(record(fields)))


def value(number: int, fields: Any, **content: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, record(fields), content)
    return b"\0" + number.to_bytes(4) + buffer.getvalue()


def schema(*columns: tuple[str, str]) -> RecordSchema:
    return RecordSchema(
        format="Avro",
        framing="Registry",
        subject=Subject(registry="main", name="s"),
        fields=tuple(Column(name=name, type=kind) for name, kind in columns),
    )


TABLE = schema(("a", "long"), ("b", "string"), ("c", "double"))
WRITERS: WriterSchemas = {1: writer(NARROW), 2: writer(WIDE), 9: GONE}


def test_values_of_several_schemas_keep_their_order() -> None:
    pick = random.Random(7)
    ids = [pick.choice((1, 2)) for _ in range(300)]
    values = [
        value(1, NARROW, a=n) if number == 1 else value(2, WIDE, a=2**40 + n, b=str(n)) for n, number in enumerate(ids)
    ]
    columns = open_format(TABLE, WRITERS).decode(fetched(values))
    assert columns.errors == {}
    a, b, c = (array.to_pylist() for array in columns.arrays)
    assert a == [n if number == 1 else 2**40 + n for n, number in enumerate(ids)]
    assert b == [None if number == 1 else str(n) for n, number in enumerate(ids)]
    assert c == [None] * len(ids)


def test_bad_values_are_errors_at_their_places() -> None:
    good = value(1, NARROW, a=1)
    values = [
        None,
        value(9, NARROW, a=1),
        good,
        b"plain",
        b"",
        value(2, WIDE, a=3, b="x")[:-1],
        value(2, WIDE, a=3, b=None),
    ]
    columns = open_format(TABLE, WRITERS).decode(fetched(values))
    assert columns.arrays[0].to_pylist() == [None, None, 1, None, None, None, 3]
    assert {place: error.code for place, error in sorted(columns.errors.items())} == {
        1: Code.UNKNOWN_SCHEMA, 3: Code.UNKNOWN_SCHEMA, 4: Code.EMPTY_PAYLOAD, 5: Code.INVALID_AVRO,
    }  # fmt: skip
    assert columns.errors[1].detail == GONE.detail


def test_no_records_give_no_rows() -> None:
    columns = open_format(TABLE, WRITERS).decode(fetched([]))
    assert [len(array) for array in columns.arrays] == [0, 0, 0]


def test_unknown_ids_are_asked_for_all_at_once() -> None:
    values = [value(number, NARROW, a=1) for number in (1, 70_000, 5, 2**32 - 1, 5)]
    with pytest.raises(SchemasNeededError) as error:
        open_format(TABLE, WRITERS).decode(fetched(values))
    assert error.value.ids == [5, 70_000, 2**32 - 1]


def test_a_task_reports_missing_schemas_and_writes_no_file(tmp_path: Any) -> None:
    job = records.job().model_copy(update={"record_schema": schema(("a", "long"))})
    table = tables.table_of(job, tmp_path)

    def landed(writers: Any) -> Any:
        plan = LandingPlan({"t": TopicLanding(job, table, writer_schemas=writers)}, ingested_at=0)
        return tables.results(land(iter([records.batch([value(1, NARROW, a=4), value(2, NARROW, a=5)])]), plan))["t"]

    result = landed({1: writer(NARROW)})
    assert dict(result) == {Kind.SCHEMAS_NEEDED: [{"ids": [2], "reader": "values"}]}
    result = landed({1: writer(NARROW), 2: writer(NARROW)})
    assert result["stats"][0]["rows"] == 2


@pytest.mark.parametrize("shape", ["Struct", "Flat"])
def test_a_row_has_the_id_of_its_schema(shape: str) -> None:
    job = records.job(metadata_columns=shape).model_copy(update={"record_schema": schema(("a", "long"))})
    beyond = Refusal(Code.UNKNOWN_SCHEMA, "no such id")
    decoder = Decoder(job, ingested_at=0, known=Known({1: writer(NARROW), 2: writer(WIDE), 2**32 - 1: beyond}))
    values = [value(2, WIDE, a=1, b=None), None, value(2**32 - 1, NARROW, a=1), value(1, NARROW, a=2)]
    decoded = decoder.decode(fetched(values))
    rows = decoded.rows.to_pylist()
    ids = [row["_kafka"]["schema_id"] if shape == "Struct" else row["_kafka_schema_id"] for row in rows]
    assert ids == [2, None, 1]
    assert decoded.dead is not None
    assert "schema_id" not in decoded.dead.to_pylist()[0]["_kafka"]


def test_types_of_references_are_known() -> None:
    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    text = json.dumps(record([{"name": "price", "type": "shop.Money"}]))
    writers: WriterSchemas = {1: WriterSchema(text=text, references=(json.dumps(money),))}
    columns = open_format(schema(("price", "struct<cents: long>")), writers).decode(fetched([b"\0\0\0\0\1\x06"]))
    assert columns.arrays[0].to_pylist() == [{"cents": 3}]


def test_a_writer_without_its_references_is_an_error() -> None:
    opened = open_format(schema(("price", "long")), {1: writer([{"name": "price", "type": "shop.Money"}])})
    with pytest.raises(InvalidSpecError, match=r"shop\.Money"):
        opened.decode(fetched([b"\0\0\0\0\1\x06"]))


NOTHING = {"type": "record", "name": "Empty", "fields": []}


@pytest.mark.parametrize(
    "kind", [NOTHING, "null", ["null"], {"type": "array", "items": ["null"]}, {"type": "map", "values": "null"}]
)
def test_a_field_that_is_always_null_gives_nulls_to_the_column_of_another_schema(kind: Any) -> None:
    contents: dict[str, Any] = {"record": {}, "map": {}, "array": [None, None]}
    content = contents[kind["type"]] if isinstance(kind, dict) else None
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": kind}, {"name": "y", "type": "int"}]}
    fields = [{"name": "x", "type": kind}, {"name": "a", "type": "int"}, {"name": "s", "type": inner}]
    fields[2]["type"] = json.loads(json.dumps(inner).replace('"Empty"', '"Other"'))
    good = value(4, fields, x=content, a=3, s={"x": content, "y": 5})
    columns = open_format(schema(("x", "int"), ("a", "int"), ("s", "struct<x: int, y: int>")), {4: writer(fields)})
    decoded = columns.decode(fetched([good, good + b"!", good]))
    assert decoded.arrays[0].to_pylist() == [None] * 3
    assert decoded.arrays[1].to_pylist() == [3, None, 3]
    assert decoded.arrays[2].to_pylist() == [{"x": None, "y": 5}, None, {"x": None, "y": 5}]
    assert set(decoded.errors) == {1}


def test_a_topic_whose_schema_cannot_be_opened_fails_alone(tmp_path: Any) -> None:
    job = records.job().model_copy(update={"record_schema": schema(("a", "long"))})
    broken: WriterSchemas = {1: WriterSchema(text="{")}
    plan = LandingPlan({"t": TopicLanding(job, tables.table_of(job, tmp_path), writer_schemas=broken)}, ingested_at=0)
    result = tables.results(land(iter([records.batch([value(1, NARROW, a=4)])]), plan))["t"]
    assert list(result) == ["error"]


@pytest.mark.parametrize("id_in", ["Payload", "Header"])
def test_a_task_opens_only_the_schemas_that_its_records_name(tmp_path: Any, id_in: Any) -> None:
    named = Subject(registry="main", name="s", id_in=id_in)
    job = records.job().model_copy(
        update={"record_schema": schema(("a", "long")).model_copy(update={"subject": named})}
    )
    broken: WriterSchemas = {1: writer(NARROW), 2: WriterSchema(text="{"), 9: GONE}

    def landed(*numbers: int) -> list[str]:
        table = TopicLanding(job, tables.table_of(job, tmp_path), writer_schemas=broken)
        batches = [records.batch([value(number, NARROW, a=4)]) for number in numbers]
        return sorted(tables.results(land(iter(batches), LandingPlan({"t": table}, ingested_at=0)))["t"])

    assert landed(1, 1) == ["data", "stats"]
    assert landed(1, 2, 9) == ["error"]


@pytest.mark.parametrize("id_in", ["Payload", "Header", "None"])
@pytest.mark.parametrize("of_key", [False, True])
def test_portions_count_the_schemas_that_records_name(id_in: Any, of_key: bool) -> None:
    inner = record([{"name": f"f{n}", "type": "long"} for n in range(1000)]) | {"name": "W"}
    known: WriterSchemas = {1: writer(NARROW), 5: writer([{"name": "other", "type": ["null", inner]}])}
    named = Subject(registry="main", name="s", id_in=id_in)
    made = schema(("a", "int")).model_copy(update={"subject": named, "schema_id": 5 if id_in == "None" else None})
    wide = {"key" if of_key else "value": {"Payload": b"\0\0\0\0\5\0"}.get(id_in, b"\0")}
    header = [{"key": f"__{'key' if of_key else 'value'}_schema_id", "value": b"\0\0\0\0\5"}]
    values = records.batch(
        [wide.get("value", b"{}")] * 20_000,
        key=[wide.get("key")] * 20_000,
        headers=[header if id_in == "Header" else None] * 20_000,
    )
    job = records.job(("x", "int"))
    if of_key:
        key = KeySchema(columns="Flat", fields=made.fields, decoding=made)
        job = job.model_copy(update={"record_schema": job.record_schema.model_copy(update={"key": key})})
    else:
        job = job.model_copy(update={"record_schema": made})
    decoder = Decoder(job, ingested_at=0, known=Known(known, known))
    portions = list(decoder.portions(Fetched.from_arrow("t", values)))
    assert sum(map(len, portions)) == 20_000
    assert max(map(len, portions)) < 10_000
    narrow = fetched([value(1, NARROW, a=1)] * 20_000)
    assert of_key or id_in == "None" or len([*Decoder(job, ingested_at=0, known=Known(known)).portions(narrow)]) == 1
