"""Types that a column of a table can become without a rewrite of its files."""

import pytest

from firn.model.jobs import Column, RecordSchema, Rename, SchemaFormat
from firn.tables import evolution, types
from firn.tables.evolution import can_become

TYPES = ("int", "string", "decimal(9,2)", "list<int>", "map<string, decimal(9,2)>", "struct<a: int, b: string>")


@pytest.mark.parametrize("text", TYPES)
def test_a_type_may_stay_unchanged(text: str) -> None:
    assert can_become(types.parse(text), types.parse(text))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int", "long"),
        ("float", "double"),
        ("decimal(9,2)", "decimal(10,2)"),
        ("list<int>", "list<long>"),
        ("map<string, float>", "map<string, double>"),
        ("struct<a: int>", "struct<b: string, a: long>"),
    ],
)
def test_a_type_can_widen_but_not_narrow(old: str, new: str) -> None:
    assert can_become(types.parse(old), types.parse(new))
    assert not can_become(types.parse(new), types.parse(old))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("decimal(9,2)", "decimal(10,3)"),
        ("int", "double"),
        ("date", "timestamp"),
        ("map<int, string>", "map<long, string>"),
        ("list<int>", "int"),
    ],
)
def test_other_changes_of_a_type_are_rejected(old: str, new: str) -> None:
    assert not can_become(types.parse(old), types.parse(new))


def test_a_renamed_field_is_named_with_its_new_name() -> None:
    before, after = (
        RecordSchema.model_validate({"format": "Json", "fields": [{"name": name, "type": "int"}]})
        for name in ("total", "amount")
    )
    assert evolution.problems(before, after) == [
        "field total is missing, and cannot be removed: keep it, and add amount beside it; or rename the column by"
        " spec.schema.renames: [{from: total, to: amount}]"
    ]
    renamed = after.model_copy(update={"renames": (Rename(old="total", new="amount"),)})
    assert evolution.problems(before, renamed) == []


def keyed(columns: str | None, **fields: str) -> RecordSchema:
    key = columns and {"columns": columns, "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}
    return RecordSchema.model_validate({"format": "Json", "fields": [{"name": "a", "type": "int"}], "key": key})


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (keyed(None), keyed("Flat", id="int"), None),
        (keyed("Flat", id="int"), keyed("Flat", id="long", at="date"), None),
        (keyed("Struct", id="int"), keyed("Struct", id="long", at="date"), None),
        (
            keyed("Flat", id="int"),
            keyed("Flat", at="int"),
            "column key_id of the key is missing, and cannot be removed",
        ),
        (keyed("Flat", id="long"), keyed("Flat", id="int"), "column key_id of the key cannot change from long to int"),
        (
            keyed("Struct", id="int"),
            keyed("Struct", at="int"),
            "column key of the key cannot change from struct<id: int>",
        ),
        (
            keyed("Binary"),
            keyed("Struct", id="int"),
            "column key of the key cannot change from binary to struct<id: int>",
        ),
        (keyed("Binary"), keyed(None), "column key of the key is missing, and cannot be removed"),
    ],
)
def test_columns_of_keys_can_be_added_and_widened(
    before: RecordSchema, after: RecordSchema, problem: str | None
) -> None:
    problems = evolution.problems(before, after)
    assert problems == [] if problem is None else problem in problems[0]


def avro(*fields: tuple[str, str]) -> RecordSchema:
    columns = [{"name": name, "type": kind} for name, kind in fields]
    return RecordSchema.model_validate({"format": "Avro", "text": "{}", "fields": columns})


def test_a_field_that_producers_stop_writing_keeps_its_column() -> None:
    assert evolution.problems(avro(("a", "int"), ("b", "int")), avro(("b", "long"), ("c", "int"))) == []


def test_a_field_with_a_time_of_day_cannot_be_removed() -> None:
    for kind in ("time", "list<struct<x: time>>"):
        assert evolution.problems(avro(("a", "int"), ("b", kind)), avro(("a", "int"), ("c", "int"))) == [
            f"field b of type {kind} cannot be removed: keep it, and add c beside it"
        ]
    assert evolution.problems(avro(("a", "int"), ("b", "timestamp")), avro(("a", "int"))) == []


def test_a_protobuf_field_that_is_removed_keeps_its_column() -> None:
    before, after = (
        schema.model_copy(update={"format": "Protobuf"})
        for schema in (avro(("a", "int"), ("b", "int")), avro(("a", "long")))
    )
    assert evolution.problems(before, after) == []
    assert evolution.problems(after, before) == ["field a cannot change from long to int"]


def test_an_avro_field_cannot_get_another_type() -> None:
    assert evolution.problems(avro(("a", "int")), avro(("a", "string"))) == ["field a cannot change from int to string"]


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("int", "long", "long"),
        ("double", "float", "double"),
        ("decimal(9, 2)", "decimal(12, 2)", "decimal(12, 2)"),
        ("struct<a: int, b: string>", "struct<c: date, a: long>", "struct<a: long, b: string, c: date>"),
        ("list<struct<a: int>>", "list<struct<b: int>>", "list<struct<a: int, b: int>>"),
        ("map<string, struct<a: int>>", "map<string, struct<b: int>>", "map<string, struct<a: int, b: int>>"),
        ("int", "string", None),
        ("decimal(9, 2)", "decimal(9, 3)", None),
        ("struct<a: int>", "struct<a: string>", None),
        ("list<int>", "list<string>", None),
        ("map<string, int>", "map<long, int>", None),
        ("list<int>", "int", None),
    ],
)
def test_merged_types_hold_the_values_of_both(one: str, other: str, both: str | None) -> None:
    found = evolution.merged(types.parse(one), types.parse(other))
    assert found == (None if both is None else types.parse(both))
    if found is not None:
        assert evolution.can_become(types.parse(one), found)
        assert evolution.can_become(types.parse(other), found)


def test_new_columns_keep_the_width_of_known_ones() -> None:
    def columns(**kinds: str) -> list[Column]:
        return [Column(name=name, type=kind) for name, kind in kinds.items()]

    known, new = columns(a="long", s="struct<x: int>", gone="int"), columns(a="int", s="struct<y: int>", b="string")
    assert evolution.merged_columns(known, new, SchemaFormat.AVRO) == tuple(
        columns(a="long", s="struct<x: int, y: int>", b="string")
    )
    assert evolution.merged_columns(columns(a="string"), columns(a="int"), SchemaFormat.AVRO) == tuple(columns(a="int"))
    assert evolution.merged_columns(columns(a="double"), columns(a="int"), SchemaFormat.AVRO) == tuple(
        columns(a="double")
    )


@pytest.mark.parametrize(
    ("column", "written", "needed"),
    [
        ("int", "long", "long"),
        ("long", "int", "long"),
        ("double", "int", "double"),
        ("int", "double", None),
        ("double", "long", None),
        ("float", "int", "double"),
        ("list<float>", "list<int>", "list<double>"),
        ("float", "long", None),
        ("decimal(20,0)", "long", "decimal(20,0)"),
        ("decimal(18,0)", "long", None),
        ("decimal(12,2)", "int", "decimal(12,2)"),
        ("decimal(11,2)", "int", None),
        ("long", "decimal(20,0)", None),
        ("binary", "string", "binary"),
        ("string", "binary", None),
        ("list<double>", "list<int>", "list<double>"),
        ("map<string, double>", "map<string, int>", "map<string, double>"),
        ("map<long, int>", "map<int, int>", None),
        ("struct<a: double, b: int>", "struct<b: long, a: int, c: int>", "struct<a: double, b: long, c: int>"),
    ],
)
def test_a_column_takes_values_that_another_type_holds_exactly(column: str, written: str, needed: str | None) -> None:
    for form in (SchemaFormat.AVRO, SchemaFormat.PROTOBUF):
        found = evolution.holding(types.parse(column), types.parse(written), form, all_values=True)
        assert found == (None if needed is None else types.parse(needed))
        if found is not None:
            assert evolution.can_become(types.parse(column), found)


@pytest.mark.parametrize(
    ("column", "written", "forms"),
    [
        ("double", "long", {SchemaFormat.AVRO}),
        ("struct<a: string>", "struct<a: binary>", {SchemaFormat.AVRO, SchemaFormat.PROTOBUF}),
        ("long", "double", set()),
        ("string", "long", set()),
    ],
)
def test_a_column_takes_those_values_of_another_type_that_fit(
    column: str, written: str, forms: set[SchemaFormat]
) -> None:
    binary = (SchemaFormat.AVRO, SchemaFormat.PROTOBUF)
    found = {form: evolution.holding(types.parse(column), types.parse(written), form) for form in binary}
    assert found == {form: types.parse(column) if form in forms else None for form in binary}


def test_json_has_one_kind_of_number_and_texts_of_base64() -> None:
    def needed(column: str, written: str) -> types.Type | None:
        return evolution.holding(types.parse(column), types.parse(written), SchemaFormat.JSON)

    assert needed("list<double>", "list<long>") == types.parse("list<double>")
    assert needed("long", "double") is None
    assert needed("binary", "string") is None
