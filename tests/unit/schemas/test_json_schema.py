"""JSON schemas become columns by rule, and schemas without columns are refused with the place of the problem."""

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.schemas import json_schema
from firn.schemas.json_schema import Wanted


def columns(schema: Any, *, variants: bool = False, **references: Any) -> list[tuple[str, str]]:
    named = {name.replace("_json", ".json"): json.dumps(content) for name, content in references.items()}
    return wanted(schema, Wanted(variants=variants), named)


def wanted(schema: Any, wanted: Wanted, named: Mapping[str, str] = {}) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in json_schema.columns(json.dumps(schema), named, wanted)]


def with_member(member: Any, **more: Any) -> Any:
    return {"type": "object", "properties": {"a": member, "b": {"type": "string"}}, **more}


POINT = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}
NULL, TEXT, INTEGER = {"type": "null"}, {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("member", "column"),
    [
        (INTEGER, "long"),
        ({"type": "number"}, "double"),
        (TEXT, "string"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "string", "format": "date-time"}, "timestamptz"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "email", "maxLength": 9}, "string"),
        ({"type": "integer", "format": "date"}, "long"),
        (POINT, "struct<x: double, y: double>"),
        ({"properties": {"x": INTEGER}}, "struct<x: long>"),
        ({"type": "array", "items": POINT}, "list<struct<x: double, y: double>>"),
        ({"items": INTEGER}, "list<long>"),
        ({"type": "object", "additionalProperties": INTEGER}, "map<string, long>"),
        ({"type": "object", "additionalProperties": {"type": ["null", "array"], "items": TEXT}}, "map<string, list<string>>"),
        ({"type": "object", "patternProperties": {"^x-": TEXT}}, "map<string, string>"),
        ({"type": "object", "patternProperties": {"^x-": TEXT}, "additionalProperties": False}, "map<string, string>"),
        ({**POINT, "additionalProperties": TEXT}, "struct<x: double, y: double>"),
        ({"type": ["null", "integer"]}, "long"),
        ({"type": ["integer", "number"]}, "double"),
        ({"enum": ["a", "b", None]}, "string"),
        ({"enum": [1, 2.5]}, "double"),
        ({"$ref": "https://shop.example/size.json", "type": ["string", "integer"]}, "string"),
        ({"type": ["boolean", "integer", "null"], "allOf": [{"type": "number"}]}, "long"),
        ({"type": ["object", "string"], "allOf": [POINT]}, "struct<x: double, y: double>"),
        ({"oneOf": [TEXT, POINT, INTEGER], "allOf": [TEXT]}, "string"),
        ({"enum": [True]}, "boolean"),
        ({"const": "order"}, "string"),
        ({"oneOf": [NULL, {"type": "string", "format": "date"}]}, "date"),
        ({"anyOf": [POINT, NULL]}, "struct<x: double, y: double>"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "double"),
        ({"oneOf": [POINT, {"type": "object", "properties": {"y": {"type": "number"}, "z": TEXT}}]},
         "struct<x: double, y: double, z: string>"),
        ({**POINT, "oneOf": [{"required": ["x"]}, {"required": ["y"]}]}, "struct<x: double, y: double>"),
        ({"allOf": [POINT, {"properties": {"z": INTEGER}}, {"required": ["x"]}]}, "struct<x: double, y: double, z: long>"),
        ({"type": "object", "allOf": [POINT]}, "struct<x: double, y: double>"),
        ({"$ref": "#/$defs/Point"}, "struct<x: double, y: double>"),
        ({"$ref": "#/$defs/a~1b%20c"}, "long"),
        ({"$ref": "#point"}, "struct<n: long>"),
        ({"$ref": "https://shop.example/size.json"}, "string"),
        ({"$ref": "#/$defs/Point", "properties": {"z": TEXT}}, "struct<x: double, y: double, z: string>"),
        ({"$ref": "#/$defs/Point", "type": "object", "required": ["x"]}, "struct<x: double, y: double>"),
        ({"$ref": "#/$defs/Small", "type": "integer"}, "long"),
        ({"$ref": "#/$defs/Point", "properties": {"x": {"minimum": 0}}}, "struct<x: double, y: double>"),
        ({"$ref": "#/$defs/Time", "type": "string"}, "timestamptz"),
        ({"$ref": "#/$defs/Day", "type": ["string", "null"]}, "date"),
        ({"$ref": "#/$defs/a~1b%20c", "type": "number"}, "long"),
        ({"$ref": "#/$defs/Point", "type": "object", "additionalProperties": TEXT}, "struct<x: double, y: double>"),
        ({"allOf": [TEXT, {"type": "string", "format": "date-time"}]}, "timestamptz"),
        ({"allOf": [{"type": "string", "format": "date"}, TEXT, TEXT]}, "date"),
        ({"allOf": [{"type": "number"}, INTEGER]}, "long"),
        ({"allOf": [{"type": "object", "additionalProperties": {}, "minProperties": 1}, POINT]}, "struct<x: double, y: double>"),
        ({"allOf": [{"type": "object", "additionalProperties": TEXT}, POINT]}, "struct<x: double, y: double>"),
        ({"allOf": [POINT, {"properties": {"x": INTEGER}}]}, "struct<x: long, y: double>"),
        ({"allOf": [{"items": {"type": "number"}}, {"items": INTEGER}]}, "list<long>"),
        ({"type": "string", "anyOf": [{"type": "string", "format": "date"}, TEXT]}, "string"),
        ({"type": "object", "additionalProperties": TEXT, "anyOf": [POINT]}, "map<string, string>"),
        ({**POINT, "if": {"required": ["x"]}, "then": {"properties": {"z": TEXT}}, "else": {"properties": {"w": INTEGER}}},
         "struct<x: double, y: double, z: string, w: long>"),
        ({**POINT, "then": {"properties": {"z": TEXT}}}, "struct<x: double, y: double>"),
        ({**POINT, "if": {}, "then": {"properties": {"x": {"minimum": 0}}}}, "struct<x: double, y: double>"),
        ({**POINT, "if": {}, "then": {"properties": {"x": TEXT}}}, "struct<x: double, y: double>"),
        ({"type": "object", "if": {}, "then": {"properties": {"z": TEXT}}}, "struct<z: string>"),
        ({**POINT, "dependentSchemas": {"x": {"properties": {"z": TEXT}}}}, "struct<x: double, y: double, z: string>"),
        ({**POINT, "dependencies": {"x": ["y"], "y": {"properties": {"z": TEXT}}}}, "struct<x: double, y: double, z: string>"),
        ({**POINT, "anyOf": [{"properties": {"x": {"minimum": 0}}}, {"properties": {"x": TEXT}}]}, "struct<x: double, y: double>"),
        ({"type": "array", "items": {"$ref": "#/$defs/Point/properties/x"}}, "list<double>"),
    ],
)  # fmt: skip
def test_types_become_columns(member: Any, column: str) -> None:
    definitions = {
        "Point": POINT,
        "a/b c": INTEGER,
        "Small": {"maximum": 9},
        "Time": {"type": "string", "format": "date-time"},
        "Day": {"type": "string", "format": "date"},
        "named": {"$anchor": "point", "properties": {"n": INTEGER}},
        "Size": {"$id": "https://shop.example/size.json", "type": "string"},
    }
    assert columns(with_member(member, **{"$defs": definitions})) == [("a", column), ("b", "string")]


@pytest.mark.parametrize("member", [NULL, False, {"type": "object", "additionalProperties": False}, {"enum": [None]}])
def test_a_member_that_is_always_null_or_empty_has_no_column(member: Any) -> None:
    assert columns(with_member(member)) == [("b", "string")]
    assert columns(with_member({"type": "array", "items": member})) == [("b", "string")]


def test_a_record_may_be_a_reference_or_a_choice() -> None:
    assert columns({"$ref": "#/definitions/P", "definitions": {"P": POINT}}) == [("x", "double"), ("y", "double")]
    other = {"type": "object", "properties": {"z": TEXT}}
    assert columns({"oneOf": [POINT, other]}) == [("x", "double"), ("y", "double"), ("z", "string")]


def test_a_record_has_the_members_of_a_reference_and_of_its_siblings() -> None:
    schema = {
        "$ref": "#/$defs/P",
        "properties": {"z": TEXT},
        "if": {},
        "then": {"properties": {"w": INTEGER}},
        "$defs": {"P": POINT},
    }
    assert columns(schema) == [("x", "double"), ("y", "double"), ("z", "string"), ("w", "long")]
    assert columns({"if": {}, "then": {"properties": {"w": INTEGER}}}) == [("w", "long")]


@pytest.mark.parametrize(
    ("draft", "merged"),
    [
        ("http://json-schema.org/draft-04/schema#", False),
        ("http://json-schema.org/draft-07/schema", False),
        ("https://json-schema.org/draft/2019-09/schema", True),
        ("https://json-schema.org/draft/2020-12/schema", True),
    ],
)
def test_siblings_of_a_reference_count_since_draft_2019_09(draft: str, merged: bool) -> None:
    reference = {"$ref": "#/$defs/P", "properties": {"z": TEXT}}
    struct = "struct<x: double, y: double, z: string>" if merged else "struct<x: double, y: double>"
    assert columns(with_member(reference, **{"$schema": draft, "$defs": {"P": POINT}})) == [
        ("a", struct),
        ("b", "string"),
    ]
    # A reference without a draft has that of the main schema.
    document = with_member(reference, **{"$defs": {"P": POINT}})
    assert columns({"$schema": draft, "$ref": "d.json"}, d_json=document) == [("a", struct), ("b", "string")]


def test_a_type_that_does_not_count_is_named() -> None:
    schema = with_member(
        {"$ref": "#/$defs/Small", "type": "integer"},
        **{"$schema": "http://json-schema.org/draft-07/schema#", "$defs": {"Small": {"maximum": 9}}},
    )
    with pytest.raises(
        InvalidSpecError, match='up to draft 7, "type" beside \\$ref does not count; put both into allOf'
    ):
        columns(schema)


def test_references_are_found_by_name_and_by_id() -> None:
    customer = {"$id": "https://shop.example/v1/customer.json", "$defs": {"Name": TEXT}, **with_member(INTEGER)}
    order = {
        "$id": "https://shop.example/v1/order.json",
        "type": "object",
        "properties": {
            "by_name": {"$ref": "customer.json"},
            "by_id": {"$ref": "https://shop.example/v1/customer.json"},
            "part": {"$ref": "customer.json#/$defs/Name"},
        },
    }
    struct = "struct<a: long, b: string>"
    assert columns(order, customer_json=customer) == [("by_name", struct), ("by_id", struct), ("part", "string")]
    assert columns(order, c=customer) == [("by_name", struct), ("by_id", struct), ("part", "string")]


def test_a_thousand_members_are_a_thousand_columns() -> None:
    properties = {f"m{number}": INTEGER for number in range(1000)}
    assert columns({"type": "object", "properties": properties}) == [(name, "long") for name in properties]


def test_descriptions_become_comments() -> None:
    text = json.dumps(with_member({"type": "integer", "description": "the number " * 200}))
    docs = [column.doc for column in json_schema.columns(text, {})]
    assert docs == [("the number " * 200)[:1024], None]


def test_a_description_with_half_of_a_surrogate_pair_is_a_text() -> None:
    text = json.dumps(with_member({"type": "integer", "description": "a \ud800"}))
    assert [column.doc for column in json_schema.columns(text, {})] == ["a ?", None]


@pytest.mark.parametrize("name", ["https://[host]/order.json", "https://[COMPANY"])
def test_an_id_that_is_no_uri_is_a_name(name: str) -> None:
    order = {
        "$id": "https://shop.example/order.json",
        "type": "object",
        "properties": {"a": {"$id": name, **POINT}, "b": {"$ref": name}},
    }
    ((a, kind), (b, same)) = columns(order)
    assert (a, b, same) == ("a", "b", kind)
    with pytest.raises(InvalidSpecError, match="is not known; declare it"):
        columns({**order, "properties": {"b": {"$ref": name}}})


ANY = "field a: the schema does not say what the value is"


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        ({}, ANY),
        (True, ANY),
        ({"type": "object"}, ANY),
        ({"type": "object", "additionalProperties": True}, ANY),
        ({"type": "array"}, ANY),
        ({"oneOf": [TEXT, {}]}, ANY),
        ({"type": ["string", "integer"]}, "field a: the value is a string or an integer, and a column has one type"),
        ({"oneOf": [TEXT, POINT]}, "field a: the value is a string or an object"),
        ({"oneOf": [{"type": "string", "format": "date-time"}, INTEGER]}, "field a: the value is a timestamptz or an integer"),
        ({"enum": ["a", 1]}, "field a: the value is a string or an integer"),
        ({"type": "array", "items": [TEXT, INTEGER]}, "field a: the items of the array have a type for each place"),
        ({"type": "array", "prefixItems": [TEXT]}, "field a: the items of the array have a type for each place"),
        ({"type": "strin"}, 'field a: type "strin" is not a type of JSON Schema'),
        ({"$ref": "#"}, "field a: the schema # contains itself, and a table has no recursive columns"),
        ({"$ref": "#/$defs/Node"}, "field a: the schema #/$defs/Node contains itself"),
        ({"$ref": "#/$defs/Absent"}, 'field a: the schema "#/$defs/Absent" does not exist; correct the reference'),
        ({"$ref": "other.json"}, "field a: the schema other.json is not known; declare it in $defs, or as a reference"),
        ({"$ref": 7}, 'field a: "$ref" is not a text'),
        ({"properties": {"order-id": TEXT}}, 'field a: "order-id" cannot be the name of a column'),
        ({"properties": {"x": TEXT, "X": TEXT}}, "field a: members x and X differ only in case"),
        ({"oneOf": [{"properties": {"x": TEXT}}, {"properties": {"X": TEXT}}]}, "field a: members x and X differ only in case"),
        ({"properties": []}, ANY),
        ({"properties": 7}, 'field a: "properties" is not an object'),
        ({"oneOf": TEXT}, 'field a: "oneOf" is not a list'),
    ],
)  # fmt: skip
def test_a_schema_without_columns_is_refused(member: Any, problem: str) -> None:
    node = {"properties": {"next": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}
    with pytest.raises(InvalidSpecError) as error:
        columns(with_member(member, **{"$defs": {"Node": node}}))
    assert str(error.value).startswith(problem)
    assert error.value.reason == Reason.BAD_SCHEMA


NODE = {"properties": {"name": TEXT, "next": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}


@pytest.mark.parametrize(
    ("member", "column"),
    [
        ({}, "variant"),
        (True, "variant"),
        ({"type": "object"}, "variant"),
        ({"type": "object", "additionalProperties": True}, "variant"),
        ({"type": "object", "additionalProperties": {"type": ["string", "integer"]}}, "map<string, variant>"),
        ({"type": "array"}, "variant"),
        ({"type": "array", "items": {}}, "variant"),
        ({"type": "array", "items": {"type": "object"}}, "list<variant>"),
        ({"type": "array", "items": {"enum": ["a", 1]}}, "list<variant>"),
        ({"type": "array", "prefixItems": [TEXT]}, "variant"),
        ({"type": ["integer", "string"]}, "variant"),
        ({"oneOf": [TEXT, POINT]}, "variant"),
        ({"oneOf": [TEXT, {}]}, "variant"),
        ({"enum": ["a", 1]}, "variant"),
        ({"properties": {"x": {}, "y": INTEGER}}, "struct<x: variant, y: long>"),
        ({"oneOf": [{"properties": {"v": TEXT}}, {"properties": {"v": INTEGER, "w": TEXT}}]}, "struct<v: variant, w: string>"),
        ({**POINT, "anyOf": [{"properties": {"x": {}}}]}, "struct<x: double, y: double>"),
        ({"allOf": [{"properties": {"x": {}}}, POINT]}, "struct<x: double, y: double>"),
        ({"properties": {"x": {}}, "if": {}, "then": {"properties": {"x": TEXT}}}, "struct<x: variant>"),
        ({"$ref": "#/$defs/Node"}, "variant"),
        ({"allOf": [{"$ref": "#/$defs/Node"}, POINT]}, "variant"),
        ({"allOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]}, "variant"),
        ({"anyOf": [TEXT, {"type": "string", "format": "date"}]}, "variant"),
        ({"anyOf": [POINT, {"type": "object", "additionalProperties": TEXT}]}, "variant"),
        ({**POINT, "oneOf": [{"$ref": "#/$defs/Node"}, {"required": ["x"]}]}, "variant"),
        ({"$ref": "#"}, "variant"),
        ({"properties": {"tree": {"$ref": "#/$defs/Node"}}}, "struct<tree: variant>"),
    ],
)  # fmt: skip
def test_values_without_one_type_become_variants_of_tables_that_have_them(member: Any, column: str) -> None:
    schema = with_member(member, **{"$defs": {"Node": NODE}})
    assert columns(schema, variants=True) == [("a", column), ("b", "string")]
    if "variant" in column:
        with pytest.raises(
            InvalidSpecError,
            match="set spec.table.formatVersion: 3, which makes such a part of a value a variant, or use schema.raw: Binary",
        ):
            columns(schema)
        with pytest.raises(
            InvalidSpecError, match="set spec.schema.key.columns: Binary, which lands the bytes"
        ) as error:
            wanted(schema, Wanted(of_key=True))
        assert "formatVersion" not in str(error.value)


def test_a_record_may_have_a_schema_that_contains_itself() -> None:
    found = columns({"$ref": "#/$defs/Node", "$defs": {"Node": NODE}}, variants=True)
    assert found == [("name", "string"), ("next", "list<variant>")]


def test_the_order_of_members_does_not_change_the_type_of_a_schema_that_contains_itself() -> None:
    definitions = {
        "A": {"properties": {"b": {"$ref": "#/$defs/B"}, "c": {"$ref": "#/$defs/C"}}},
        "B": {"properties": {"a": {"$ref": "#/$defs/A"}}},
        "C": {"properties": {"b": {"$ref": "#/$defs/B"}}},
        "Outside": {"properties": {"a": {"$ref": "#/$defs/A"}, "n": INTEGER}},
    }
    for names in itertools.permutations(definitions):
        members = {name.lower(): {"$ref": f"#/$defs/{name}"} for name in names}
        found = columns({"properties": members, "$defs": definitions}, variants=True)
        outside = ("outside", "struct<a: variant, n: long>")
        assert sorted(found) == [("a", "variant"), ("b", "variant"), ("c", "variant"), outside]


def test_many_schemas_that_contain_each_other_are_found_at_once() -> None:
    count = 3000
    definitions = {
        f"d{n}": {"properties": {"m": {"$ref": f"#/$defs/d{(n + 1) % count}"}, "n": INTEGER}} for n in range(count)
    }
    schema = with_member({"$ref": "#/$defs/d0"}, **{"$defs": definitions})
    assert columns(schema, variants=True) == [("a", "variant"), ("b", "string")]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": ["object", "string"], "properties": {"a": TEXT}}, "the schema declares values of several types"),
        ({"$ref": "#"}, "the schema declares a value that contains itself"),
        ({"prefixItems": [TEXT]}, "the schema declares an array"),
    ],
)
def test_a_record_is_no_variant(schema: Any, problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=f"a record has to be an object with properties, and {problem}"):
        columns(schema, variants=True)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (TEXT, "a record has to be an object with properties, and the schema declares a string"),
        ({"type": "object", "additionalProperties": TEXT}, "the schema declares a map"),
        ({}, "the schema does not say what the value is"),
        ([], "the schema does not say what the value is"),
    ],
)
def test_a_record_is_an_object(schema: Any, problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=problem):
        columns(schema)


def test_other_bytes_are_no_schema() -> None:
    for text in ("{", "[" * 100_000, " " * (1 << 20) + "{}"):
        with pytest.raises(InvalidSpecError, match="the schema"):
            json_schema.columns(text, {})


@pytest.mark.parametrize("key", ["then", "else"])
def test_the_error_of_a_conditional_part_names_its_keyword(key: str) -> None:
    wrong = {"properties": {"b": {"$ref": "#/nowhere"}}}
    for schema, begin in (
        ({"if": {}, key: wrong}, f'in "{key}": field b: the schema'),
        ({"properties": {"a": {"if": {}, key: wrong}}}, f'in "{key}": field a.b: the schema'),
        ({"oneOf": [wrong]}, "field b: the schema"),
    ):
        with pytest.raises(InvalidSpecError) as error:
            columns({"type": "object", **schema})
        assert str(error.value).startswith(begin)


def test_large_and_deep_schemas_are_refused_in_time() -> None:
    deep: Any = TEXT
    for _ in range(17):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidSpecError, match="more than 16 levels of nesting"):
        columns(with_member(deep))
    definitions: dict[str, Any] = {"d0": TEXT}
    for number in range(1, 13):
        part = {"$ref": f"#/$defs/d{number - 1}"}
        definitions[f"d{number}"] = {"properties": {f"m{place}": part for place in range(10)}}
    with pytest.raises(InvalidSpecError, match="more than 10000 types"):
        columns(with_member({"$ref": "#/$defs/d12"}, **{"$defs": definitions}))
    nested: Any = TEXT
    for _ in range(70):
        nested = {"allOf": [nested]}
    with pytest.raises(InvalidSpecError, match="nests more than 64 levels deep"):
        columns(with_member(nested))


def test_repeated_parts_do_not_multiply_the_work() -> None:
    nested: Any = False
    for _ in range(25):
        nested = {"type": ["object", "object"], "properties": {"a": nested}}
    assert columns(with_member(nested)) == [("b", "string")]
    wide = {"properties": {f"m{place}": INTEGER for place in range(2000)}}
    repeated = {"allOf": [{"$ref": "#/$defs/wide"}] * 20_000}
    with pytest.raises(InvalidSpecError, match="more than 10000 types"):
        columns(with_member(repeated, **{"$defs": {"wide": wide}}))


def test_a_choice_of_many_objects_has_the_members_of_all() -> None:
    choice = [{"type": "object", "properties": {f"m{number}": INTEGER}} for number in range(4001)]
    assert columns({"anyOf": choice}) == [(f"m{number}", "long") for number in range(4001)]


def test_many_references_by_anchor_are_found_at_once() -> None:
    definitions = {f"d{number}": {"$anchor": f"at{number}", "type": "integer"} for number in range(3000)}
    members = {f"m{number}": {"$ref": f"#at{number}"} for number in range(3000)}
    found = columns({"type": "object", "properties": members, "$defs": definitions})
    assert found == [(f"m{number}", "long") for number in range(3000)]


def test_the_place_of_a_reference_has_one_spelling() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/list/01"}}, "$defs": {"list": [TEXT, INTEGER]}}
    with pytest.raises(InvalidSpecError, match="does not exist"):
        columns(schema)


ODD = {"properties": {"order-id": TEXT, "customer": {"properties": {"user.name": TEXT, "@id": INTEGER, "n": INTEGER}}}}


@pytest.mark.parametrize(
    ("read", "paths", "found"),
    [
        ({"order-id"}, [("order-id",)], [("order-id", "string")]),
        ({"customer"}, [("customer", "user.name")], [("customer", "struct<'user.name': string, n: long>")]),
        ({"customer"}, [("customer", "n")], [("customer", "struct<n: long>")]),
        (
            None,
            [("order-id",), ("customer", "@id")],
            [("order-id", "string"), ("customer", "struct<'@id': long, n: long>")],
        ),
    ],
)
def test_members_that_columns_read_can_have_any_name(
    read: set[str] | None, paths: list[tuple[str, ...]], found: list[tuple[str, str]]
) -> None:
    assert wanted(ODD, Wanted(read, paths)) == found


@pytest.mark.parametrize(
    ("of", "problem"),
    [
        (
            Wanted(),
            '"order-id" cannot be the name of a column: it has at most 128 letters, digits and _, and does not begin with a digit; read it'
            " with a column of spec.schema.columns that has from: $['order-id'], or use schema.raw: Binary",
        ),
        (
            Wanted(None, [("order-id",), ("customer",), ("customer", "@id")]),
            'field customer: "user.name" cannot be the name of a column: it has at most 128 letters, digits and _, and does not begin with a'
            " digit; read it with a column of spec.schema.columns that has from: $.customer['user.name'], or use schema.raw: Binary",
        ),
        (
            Wanted(of_key=True),
            '"order-id" cannot be the name of a column: it has at most 128 letters, digits and _, and does not begin with a digit; set'
            " spec.schema.key.columns: Binary, which lands the bytes of the key",
        ),
    ],
)
def test_members_that_no_column_reads_have_names_of_columns(of: Wanted, problem: str) -> None:
    with pytest.raises(InvalidSpecError) as error:
        wanted(ODD, of)
    assert str(error.value) == problem


def test_a_definition_has_other_members_where_columns_read_them() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/P"}, "b": {"$ref": "#/$defs/P"}},
        "$defs": {"P": {"properties": {"n": TEXT, "x-y": TEXT}}},
    }
    found = wanted(schema, Wanted({"a", "b"}, [("a", "x-y"), ("b", "n")]))
    assert found == [("a", "struct<n: string, 'x-y': string>"), ("b", "struct<n: string>")]


def bundled(root: dict[str, Any], **parts: Any) -> str:
    return json.dumps({"$id": "https://x.example/order", "$defs": {"amount": {"type": "string"}, **parts}, **root})


MONEY: dict[str, Any] = {
    "$id": "money",
    "properties": {"cents": {"$ref": "#/$defs/amount"}, "unit": {"$ref": "#unit"}, "order": {"$ref": "order#outer"}},
    "$defs": {"amount": {"type": "integer"}, "unit": {"$anchor": "unit", "type": "boolean"}},
}
OUTER: dict[str, Any] = {"$anchor": "outer", "type": "number"}
OF_MONEY = "struct<cents: long, unit: boolean, order: double>"


@pytest.mark.parametrize(
    "reference",
    ["money", "https://x.example/money", "#/$defs/m", "money#", "/money", "https://x.example/order#/$defs/m"],
)
def test_references_of_an_embedded_schema_with_an_id_stay_inside_it(reference: str) -> None:
    unit = {"$anchor": "unit", "type": "string"}
    root = {"properties": {"a": {"$ref": reference}, "b": {"$ref": "#unit"}, "c": {"$ref": "money#unit"}}}
    found = {each.name: each.type for each in json_schema.columns(bundled(root, m=MONEY, outer=OUTER, other=unit), {})}
    assert found == {"a": OF_MONEY, "b": "string", "c": "boolean"}


def test_an_embedded_schema_counts_where_it_stands() -> None:
    root = {"properties": {"a": MONEY, "b": {"$ref": "#/properties/a/properties/cents"}}}
    found = {each.name: each.type for each in json_schema.columns(bundled(root, outer=OUTER), {})}
    assert found == {"a": OF_MONEY, "b": "long"}


def test_an_embedded_schema_has_the_draft_of_the_document_around_it() -> None:
    inner = {"$id": "inner", "properties": {"a": {"$ref": "#/$defs/x", "type": "string"}}, "$defs": {"x": {}}}
    root = {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"i": {"$ref": "inner"}}}
    with pytest.raises(InvalidSpecError, match="up to draft 7"):
        json_schema.columns(bundled(root, i=inner), {})
    inner["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    assert json_schema.columns(bundled(root, i=inner), {})[0].type == "struct<a: string>"


def test_anchors_count_at_any_depth_but_not_in_values() -> None:
    deep = {"properties": {"y": {"$anchor": "deep", "type": "integer"}}}
    value = {"$anchor": "deep", "$id": "https://x.example/other", "type": "string"}
    for key in ("const", "default"):
        root = {"properties": {"a": {"$ref": "#deep"}, "const": {"$ref": "#deep"}}, key: value}
        found = {each.name: each.type for each in json_schema.columns(bundled(root, aa={"enum": [value]}, b=deep), {})}
        assert found == {"a": "long", "const": "long"}


def test_an_embedded_schema_that_contains_itself_is_recursive() -> None:
    node = {"$id": "node", "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}}}
    root = {"properties": {"a": {"$ref": "node"}, "n": {"type": "integer"}}}
    with pytest.raises(InvalidSpecError, match="contains itself"):
        json_schema.columns(bundled(root, n=node), {})


@pytest.mark.parametrize("name", ["other", "order", "#part", ""])
def test_an_id_that_does_not_count_makes_no_document(name: str) -> None:
    part = {"$id": name, "$ref": "#/$defs/amount"}
    root = {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"$ref": "#/$defs/p"}}}
    assert json_schema.columns(bundled(root, p=part), {})[0].type == "string"
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    if name != "other":
        assert json_schema.columns(bundled(root, p=part), {})[0].type == "string"


def test_a_pointer_that_an_embedded_schema_lacks_is_that_of_the_schema_around_it() -> None:
    inner = {"$id": "/properties/b", "type": "object", "properties": {"q": {"$ref": "#/definitions/x"}}}
    schema = {"$id": "https://x/", "type": "object", "properties": {"b": inner}, "definitions": {"x": INTEGER}}
    assert columns(schema) == [("b", "struct<q: long>")]


def test_many_references_to_embedded_schemas_are_found_at_once() -> None:
    numbers = range(1500)
    definitions = {f"d{number}": {"$id": f"d{number}.json", "type": "integer"} for number in numbers}
    properties = {f"p{number}": {"$ref": f"d{number}.json"} for number in range(900)}
    schema = {"$id": "https://x/root.json", "type": "object", "properties": properties, "$defs": definitions}
    assert columns(schema) == [(name, "long") for name in properties]
