"""A field that no column reads is not judged, and has no column."""

import json
from typing import Any

import pytest

from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.model.errors import InvalidSpecError
from firn.model.jobs import ProjectedColumn, Projection, RecordSchema, Rename
from firn.schemas.columns import columns_of

ID = {"name": "id", "type": "long"}
LINKS = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def avro(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


def schema(text: str, *sources: str, **options: Any) -> RecordSchema:
    columns = [{"name": f"c{number}", "from": f"$.{source}"} for number, source in enumerate(sources)]
    given = {"format": "Avro", "text": text, "columns": columns, **options}
    return IcebergTopic.parse({"metadata": {"name": "t"}, "spec": {"schema": given}}).record_schema()


UNREAD: dict[str, list[Any]] = {
    "a record inside itself": [{"name": "tree", "type": LINKS}],
    "the record itself": [
        {"name": "before", "type": ["null", "Order"]},
        {"name": "all", "type": {"type": "array", "items": "Order"}},
    ],
    "names that differ in case": [{"name": "Id", "type": "string"}],
    "more fields than columns": [{"name": f"f{number}", "type": "int"} for number in range(1_200)],
    "a name of Kafka's columns": [{"name": "_kafka_ts", "type": "long"}],
    "names inside that differ in case": [
        {
            "name": "x",
            "type": {
                "type": "record",
                "name": "X",
                "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}],
            },
        }
    ],
}


@pytest.mark.parametrize("fields", UNREAD.values(), ids=UNREAD)
def test_a_field_that_no_column_reads_refuses_no_schema(fields: list[Any]) -> None:
    text = avro(ID, *fields)
    assert [field.name for field in schema(text, "id").fields] == ["id"]
    for options in ({"columns": None}, {"otherFields": "Keep"}):
        with pytest.raises(InvalidSpecError, match=r"^spec\.schema"):
            schema(text, "id", **options)


def test_a_field_with_a_name_of_kafka_gets_another_name() -> None:
    with pytest.raises(InvalidSpecError, match="field _kafka_ts: names that start with _kafka are reserved"):
        schema(avro(ID, {"name": "_kafka_ts", "type": "long"}), "id", columns=None)
    assert schema(avro(ID, {"name": "_kafka_ts", "type": "long"}), "_kafka_ts").projection is not None


@pytest.mark.parametrize(
    ("fields", "sources", "problem"),
    [
        ([ID, *UNREAD["a record inside itself"]], ["tree"], "field tree.next: type Node contains itself, and"),
        ([ID, *UNREAD["the record itself"]], ["before"], "field before: type Order contains itself, and"),
        ([ID, *UNREAD["names that differ in case"]], ["id", "Id"], "record Order has the fields id and Id"),
        ([ID, *UNREAD["names inside that differ in case"]], ["x"], "field x: record X has the fields a and A"),
        ([ID, {"name": "name", "type": "string"}], ["nome"], r"\$ has no field nome; did you mean name\?"),
        ([ID, *UNREAD["a record inside itself"]], ["idd"], r"\$ has no field idd"),
    ],
)
def test_a_field_that_a_column_reads_is_judged(fields: list[Any], sources: list[str], problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=problem):
        schema(avro(*fields), "id", *sources) if "idd" not in sources else schema(avro(*fields), *sources)


def test_a_source_may_have_an_earlier_name() -> None:
    field = {"name": "number", "type": "long", "aliases": ["id"]}
    assert [each.name for each in schema(avro(field, {"name": "x", "type": "int"}), "id").fields] == ["number"]
    found = schema(avro({"name": "later", "type": "int"}, ID), "first", renames=[{"from": "first", "to": "later"}])
    assert [each.name for each in found.fields] == ["later"]
    writer = found.model_copy(update={"text": avro({"name": "first", "type": "int"}, ID), "fields": ()})
    assert [each.name for each in columns_of(writer, "s")] == ["later"]
    assert Rename(old="first", new="later") in found.renames


def test_a_writer_need_not_have_the_fields_that_are_read() -> None:
    found = schema(avro(ID), "id")
    assert columns_of(found.model_copy(update={"text": avro({"name": "x", "type": LINKS})}), "s") == ()


def json_schema(*sources: str, keeps: bool = False, **properties: Any) -> RecordSchema:
    document = {
        "type": "object",
        "properties": properties,
        "$defs": {"tree": {"properties": {"t": {"$ref": "#/$defs/tree"}}}},
    }
    columns = tuple(ProjectedColumn(name=each, source=f"$.{each}") for each in sources)
    projection = Projection(columns=columns, keeps_others=keeps)
    return RecordSchema(format="Json", text=json.dumps(document), projection=projection)


TEXT = {"type": "string"}


@pytest.mark.parametrize(
    "members",
    [{"tree": {"$ref": "#/$defs/tree"}}, {"Id": TEXT}, {"@timestamp": TEXT}, {"any": {}}, {"again": {"$ref": "#"}}],
)
def test_a_member_that_no_column_reads_refuses_no_json_schema(members: Any) -> None:
    found = columns_of(json_schema("id", id=TEXT, **members), "s")
    assert [(each.name, each.type) for each in found] == [("id", "string")]
    with pytest.raises(InvalidSpecError):
        columns_of(json_schema("id", keeps=True, id=TEXT, **members), "s")
    assert columns_of(json_schema("missing", id=TEXT, **members), "s") == ()


def test_a_definition_has_all_its_members_inside_another_member() -> None:
    base = {"properties": {"id": TEXT, "name": TEXT}}
    document = {
        "allOf": [{"$ref": "#/$defs/base"}],
        "properties": {"x": {"$ref": "#/$defs/base"}},
        "$defs": {"base": base},
    }
    found = json_schema("id", "x").model_copy(update={"text": json.dumps(document)})
    assert {each.name: each.type for each in columns_of(found, "s")} == {
        "id": "string",
        "x": "struct<id: string, name: string>",
    }
