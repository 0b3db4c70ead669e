"""Keys become columns: bytes, a struct, or a column for each field of a JSON object."""

import json
from decimal import Decimal
from typing import Any

import pytest

from firn.model.jobs import Column, KeySchema, RecordSchema
from firn.schemas.columns import columns_of
from firn.tables import rows
from firn_spark.worker.decoding import Decoder
from tests.unit.spark import records
from tests.unit.spark.records import fetched

FIELDS = (Column(name="id", type="long", required=True), Column(name="tags", type="list<string>"))
KEYS = [b'{"id": 7, "tags": ["x"], "more": 1}', b'{"id": 8}', b"{}", b"\xff", None]


def decode(key: KeySchema, keys: list[bytes | None], **changes: Any) -> Any:
    job = records.job(("a", "int"), **changes)
    job = job.model_copy(update={"record_schema": job.record_schema.model_copy(update={"key": key})})
    return Decoder(job, ingested_at=1).decode(fetched([b'{"a": 1}'] * len(keys), key=keys))


def test_the_bytes_of_keys_are_a_column() -> None:
    decoded = decode(KeySchema(columns="Binary"), KEYS)
    assert decoded.rows.column_names == ["a", "key", "_kafka"]
    assert decoded.rows["key"].to_pylist() == KEYS
    assert decoded.dead is None


@pytest.mark.parametrize("shape", ["Struct", "Flat"])
def test_fields_of_keys_are_columns_and_bad_keys_are_dead_letters(shape: Any) -> None:
    decoded = decode(KeySchema(columns=shape, fields=FIELDS), KEYS)
    if shape == "Flat":
        assert decoded.rows.column_names == ["a", "key_id", "key_tags", "_kafka"]
        found = [(row["key_id"], row["key_tags"]) for row in decoded.rows.to_pylist()]
    else:
        found = [(row["key"]["id"], row["key"]["tags"]) for row in decoded.rows.to_pylist()]
    assert found == [(7, ["x"]), (8, None)]
    letters = [(letter["error_code"], letter["error_path"], letter["key"]) for letter in decoded.dead.to_pylist()]
    assert letters == [
        ("MissingRequired", "$key.id", b"{}"), ("InvalidUtf8", "$key", b"\xff"), ("MissingRequired", "$key", None),
    ]  # fmt: skip


def test_a_null_key_without_required_fields_is_null() -> None:
    optional = (Column(name="id", type="long"),)
    struct = decode(KeySchema(columns="Struct", fields=optional), [None, b"{}"])
    assert struct.rows["key"].to_pylist() == [None, {"id": None}]
    flat = decode(KeySchema(columns="Flat", fields=optional), [None, b"{}"])
    assert flat.rows["key_id"].to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("kind", "encoded", "found"),
    [
        ("string", b"\x04ab", "ab"),
        ("long", b"\xc8\x01", 100),
        ("double", b"\x9a\x99\x99\x99\x99\x99\xf1\x3f", 1.1),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x02", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
        (
            {"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"},
            bytes(range(1, 17)),
            bytes(range(1, 17)),
        ),
        (
            {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2},
            b"\x01\x02",
            Decimal("2.58"),
        ),
        (["null", "string"], b"\x02\x04ab", "ab"),
        (["null", "string"], b"\0", None),
    ],
)
def test_a_key_that_is_one_value_is_a_column(kind: Any, encoded: bytes, found: Any) -> None:
    framed = RecordSchema(format="Avro", text=json.dumps(kind), framing="Registry")
    key = KeySchema(columns="Flat", fields=columns_of(framed, "the key"), decoding=framed)
    decoded = decode(key, [b"\0\0\0\0\x07" + encoded, encoded, None])
    assert decoded.rows["key_value"].to_pylist() == [found, None]
    (letter,) = decoded.dead.to_pylist()
    assert (letter["error_path"], letter["key"]) == ("$key", encoded)


def test_an_error_of_the_value_comes_before_that_of_the_key() -> None:
    key = KeySchema(columns="Flat", fields=FIELDS)
    job = records.job(("a", "int"))
    job = job.model_copy(update={"record_schema": job.record_schema.model_copy(update={"key": key})})
    dead = Decoder(job, ingested_at=1).decode(fetched([b"{"], key=[b"{"])).dead
    assert dead is not None
    (letter,) = dead.to_pylist()
    assert letter["error_path"] == "$"


def test_the_columns_of_keys_stand_before_those_of_kafka() -> None:
    schema = records.job(("a", "int")).record_schema.model_copy(
        update={"key": KeySchema(columns="Struct", fields=FIELDS)}
    )
    columns = rows.table_columns(schema, "Flat")
    assert [column.name for column in columns[:3]] == ["a", "key", "_kafka_partition"]
    assert columns[1].type == "struct<id: long, tags: list<string>>"
