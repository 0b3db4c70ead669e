"""A driver follows the numbers of Protobuf fields, although it starts again and knows few of the schemas."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from firn import protoc
from firn.model.errors import ConflictError
from firn.model.jobs import ColumnVersion, RecordSchema, Rename, Subject, WriterSchema
from firn.schemas import protobuf
from firn.schemas.columns import columns_of
from firn.tables import renames, rows, types
from firn_spark.ingestion import writer_schemas
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.ingestion.writer_schemas import TableColumns, adapted
from firn_spark.schemas import field_numbers
from firn_spark.schemas.field_numbers import NUMBERS, Known
from tests.unit.spark_driver.topic import job

CONTRACT = "int64 id = 1;"


def written(body: str) -> WriterSchema:
    text = f'syntax = "proto3"; message Order {{ {body} }}'
    return WriterSchema(text=text, descriptors=base64.b64encode(protoc.descriptors(text, ())).decode())


def topic(schemas: Mapping[int, str], **changes: Any) -> Topic:
    """Return a topic whose contract has the schema 1, and whose driver knows these other schemas."""
    subject = Subject(registry="main", name="orders-value")
    empty = RecordSchema(format="Protobuf", framing="Registry", message="Order", **changes)
    schema = empty.of_writer(1, written(CONTRACT)).model_copy(update={"subject": subject})
    schema = schema.model_copy(update={"fields": columns_of(schema, "contract")})
    made = Topic(job().model_copy(update={"record_schema": schema}))
    made.reading.writers.schemas = {number: written(body) for number, body in {1: CONTRACT, **schemas}.items()}
    return made


def column(number: int, name: str, kind: Any) -> dict[str, Any]:
    return {"id": number, "name": name, "required": False, "type": kind}


ID = column(1, "id", "long")


def landed(schemas: Mapping[int, str], fields: Sequence[dict[str, Any]]) -> str:
    """Return the value of the property after a driver has landed records of these schemas in a table with these fields."""
    orders = topic(schemas)
    found = writer_schemas.numbered(orders, orders.job.record_schema)
    assert found is not None
    return found.properties({}, fields).get(NUMBERS, "")


def after_restart(
    schemas: Mapping[int, str], table: TableColumns, **changes: Any
) -> tuple[RecordSchema, dict[str, str]]:
    """Return the schema and the renames of columns after a restart of the driver, which knows these schemas then."""
    present = {each["name"]: types.of_json(each["type"]) for each in table.fields}
    schema, left_out = adapted(topic(schemas, **changes), present, table)
    assert left_out == {}
    steps = renames.planned(table.fields, table.former, rows.column_renames(schema, schema.renames)).steps
    return schema, dict(steps)


def test_a_renamed_field_keeps_its_column_after_a_restart() -> None:
    fields = (ID, column(2, "buyer", "string"))
    numbers = landed({5: f"{CONTRACT} string buyer = 2;"}, fields)
    schema, steps = after_restart({8: f"{CONTRACT} string customer = 2;"}, TableColumns(fields, numbers=numbers))
    assert [each.name for each in schema.fields] == ["id", "customer"]
    assert steps == {"buyer": "customer"}
    # Without the property, nothing says which field the column belongs to.
    _, steps = after_restart({8: f"{CONTRACT} string customer = 2;"}, TableColumns(fields))
    assert steps == {}


def test_a_field_that_gets_an_earlier_name_back_and_then_a_new_one_keeps_its_column() -> None:
    fields = (ID, column(2, "customer", "string"))
    numbers = landed({5: f"{CONTRACT} string customer = 2;"}, fields)
    later = {6: f"{CONTRACT} string buyer = 2;", 7: f"{CONTRACT} string client = 2;"}
    schema, steps = after_restart(later, TableColumns(fields, {2: ("buyer",)}, numbers=numbers))
    assert steps == {"customer": "client"}
    assert [each.name for each in schema.fields] == ["id", "client"]


def test_a_new_field_whose_name_changes_to_and_fro_gets_one_column() -> None:
    names = ("buyer", "customer", "buyer", "customer", "client")
    schemas = {number: f"{CONTRACT} string {name} = 2;" for number, name in enumerate(names, 5)}
    schema, _ = after_restart(schemas, TableColumns((ID,)))
    assert [each.name for each in schema.fields] == ["id", "client"]


def test_a_column_of_two_numbers_follows_the_later_one_to_a_new_name() -> None:
    fields = (ID, column(2, "customer", "string"))
    numbers = '{"message": "Order", "columns": {"1": [6, 1], "2": [6, 2, 16]}}'
    table = TableColumns(fields, {2: ("buyer",)}, numbers=numbers)
    earlier = {3: f"{CONTRACT} string buyer = 2;", 5: f"{CONTRACT} string customer = 2;"}
    later = {6: f"{CONTRACT} string customer = 16;", 7: f"{CONTRACT} string client = 16;"}
    schema, steps = after_restart({**earlier, **later}, table)
    assert steps == {"customer": "client"}
    assert [each.name for each in schema.fields] == ["id", "client"]


def test_structs_in_structs_with_many_names_need_few_renames() -> None:
    depth, names = 10, 3
    bodies = []
    for name in range(names):
        body = f"string m{name} = 1;"
        for level in range(depth):
            body = f"M{level} l{level}_{name} = 2; message M{level} {{ {body} }}"
        bodies.append(f"{CONTRACT} {body}")
    messages = [
        (number, protobuf.message_of(topic({1: body}).job.record_schema.of_writer(1, written(body))))
        for number, body in enumerate(bodies, 1)
    ]
    found = list(field_numbers.implied(messages, (), {}, {}))
    assert len(found) <= 2 * depth * field_numbers.MOST_STRUCT_PATHS
    latest = ".".join(f"l{level}_{names - 1}" for level in reversed(range(depth)))
    assert {each.old for each in found if each.new == f"{latest}.m{names - 1}"} == {f"{latest}.m{names - 2}"}


def test_an_earlier_name_that_the_driver_never_read_belongs_to_the_column() -> None:
    fields = (ID, column(2, "customer", "string"))
    numbers = landed({8: f"{CONTRACT} string customer = 2;"}, fields)
    schema, steps = after_restart({5: f"{CONTRACT} string buyer = 2;"}, TableColumns(fields, numbers=numbers))
    assert [each.name for each in schema.fields] == ["id", "customer"]
    assert steps == {}


def test_members_of_structs_in_lists_and_maps_keep_their_columns() -> None:
    inner = {"type": "struct", "fields": [column(4, "sku", "string")]}
    lines = {"type": "list", "element-id": 3, "element-required": False, "element": inner}
    values = {"type": "struct", "fields": [column(8, "sku", "string")]}
    by_name = {"type": "map", "key-id": 6, "key": "string", "value-id": 7, "value-required": False, "value": values}
    fields = (ID, column(2, "lines", lines), column(5, "by_name", by_name))
    body = "repeated Line lines = 2; map<string, Line> by_name = 5; message Line { string %s = 1; }"
    numbers = landed({5: f"{CONTRACT} {body % 'sku'}"}, fields)
    _, steps = after_restart({8: f"{CONTRACT} {body % 'code'}"}, TableColumns(fields, numbers=numbers))
    assert steps == {"lines.element.sku": "code", "by_name.value.sku": "code"}


@pytest.mark.parametrize(
    ("later", "named"),
    [
        (
            "string buyer = 3; string seller = 2;",
            "buyer has the number 3 of field seller, but a field buyer had the number 2;",
        ),
        ("string customer = 2; string buyer = 4;", "buyer is new, but column customer had this name"),
    ],
    ids=["exchanged", "new-field-with-an-earlier-name"],
)
def test_no_field_gets_the_column_of_another_field_after_a_restart(later: str, named: str) -> None:
    fields = (ID, column(2, "buyer", "string"), column(3, "seller", "string"))
    numbers = landed({5: f"{CONTRACT} string buyer = 2; string seller = 3;"}, fields)
    with pytest.raises(ConflictError, match=f"schema 8 of schema registry main: field {named}"):
        after_restart({8: f"{CONTRACT} {later}"}, TableColumns(fields, numbers=numbers))


@pytest.mark.parametrize(
    ("contract", "later", "earlier", "moves"),
    [
        (CONTRACT, "string b = 2; string a = 3;", "string a = 2;", [("a", "b")]),
        (f"{CONTRACT} string a = 3;", "string b = 2; string a = 3;", "string a = 2;", [("a", "b")]),
        (CONTRACT, "string b = 2; string a = 3;", "string a = 2; string c = 3;", [("a", "b"), ("c", "a")]),
        (f"{CONTRACT} string b = 3; string a = 2;", "string b = 2; string a = 3;", "string b = 2;", []),
    ],
    ids=["numbers-of-the-table", "partly-in-the-contract", "with-a-rename", "exchanged-by-the-contract"],
)
def test_a_schema_lands_by_its_numbers_after_a_restart(
    contract: str, later: str, earlier: str, moves: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = (ID, column(2, "b", "string"), column(3, "a", "string"))
    table = TableColumns(fields, numbers=landed({5: f"{CONTRACT} {later}"}, fields))
    monkeypatch.setattr(f"{__name__}.CONTRACT", contract)
    if not moves:
        with pytest.raises(
            ConflictError, match="schema 1 of schema registry main: field b has the number 3 of field a"
        ):
            after_restart({}, table)
        return
    schema, steps = after_restart({3: f"int64 id = 1; {earlier}"}, table)
    assert steps == {}
    assert {each.name for each in schema.fields} <= {"id", "b", "a"}
    assert [(each.schema_id, each.old, each.new) for each in schema.writer_renames] == [(3, *each) for each in moves]


def test_the_contract_decides_before_the_numbers_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = (ID, column(2, "a", "string"), column(3, "b", "string"))
    table = TableColumns(fields, numbers='{"message": "Order", "columns": {"2": [5, 2, 3], "3": [5, 4]}}')
    monkeypatch.setattr(f"{__name__}.CONTRACT", "int64 id = 1; string b = 2; string a = 3;")
    schema, steps = after_restart({3: "int64 id = 1; string a = 2;"}, table)
    assert steps == {}
    assert [(each.schema_id, each.old, each.new) for each in schema.writer_renames] == [(3, "a", "b")]


def test_the_names_of_members_belong_to_their_numbers_after_a_restart() -> None:
    inner = {"type": "struct", "fields": [column(4, "b", "string"), column(5, "a", "string")]}
    lines = {"type": "list", "element-id": 3, "element-required": False, "element": inner}
    fields = (ID, column(2, "lines", lines))
    body = "repeated Line lines = 2; message Line { %s }"
    numbers = landed({5: f"{CONTRACT} {body % 'string b = 1; string a = 2;'}"}, fields)
    table = TableColumns(fields, numbers=numbers)
    schema, _ = after_restart({3: f"{CONTRACT} {body % 'string a = 1;'}"}, table)
    assert [(each.old, each.new) for each in schema.writer_renames] == [("lines.element.a", "lines.element.b")]
    with pytest.raises(
        ConflictError, match=r"schema 8 .*: field lines\.element\.b has the number \d of field lines\.element\.a"
    ):
        after_restart({8: f"{CONTRACT} {body % 'string b = 2; string a = 1;'}"}, table)


def test_an_earlier_schema_with_a_new_number_for_a_name_does_not_fit() -> None:
    fields = (ID, column(2, "a", "string"))
    table = TableColumns(fields, numbers=landed({5: f"{CONTRACT} string a = 2;"}, fields))
    with pytest.raises(ConflictError, match="schema 3 .*: field a has another number than before, and field z has the"):
        after_restart({3: f"{CONTRACT} string z = 2; string a = 4;"}, table)


def test_two_schemas_that_exchange_names_do_not_both_fit_a_new_table() -> None:
    schemas = {
        5: f"{CONTRACT} string buyer = 2; string seller = 3;",
        8: f"{CONTRACT} string buyer = 3; string seller = 2;",
    }
    with pytest.raises(
        ConflictError, match="schema 8 of schema registry main: field buyer has the number 3 of field seller"
    ):
        adapted(topic(schemas), {"id": "long"})


def test_a_number_that_another_type_uses_again_is_no_rename() -> None:
    fields = (ID, column(2, "buyer", "string"))
    numbers = landed({5: f"{CONTRACT} string buyer = 2;"}, fields)
    schema, steps = after_restart({8: f"{CONTRACT} bool paid = 2;"}, TableColumns(fields, numbers=numbers))
    assert (steps, [each.name for each in schema.fields]) == ({}, ["id", "paid"])


def test_a_renamed_field_takes_its_columns_for_other_types_along() -> None:
    fields = (ID, column(2, "total", "int"), column(3, "total_v2", "string"))
    whole = topic({5: f"{CONTRACT} int32 total = 2;", 6: f"{CONTRACT} string total = 2;"})
    version = ColumnVersion(schema_id=6, field="total", column="total_v2")
    found = writer_schemas.numbered(whole, whole.job.record_schema.model_copy(update={"versions": (version,)}))
    assert found is not None
    table = TableColumns(fields, versions={3: "total"}, numbers=found.properties({}, fields)[NUMBERS])
    schema, steps = after_restart({8: f"{CONTRACT} string amount = 2;"}, table, incompatible="NewColumn")
    assert steps == {"total": "amount"}
    assert [(each.field, each.column) for each in schema.versions] == [("amount", "total_v2")]


def test_a_column_for_another_type_has_the_later_names_of_members() -> None:
    price = {"type": "struct", "fields": [column(4, "paid", "string")]}
    other = {"type": "struct", "fields": [column(5, "cents", "string"), column(6, "paid", "boolean")]}
    fields = (ID, column(2, "price", price), column(3, "price_v2", other))
    table = TableColumns(fields, {5: ("text",)}, versions={3: "price"})
    body = f"{CONTRACT} Price price = 2; message Price {{ string text = 1; bool paid = 2; }}"
    schema, steps = after_restart({6: body}, table, incompatible="NewColumn")
    assert steps == {}
    assert [(each.field, each.column) for each in schema.versions] == [("price", "price_v2")]
    found = columns_of(schema.of_writer(6, written(body)), "schema 6")
    assert [(each.name, each.type) for each in found] == [
        ("id", "long"), ("price_v2", "struct<cents: string, paid: boolean>"),
    ]  # fmt: skip


def test_the_property_keeps_the_newest_schema_and_belongs_to_one_message() -> None:
    fields = (ID, column(2, "buyer", "string"))
    text = landed({9: f"{CONTRACT} string buyer = 2;", 5: f"{CONTRACT} string buyer = 4;"}, fields)
    assert field_numbers.read(text, "Order") == {1: Known(9, frozenset({1})), 2: Known(9, frozenset({2, 4}))}
    assert field_numbers.read(text, "Refund") == {}
    assert field_numbers.read("[]", "Order") == field_numbers.read("", "Order") == {}
    orders = topic({5: f"{CONTRACT} string buyer = 2;"})
    found = writer_schemas.numbered(orders, orders.job.record_schema)
    assert found is not None
    assert found.properties({NUMBERS: text}, fields) == {}


def test_a_rename_inside_a_missing_struct_changes_no_column_beside_it() -> None:
    fields = (ID, column(2, "code", "string"))
    lost = [Rename(old="line.sku", new="line.code", by_schema=True)]
    assert renames.planned(fields, {}, (), lost).former == {}


@pytest.mark.parametrize(("message", "kept"), [("", True), ("Sale", False)])
def test_the_property_follows_a_message_that_a_text_renames(message: str, kept: bool) -> None:
    text = landed({5: f"{CONTRACT} string buyer = 2;"}, (ID, column(2, "buyer", "string")))
    only = 'syntax = "proto3"; message Sale { int64 id = 1; }'
    several = f"{only} message Order {{ int64 id = 1; }}"
    for proto, same in ((only, kept), (several, False)):
        content = base64.b64encode(protoc.descriptors(proto, ())).decode()
        contract = RecordSchema(format="Protobuf", message=message, found_message="Sale", descriptors=content)
        assert bool(field_numbers.read(text, "Sale", contract)) is same
