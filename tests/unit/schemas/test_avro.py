"""Avro schemas become columns, or a message that names the place of the mistake."""

import json
from typing import Any

import pytest

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.schemas import avro
from firn.tables import types


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def columns(*fields: Any) -> dict[str, str]:
    return {column.name: column.type for column in avro.columns(avro.parse(json.dumps(record(*fields))))}


def logical(kind: str, meaning: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": meaning, **more}


@pytest.mark.parametrize(
    ("declared", "column"),
    [
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "long"),
        ("float", "float"),
        ("double", "double"),
        ("string", "string"),
        ("bytes", "binary"),
        ({"type": "string", "avro.java.string": "String"}, "string"),
        ({"type": {"type": "long"}}, "long"),
        (logical("int", "date"), "date"),
        (logical("int", "time-millis"), "time"),
        (logical("long", "time-micros"), "time"),
        (logical("long", "timestamp-millis"), "timestamptz"),
        (logical("long", "timestamp-micros"), "timestamptz"),
        (logical("long", "local-timestamp-millis"), "timestamp"),
        (logical("long", "local-timestamp-micros"), "timestamp"),
        (logical("long", "timestamp-nanos"), "long"),
        (logical("string", "uuid"), "uuid"),
        (logical("string", "date"), "string"),
        ({"type": "long", "logicalType": ["date"]}, "long"),
        (logical("bytes", "decimal", precision=12, scale=2), "decimal(12, 2)"),
        (logical("bytes", "decimal", precision=5), "decimal(5, 0)"),
        (logical("bytes", "decimal", precision=39, scale=2), "binary"),
        (logical("bytes", "decimal", precision=2, scale=3), "binary"),
        (logical("fixed", "decimal", name="D", size=4, precision=9, scale=3), "decimal(9, 3)"),
        (logical("fixed", "decimal", name="D", size=4, precision=10, scale=3), "fixed[4]"),
        (logical("fixed", "uuid", name="U", size=16), "uuid"),
        (logical("fixed", "duration", name="U", size=12), "fixed[12]"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string"),
        ({"type": "array", "items": "int"}, "list<int>"),
        ({"type": "map", "values": ["null", "int"]}, "map<string, int>"),
        (record(field("x", "int"), field("none", "null"), name="N"), "struct<x: int>"),
        (["null", "string"], "string"),
        (["string", "null"], "string"),
        (["string"], "string"),
        (["null", "string", "long"], "struct<string: string, long: long>"),
        (
            ["int", {"type": "array", "items": "int"}, record(field("x", "int"), name="a.b.N")],
            "struct<int: int, array: list<int>, N: struct<x: int>>",
        ),
        (
            [record(field("x", "int"), name="a.N"), record(field("y", "int"), name="b.N")],
            "struct<a_N: struct<x: int>, b_N: struct<y: int>>",
        ),
    ],
)
def test_a_type_becomes_a_column(declared: Any, column: str) -> None:
    assert columns(field("f", declared), field("g", "null")) == {"f": column}


@pytest.mark.parametrize("namespace", ["com.my-company", "com.3m.x", "com.x.Outer$"])
def test_a_namespace_of_java_is_no_mistake(namespace: str) -> None:
    inner = record(field("x", "int"), name="Inner", namespace=namespace)
    outer = record(field("a", inner), field("b", "Inner"), field("c", f"{namespace}.Inner"), namespace=namespace)
    kinds = [column.type for column in avro.columns(avro.parse(json.dumps(outer)))]
    assert kinds == ["struct<x: int>"] * 3


def test_symbols_have_letters_of_all_languages() -> None:
    assert columns(field("a", {"type": "enum", "name": "E", "symbols": ["Ä", "日本"]})) == {"a": "string"}


def test_members_of_a_union_have_names_that_columns_can_have() -> None:
    union = [record(field("x", "int"), name="O", namespace=space) for space in ("com.my-company", "3m.x", "a$")]
    (kind,) = columns(field("u", union)).values()
    members = types.parse(kind)
    assert isinstance(members, types.Struct)
    assert [name for name, _ in members.fields] == ["com_my_company_O", "_3m_x_O", "a__O"]


def test_named_types_are_found_in_their_namespace() -> None:
    inner = record(field("x", "int"), name="Inner", namespace="other")
    declared = record(
        field("a", inner), field("b", "other.Inner"), field("c", {"type": "fixed", "name": "F", "size": 2}), field("d", "F"),
        field("e", ["null", "shop.F"]), name="shop.Order",
    )  # fmt: skip
    found = avro.columns(avro.parse(json.dumps(declared)))
    assert {column.name: column.type for column in found} == {
        "a": "struct<x: int>", "b": "struct<x: int>", "c": "fixed[2]", "d": "fixed[2]", "e": "fixed[2]",
    }  # fmt: skip


def test_a_doc_is_the_comment_of_a_column() -> None:
    docs = ["amount", "x" * 2000, "\ud800!", 7]
    found = avro.columns(
        avro.parse(json.dumps(record(*(field(f"f{n}", "int", doc=doc) for n, doc in enumerate(docs)))))
    )
    assert [column.doc for column in found] == ["amount", "x" * avro.MOST_DOC, "?!", None]


def test_a_namespace_may_be_absent_or_empty() -> None:
    outer = {"name": "a.R", "type": "record"}
    for namespace, reference in ((None, "E"), ("", "E"), ("b", "b.E")):
        enum = {"type": "enum", "name": "E", "symbols": ["X"], "namespace": namespace}
        assert avro.parse(json.dumps({**outer, "fields": [field("x", enum), field("y", reference)]}))


def test_a_thousand_fields_are_a_thousand_columns() -> None:
    assert len(columns(*(field(f"f{number}", ["null", "string"]) for number in range(1000)))) == 1000


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ('"string"', "string"),
        ('"long"', "long"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamptz"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string"),
        ({"type": "fixed", "name": "F", "size": 4}, "fixed[4]"),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, "uuid"),
        (
            {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
            "decimal(9, 2)",
        ),
        (["null", "string"], "string"),
        ([{"type": "enum", "name": "E", "symbols": ["A"]}, "null"], "string"),
        (["null", record(field("a", "int"))], "struct<a: int>"),
        (
            [record(field("a", "int"), name="x.Sale"), record(field("b", "string"), name="x.Refund"), "null", "long"],
            "struct<Sale: struct<a: int>, Refund: struct<b: string>, long: long>",
        ),
        ({"type": "array", "items": "int"}, "list<int>"),
        ({"type": "map", "values": ["null", "string"]}, "map<string, string>"),
    ],
)
def test_one_value_has_one_column(declared: Any, kind: str) -> None:
    text = declared if isinstance(declared, str) else json.dumps(declared)
    assert [(column.name, column.type) for column in avro.columns(avro.parse(text))] == [("value", kind)]


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ("{", "the schema is not JSON"),
        ('"bytes"', "the schema is null or bytes"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9},
            "the schema is null or bytes",
        ),
        ('"null"', "the schema is null or bytes"),
        (["null", "bytes"], "the schema is null or bytes"),
        (["string", "bytes"], "the schema is null or bytes"),
        (["null"], "the schema is null or bytes"),
        ({"type": "array", "items": "null"}, "the elements of the array take no bytes"),
        ({"type": "map", "values": "null"}, "the record has no field that can become a column"),
        ("3", "a type is a name, an object or a list, not 3"),
        ("[]", "a union has at least one branch"),
        (record(), "the record has no field that can become a column"),
        (record(field("a", "null")), "the record has no field that can become a column"),
        ({"type": "record", "fields": []}, "a record needs a name"),
        ({"type": "record", "name": "R"}, "record R has no list of fields"),
        (record({"name": "a"}), 'field a: the field has no "type"'),
        (record({"type": "int"}), "a field needs a name of at most 128 letters, digits and _, not null"),
        (record(field("a-b", "int")), 'a field needs a name of at most 128 letters, digits and _, not "a-b"'),
        (record(field("a" * 129, "int")), "a field needs a name of at most 128 letters"),
        (record(field("a", "int"), field("A", "int")), "record R has the fields a and A"),
        (record(field("a", "int"), field("a", "long")), "record R has the field a twice"),
        (record(field("a", "integer")), 'field a: type "integer" is not known'),
        (record(field("a", {"type": "record", "name": "R", "fields": []})), "field a: type R is declared twice"),
        (record(field("a", ["null", "R"])), "field a[1]: type R contains itself"),
        (record(field("a", ["int", "int"])), "field a: a union cannot have two branches of type int"),
        (record(field("a", ["int", ["null"]])), "field a: a union cannot have a union as a branch"),
        (record(field("a", {"type": "array"})), "field a: an array has to name the type of its elements"),
        (record(field("a", {"type": "map"})), "field a: a map has to name the type of its values"),
        (record(field("a", {"type": "array", "items": "null"})), "field a: the elements of the array take no bytes"),
        (
            record(field("a", {"type": "array", "items": record(field("x", "null"), name="N")})),
            "field a: the elements of the array take no bytes",
        ),
        (record(field("a", {"type": "enum", "name": "E"})), "field a: enum E has no list of symbols"),
        (
            record(field("a", {"type": "enum", "name": "E", "symbols": ["x", "x"]})),
            "field a: enum E has a symbol twice",
        ),
        (
            record(field("a", {"type": "enum", "name": "E", "symbols": ["x"], "default": "y"})),
            "field a: the default of enum E is not one of its symbols",
        ),
        (record(field("a", {"type": "fixed", "name": "F", "size": 0})), "field a: fixed F needs a size"),
        (
            record(field("a", {"type": "fixed", "name": "int", "size": 1})),
            "field a: int is the name of a primitive type",
        ),
        (
            record(field("a", {"type": "enum", "name": "E", "symbols": ["\ud800"]})),
            'field a: a symbol of enum E has letters, digits and _, not "\\ud800"',
        ),
        (record(field("a", "int"), name="x.1"), "a record needs a name"),
        (record(field("a", "int"), name="x..R"), "a record needs a name"),
        (record(field("a", "int"), namespace="x..y"), "the namespace of R"),
        (record(field("a", {"type": "fixed", "name": "F", "namespace": 3, "size": 1})), "field a: the namespace of F"),
        (record(field("a", {})), 'field a: the type is an object without "type"'),
    ],
)
def test_a_wrong_schema_is_refused_with_its_place(declared: Any, problem: str) -> None:
    text = declared if isinstance(declared, str) else json.dumps(declared)
    with pytest.raises(InvalidSpecError) as refused:
        avro.parse(text)
    assert str(refused.value).startswith(problem)
    assert refused.value.reason == Reason.BAD_SCHEMA


def nested(levels: int) -> Any:
    kind: Any = "int"
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return kind


def doubling(levels: int, leaf: Any = "int") -> list[Any]:
    """Return fields of records, each of which has the one before twice."""
    fields = [field("f0", record(field("a", leaf), name="N0"))]
    for number in range(1, levels):
        inner = record(field("a", f"N{number - 1}"), field("b", f"N{number - 1}"), name=f"N{number}")
        fields.append(field(f"f{number}", inner))
    return fields


def chained(levels: int) -> list[Any]:
    """Return fields of records, each of which has the one before."""
    fields = [field("f0", record(field("a", "int"), name="N0"))]
    return fields + [
        field(f"f{number}", record(field("a", f"N{number - 1}"), name=f"N{number}")) for number in range(1, levels)
    ]


def unions(levels: int) -> Any:
    kind: Any = "int"
    for number in range(levels):
        kind = ["string", record(field("a", kind), name=f"U{number}")]
    return kind


def wrapped(levels: int) -> Any:
    kind: Any = "int"
    for _ in range(levels):
        kind = {"type": kind}
    return kind


@pytest.mark.parametrize(
    "declared",
    [
        record(field("a", nested(20))),
        record(*doubling(14)),
        record(*doubling(60, "null"), field("x", {"type": "array", "items": "N59"})),
        record(*chained(39)),
        record(field("a", unions(9))),
        record(field("a", wrapped(500))),
        record(field("a", "int", doc="x" * avro.MOST_TEXT)),
    ],
    ids=["deep", "doubling", "doubling nulls", "chained", "unions", "wrapped", "long"],
)
def test_a_schema_without_bounds_is_refused_in_time(declared: Any) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        avro.parse(json.dumps(declared))
    assert refused.value.reason == Reason.BAD_SCHEMA


def test_many_brackets_are_no_schema() -> None:
    with pytest.raises(InvalidSpecError):
        avro.parse("[" * 100_000)


def test_each_column_of_a_deep_schema_is_a_type() -> None:
    fields = [*chained(15), field("u", unions(7)), field("n", nested(15))]
    for column in avro.columns(avro.parse(json.dumps(record(*fields)))):
        assert str(types.parse(column.type)) == column.type


def test_members_of_a_union_keep_their_names_in_another_order() -> None:
    def record(space: str) -> dict[str, Any]:
        return {"type": "record", "name": "Order", "namespace": space, "fields": [{"name": "x", "type": "int"}]}

    def names(*spaces: str) -> set[str]:
        declared = {"type": "record", "name": "R", "fields": [{"name": "u", "type": [record(each) for each in spaces]}]}
        (column,) = avro.columns(avro.parse(json.dumps(declared)))
        kind = types.parse(column.type)
        assert isinstance(kind, types.Struct)
        return {name for name, _ in kind.fields}

    assert names("a", "b") == names("b", "a") == {"a_Order", "b_Order"}


@pytest.mark.parametrize(
    ("name", "kept"), [("timestamp-nanos", "timestamptz_ns"), ("local-timestamp-nanos", "timestamp_ns")]
)
def test_times_in_nanoseconds_are_longs_unless_they_are_kept(name: str, kept: str) -> None:
    text = json.dumps(record(field("at", logical("long", name))))
    assert [column.type for column in avro.columns(avro.parse(text))] == ["long"]
    assert [column.type for column in avro.columns(avro.parse(text, nanoseconds=True))] == [kept]
