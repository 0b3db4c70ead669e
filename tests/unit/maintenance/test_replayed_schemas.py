"""A replay decodes only letters whose schema ingestion would accept."""

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from firn import protoc
from firn.decoders.bad_records import Code
from firn.model.jobs import Column, RecordSchema, RegistryConnection, Route, SchemaFormat, Subject, WriterSchema
from firn.schema_registry import MOST_ID, Registered
from firn.schemas.other_clients import Followed
from firn.schemas.routes import registry_schema
from firn.tables import rows
from firn_spark.maintenance.replaying import decoding
from firn_spark.maintenance.replaying.decoding import Decoding
from firn_spark.schemas import registries
from firn_spark.schemas.field_numbers import NUMBERS
from firn_spark.schemas.registries import Registries
from firn_spark.worker.formats.writer_schemas import Refusal
from tests.unit.spark import tables
from tests.unit.spark.records import batch, job

WANTED = RecordSchema(format="Avro", framing="Registry", subject=Subject(registry="main", name="orders-value"))
WRITER = WriterSchema(text='"string"')
STRINGS = (Column(name="b", type="string"), Column(name="a", type="string"))


class Answers:
    """A registry with schemas 7 (Avro), 8 (Protobuf), 9 (Avro of another subject) and 10 (Avro of no subject), without GUIDs."""

    def by_id(self, number: int) -> Registered | None:
        assert number <= MOST_ID, "registries fail for such ids"
        return Registered(number, "PROTOBUF" if number == 8 else "AVRO", WRITER) if 7 <= number <= 10 else None

    def id_of(self, guid: str) -> int | None:
        return None

    def subjects(self, number: int, *, deleted: bool) -> frozenset[str]:
        assert deleted, "letters may be older than the deletion of a version"
        return {9: frozenset({"payments-value"}), 10: frozenset[str]()}.get(number, frozenset({"orders-value"}))


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> Registries:
    monkeypatch.setattr(registries, "SchemaRegistry", lambda *_: Answers())
    return Registries({"main": RegistryConnection(url="http://registry")}, None, missing_seconds=0)


@pytest.mark.parametrize("number", [7, 10])
def test_schemas_of_the_topics_subject_are_used(replaying: Registries, number: int) -> None:
    assert replaying.find(WANTED, number) == WRITER


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        (6, "the record names schema 6, which schema registry main does not have"),
        (2**32 - 1, "the record names schema 4294967295, which schema registry main does not have"),
        (8, "schema 8 of schema registry main has the type PROTOBUF, and the topic has format: Avro"),
        (
            9,
            "schema 9 of schema registry main belongs to subject payments-value, and the topic has subject orders-value",
        ),
        ("g", "the header names the schema with GUID g, which schema registry main does not have"),
    ],
)
def test_letters_of_other_schemas_stay_at_once(replaying: Registries, reference: Any, problem: str) -> None:
    final = reference in (2**32 - 1, 8)
    assert replaying.find(WANTED, reference) == Refusal(Code.UNKNOWN_SCHEMA, problem, final)


class Letters:
    """Spark with the letters of a topic. A task decodes them in this process."""

    def __init__(self, *values: bytes) -> None:
        self._values = values
        self._found: list[Any] = []

    def selectExpr(self, *_: str) -> "Letters":
        return self

    def coalesce(self, _: int) -> "Letters":
        return self

    def mapInArrow(self, work: Any, _: str) -> "Letters":
        batches = work(iter([batch(self._values, topic=["t"] * len(self._values))]))
        self._found = [tuple(row.values()) for output in batches for row in output.to_pylist()]
        return self

    def collect(self) -> list[Any]:
        return self._found


def test_a_letter_stays_if_its_schema_now_names_the_message_of_a_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "texts", dict)
    route = Route(values=registry_schema(SchemaFormat.AVRO, "main", "Payload"), before=("Order",), otherwise="Table")
    made = job().model_copy(update={"route": route})
    columns = {each.name: each.type for each in rows.columns_of_table(made.record_schema, made.table)}
    catalog: Any = SimpleNamespace(
        followed=lambda *_: Followed(), columns=lambda _: columns, spec=lambda _: tables.table_of(made, tmp_path)
    )
    table: Any = SimpleNamespace(properties=dict, name=lambda: "lake.n.t")
    names = {1: "Order", 2: "Visit"}
    schemas = {number: WriterSchema(text=f'{{"type": "record", "name": "{name}"}}') for number, name in names.items()}
    found: Any = SimpleNamespace(
        find=lambda _, number: schemas.get(number, Refusal(Code.UNKNOWN_SCHEMA, "unknown")),
    )
    spark = Letters(*(b"\0" + number.to_bytes(4) for number in (1, 2, 9)))
    result = Decoding(spark, catalog, table, made, 1).run(spark, 3, table, found)
    assert (result.rows, dict(result.codes)) == (1, {"UnknownSchema": 1, "OtherTable": 1})


def protobuf(body: str) -> WriterSchema:
    text = f'syntax = "proto3"; message R {{ {body} }}'
    return WriterSchema(text=text, descriptors=base64.b64encode(protoc.descriptors(text, ())).decode())


@pytest.mark.parametrize("kept", [False, True], ids=["by-the-contract", "by-the-table"])
def test_a_letter_reaches_the_columns_of_its_numbers_in_protobuf(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "texts", dict)
    own = WANTED.model_copy(update={"format": SchemaFormat.PROTOBUF, "schema_id": 3, "fields": STRINGS})
    contract = protobuf("string b = 1;" if kept else "string b = 1; string a = 2;")
    made = job().model_copy(update={"record_schema": own.model_copy(update=dict(contract)), "route": None})
    ids: list[dict[str, Any]] = [{"id": 1, "name": "b", "type": "string"}, {"id": 2, "name": "a", "type": "string"}]
    properties = {NUMBERS: '{"message": "R", "columns": {"1": [3, 1], "2": [3, 2]}}'} if kept else {}
    columns = {each.name: each.type for each in rows.columns_of_table(made.record_schema, made.table)}
    catalog: Any = SimpleNamespace(
        followed=lambda *_: Followed(fields=ids),
        columns=lambda _: columns,
        spec=lambda _: tables.table_of(made, tmp_path),
    )
    deleted: list[str] = []
    io = SimpleNamespace(deleteFile=deleted.append)
    table: Any = SimpleNamespace(properties=lambda: properties, name=lambda: "lake.n.t", io=lambda: io)
    schemas = {1: protobuf("string a = 1;"), 2: protobuf("string a = 1; string b = 2;")}
    found: Any = SimpleNamespace(find=lambda _, number: schemas[number])
    spark = Letters(*(b"\0" + number.to_bytes(4) + b"\0\x0a\x01x" for number in (1, 2)))
    result = Decoding(spark, catalog, table, made, 1).run(spark, 2, table, found)
    assert result.codes == {Code.INCOMPATIBLE_SCHEMA: 1}
    (file,) = result.files
    landed = pq.read_table(json.loads(file)["file-path"].removeprefix("file://"))
    assert landed.select(["b", "a"]).to_pylist() == [{"b": "x", "a": None}]


STRUCT = {"type": "struct", "fields": [{"id": 3, "name": "sku", "type": "string"}]}


@pytest.mark.parametrize(
    ("body", "row"),
    [
        ("string buyer = 1; Line line = 2; message Line { string sku = 1; }", {"b": "x", "line": {"sku": "y"}}),
        ("string b = 1; Line item = 2; message Line { string code = 1; }", {"b": "x", "line": {"sku": "y"}}),
        ("string buyer = 1; Line item = 2; message Line { string code = 1; }", {"b": "x", "line": {"sku": "y"}}),
        ("string buyer = 7; Line line = 2; message Line { string code = 1; }", None),
        ("bytes buyer = 1; Line line = 2; message Line { string sku = 1; }", None),
        ("string b = 1; Line item = 2; message Line { bytes code = 1; }", None),
    ],
    ids=["column", "members", "both", "another-number", "another-type", "another-type-of-a-member"],
)
def test_a_letter_whose_fields_have_other_names_reaches_the_columns_of_their_numbers(
    body: str, row: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "texts", dict)
    fields = (Column(name="b", type="string"), Column(name="line", type="struct<sku: string>"))
    contract = protobuf("string b = 1; Line line = 2; message Line { string sku = 1; }")
    own = WANTED.model_copy(update={"format": SchemaFormat.PROTOBUF, "schema_id": 3, "fields": fields})
    made = job().model_copy(update={"record_schema": own.model_copy(update=dict(contract)), "route": None})
    ids: list[dict[str, Any]] = [{"id": 1, "name": "b", "type": "string"}, {"id": 2, "name": "line", "type": STRUCT}]
    numbers = '{"message": "R", "columns": {"1": [3, 1], "2": [3, 2], "3": [3, 1]}}'
    columns = {each.name: each.type for each in rows.columns_of_table(made.record_schema, made.table)}
    catalog: Any = SimpleNamespace(
        followed=lambda *_: Followed(fields=ids),
        columns=lambda _: columns,
        spec=lambda _: tables.table_of(made, tmp_path),
    )
    table: Any = SimpleNamespace(properties=lambda: {NUMBERS: numbers}, name=lambda: "lake.n.t")
    found: Any = SimpleNamespace(find=lambda *_: protobuf(body))
    first = b"\x0a" if "= 7" not in body else b"\x3a"
    spark = Letters(b"\0" + (1).to_bytes(4) + b"\0" + first + b"\x01x\x12\x03\x0a\x01y")
    result = Decoding(spark, catalog, table, made, 1).run(spark, 1, table, found)
    if row is None:
        assert (result.files, result.codes) == ([], {Code.INCOMPATIBLE_SCHEMA: 1})
        return
    (file,) = result.files
    landed = pq.read_table(json.loads(file)["file-path"].removeprefix("file://"))
    assert landed.select(["b", "line"]).to_pylist() == [row]


def test_a_letter_with_integers_lands_in_a_column_of_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "texts", dict)
    made = job(("x", "double"))
    made = made.model_copy(update={"record_schema": WANTED.model_copy(update={"fields": made.record_schema.fields})})
    columns = {each.name: each.type for each in rows.columns_of_table(made.record_schema, made.table)}
    catalog: Any = SimpleNamespace(
        followed=lambda *_: Followed(), columns=lambda _: columns, spec=lambda _: tables.table_of(made, tmp_path)
    )
    table: Any = SimpleNamespace(properties=dict, name=lambda: "lake.n.t")
    text = '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}'
    found: Any = SimpleNamespace(find=lambda *_: WriterSchema(text=text))
    spark = Letters(b"\0" + (1).to_bytes(4) + b"\x0a")
    result = Decoding(spark, catalog, table, made, 1).run(spark, 3, table, found)
    assert (result.rows, dict(result.codes)) == (1, {})
