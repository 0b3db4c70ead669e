"""Decoders pass over fields that no column reads, and both Avro decoders end at the same place."""

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from firn.decoders.avro import RecordReader
from firn.model.jobs import ProjectedColumn, Projection, RecordSchema
from firn.schemas import avro
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Places
from firn_spark.worker.formats.avro.decoding import AvroFormat
from firn_spark.worker.formats.avro.rows import fields_of
from tests.unit.spark.avro_values import Schemas, Values, number
from tests.unit.spark.records import fetched
from tests.unit.spark.test_avro_decoders import damaged, strictly

LAST = {"name": "last", "type": "int"}
TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "left", "type": ["null", "Tree"]},
        {"name": "more", "type": {"type": "array", "items": "Tree"}},
        {"name": "named", "type": {"type": "map", "values": ["null", "Tree"]}},
    ],
}


def schema_of(*fields: Any) -> RecordSchema:
    text = json.dumps({"type": "record", "name": "Order", "fields": [*fields, LAST]})
    columns = avro.columns(avro.parse(text, read={"last"}), {"last"})
    projection = Projection(columns=(ProjectedColumn(name="c", source="$.last"),))
    return RecordSchema(format="Avro", text=text, fields=columns, projection=projection)


def tree(pick: random.Random, depth: int = 0) -> bytes:
    def maybe() -> bytes:
        return b"\2" + tree(pick, depth + 1) if depth < 3 and pick.random() < 0.5 else b"\0"

    name = pick.randbytes(pick.randrange(4))
    items = b"".join(tree(pick, depth + 1) for _ in range(2)) if depth < 2 else b""
    more = (number(-2) + number(len(items)) if pick.random() < 0.5 else number(2)) + items if items else b""
    return number(len(name)) + name + maybe() + more + b"\0" + number(1) + number(1) + b"k" + maybe() + b"\0"


def check(schema: RecordSchema, inputs: list[bytes]) -> int:
    """Compare both decoders, and return for how many values the compiled one vouches."""
    record = avro.parse(schema.text, read={"last"})
    passed = {each.name for each in record.fields} - {"last"}
    types = {field.name: field.type for field in arrow_types.arrow_schema(schema.fields)}
    rows, _ = fields_of(record.fields, types, passed)
    places = Places.from_arrow(pa.array(inputs, pa.binary()))
    arrays, vouched = rows.read(places.data, places.firsts, places.ends, places.present)
    found: Any = arrays[0]
    reader = RecordReader(record, passed)
    for index, content in enumerate(inputs):
        want, error = strictly(reader, content)
        assert error is None or not vouched[index], f"vouched for {content!r} of {schema.text}: {error}"
        assert not vouched[index] or found[index].as_py() == want["last"], f"{content!r} of {schema.text}"
    return int(vouched.sum())


def test_a_record_inside_itself_is_passed_over() -> None:
    pick = random.Random(1)
    schema = schema_of({"name": "tree", "type": TREE})
    made = [tree(pick) + number(place) for place in range(300)]
    assert check(schema, made) == len(made)
    assert AvroFormat(schema).decode(fetched(made)).arrays[0].to_pylist() == list(range(300))
    assert check(schema, [damaged(pick, content) for content in made * 5]) > 0


@pytest.mark.parametrize("seed", range(3))
def test_both_decoders_pass_over_random_fields(seed: int) -> None:
    pick = random.Random(seed)
    values = Values(pick)
    for _ in range(60):
        schema = schema_of(*Schemas(pick).record()["fields"])
        record = avro.parse(schema.text, read={"last"})
        made = [values.make(record)[1] for _ in range(30)]
        assert check(schema, made) == len(made)
        check(schema, [damaged(pick, content) for content in made])


def test_a_long_list_of_records_inside_each_other_is_passed_over() -> None:
    links = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}
    schema = schema_of({"name": "links", "type": links})
    found = AvroFormat(schema).decode(fetched([b"\2" * 20_000 + b"\0" + number(7)]))
    assert (found.arrays[0].to_pylist(), found.errors) == ([7], {})


def test_a_record_that_never_ends_is_bad() -> None:
    endless = {"type": "record", "name": "Endless", "fields": [{"name": "again", "type": "Endless"}]}
    found = AvroFormat(schema_of({"name": "e", "type": endless})).decode(fetched([b"\0"]))
    assert "the value contains itself without an end" in found.errors[0].detail


def test_the_bytes_of_a_field_that_no_column_reads_may_be_wrong() -> None:
    schema = schema_of({"name": "note", "type": "string"}, {"name": "yes", "type": "boolean"})
    found = AvroFormat(schema).decode(fetched([number(1) + b"\xff" + b"\7" + number(5)]))
    assert (found.arrays[0].to_pylist(), found.errors) == ([5], {})
