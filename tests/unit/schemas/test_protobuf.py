"""Protobuf messages become columns, and schemas without columns are refused with the place of the problem."""

import base64
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from firn import protoc
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError, NotReadyError
from firn.model.jobs import RecordSchema
from firn.schemas import descriptors, protobuf
from firn.schemas.columns import columns_of

HEAD = 'syntax = "proto3"; package shop.v1;\n'
WELL_KNOWN = "\n".join(
    f'import "google/protobuf/{name}.proto";'
    for name in ("timestamp", "duration", "wrappers", "any", "empty", "field_mask")
)


def parsed(text: str, message: str = "", **references: str) -> protobuf.Message:
    named = tuple((f"{name}.proto", content) for name, content in references.items())
    return protobuf.parse(protoc.descriptors(text, named), message)


def columns(text: str, message: str = "", **references: str) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in protobuf.columns(parsed(text, message, **references))]


def fields(body: str, head: str = HEAD) -> dict[str, protobuf.Field]:
    return {field.name: field for field in parsed(f"{head} message Order {{ {body} }}").fields}


COLUMNS = {
    "int32": "int",
    "sint32": "int",
    "sfixed32": "int",
    "uint32": "long",
    "fixed32": "long",
    "int64": "long",
    "sint64": "long",
    "sfixed64": "long",
    "uint64": "decimal(20, 0)",
    "fixed64": "decimal(20, 0)",
    "float": "float",
    "double": "double",
    "bool": "boolean",
    "string": "string",
    "bytes": "binary",
    "Color": "string",
    "repeated int32": "list<int>",
    "map<string, uint32>": "map<string, long>",
    "map<int64, Line>": "map<long, struct<sku: string, count: int>>",
    "Line": "struct<sku: string, count: int>",
    "repeated Line": "list<struct<sku: string, count: int>>",
    "google.protobuf.Timestamp": "timestamptz",
    "repeated google.protobuf.Timestamp": "list<timestamptz>",
    "google.protobuf.Duration": "struct<seconds: long, nanos: int>",
    "google.protobuf.StringValue": "string",
    "google.protobuf.UInt64Value": "decimal(20, 0)",
    "google.protobuf.BytesValue": "binary",
    "google.protobuf.Any": "struct<type_url: string, value: binary>",
    "google.protobuf.FieldMask": "struct<paths: list<string>>",
}


def test_each_type_has_a_column() -> None:
    types = "enum Color { NONE = 0; } message Line { string sku = 1; int32 count = 2; }"
    body = " ".join(f"{kind} f{number} = {number};" for number, kind in enumerate(COLUMNS, 1))
    found = columns(f"{HEAD} {WELL_KNOWN} message Order {{ {body} }} {types}")
    assert dict(zip(COLUMNS, (column for _, column in found), strict=True)) == COLUMNS


def test_groups_have_the_columns_of_messages() -> None:
    body = "optional group Line = 1 { required int32 count = 1; } repeated group Part = 2 { optional string sku = 1; }"
    found = columns(f'syntax = "proto2"; message Order {{ {body} }}')
    assert found == [("line", "struct<count: int>"), ("part", "list<struct<sku: string>>")]


@pytest.mark.parametrize("edition", ["2023", "2024"])
def test_features_of_an_edition_give_presence_and_encoding(edition: str) -> None:
    text = f"""
    edition = "{edition}"; package shop.v1;
    option features.message_encoding = DELIMITED;
    message Order {{
      int32 plain = 1;
      int32 implicit = 2 [features.field_presence = IMPLICIT];
      int32 required = 3 [features.field_presence = LEGACY_REQUIRED];
      Line group = 4;
      Line prefixed = 5 [features.message_encoding = LENGTH_PREFIXED];
      repeated Line lines = 6;
      map<string, Line> by_name = 7;
      oneof choice {{ int32 one = 8; Line other = 9; }}
    }}
    message Line {{ string sku = 1; }}
    """
    found = {each.name: each for each in parsed(text).fields}
    assert {name for name, each in found.items() if each.group} == {"group", "lines", "other"}
    by_name = found["by_name"].type
    assert isinstance(by_name, protobuf.Map)
    assert not by_name.entry.fields[1].group
    assert {name for name, each in found.items() if each.required} == {"required"}
    assert {name: each.default for name, each in found.items() if each.default is not None} == {"implicit": 0}
    assert [each.oneof for each in (found["one"], found["other"])] == ["choice", "choice"]


def test_a_file_without_presence_has_defaults() -> None:
    text = 'edition = "2023"; option features.field_presence = IMPLICIT; message A { int32 a = 1; B b = 2; } message B { string c = 1; }'
    assert [each.default for each in parsed(text).fields] == [0, None]


def test_a_later_edition_is_refused() -> None:
    message = descriptor_pb2.DescriptorProto(name="A")
    message.field.add(name="a", number=1, type=5)
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="editions", edition=1002, message_type=[message])
    content = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    with pytest.raises(InvalidSpecError, match="type A is declared with an edition after 2024"):
        protobuf.parse(content)


def test_groups_in_options_are_skipped() -> None:
    option = "message Options { optional group Extra = 1 { optional bool seven = 7; } }"
    extension = "extend google.protobuf.MessageOptions { optional group Own = 50000 { optional bool seven = 7; } }"
    text = f"""
    syntax = "proto2"; import "google/protobuf/descriptor.proto"; {extension} {option}
    message A {{ option (own) = {{ seven: true }}; optional int32 a = 1; }}
    """
    assert [each.name for each in parsed(text, "A").fields] == ["a"]


def test_messages_without_fields_have_no_column() -> None:
    body = "int32 id = 1; google.protobuf.Empty a = 2; repeated Nothing b = 3; map<string, Nothing> c = 4; Inner d = 5;"
    types = "message Nothing {} message Inner { Nothing a = 1; }"
    assert columns(f"{HEAD} {WELL_KNOWN} message Order {{ {body} }} {types}") == [("id", "int")]


def test_fields_of_proto3_have_defaults_only_without_presence() -> None:
    found = fields(
        "int32 a = 1; optional int32 b = 2; string c = 3; oneof d { int32 e = 4; Order.I f = 5; } I g = 6; message I { int32 x = 1; }"
    )
    assert {name: field.default for name, field in found.items()} == {
        "a": 0, "b": None, "c": "", "e": None, "f": None, "g": None,
    }  # fmt: skip
    assert {name: field.oneof for name, field in found.items() if field.oneof} == {"e": "d", "f": "d"}


def test_fields_of_proto2_have_their_declared_defaults() -> None:
    body = (
        'optional int32 a = 1; required string b = 2; optional string c = 3 [default = "gr\\"ö"]; optional float d = 4 [default = 0.1];'
        ' optional bytes e = 5 [default = "\\001\\n\\\\x"]; optional bool f = 6 [default = true]; optional C g = 7 [default = ALSO];'
        " optional double h = 8 [default = -inf]; optional uint64 i = 9 [default = 18446744073709551615];"
        " oneof o { int32 j = 10 [default = 5]; } enum C { option allow_alias = true; X = 4; Y = 7; ALSO = 7; }"
    )
    found = fields(body, 'syntax = "proto2";')
    assert {name: field.default for name, field in found.items()} == {
        "a": None, "b": None, "c": 'gr"ö', "d": pytest.approx(0.1), "e": b"\x01\n\\x", "f": 1, "g": 7, "h": float("-inf"),
        "i": 2**64 - 1, "j": None,
    }  # fmt: skip
    assert [name for name, field in found.items() if field.required] == ["b"]
    assert found["g"].type == protobuf.Enum("Order.C", ((4, "X"), (7, "Y")), 4)


def test_the_message_is_the_first_one_or_the_named_one() -> None:
    text = HEAD + "message A { int32 a = 1; message B { int32 b = 1; } } message C { int32 c = 1; }"
    assert columns(text) == [("a", "int")]
    assert columns(text, "shop.v1.A.B") == [("b", "int")]
    assert columns(text, "shop.v1.C") == [("c", "int")]


def test_types_of_other_texts_are_found() -> None:
    other = 'syntax = "proto3"; package money; message Money { int64 cents = 1; }'
    text = f'{HEAD} import "other.proto"; message Order {{ money.Money price = 1; }}'
    assert columns(text, other=other) == [("price", "struct<cents: long>")]


DEEP = " ".join(f"message M{n} {{ M{n + 1} a = 1; }}" for n in range(17)) + "message M17 { int32 a = 1; }"
MANY = " ".join(f"int32 f{n} = {n + 1};" for n in range(2000))
WIDE = f"message A {{ B a = 1; B b = 2; B c = 3; }} message B {{ C a = 1; C b = 2; }} message C {{ {MANY} }}"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("message A { repeated B b = 1; } message B { A a = 1; }", "field b.a: type A contains itself, and a table has no recursive"),
        ("message A { google.protobuf.Struct s = 1; }", "list the columns without field s in schema.columns, with otherFields: Drop"),
        ("message A { int32 total = 1; int32 Total = 2; }", "message A has the fields total and Total; query engines ignore case"),
        ("enum E { X = 0; }", "the text has no message; declare one"),
        ("message A {}", "message A has no field that can become a column; add a field"),
        (f"message A {{ int32 {'x' * 129} = 1; }}", f"the name {'x' * 40}... has more than 128 characters"),
        (DEEP, f"field a{'.a' * 16}: the column has more than 16 levels of nesting"),
        (WIDE, "message A has more than 10000 types, if each use of a type counts"),
    ],
)  # fmt: skip
def test_a_schema_without_columns_is_refused(body: str, problem: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        parsed(f'syntax = "proto3"; import "google/protobuf/struct.proto"; {body}')
    assert problem in str(refused.value)
    assert refused.value.reason == Reason.BAD_SCHEMA


def test_a_missing_message_is_named_with_similar_ones() -> None:
    text = HEAD + "message Order { int32 a = 1; } message Payment { int32 a = 1; }"
    for name in ("Order", "shop.v1.Ordr"):
        with pytest.raises(
            InvalidSpecError, match=f"the text has no message {name}; set schema.message to shop.v1.Order"
        ):
            parsed(text, name)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("message", "schema.proto:1:8: Expected message name."),
        ('syntax = "proto3"; message A { B b = 1; }', 'schema.proto:1:32: "B" is not defined.'),
        ('syntax = "proto3"; import "/etc/passwd"; message A {}', 'Import "/etc/passwd" was not found'),
        ('syntax = "proto3"; import "../schema.proto"; message A {}', 'Import "../schema.proto" was not found'),
    ],
)
def test_protoc_names_the_place_of_a_mistake(text: str, problem: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        protoc.descriptors(text, ())
    assert str(refused.value).startswith("protoc rejects the text: ")
    assert problem in str(refused.value)
    assert "/tmp" not in str(refused.value)


# The texts that ProtobufSerializer of confluent-kafka 2.16.1 registered for a message with an import of its own.
SERIALIZED_ORDER = (
    "ChBzaG9wL29yZGVyLnByb3RvEgRzaG9wGh9nb29nbGUvcHJvdG9idWYvdGltZXN0YW1wLnByb3RvGhBzaG9wL21vbmV5LnByb3RvIssBCgVPcmRlchIKCgJpZBgB"
    "IAEoBRIaCgVwcmljZRgCIAEoCzILLnNob3AuTW9uZXkSJgoCYXQYAyABKAsyGi5nb29nbGUucHJvdG9idWYuVGltZXN0YW1wEicKBmNvdW50cxgFIAMoCzIXLnNo"
    "b3AuT3JkZXIuQ291bnRzRW50cnkSEQoEbm90ZRgGIAEoCUgAiAEBGi0KC0NvdW50c0VudHJ5EgsKA2tleRgBIAEoCRINCgV2YWx1ZRgCIAEoBToCOAFCBwoFX25v"
    "dGViBnByb3RvMw=="
)
SERIALIZED_MONEY = "ChBzaG9wL21vbmV5LnByb3RvEgRzaG9wIhYKBU1vbmV5Eg0KBWNlbnRzGAEgASgDYgZwcm90bzM="
MONEY = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
ORDER = """
syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto"; import "shop/money.proto";
message Order {
  int32 id = 1; Money price = 2; google.protobuf.Timestamp at = 3; map<string, int32> counts = 5; optional string note = 6;
}
"""


@pytest.mark.parametrize("order", [SERIALIZED_ORDER, f" {SERIALIZED_ORDER[:80]}\n{SERIALIZED_ORDER[80:]}\n", ORDER])
@pytest.mark.parametrize("money", [SERIALIZED_MONEY, MONEY])
def test_the_descriptors_of_a_text_in_base64_are_those_of_the_text(order: str, money: str) -> None:
    wanted = protoc.descriptors(ORDER, (("shop/money.proto", MONEY),))
    assert protoc.descriptors(order, (("shop/money.proto", money),)) == wanted


@pytest.mark.parametrize(
    ("text", "references", "problem"),
    [
        (SERIALIZED_ORDER, (), "protoc rejects the text: shop/money.proto: File not found"),
        (SERIALIZED_ORDER, (("shop/money.proto", "AAAA"),), "nor the base64 of a serialized FileDescriptorProto"),
        ("AAAA", (), "nor the base64 of a serialized FileDescriptorProto"),
        ("Q===", (), "schema.proto:1:1: Expected top-level statement"),
        # A message with a line break in its name, and a last field that contains the name which Firn adds.
        (base64.b64encode(b"\x22\x04\x0a\x02M\n").decode(), (), "protoc rejects the text: Invalid symbol name"),
        (base64.b64encode(b"\xfa\x3f\x0e").decode(), (), "protoc rejects the text: Could not make proto path relative"),
    ],
)
def test_a_text_in_base64_with_a_mistake_is_refused(
    text: str, references: tuple[tuple[str, str], ...], problem: str
) -> None:
    with pytest.raises(InvalidSpecError, match=problem):
        protoc.descriptors(text, references)


def test_a_text_may_import_a_file_with_any_name() -> None:
    part = f"{HEAD} message Part {{ int32 a = 1; }}"
    text = f'{HEAD} import "schema.proto"; message A {{ Part part = 1; }}'
    assert columns(text, schema=part) == [("part", "struct<a: int>")]


def test_a_reference_cannot_leave_its_folder() -> None:
    with pytest.raises(InvalidSpecError, match="the import ../evil.proto is outside the schema"):
        protoc.descriptors(HEAD, (("../evil.proto", HEAD),))


@pytest.mark.parametrize(
    "names", [("a\0.proto",), ("",), ("x" * 300,), ("a", "a/b"), ("a/b", "a"), ("a/" * 3000 + "b",)]
)
def test_a_reference_has_the_name_of_a_file(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSpecError, match="cannot be the name of a file; choose another name"):
        protoc.descriptors(HEAD, tuple((name, HEAD) for name in names))


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("SECONDS", 0.001, "protoc did not compile the text within 0.001 seconds"),
        ("_MODULE", "firn.nothing", "protoc ended with the code 1"),
    ],
)
def test_a_compiler_that_does_not_answer_is_tried_again(
    name: str, value: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{HEAD} message {name.strip('_')} {{ int32 a = 1; }}"
    with monkeypatch.context() as patch:
        patch.setattr(protoc, name, value)
        with pytest.raises(NotReadyError, match=problem):
            protoc.descriptors(text, ())
    assert protoc.descriptors(text, ())


def test_a_text_may_import_the_files_of_confluent() -> None:
    imports = 'import "confluent/meta.proto"; import "confluent/type/decimal.proto";'
    option = '[(confluent.field_meta).doc = "the price", (confluent.field_meta).rules = {name: "r", expr: "e"}]'
    found = columns(f"{HEAD} {imports} message Order {{ confluent.type.Decimal price = 1 {option}; }}")
    assert found == [("price", "struct<value: binary, precision: long, scale: int>")]


DAY = "year: int, month: int, day: int"
OFFSET = "utc_offset: struct<seconds: long, nanos: int>, time_zone: struct<id: string, version: string>"
KNOWN_TYPES = {
    "confluent/type/variant.proto confluent.type.Variant": "struct<metadata: binary, value: binary>",
    "confluent/types/decimal.proto confluent.type.Decimal": "struct<value: binary, precision: long, scale: int>",
    "google/type/calendar_period.proto google.type.CalendarPeriod": "string",
    "google/type/color.proto google.type.Color": "struct<red: float, green: float, blue: float, alpha: float>",
    "google/type/date.proto google.type.Date": f"struct<{DAY}>",
    "google/type/datetime.proto google.type.DateTime": (
        f"struct<{DAY}, hours: int, minutes: int, seconds: int, nanos: int, {OFFSET}>"
    ),
    "google/type/dayofweek.proto google.type.DayOfWeek": "string",
    "google/type/expr.proto google.type.Expr": (
        "struct<expression: string, title: string, description: string, location: string>"
    ),
    "google/type/fraction.proto google.type.Fraction": "struct<numerator: long, denominator: long>",
    "google/type/latlng.proto google.type.LatLng": "struct<latitude: double, longitude: double>",
    "google/type/money.proto google.type.Money": "struct<currency_code: string, units: long, nanos: int>",
    "google/type/month.proto google.type.Month": "string",
    "google/type/postal_address.proto google.type.PostalAddress": (
        "struct<revision: int, region_code: string, language_code: string, postal_code: string, sorting_code: string,"
        " administrative_area: string, locality: string, sublocality: string, address_lines: list<string>,"
        " recipients: list<string>, organization: string>"
    ),
    "google/type/quaternion.proto google.type.Quaternion": "struct<x: double, y: double, z: double, w: double>",
    "google/type/timeofday.proto google.type.TimeOfDay": "struct<hours: int, minutes: int, seconds: int, nanos: int>",
}


def test_a_text_may_import_the_types_that_serializers_do_not_register() -> None:
    files, names = zip(*(each.split() for each in KNOWN_TYPES), strict=True)
    imports = " ".join(f'import "{file}";' for file in files)
    body = " ".join(f"{name} f{number} = {number};" for number, name in enumerate(names, 1))
    found = columns(f"{HEAD} {imports} message Order {{ {body} }}")
    assert dict(zip(KNOWN_TYPES, (column for _, column in found), strict=True)) == KNOWN_TYPES


def test_a_reference_replaces_a_known_import() -> None:
    money = 'syntax = "proto3"; package google.type; message Money { string amount = 1; }'
    text = f'{HEAD} import "google/type/money.proto"; message Order {{ google.type.Money price = 1; }}'
    found = protobuf.parse(protoc.descriptors(text, (("google/type/money.proto", money),)))
    assert [column.type for column in protobuf.columns(found)] == ["struct<amount: string>"]


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x0a", b"\xff" * 11, b"\x0b"])
def test_damaged_descriptors_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidSpecError, match="the descriptors of the schema are damaged"):
        descriptors.read(data)


def schema(text: str, message: str = "") -> RecordSchema:
    content = base64.b64encode(protoc.descriptors(text, ())).decode()
    return RecordSchema(format="Protobuf", text=text, descriptors=content, message=message)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("int32 _kafka = 1;", "field _kafka: names that start with _kafka are reserved"),
        (" ".join(f"int32 f{n} = {n + 1};" for n in range(1001)), "the schema has 1001 columns; a topic has at most 1000"),
        ("Order a = 1;", "field a: type shop.v1.Order contains itself"),
    ],
)  # fmt: skip
def test_columns_of_a_contract_are_bounded(body: str, problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=problem):
        columns_of(schema(f"{HEAD} message Order {{ {body} }}"), "text")


INNER = "message I { int32 x = 1; string y = 2; }"


def scalars(field: str, old: str, new: str) -> str:
    return f"field {field} cannot change from {old} to {new}: earlier values may be others, or out of range"


def test_a_group_cannot_become_a_message() -> None:
    group = 'syntax = "proto2"; message Order { optional group Line = 1 { optional int32 a = 1; } }'
    message = 'syntax = "proto2"; message Order { optional Line line = 1; message Line { optional int32 a = 1; } }'
    one, other = (protobuf.message_of(schema(text)) for text in (group, message))
    problem = "field line cannot change between a message and a group, which has another encoding"
    assert protobuf.changes(one, other) == protobuf.changes(other, one) == [problem]
    assert protobuf.changes(one, one) == []


def test_a_field_cannot_become_required() -> None:
    def message(body: str) -> protobuf.Message:
        return protobuf.message_of(schema(f'syntax = "proto2"; message Order {{ {body} }}'))

    earlier = message("optional int32 a = 1; required int32 b = 2;")
    later = message("required int32 a = 1; required int32 b = 2; required int32 c = 3;")
    assert protobuf.changes(earlier, later) == [
        f"field {name} cannot become required, because earlier records may lack it" for name in ("a", "c")
    ]


def test_a_small_text_with_large_descriptors_is_refused() -> None:
    name = "N" * 8000
    fields = " ".join(f"X f{n} = {n};" for n in range(1, 600))
    with pytest.raises(InvalidSpecError, match="more than 2 MiB of descriptors or errors"):
        protoc.descriptors(f"{HEAD} message {name} {{ message X {{}} {fields} }}", ())


def test_a_text_with_many_errors_is_refused_with_the_first() -> None:
    fields = " ".join("int32 a = 1;" for _ in range(3000))
    with pytest.raises(InvalidSpecError, match="protoc rejects the text|descriptors or errors"):
        protoc.descriptors(f"{HEAD} message {'N' * 400} {{ {fields} }}", ())


def test_damaged_descriptors_of_a_contract_are_an_error_of_the_schema() -> None:
    with pytest.raises(InvalidSpecError, match="the descriptors of the contract are damaged"):
        protobuf.message_of(RecordSchema(format="Protobuf", text="x", descriptors="%%%"))


@pytest.mark.parametrize(
    ("old", "new", "problems"),
    [
        ("int32 a = 1;", "int32 a = 1; int32 b = 2;", []),
        ("int32 a = 1; int32 b = 2;", "int32 a = 1;", []),
        ("int32 a = 1;", "optional int64 a = 1;", []),
        ("uint32 a = 1;", "E a = 1; enum E { X = 0; }", ["field a cannot change from uint32 to shop.v1.Order.E, which has another encoding"]),
        ("int32 a = 1;", "int32 b = 1;", []),
        ("int32 a = 1; int32 b = 2;", "int32 b = 1; int32 c = 2;", ["field b cannot change its number from 2 to 1"]),
        ("int32 a = 1;", "int32 a = 2;", ["field a cannot change its number from 1 to 2"]),
        ("sfixed32 a = 1;", "fixed32 a = 1;", [scalars("a", "sfixed32", "fixed32")]),
        ("int32 a = 1;", "sint32 a = 1;", [scalars("a", "int32", "sint32")]),
        ("int32 a = 1;", "uint32 a = 1;", [scalars("a", "int32", "uint32")]),
        ("repeated I a = 1;", "repeated I a = 1; // other", []),
        ("map<int32, fixed32> a = 1;", "map<sint32, fixed64> a = 1;", [
            scalars("a.key", "int32", "sint32"), scalars("a.value", "fixed32", "fixed64"),
        ]),
        ("google.protobuf.StringValue a = 1;", "string a = 1;", [
            "field a cannot change from google.protobuf.StringValue to string, which has another encoding"]),
        ("bytes a = 1;", "google.protobuf.BytesValue a = 1;", [
            "field a cannot change from bytes to google.protobuf.BytesValue, which has another encoding"]),
        ("google.protobuf.Int64Value a = 1;", "google.protobuf.UInt32Value a = 1;", [
            "field a cannot change from google.protobuf.Int64Value to google.protobuf.UInt32Value, which has other values"]),
        ("repeated int32 a = 1;", "int32 a = 1;", ["field a cannot change from repeated int32 to int32, which has another encoding"]),
        ("E a = 1; enum E { X = 0; Y = 1; }", "E a = 1; enum E { X = 0; Y = 1; Z = 2; }", []),
        ("E a = 1; enum E { X = 0; Y = 1; Z = 2; }", "E a = 1; enum E { X = 0; Y = 2; }", [
            "field a: value 1 of the enum cannot change its name Y, or be removed",
            "field a: value 2 of the enum cannot change its name Z, or be removed"]),
        ("int32 a = 1; int32 b = 2;", "oneof o { int32 a = 1; int32 b = 2; }", [
            "fields a and b cannot be members of oneof o, because earlier records may have both"]),
        ("oneof o { int32 a = 1; int32 b = 2; }", "oneof p { int32 a = 1; int32 b = 2; int32 c = 3; }", []),
        ("int32 a = 1;", "oneof o { int32 a = 1; int32 b = 2; }", []),
    ],
)  # fmt: skip
def test_the_number_identifies_a_field(old: str, new: str, problems: list[str]) -> None:
    head = f'{HEAD} import "google/protobuf/wrappers.proto";'
    before, after = (parsed(f"{head} message Order {{ {body}\n }} {INNER}") for body in (old, new))
    assert protobuf.changes(before, after) == problems


def test_fields_of_inner_messages_keep_their_numbers() -> None:
    def of(inner: str) -> Any:
        return parsed(f"{HEAD} message Order {{ I a = 1; repeated I b = 2; }} message I {{ {inner} }}")

    assert protobuf.changes(of("int32 x = 1; string y = 2;"), of("int32 x = 3; string z = 2;")) == [
        "field a.x cannot change its number from 1 to 3",
        "field b.x cannot change its number from 1 to 3",
    ]


def test_a_number_with_another_name_renames_the_field() -> None:
    def of(body: str, inner: str) -> Any:
        return parsed(f"{HEAD} message Order {{ {body} }} message I {{ {inner} }}")

    before = of("I a = 1; repeated I b = 2; map<int32, I> c = 3;", "int32 x = 1; int32 y = 2;")
    after = of("I d = 1; repeated I b = 2; map<int32, I> c = 3;", "int32 z = 1; int32 y = 2;")
    assert [(each.old, each.new) for each in protobuf.renames(before, after)] == [
        ("a", "d"), ("d.x", "d.z"), ("b.element.x", "b.element.z"), ("c.value.x", "c.value.z"),
    ]  # fmt: skip


def test_fields_cannot_exchange_their_names() -> None:
    def of(body: str, inner: str) -> Any:
        return parsed(f"{HEAD} message Order {{ {body} }} message I {{ {inner} }}")

    before = of("repeated I b = 1; int32 c = 2; int32 d = 3;", "string x = 1; string y = 2;")
    with pytest.raises(
        InvalidSpecError,
        match=r"^latest: field b\.element\.y has the number 1 of field b\.element\.x, but a field b\.element\.y had the number 2;",
    ):
        protobuf.check_names(before, of("repeated I b = 1;", "string y = 1; string x = 2;"), "latest")
    with pytest.raises(InvalidSpecError, match=r"^latest: field d has the number 2 of field c, but a field d had"):
        protobuf.check_names(before, parsed(f"{HEAD} message Sale {{ int32 d = 2; int32 c = 3; }}"), "latest", {"c"})
    with pytest.raises(
        InvalidSpecError, match=r"^latest: field d has the number 2 of field c, but a field d had the number 3;"
    ):
        protobuf.check_names(before, of("repeated I b = 1; int32 d = 2; int32 e = 3;", "string x = 1;"), "latest")


def test_fields_may_take_the_names_of_removed_fields() -> None:
    before = parsed(f"{HEAD} message Order {{ int32 a = 1; int32 b = 2; }}")
    for body in ("int32 c = 1;", "int32 a = 3; int32 b = 2;", "int32 b = 2; int32 a = 1; int32 c = 3;", "int32 b = 3;"):
        protobuf.check_names(before, parsed(f"{HEAD} message Order {{ {body} }}"), "latest")
    with pytest.raises(InvalidSpecError, match="latest: field b has the number 1 of field a,"):
        protobuf.check_names(before, parsed(f"{HEAD} message Order {{ int32 b = 1; }}"), "latest")
    protobuf.check_names(before, parsed(f"{HEAD} message Order {{ int32 b = 1; }}"), "latest", read={"c"})
