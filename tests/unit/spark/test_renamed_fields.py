"""Values with the earlier name of a field fill its column, in each format and in both decoders of JSON."""

import json
from typing import Any

import pyarrow as pa
import pytest

from firn.decoders.bad_records import BadRecordError, Code
from firn.decoders.json import RecordReader
from firn.model.jobs import Column, RecordSchema, Rename
from firn.schemas import avro
from firn.tables.renames import former_names
from firn_spark.worker.fetched import Places
from firn_spark.worker.formats.avro.decoding import AvroFormat
from firn_spark.worker.formats.json.blocks import BlockDecoder
from tests.unit.spark.records import fetched

FIELDS = [
    Column(name="airline", type="string", required=True),
    Column(name="client", type="struct<email: string, age: int>"),
    Column(name="legs", type="list<struct<miles: int>>"),
    Column(name="tags", type="map<string, struct<text: string>>"),
    Column(name="pairs", type="map<struct<a: int>, struct<text: binary>>"),
]
RENAMES = tuple(
    Rename(old=old, new=new)
    for old, new in (
        ("carrier", "airline"),
        ("customer", "client"),
        ("client.mail", "client.email"),
        ("legs.element.distance", "legs.element.miles"),
        ("tags.value.t", "tags.value.text"),
        ("pairs.value.t", "pairs.value.text"),
    )
)
FORMER = former_names(FIELDS, RENAMES)
NEW = {"airline": "AA", "client": {"email": "x", "age": 3}, "legs": [{"miles": 7}], "tags": {"k": {"text": "y"}}}
OLD = {"carrier": "AA", "customer": {"mail": "x", "age": 3}, "legs": [{"distance": 7}], "tags": {"k": {"t": "y"}}}
BOTH = [{"airline": "A", "carrier": "B"}, {"carrier": "A", "client": {"mail": "x", "email": "y"}}]


def encoded(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


def test_the_compiled_decoder_reads_both_names() -> None:
    mixed = [NEW, OLD, NEW, OLD, {"carrier": "UA", "client": {"mail": "z"}}]
    columns, vouched = BlockDecoder(FIELDS, refuse_unknown=True, former=FORMER).decode(
        Places.from_arrow(pa.array(encoded(*mixed), pa.binary()))
    )
    assert vouched.all()
    rows = pa.table(dict(zip((field.name for field in FIELDS), columns, strict=True))).to_pylist()
    assert rows[0] == rows[1] == rows[2] == rows[3]
    assert (rows[0]["airline"], rows[0]["client"], rows[0]["legs"]) == ("AA", {"email": "x", "age": 3}, [{"miles": 7}])
    assert (rows[4]["airline"], rows[4]["client"]) == ("UA", {"email": "z", "age": None})


def test_the_strict_decoder_reads_both_names() -> None:
    reader = RecordReader.for_schema(FIELDS, refuse_unknown=True, former=FORMER)
    pairs = [{"pairs": [{"key": {"a": 1}, "value": {name: "QQ=="}}]} for name in ("text", "t")]
    assert [reader.read(each) for each in encoded({**NEW, **pairs[0]}, {**OLD, **pairs[1]})] == [
        ["AA", {"email": "x", "age": 3}, [{"miles": 7}], [("k", {"text": "y"})], [({"a": 1}, {"text": b"A"})]]
    ] * 2


@pytest.mark.parametrize("value", BOTH)
def test_a_record_with_both_names_of_a_field_is_refused(value: Any) -> None:
    _, vouched = BlockDecoder(FIELDS, refuse_unknown=False, former=FORMER).decode(
        Places.from_arrow(pa.array(encoded(value), pa.binary()))
    )
    assert not vouched[0]
    with pytest.raises(BadRecordError) as refused:
        RecordReader.for_schema(FIELDS, refuse_unknown=False, former=FORMER).read(encoded(value)[0])
    assert refused.value.code == Code.DUPLICATE_KEY


def test_avro_values_of_a_writer_with_earlier_names_fill_the_columns() -> None:
    inner = {"type": "record", "name": "C", "fields": [{"name": "mail", "type": "string"}]}
    fields = [{"name": "carrier", "type": "string"}, {"name": "customer", "type": ["null", inner]}]
    schema = RecordSchema(
        format="Avro",
        text=json.dumps({"type": "record", "name": "R", "fields": fields}),
        fields=FIELDS[:2],
        renames=RENAMES,
    )
    decoded = AvroFormat(schema).decode(fetched([b"\x04AA\x02\x02x"]))
    assert decoded.errors == {}
    assert [column.to_pylist() for column in decoded.arrays] == [["AA"], [{"email": "x", "age": None}]]


def test_aliases_are_renames_with_the_present_path_of_their_record() -> None:
    def field(name: str, kind: Any, *aliases: Any) -> dict[str, Any]:
        return {"name": name, "type": kind, "aliases": list(aliases)}

    inner = {"type": "record", "name": "C", "fields": [field("email", "string", "mail", 7, "no name")]}
    items = {"type": "array", "items": {"type": "record", "name": "I", "fields": [field("sku", "int", "no")]}}
    record = {
        "type": "record",
        "name": "R",
        "fields": [field("client", ["null", inner], "customer"), field("items", items)],
    }
    found = avro.aliases(avro.parse(json.dumps(record)))
    assert [(each.old, each.new) for each in found] == [
        ("customer", "client"), ("client.mail", "client.email"), ("items.element.no", "items.element.sku"),
    ]  # fmt: skip
    assert all(each.by_schema for each in found)
