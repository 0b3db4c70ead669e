"""Types of projected columns, and projections that no record can fill."""

from typing import Any

import pytest

from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import RecordSchema
from firn.tables import evolution, rows

FIELDS = [
    {"name": "id", "type": "long", "required": True},
    {"name": "customer", "type": "struct<email: string, address: struct<city: string, zip: int>>"},
    {"name": "amount", "type": "decimal(9,2)"},
    {"name": "ratio", "type": "double"},
    {"name": "ts", "type": "long"},
    {"name": "at", "type": "timestamptz"},
    {"name": "tags", "type": "list<string>"},
    {"name": "raw", "type": "binary"},
]


def schema(*columns: dict[str, Any], **options: Any) -> RecordSchema:
    given = {"format": "Json", "fields": FIELDS, "columns": list(columns), **options}
    return IcebergTopic.parse({"metadata": {"name": "t"}, "spec": {"schema": given}}).record_schema()


def columns(*given: dict[str, Any], **options: Any) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in rows.schema_columns(schema(*given, **options))]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ({"from": "$.id"}, "long"),
        ({"from": "$.customer.address.city"}, "string"),
        ({"from": "$.customer.address"}, "struct<city: string, zip: int>"),
        ({"from": "$.tags"}, "list<string>"),
        ({"from": "$.id", "type": "string"}, "string"),
        ({"from": "$.amount", "type": "double"}, "double"),
        ({"from": "$.amount", "type": "decimal(12,4)"}, "decimal(12, 4)"),
        ({"from": "$.ts", "type": "timestamptz", "epoch": "s"}, "timestamptz"),
        ({"from": "$.ts", "type": "timestamp"}, "timestamp"),
        ({"from": "$.at", "type": "date"}, "date"),
        ({"from": "$.customer.email", "with": "Sha256"}, "string"),
        ({"from": "$.raw", "with": "Sha256"}, "string"),
        ({"from": "$.id", "with": "Sha256"}, "string"),
        ({"from": "$.customer.email", "with": "Mask", "type": "string"}, "string"),
        ({"from": "key"}, "string"),
        ({"from": "key", "type": "uuid"}, "uuid"),
        ({"from": "key", "with": "Mask"}, "string"),
        ({"from": "value", "type": "binary"}, "binary"),
        ({"from": "header:trace id"}, "string"),
        ({"from": "header:n", "type": "int"}, "int"),
        ({"constant": "web"}, "string"),
        ({"constant": "-5", "type": "int"}, "int"),
        ({"constant": "1e2", "type": "decimal(5,2)"}, "decimal(5, 2)"),
        ({"constant": "true", "type": "boolean"}, "boolean"),
        ({"constant": "2020-02-29", "type": "date"}, "date"),
        ({"constant": "10:00", "type": "time"}, "time"),
        ({"constant": "2020-02-29t10:00:00.123456000z", "type": "timestamptz"}, "timestamptz"),
        ({"constant": "2020-02-29T10:00:00.5", "type": "timestamp"}, "timestamp"),
        ({"constant": "2020-02-29 10:00+0200", "type": "timestamptz"}, "timestamptz"),
        ({"constant": "0001-01-01T00:00-18", "type": "timestamptz"}, "timestamptz"),
        ({"constant": "9999-12-31T23:59:59.999999+18:00", "type": "timestamptz"}, "timestamptz"),
        ({"from": "$.at", "type": "long", "epoch": "us"}, "long"),
        ({"from": "$['id']"}, "long"),
        ({"from": "$['customer'].address['city']"}, "string"),
    ],
)
def test_a_column_has_the_type_of_its_source_or_the_stated_one(column: dict[str, Any], kind: str) -> None:
    assert columns({"name": "c", **column}) == [("c", kind)]


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ({"from": "$.idd"}, "$ has no field idd; did you mean id?"),
        ({"from": "$.customer.mail"}, "$.customer has no field mail; did you mean email?"),
        ({"from": "$.zzz"}, "$ has no field zzz; choose one of id, customer, amount"),
        ({"from": "$['customer']['e-mail']"}, "$.customer has no field ['e-mail']; did you mean email?"),
        ({"from": "$['tags'].x"}, "$.tags has the type list<string>; only members of a struct can become columns"),
        ({"from": "$.id", "type": "lung"}, "type 'lung', character 1: 'lung' is not a type; did you mean long?"),
        ({"from": "$.id", "type": "uuid"}, "$.id has the type long, which cannot become uuid; choose one of decimal, double"),
        ({"from": "$.tags", "type": "string"}, "$.tags has the type list<string>, which cannot become string; remove type"),
        ({"from": "$.ratio", "type": "decimal(9,2)"}, "$.ratio has the type double, which cannot become decimal(9, 2)"),
        ({"from": "key", "type": "list<int>"}, "key has the type binary, which cannot become list<int>"),
        ({"from": "$.ratio", "with": "Sha256"}, "Sha256 takes string or binary or int or long, and $.ratio has the type double"),
        ({"from": "$.id", "with": "Mask"}, "Mask takes string, and $.id has the type long; remove with"),
        ({"from": "$.id", "with": "Sha256", "type": "long"}, "Sha256 gives string, and the type is long; remove type"),
        ({"from": "$.at", "epoch": "s"}, "epoch is for integers that become timestamp or timestamptz, and for these times if they"),
        ({"constant": "x", "type": "int"}, "the constant 'x' is not a value of the type int"),
        ({"constant": "2147483648", "type": "int"}, "the constant '2147483648' is not a value of the type int"),
        ({"constant": "1.005", "type": "decimal(5,2)"}, "the constant '1.005' is not a value of the type decimal(5, 2)"),
        ({"constant": "1.0000000000000000000000000001", "type": "decimal(9,2)"}, "the constant '1.00000000000000000000000000"),
        ({"constant": "12345678901234567890123456789012345678.4", "type": "decimal(38,0)"}, "the constant '123456789"),
        ({"constant": "1e999", "type": "double"}, "the constant '1e999' is not a value of the type double"),
        ({"constant": "x", "type": "binary"}, "a constant cannot have the type binary; choose one of string, boolean"),
        ({"constant": "2020-02-30", "type": "date"}, "the constant '2020-02-30' is not a value of the type date"),
        ({"constant": "10:00:00.0000001", "type": "time"}, "the constant '10:00:00.0000001' is not a value of the type time"),
        ({"constant": "25:00", "type": "time"}, "the constant '25:00' is not a value of the type time"),
        ({"constant": "2020-01-01T00:00", "type": "timestamptz"}, "the constant '2020-01-01T00:00' is not a value of the type"),
        ({"constant": "2020-01-01T24:01Z", "type": "timestamptz"}, "the constant '2020-01-01T24:01Z' is not a value of the type"),
        ({"constant": "0000-01-01", "type": "date"}, "the constant '0000-01-01' is not a value of the type date"),
        ({"constant": "0000-12-31T23:59", "type": "timestamp"}, "the constant '0000-12-31T23:59' is not a value of the type"),
        ({"constant": "0001-01-01T00:00+01:00", "type": "timestamptz"}, "the constant '0001-01-01T00:00+01:00' is not a value of"),
        ({"constant": "9999-12-31T23:59-01:00", "type": "timestamptz"}, "the constant '9999-12-31T23:59-01:00' is not a value of"),
        ({"constant": "2020-01-01T00:00+1801", "type": "timestamptz"}, "the constant '2020-01-01T00:00+1801' is not a value of"),
        ({"constant": "2020-01-01T00:00-01:60", "type": "timestamptz"}, "the constant '2020-01-01T00:00-01:60' is not a value of"),
        ({"from": "$.at", "type": "date", "epoch": "s"}, "epoch is for integers that become timestamp or timestamptz, and for these"),
        ({"from": "$['it's']"}, "character 2 of the path $['it's']: a name in brackets ends with '], is not empty"),
        ({"from": '$["id"]'}, "character 2 of the path $[\"id\"]: a name in brackets has single quotes; write it as in $['order-id']"),
        ({"name": "_kafka_x", "from": "$.id"}, "names that start with _kafka are reserved for Kafka's columns"),
    ],
)  # fmt: skip
def test_a_column_that_no_record_can_fill_is_refused(column: dict[str, Any], problem: str) -> None:
    given = {"name": "c", **column}
    with pytest.raises(InvalidSpecError) as error:
        schema(given)
    assert str(error.value).startswith(f"spec.schema.columns: {given['name']}: {problem}")
    assert error.value.reason == Reason.BAD_SCHEMA


@pytest.mark.parametrize(
    ("second", "options", "problem"),
    [
        ({"name": "ID", "from": "$.ts"}, {}, "ID: differs only in case from column id"),
        ({"name": "id", "from": "$.ts"}, {}, "two columns have the name id; rename one of them"),
        ({"name": "Amount", "from": "key"}, {"otherFields": "Keep"}, "Amount: field amount becomes a column with this name"),
    ],
)  # fmt: skip
def test_names_that_collide_are_refused(second: dict[str, Any], options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidSpecError) as error:
        schema({"name": "id", "from": "$.id"}, second, **options)
    assert str(error.value).startswith(f"spec.schema.columns: {problem}")


def test_too_many_columns_are_refused() -> None:
    fields = [{"name": f"f{number}", "type": "int"} for number in range(999)]
    twice = [{"name": name, "constant": "x"} for name in ("a", "b")]
    with pytest.raises(InvalidSpecError, match="1001 columns with otherFields: Keep, more than 1000"):
        schema(*twice, fields=fields, otherFields="Keep")


def test_kept_fields_are_those_that_no_column_reads() -> None:
    given = ({"name": "key", "from": "key"}, {"name": "email_hash", "from": "$.customer.email", "with": "Sha256"})
    kept = [name for name, _ in columns(*given, otherFields="Keep")]
    assert kept == ["key", "email_hash", "id", "amount", "ratio", "ts", "at", "tags", "raw"]
    assert [name for name, _ in columns(*given)] == ["key", "email_hash"]
    assert rows.schema_columns(schema(*given, otherFields="Keep"))[2].required


def test_raw_records_have_kafkas_columns() -> None:
    raw = {"raw": "Binary", "columns": [{"name": "k", "from": "key"}], "otherFields": "Keep"}
    found = IcebergTopic.parse({"metadata": {"name": "t"}, "spec": {"schema": raw}}).record_schema()
    assert [(column.name, column.type) for column in rows.schema_columns(found)] == [
        ("k", "string"),
        ("value", "binary"),
    ]


def test_a_contract_without_columns_has_no_projection() -> None:
    plain = IcebergTopic.parse({"metadata": {"name": "t"}, "spec": {"schema": {"format": "Json", "fields": FIELDS}}})
    assert "projection" not in plain.record_schema().model_dump_json()


def test_columns_of_a_table_cannot_be_left_out_later() -> None:
    one, two = {"name": "a", "from": "$.id"}, {"name": "b", "from": "$.ts"}
    assert evolution.problems(schema(one), schema(two, one)) == []
    assert evolution.problems(schema(one, two), schema(two)) == ["field a is missing, and cannot be removed: keep it"]
    assert evolution.problems(schema(one), schema({"name": "a", "from": "$.id", "type": "string"})) == [
        "field a cannot change from long to string"
    ]


ODD = [
    {"name": "order-id", "type": "long"},
    {"name": "user.name", "type": "string"},
    {"name": "user", "type": "struct<name: int, 'e-mail': struct<value: string>>"},
]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("$['order-id']", "long"),
        ("$['user.name']", "string"),
        ("$.user.name", "int"),
        ("$.user['e-mail']", "struct<value: string>"),
        ("$.user['e-mail'].value", "string"),
    ],
)
def test_a_column_reads_a_member_whose_name_no_column_can_have(source: str, kind: str) -> None:
    assert columns({"name": "c", "from": source}, fields=ODD) == [("c", kind)]


@pytest.mark.parametrize(
    ("given", "options", "problem"),
    [
        ({"from": "$.user"}, {}, "spec.schema.columns: c: $.user has the member ['e-mail'], and no column can have this name; list columns"),
        ({"from": "$['order.id']"}, {}, "spec.schema.columns: c: $ has no field ['order.id']; did you mean ['order-id']?"),
        ({"from": "$.user['e-mail']"}, {"otherFields": "Keep"}, "spec.schema.columns: with otherFields: Keep, field order-id cannot become a column"),
    ],
)  # fmt: skip
def test_no_column_gets_a_name_that_no_column_can_have(
    given: dict[str, Any], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidSpecError) as error:
        schema({"name": "c", **given}, fields=ODD, **options)
    assert str(error.value).startswith(problem)


def test_kept_fields_leave_out_those_that_a_column_reads_by_brackets() -> None:
    given = [{"name": "o", "from": "$['order-id']"}, {"name": "n", "from": "$['user.name']"}]
    fields = [*ODD[:2], {"name": "user", "type": "struct<name: int>"}]
    assert columns(*given, fields=fields, otherFields="Keep") == [
        ("o", "long"),
        ("n", "string"),
        ("user", "struct<name: int>"),
    ]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            [ODD[0]],
            "spec.schema.fields: field order-id cannot become a column, because a column has letters, digits and _",
        ),
        (
            [ODD[2]],
            "spec.schema.fields: field user cannot become a column, because its member e-mail has a name that no column can have",
        ),
    ],
)
def test_without_columns_a_field_has_the_name_of_a_column(fields: list[dict[str, Any]], problem: str) -> None:
    topic = {"metadata": {"name": "t"}, "spec": {"schema": {"format": "Json", "fields": fields}}}
    with pytest.raises(InvalidSpecError) as error:
        IcebergTopic.parse(topic).record_schema()
    assert str(error.value).startswith(problem)


def test_the_source_of_a_contract_has_brackets_only_where_a_name_needs_them() -> None:
    given = [{"name": "a", "from": "$['id']"}, {"name": "b", "from": "$['customer']['email']"}]
    assert schema(*given) == schema({"name": "a", "from": "$.id"}, {"name": "b", "from": "$.customer.email"})
