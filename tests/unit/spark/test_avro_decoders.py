"""Both Avro decoders read encoded values, agree on all other bytes, and agree with fastavro."""

import datetime
import io
import json
import os
import random
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from firn.decoders.avro import RecordReader
from firn.decoders.bad_records import BadRecordError, Code
from firn.model.jobs import Column, RecordSchema
from firn.schemas import avro
from firn_spark.worker import arrow_types
from firn_spark.worker.decoding import Decoder
from firn_spark.worker.fetched import Places
from firn_spark.worker.formats import arrays
from firn_spark.worker.formats.avro.decoding import AvroFormat
from firn_spark.worker.formats.avro.rows import fields_of
from tests.unit.spark.avro_values import Schemas, Values, number
from tests.unit.spark.other_types import is_same, refusals, with_other_columns
from tests.unit.spark.records import fetched, job

SCHEMAS, RECORDS = (600, 450) if os.environ.get("FIRN_LONG") else (60, 40)


def plain(array: Any) -> list[Any]:
    """Return values that compare exactly: integers for times, and the sign of zero."""
    kind = array.type
    if pa.types.is_temporal(kind):
        return [scalar.value for scalar in array]
    if pa.types.is_struct(kind):
        members = [plain(array.field(place)) for place in range(kind.num_fields)]
        valid = array.is_valid().to_pylist()
        return [[values[row] for values in members] if there else None for row, there in enumerate(valid)]
    if pa.types.is_nested(kind):
        return [plain(scalar.values) if scalar.is_valid else None for scalar in array]
    return [None if value is None else repr(value) for value in array.to_pylist()]


def with_id(declared: Any) -> Any:
    """Return the record with a field that has a column, as every schema needs one."""
    return {**declared, "fields": [{"name": "id", "type": "int"}, *declared["fields"]]}


def schema_of(declared: Any) -> tuple[avro.Record, RecordSchema]:
    text = json.dumps(declared)
    record = avro.parse(text)
    return record, RecordSchema(format="Avro", text=text, fields=avro.columns(record))


@pytest.mark.parametrize("seed", range(4))
def test_both_decoders_read_what_was_written(seed: int) -> None:
    pick = random.Random(seed)
    values = Values(pick)
    for _ in range(SCHEMAS):
        record, schema = schema_of(with_id(Schemas(pick, nulls=False).record()))
        made = [values.make(record) for _ in range(RECORDS)]
        columns = arrow_types.arrow_schema(schema.fields)
        rows, order = fields_of(record.fields, {field.name: field.type for field in columns})
        places = Places.from_arrow(pa.array([content for _, content in made], pa.binary()))
        found, vouched = rows.read(places.data, places.firsts, places.ends, places.present)
        assert vouched.all(), schema.text
        reader = RecordReader(record)
        strict = [reader.read(content) for _, content in made]
        for field, place in zip(columns, order, strict=True):
            assert place is not None
            found[place].validate(full=True)
            want = plain(pa.array([value[field.name] for value, _ in made], field.type))
            assert plain(found[place]) == want, f"{field} of {schema.text}"
            assert plain(pa.array([value[field.name] for value in strict], field.type)) == want


def strictly(reader: RecordReader, content: bytes) -> tuple[Any, BadRecordError | None]:
    try:
        return reader.read(content), None
    except BadRecordError as error:
        return {}, error


def damaged(pick: random.Random, content: bytes) -> bytes:
    """Return bytes that differ a little: changed, shorter or longer."""
    data = bytearray(content)
    for _ in range(pick.randint(1, 3)):
        match pick.randrange(4):
            case 0 if data:
                data[pick.randrange(len(data))] ^= 1 << pick.randrange(8)
            case 1 if data:
                del data[pick.randrange(len(data)) :]
            case 2:
                data += pick.randbytes(pick.randint(1, 4))
            case _ if data:
                data[pick.randrange(len(data))] = pick.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_the_fast_decoder_vouches_for_damaged_values_only_as_the_strict_one_reads_them(seed: int) -> None:
    pick = random.Random(seed)
    values = Values(pick)
    for _ in range(SCHEMAS):
        record, schema = schema_of(with_id(Schemas(pick).record()))
        inputs = [damaged(pick, values.make(record)[1]) for _ in range(RECORDS)]
        columns = arrow_types.arrow_schema(schema.fields)
        rows, order = fields_of(record.fields, {field.name: field.type for field in columns})
        places = Places.from_arrow(pa.array(inputs, pa.binary()))
        found, vouched = rows.read(places.data, places.firsts, places.ends, places.present)
        reader = RecordReader(record)
        for index, sure in enumerate(vouched.tolist()):
            want, error = strictly(reader, inputs[index])
            assert error is None or not sure, f"vouched for {inputs[index]!r} of {schema.text}: {error}"
            for field, place in zip(columns, order, strict=True):
                assert place is not None
                value = plain(found[place].slice(index, 1))
                expected = plain(pa.array([want[field.name]], field.type)) if sure else [None]
                assert value == expected, f"{field} of {inputs[index]!r} of {schema.text}"


def of_fastavro(value: Any) -> Any:
    """Return a value as Arrow takes it."""
    match value:
        case UUID():
            return value.bytes
        case dict():
            return {name: of_fastavro(member) for name, member in value.items()}
        case list():
            return [of_fastavro(member) for member in value]
        case datetime.datetime():
            return value
    return value


@pytest.mark.parametrize("seed", range(4))
def test_values_equal_those_of_fastavro(seed: int) -> None:
    pick = random.Random(seed)
    values = Values(pick)
    for _ in range(SCHEMAS):
        declared = with_id(Schemas(pick, plain=True).record())
        record, schema = schema_of(declared)
        inputs = [values.make(record)[1] for _ in range(RECORDS)]
        parsed = fastavro.parse_schema(declared)
        read: list[Any] = [fastavro.schemaless_reader(io.BytesIO(content), parsed, None) for content in inputs]
        decoded = AvroFormat(schema).decode(fetched(inputs))
        assert not decoded.errors
        for array, field in zip(decoded.arrays, arrow_types.arrow_schema(schema.fields), strict=True):
            want = pa.array([of_fastavro(each[field.name]) for each in read], field.type)
            assert plain(array) == plain(want), f"{field} of {schema.text}"


LINES = {"type": "record", "name": "R", "fields": [
    {"name": "text", "type": "string"}, {"name": "tags", "type": {"type": "map", "values": "string"}},
    {"name": "old", "type": ["null", "int", "string"]},
]}  # fmt: skip


def lines(count: int) -> tuple[RecordSchema, list[bytes]]:
    record, schema = schema_of(LINES)
    values = Values(random.Random(count))
    return schema, [values.make(record)[1] for _ in range(count)]


@pytest.mark.parametrize(("step", "call_bytes"), [(1, 1), (3, 100), (1000, 64)])
def test_rows_of_any_step_and_call_are_the_same(step: int, call_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schema, inputs = lines(500)
    whole = AvroFormat(schema).decode(fetched([*inputs, None, b""]))
    monkeypatch.setattr(arrays, "STEP", step)
    monkeypatch.setattr(arrays, "CALL_BYTES", call_bytes)
    parts = AvroFormat(schema).decode(fetched([*inputs, None, b""]))
    assert [array.to_pylist() for array in parts.arrays] == [array.to_pylist() for array in whole.arrays]
    assert list(whole.errors) == list(parts.errors) == [501]


@pytest.mark.parametrize(
    ("kind", "content"),
    [("string", b"\x14" + b"x" * 10), ({"type": "map", "values": "int"}, b"\x02\x14" + b"x" * 10 + b"\0\0")],
    ids=["text", "keys"],
)
def test_a_block_with_too_much_text_for_arrow_is_refused(
    kind: Any, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, schema = schema_of({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})
    monkeypatch.setattr(arrays, "MOST_TEXT", 50)
    assert not AvroFormat(schema).decode(fetched([content] * 5)).errors
    with pytest.raises(ValueError, match="read smaller batches"):
        AvroFormat(schema).decode(fetched([content] * 6))


SALE = {"type": "record", "name": "Sale", "fields": [{"name": "id", "type": "int"}]}


@pytest.mark.parametrize(
    ("declared", "values", "expected"),
    [
        (
            [SALE, "null", {"type": "record", "name": "x.Refund", "fields": [{"name": "note", "type": "string"}]}],
            [{"id": 3}, ("x.Refund", {"note": "a"}), None],
            [{"Sale": {"id": 3}, "Refund": None}, {"Sale": None, "Refund": {"note": "a"}}, None],
        ),
        (["null", SALE], [None, {"id": 3}], [None, {"id": 3}]),
        ({"type": "array", "items": SALE}, [[], [{"id": 3}, {"id": -1}]], [[], [{"id": 3}, {"id": -1}]]),
        ({"type": "map", "values": "long"}, [{}, {"a": 7}], [[], [("a", 7)]]),
    ],
)
def test_a_schema_that_is_no_record_has_one_column(declared: Any, values: list[Any], expected: list[Any]) -> None:
    record, schema = schema_of(declared)
    contents = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, declared, value)
        contents.append(out.getvalue())
    decoded = AvroFormat(schema).decode(fetched(contents))
    assert not decoded.errors
    assert decoded.arrays[0].to_pylist() == expected
    type_ = arrow_types.arrow_schema(schema.fields).field("value").type
    reader = RecordReader(record)
    assert pa.array([reader.read(each)["value"] for each in contents], type_).to_pylist() == expected


def test_a_column_of_a_wider_type_takes_narrower_values() -> None:
    schema = schema_of({"type": "record", "name": "R", "fields": [
        {"name": "a", "type": "int"}, {"name": "b", "type": ["null", "float"]}, {"name": "gone", "type": "string"},
    ]})[1]  # fmt: skip
    fields = [
        {"name": "b", "type": "double"},
        {"name": "missing", "type": "string"},
        {"name": "a", "type": "long"},
    ]
    wider = RecordSchema.model_validate({"format": "Avro", "text": schema.text, "fields": fields})
    content = b"\x06" + b"\x02\0\0\xc0\x3f" + b"\x02x"
    decoded = AvroFormat(wider).decode(fetched([content, b"\x06\0\x02x"]))
    assert [array.to_pylist() for array in decoded.arrays] == [[1.5, None], [None, None], [3, 3]]


@pytest.mark.parametrize(
    ("logical", "good", "bad"),
    [
        ("time-millis", (0, 86_399_999), (-1, 86_400_000)),
        ("date", (-719_162, 2_932_896), (-719_163, 2_932_897)),
        ("", (-(2**31), 2**31 - 1), (-(2**31) - 1, 2**31)),
    ],
)
def test_integers_beyond_their_type_are_bad(logical: str, good: tuple[int, int], bad: tuple[int, int]) -> None:
    kind = {"type": "int", "logicalType": logical}
    _, schema = schema_of({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})
    decoded = AvroFormat(schema).decode(fetched([number(value) for value in (*good, *bad)]))
    assert decoded.arrays[0].is_valid().to_pylist() == [True, True, False, False]
    assert {index: error.code for index, error in decoded.errors.items()} == dict.fromkeys((2, 3), Code.OUT_OF_RANGE)


def wide(fields: int) -> Any:
    return {"type": "record", "name": "W", "fields": [{"name": f"f{n}", "type": "long"} for n in range(fields)]}


@pytest.mark.parametrize(
    "kind", [{"type": "array", "items": ["null", wide(100)]}, {"type": "array", "items": [wide(100), "null", "int"]}]
)
def test_items_that_take_much_more_memory_than_bytes_are_bad(kind: Any) -> None:
    _, schema = schema_of({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})
    null = number(kind["items"].index("null"))
    few, many = (number(count) + null * count + b"\0" for count in (1_000, 100_000))
    decoded = AvroFormat(schema).decode(fetched([many, few, many]))
    assert [None if value is None else len(value) for value in decoded.arrays[0].to_pylist()] == [None, 1_000, None]
    assert {error.code for error in decoded.errors.values()} == {Code.OUT_OF_RANGE}
    assert "90" in decoded.errors[0].detail
    assert sum(array.nbytes for array in decoded.arrays) < 2_000_000


def test_records_of_wide_rows_are_decoded_in_portions() -> None:
    declared = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", wide(1000)]}]}
    given = job(("a", "int")).model_copy(update={"record_schema": schema_of(declared)[1]})
    decoder = Decoder(given, ingested_at=0)
    records = fetched([b"\0"] * 20_000)
    portions = list(decoder.portions(records))
    assert sum(map(len, portions)) == 20_000
    assert max(map(len, portions)) < 10_000
    assert np.concatenate([portion.offsets for portion in portions]).tolist() == list(range(20_000))
    assert decoder.decode(portions[0]).rows.nbytes < 100_000_000
    assert list(Decoder(job(("a", "int")), ingested_at=0).portions(records)) == [records]


def test_times_in_nanoseconds_are_kept() -> None:
    zoned, local = ({"type": "long", "logicalType": name} for name in ("timestamp-nanos", "local-timestamp-nanos"))
    declared = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "at", "type": zoned}, {"name": "all", "type": {"type": "array", "items": local}}],
    }
    text = json.dumps(declared)
    schema = RecordSchema(
        format="Avro", text=text, nanoseconds=True, fields=avro.columns(avro.parse(text, nanoseconds=True))
    )
    moments = [1_700_000_000_123_456_789, -1, 2**63 - 1]
    inputs = [number(moment) + number(1) + number(moment) + number(0) for moment in moments]
    at, every = AvroFormat(schema).decode(fetched(inputs)).arrays
    assert (str(at.type), str(every.type.value_type)) == ("timestamp[ns, tz=UTC]", "timestamp[ns]")
    assert plain(at) == moments
    assert plain(every.flatten()) == moments
    reader = RecordReader(avro.parse(text, nanoseconds=True))
    assert [reader.read(content) for content in inputs] == [{"at": moment, "all": [moment]} for moment in moments]


@pytest.mark.parametrize("seed", range(4))
def test_both_decoders_read_values_into_columns_of_other_types(seed: int) -> None:
    pick = random.Random(seed)
    values = Values(pick)
    for _ in range(SCHEMAS):
        record, schema = schema_of(with_id(Schemas(pick).record()))
        inputs = [values.make(record)[1] for _ in range(RECORDS)]
        places = Places.from_arrow(pa.array(inputs, pa.binary()))
        one = AvroFormat(with_other_columns(schema, pick))
        found, strict = one.decode(fetched(inputs)), one._strict(places, None)
        assert found.errors == strict.errors == {}
        assert [plain(array) for array in found.arrays] == [plain(array) for array in strict.arrays]
        own = AvroFormat(schema)
        vouched, vouched_own = (
            each._rows.read(places.data, places.firsts, places.ends, places.present)[1] for each in (one, own)
        )
        assert vouched.tolist() == vouched_own.tolist()
        for before, after in zip(own.decode(fetched(inputs)).arrays, found.arrays, strict=True):
            assert is_same(before.to_pylist(), after.to_pylist()), schema.text


@pytest.mark.parametrize("seed", range(4))
def test_both_decoders_refuse_the_values_that_columns_of_other_types_do_not_take(seed: int) -> None:
    pick = random.Random(seed)
    values, codes = Values(pick), set[Code]()
    for _ in range(SCHEMAS):
        record, schema = schema_of(with_id(Schemas(pick).record()))
        inputs = [values.make(record)[1] for _ in range(RECORDS)]
        one = AvroFormat(with_other_columns(schema, pick, all_values=False))
        codes |= refusals(one, AvroFormat(schema), inputs, plain)
    assert codes == {Code.INEXACT, Code.INVALID_UTF8}


def test_a_column_of_another_type_takes_integers_up_to_a_limit() -> None:
    limit, text = 2**53, json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]})
    schema = RecordSchema(format="Avro", framing="None", text=text, fields=(Column(name="a", type="double"),))
    numbers = [limit, -limit, limit + 1, -limit - 1, 0]
    found = AvroFormat(schema).decode(fetched([number(each) for each in numbers]))
    assert found.arrays[0].to_pylist() == [limit, -limit, None, None, 0]
    details = {row: error.detail for row, error in found.errors.items()}
    assert details == {row: f"a column of type double would round {numbers[row]}" for row in (2, 3)}
