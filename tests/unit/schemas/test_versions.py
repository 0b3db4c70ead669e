"""Fields whose type their column cannot hold get a column of their own."""

import json
from typing import Any

import pytest

from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, ColumnVersion, Rename, SchemaFormat
from firn.schemas import versions
from firn.schemas.versions import VERSIONS, Versions, named, read_versions

FIELDS: list[dict[str, Any]] = [
    {"id": 1, "name": "total", "required": False, "type": "int"},
    {"id": 4, "name": "total_v3", "required": False, "type": "boolean"},
    {"id": 2, "name": "total_v2", "required": False, "type": "string"},
    {"id": 3, "name": "note_v2", "required": False, "type": "string"},
]
PRESENT = {field["name"]: field["type"] for field in FIELDS}


def column(name: str, kind: str) -> Column:
    return Column(name=name, type=kind)


def chosen(kind: str, present: dict[str, str] = PRESENT, name: str = "total") -> list[str]:
    known = Versions.of_table(FIELDS, {2: "total", 4: "total"})
    found = known.of_schema(7, [column(name, kind)], present, set(present), SchemaFormat.AVRO)
    return [each.column for each in found]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("int", []),
        ("long", []),
        ("string", ["total_v2"]),
        ("boolean", ["total_v3"]),
        ("double", ["total_v4"]),
        ("struct<a: int>", ["total_v4"]),
    ],
)
def test_a_field_gets_the_first_column_that_holds_its_values(kind: str, names: list[str]) -> None:
    assert chosen(kind) == names


def test_the_name_of_a_field_of_producers_is_not_taken() -> None:
    assert chosen("int", PRESENT | {"note": "boolean"}, "note") == ["note_v3"]


def test_a_renamed_version_stays_the_column_of_its_field() -> None:
    fields = [FIELDS[0], {**FIELDS[2], "name": "total_text"}]
    known = Versions.of_table(fields, {2: "total", 9: "gone"})
    (found,) = known.of_schema(
        7, [column("total", "string")], {"total": "int", "total_text": "string"}, set(), SchemaFormat.AVRO
    )
    assert found == ColumnVersion(schema_id=7, field="total", column="total_text")


def test_values_keep_their_column_after_the_first_column_of_the_field_is_gone() -> None:
    present = {name: kind for name, kind in PRESENT.items() if name != "total"}
    assert chosen("string", present) == ["total_v2"]
    assert chosen("double", present) == []


def test_a_renamed_field_keeps_its_versions() -> None:
    known = Versions.of_table(FIELDS, {2: "total"}, [Rename(old="total", new="amount")])
    present = {**PRESENT, "amount": "int"}
    assert [
        each.column for each in known.of_schema(7, [column("amount", "string")], present, set(), SchemaFormat.AVRO)
    ] == ["total_v2"]


def test_two_schemas_of_one_round_share_a_column() -> None:
    known, present, taken = Versions(), {"total": "int"}, {"total"}
    first = known.of_schema(7, [column("total", "string")], present, taken, SchemaFormat.AVRO)
    assert [each.column for each in first] == ["total_v2"]
    present |= {each.name: each.type for each in named([column("total", "string")], first)}
    assert [
        each.column for each in known.of_schema(8, [column("total", "string")], present, taken, SchemaFormat.AVRO)
    ] == ["total_v2"]
    assert [
        each.column for each in known.of_schema(9, [column("total", "boolean")], present, taken, SchemaFormat.AVRO)
    ] == ["total_v3"]


def test_a_field_with_the_name_of_a_version_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match="field total_v2 has the name of a column for values of field total"):
        chosen("string", name="total_v2")


def test_versions_are_kept_by_field_id() -> None:
    put = versions.properties({}, FIELDS, {"total_v2": "total"})
    assert json.loads(put[VERSIONS]) == {"2": "total"}
    assert versions.properties(put, FIELDS, {"total_v2": "total"}) == {}
    more = versions.properties(put, FIELDS, {"total_v3": "total"})
    assert read_versions(more) == {2: "total", 4: "total"}
    for damaged in ("{", "[]", '{"x": 1}'):
        assert read_versions({VERSIONS: damaged}) == {}
