"""Members of a JSON record that the schema does not name, kept as a variant."""

import json
from typing import Any

import pytest

from firn.decoders.bad_records import Code
from firn.decoders.json import parse
from firn.decoders.json_variants import encoded
from firn.model.jobs import Column, RecordSchema, Rename
from firn_spark.worker.formats.json.decoding import JsonFormat
from tests.unit.spark import records

FIELDS = (
    Column(name="id", type="long", required=True),
    Column(name="at", type="timestamptz"),
    Column(name="place", type="struct<a: int>"),
)


def decode(*values: Any, fields: tuple[Column, ...] = FIELDS, **changes: Any) -> Any:
    schema = RecordSchema(format="Json", fields=fields, unknown_column="others", **changes)
    texts = [value if value is None or isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    return JsonFormat(schema).decode(records.fetched(texts))


def variant(value: Any) -> Any:
    return encoded(parse(json.dumps(value).encode()))


def test_other_members_become_one_variant() -> None:
    decoded = decode(
        {"id": 1, "b": [1, {"c": None}], "a": "x"}, {"id": 2}, {"more": 1.5, "id": 3, "place": {"a": 1, "z": 2}}, None
    )
    assert decoded.arrays[-1].to_pylist() == [
        variant({"b": [1, {"c": None}], "a": "x"}),
        None,
        variant({"more": 1.5}),
        None,
    ]
    assert decoded.arrays[0].to_pylist() == [1, 2, 3, None]
    # A type names the members of a struct, and others are left out.
    assert decoded.arrays[2].to_pylist() == [None, None, {"a": 1}, None]
    assert decoded.errors.keys() == {3}
    assert decoded.times == {}


def test_records_without_other_members_are_null_there() -> None:
    decoded = decode({"id": 1, "at": 1_700_000_000_000}, {"id": 2, "at": None})
    assert decoded.arrays[-1].to_pylist() == [None, None]
    assert decoded.times["at"].values == 1


def test_an_earlier_name_of_a_field_is_no_other_member() -> None:
    decoded = decode({"number": 1, "x": 2}, renames=(Rename(old="number", new="id"),))
    assert (decoded.arrays[0].to_pylist(), decoded.arrays[-1].to_pylist()) == ([1], [variant({"x": 2})])


@pytest.mark.parametrize(
    ("value", "code", "path"),
    [
        (b'{"id": 1, "x": 1, "x": 2}', Code.DUPLICATE_KEY, "$.x"),
        (b'{"id": 1, "x": {"y": 1e999}}', Code.OUT_OF_RANGE, "$.x.y"),
        (b'{"id": "a", "x": 1}', Code.WRONG_KIND, "$.id"),
    ],
)
def test_a_record_with_members_that_no_variant_has_is_bad(value: bytes, code: Code, path: str) -> None:
    error = decode(value).errors[0]
    assert (error.code, error.path) == (code, path)
