"""Decoders pass over fields that no column reads, and both Avro decoders end at the same place."""

import json
import random
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from firn.decoders.avro import MOST_LEVELS, RecordReader
from firn.decoders.bad_records import Code
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


LINK = {
    "type": "record",
    "name": "Link",
    "fields": [
        {"name": "some", "type": "int"},
        {"name": "nothing", "type": "null"},
        {"name": "next", "type": ["null", "Link"]},
        *({"name": f"nothing{number}", "type": "null"} for number in range(20)),
    ],
}
"""A list whose fields behind ``next`` take no bytes."""
ENDLESS = {"type": "record", "name": "Endless", "fields": [{"name": "again", "type": "Endless"}]}


def links(count: int) -> bytes:
    return (number(2**30) + number(1)) * count + number(1) + number(0)


def left(levels: int) -> bytes:
    """Return a tree whose values nest so deep, each with parts behind the next one."""
    return (number(0) + number(1)) * levels + number(0) * 4 + number(0) * 2 * levels


def strict(schema: RecordSchema) -> RecordReader:
    record = avro.parse(schema.text, read={"last"})
    return RecordReader(record, {each.name for each in record.fields} - {"last"})


def calls_of(task: Callable[[], object]) -> int:
    """Return how many functions a task calls."""
    events: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, value: events.append(event))
    try:
        task()
    finally:
        sys.setprofile(before)
    return sum(event == "call" for event in events)


def peak_of(task: Callable[[], object]) -> int:
    """Return the most memory in bytes that the process allocated while a task ran."""
    tracemalloc.start()
    try:
        task()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_long_list_of_records_inside_each_other_is_passed_over() -> None:
    schema = schema_of({"name": "links", "type": LINK})
    found = AvroFormat(schema).decode(fetched([links(20_000) + number(7)]))
    assert (found.arrays[0].to_pylist(), found.errors) == ([7], {})


def test_a_long_list_takes_no_memory() -> None:
    reader, content = strict(schema_of({"name": "links", "type": LINK})), links(34_000) + number(7)
    assert len(content) > 200_000
    # The figure counts all threads of the process, also those that other tests left. One undisturbed reading is enough.
    assert min(peak_of(lambda: reader.read(content)) for _ in range(10)) < 20_000
    assert reader.read(content)["last"] == 7


def test_the_decoder_takes_steps_in_proportion_to_bytes() -> None:
    reader = strict(schema_of({"name": "links", "type": LINK}))
    few, many = (links(count) + number(7) for count in (100, 1_000))
    first, second = (calls_of(partial(reader.read, content)) for content in (few, many))
    assert second < 11 * first
    assert second < 10 * len(many)


def test_records_with_one_field_take_no_steps() -> None:
    wrapped: Any = "int"
    for place in range(50):
        wrapped = {"type": "record", "name": f"W{place}", "fields": [{"name": "a", "type": wrapped}]}
    reader = strict(schema_of({"name": "all", "type": {"type": "array", "items": wrapped}}))
    content = number(1_000) + number(3) * 1_000 + number(0) + number(7)
    assert reader.read(content)["last"] == 7
    assert calls_of(lambda: reader.read(content)) < 10 * len(content)


def test_a_value_that_nests_too_deep_is_bad() -> None:
    schema = schema_of({"name": "tree", "type": TREE})
    # The last tree and its array are two more levels.
    most, more = left(MOST_LEVELS - 2) + number(7), left(MOST_LEVELS - 1) + number(7)
    found = AvroFormat(schema).decode(fetched([most, more]))
    assert (found.arrays[0].to_pylist(), list(found.errors)) == ([7, None], [1])
    assert found.errors[1].code == Code.TOO_DEEP
    assert found.errors[1].detail == "nested more than 10000 levels deep"


@pytest.mark.parametrize(
    "type_",
    [ENDLESS, {**ENDLESS, "fields": [{"name": "id", "type": "int"}, {"name": "again", "type": ["Endless"]}]}],
)
def test_a_record_that_never_ends_is_bad(type_: Any) -> None:
    schema = schema_of({"name": "e", "type": ["null", type_]})
    found = AvroFormat(schema).decode(fetched([number(1) + number(0) * 10_000, number(0) + number(7)]))
    assert found.errors[0].detail == "byte 1: the value contains itself without an end"
    assert (found.arrays[0].to_pylist(), list(found.errors)) == ([None, 7], [0])
    assert check(schema, [number(1) + number(0) * 10_000, number(0) + number(7)]) == 1


def test_a_field_can_contain_the_record_of_the_value() -> None:
    inner = {
        "type": "record",
        "name": "Inner",
        "fields": [{"name": "n", "type": "null"}, {"name": "order", "type": "Order"}],
    }
    schema = schema_of(
        {"name": "more", "type": ["null", inner]}, {"name": "all", "type": {"type": "map", "values": "Inner"}}
    )
    order = number(0) * 2 + number(3)
    value = number(1) + order + number(1) + number(1) + b"k" + order + number(0) + number(7)
    assert check(schema, [value, *(damaged(random.Random(seed), value) for seed in range(200))]) > 0
    assert strict(schema).read(value)["last"] == 7


def test_the_bytes_of_a_field_that_no_column_reads_may_be_wrong() -> None:
    schema = schema_of({"name": "note", "type": "string"}, {"name": "yes", "type": "boolean"})
    found = AvroFormat(schema).decode(fetched([number(1) + b"\xff" + b"\7" + number(5)]))
    assert (found.arrays[0].to_pylist(), found.errors) == ([5], {})
