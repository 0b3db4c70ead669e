"""Types that a column of a table can become without a rewrite of its files."""

import pytest

from firn.model.jobs import RecordSchema
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
        "field total is missing, and cannot be removed or renamed: keep it, and add amount beside it"
    ]


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


def test_an_avro_field_cannot_get_another_type() -> None:
    assert evolution.problems(avro(("a", "int")), avro(("a", "string"))) == ["field a cannot change from int to string"]
