"""``firn adopt connect``: the columns of the latest schema in a registry, against those that the sink has made."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.model.errors import InvalidSpecError
from firn.model.jobs import WriterSchema
from firn_operator.cli.adoption.latest import Latest, of_file
from firn_operator.cli.adoption.manifest import Adopting, Choices, adopting, with_latest
from tests.unit.cli.test_adopting_tables import KEY, commit, lake, run
from tests.unit.cli.test_connectors import read
from tests.unit.model.test_schema_registry import Server, server

__all__ = ["lake", "run", "server"]
AVRO = "io.confluent.connect.avro.AvroConverter"
PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"
JSON_SCHEMA = "io.confluent.connect.json.JsonSchemaConverter"
LONG, STRING, BINARY = iceberg.LongType(), iceberg.StringType(), iceberg.BinaryType()


def column(kind: iceberg.IcebergType, name: str = "a", number: int = 1, required: bool = False) -> iceberg.NestedField:
    return iceberg.NestedField(number, name, kind, required=required)


def compared(converter: str, text: Any, *columns: iceberg.NestedField) -> Adopting:
    choices, schema = Choices("shop", registry="main"), Schema(*columns)
    made = adopting(read(value_converter=converter), schema, 2, choices)
    assert made.subject == "orders-value"
    whole = text if isinstance(text, str) else json.dumps(text)
    return with_latest(made, schema, Latest("schema 7", WriterSchema(text=whole)))


def record(kind: Any, name: str = "a") -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": name, "type": kind}]}


def logical(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "logicalType": name}


def proto(field: str) -> str:
    return f'syntax = "proto3"; message Order {{ {field} = 1; }}'


def properties(**kinds: Any) -> dict[str, Any]:
    return {"type": "object", "properties": kinds}


@pytest.mark.parametrize(
    ("converter", "text", "kind"),
    [
        (AVRO, record("long"), LONG),
        (AVRO, record("int"), LONG),
        (AVRO, record("long"), iceberg.IntegerType()),
        (AVRO, record(logical("long", "timestamp-millis")), iceberg.TimestamptzType()),
        (AVRO, record(logical("int", "time-millis")), iceberg.TimeType()),
        (AVRO, record(logical("int", "date")), iceberg.DateType()),
        (AVRO, record({**logical("bytes", "decimal"), "precision": 9, "scale": 2}), iceberg.DecimalType(38, 2)),
        (PROTOBUF, proto("uint32 a"), LONG),
        (JSON_SCHEMA, properties(a={"type": "integer"}), LONG),
    ],
)
def test_a_column_of_a_type_that_holds_the_values_stays(converter: str, text: Any, kind: Any) -> None:
    made = compared(converter, text, column(kind))
    assert (made.conversions, made.left_out) == ((), ())
    assert made.added == ("_kafka",)
    assert "columns" not in made.manifest["spec"]["schema"]


@pytest.mark.parametrize(
    ("converter", "text", "kind", "wanted"),
    [
        (AVRO, record(logical("string", "uuid")), STRING, "uuid"),
        (AVRO, record({"type": "fixed", "name": "F", "size": 4}), BINARY, "fixed[4]"),
        (AVRO, record("string"), iceberg.UUIDType(), "string"),
        (AVRO, record("long"), iceberg.TimestamptzType(), "long"),
        (PROTOBUF, proto("uint64 a"), LONG, "decimal(20, 0)"),
        (JSON_SCHEMA, properties(a={"type": "string", "format": "date"}), STRING, "date"),
    ],
)
def test_the_manifest_converts_values_to_the_type_of_the_table(
    converter: str, text: Any, kind: iceberg.IcebergType, wanted: str
) -> None:
    made = compared(converter, text, column(kind))
    (found,) = made.conversions
    assert found.problems == (f"a is {kind} in the table and {wanted} in the schema",)
    schema = made.manifest["spec"]["schema"]
    assert (schema["columns"], schema["otherFields"]) == ([{"name": "a", "from": "$.a", "type": str(kind)}], "Keep")
    assert made.added == ("_kafka",)
    IcebergTopic.parse(made.manifest)


@pytest.mark.parametrize(
    ("converter", "text", "kind", "wanted"),
    [
        (AVRO, record(logical("long", "timestamp-micros")), LONG, "timestamptz"),
        (AVRO, record(logical("long", "local-timestamp-micros")), LONG, "timestamp"),
        (AVRO, record(logical("long", "local-timestamp-millis")), LONG, "timestamp"),
        (AVRO, record(logical("long", "time-micros")), LONG, "time"),
        (AVRO, record("string"), BINARY, "string"),
        (JSON_SCHEMA, properties(a={"type": "string", "format": "date-time"}), STRING, "timestamptz"),
    ],
)
def test_values_without_a_conversion_get_a_new_column(
    converter: str, text: Any, kind: iceberg.IcebergType, wanted: str
) -> None:
    made = compared(converter, text, column(kind), column(STRING, "a_v2", 2))
    (found,) = made.conversions
    assert found.problems == (f"a is {kind} in the table and {wanted} in the schema",)
    assert made.manifest["spec"]["schema"]["columns"] == [{"name": "a_v3", "from": "$.a"}]
    assert made.added == ("a_v3", "_kafka")
    assert made.left_out == ("a", "a_v2")


def test_a_type_inside_a_column_is_named() -> None:
    item = {"type": "record", "name": "Item", "fields": [{"name": "at", "type": logical("long", "timestamp-micros")}]}
    inside = iceberg.ListType(2, iceberg.StructType(column(LONG, "at", 3)), False)
    made = compared(AVRO, record({"type": "array", "items": item}, "items"), column(inside, "items"))
    assert made.conversions[0].problems == ("items.element.at is long in the table and timestamptz in the schema",)
    assert made.manifest["spec"]["schema"]["columns"] == [{"name": "items_v2", "from": "$.items"}]


def test_other_fields_stay_columns_and_changes_are_named() -> None:
    fields = [{"name": name, "type": "string"} for name in ("id", "more")]
    text = {"type": "record", "name": "Order", "fields": [*fields, *record(logical("string", "uuid"))["fields"]]}
    made = compared(AVRO, text, column(STRING), column(STRING, "id", 2, required=True), column(LONG, "old", 3))
    assert made.added == ("more", "_kafka")
    assert made.changed == ("column id made optional",)
    assert made.left_out == ("old",)


def test_a_required_column_that_gets_no_values_is_refused() -> None:
    problem = r"table shop\.orders: column a is long in the table and timestamptz in the schema.* make column a optional first"
    with pytest.raises(InvalidSpecError, match=problem):
        compared(AVRO, record(logical("long", "timestamp-micros")), column(LONG, required=True))
    with pytest.raises(InvalidSpecError, match="column 'b' is required in the table, but no field of the schema"):
        compared(AVRO, record("long"), column(LONG), column(LONG, "b", 2, required=True))
    made = compared(AVRO, record(logical("string", "uuid")), column(STRING, required=True))
    assert made.changed == ("column a made optional",)


def test_the_schema_must_be_one_of_the_format() -> None:
    with pytest.raises(InvalidSpecError, match="schema 7: "):
        compared(AVRO, "{}", column(LONG))
    with pytest.raises(InvalidSpecError, match="schema 7: "):
        compared(PROTOBUF, "syntax", column(LONG))


def test_a_file_has_the_schema(lake: dict[str, Any], run: Any, tmp_path: Path) -> None:
    commit(lake, **{KEY: '{"0":7}'})
    file = tmp_path / "schema.json"
    text = json.dumps(
        {
            "type": "record",
            "name": "Order",
            "fields": [record("long", "id")["fields"][0], *record("long", "at")["fields"]],
        }
    )
    file.write_text(text)
    with pytest.raises(InvalidSpecError, match="values that name no schemas; run the command without --schema"):
        run(schema=str(file))
    lake["value.converter"] = AVRO
    _, report = run(registry="main", schema=str(file), dry_run=True)
    assert "Warning: column at is timestamptz in the table and long in the schema; spec.schema.columns" in report
    file.write_text(json.dumps({"id": 7, "schema": text}))
    assert run(registry="main", schema=str(file), dry_run=True)[1] == report
    for answer, problem in (
        ({"schema": text, "schemaType": "PROTOBUF"}, "has the type PROTOBUF, and the converter reads Avro"),
        ({"schema": text, "references": [{"name": "a"}]}, "refers to other schemas, which the file does not have"),
    ):
        file.write_text(json.dumps(answer))
        with pytest.raises(InvalidSpecError, match=problem):
            run(registry="main", schema=str(file))
    with pytest.raises(InvalidSpecError, match="the schema cannot be read"):
        run(registry="main", schema=str(tmp_path / "ghost"))


@pytest.mark.parametrize("of_apicurio", [False, True])
def test_the_registry_of_the_connector_is_asked(
    lake: dict[str, Any], run: Any, server: Server, of_apicurio: bool
) -> None:
    commit(lake, **{KEY: '{"0":7}'})
    url = server.url.replace("://", "://user:secret@")
    lake |= {
        "value.converter": "io.apicurio.registry.utils.converter.AvroConverter" if of_apicurio else AVRO,
        "value.converter.apicurio.registry.as-confluent": "true",
        "value.converter.apicurio.registry.url": f"{url}/apis/registry/v2",
        "value.converter.schema.registry.url": f"{url}/,http://other",
    }
    latest = f"{'/apis/ccompat/v7' if of_apicurio else ''}/subjects/orders-value/versions/latest"
    server.answer_with(latest, {"id": 7, "schema": json.dumps(record(logical("long", "time-micros"), "id"))})
    _, report = run(registry="main", dry_run=True)
    assert "Warning: column id is long in the table and time in the schema; no conversion" in report
    assert "lands field id in the new column id_v2, and column id gets null" in report
    assert "authorization" not in server.headers
    server.answer_with(latest, {}, 401)
    _, report = run(registry="main", dry_run=True)
    assert "not compared with the schema of subject orders-value, because the registry at http://127" in report
    assert "rejects requests without credentials. If a type differs" in report
    assert "secret" not in report
    server.answer_with(latest, {"error_code": 40401}, 404)
    assert "has no schema of this subject" in run(registry="main", dry_run=True)[1]
    server.answer_with(latest, {}, 500)
    assert "gives no usable answer" in run(registry="main", dry_run=True)[1]
    lake |= {f"value.converter.{kind}.registry.url": "${file:/registry:url}" for kind in ("schema", "apicurio")}
    assert "names no address of a registry with Confluent's API" in run(registry="main", dry_run=True)[1]


def test_fields_of_a_sink_that_ignores_case_land_in_columns_of_other_case() -> None:
    choices = Choices("shop", registry="main")
    schema = Schema(column(LONG, "ID"), column(STRING, "Ref", 2), column(LONG, "b", 3))
    fields = {"id": "long", "b": "long", "ref": logical("string", "uuid")}
    text = {**record("long"), "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}
    latest = Latest("schema 7", WriterSchema(text=json.dumps(text)))
    made = adopting(read(value_converter=AVRO), schema, 2, choices)
    with pytest.raises(
        InvalidSpecError, match="column ID differs only in case from field id, .* rename the column to id"
    ):
        with_latest(made, schema, latest)
    folding = read(value_converter=AVRO, iceberg_tables_schema__case__insensitive="true")
    made = with_latest(adopting(folding, schema, 2, choices), schema, latest)
    assert made.manifest["spec"]["schema"]["columns"] == [
        {"name": "ID", "from": "$.id"},
        {"name": "Ref", "from": "$.ref", "type": "string"},
    ]
    assert (made.added, made.left_out) == (("_kafka",), ())


def test_a_schema_of_too_many_levels_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text("[" * 5000)
    choices, schema = Choices("shop", registry="main"), Schema(column(LONG))
    made = adopting(read(value_converter=AVRO), schema, 2, choices)
    with pytest.raises(InvalidSpecError, match=r"the schema of .*schema\.json"):
        with_latest(made, schema, of_file(str(file)))
