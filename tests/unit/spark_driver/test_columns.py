"""Columns that have another field id than the one a file was written with."""

import json
from typing import Any

import pytest

from firn_spark.tables.columns import replaced_column


def schema(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "struct", "schema-id": 0, "fields": list(fields)})


def column(field_id: int, name: str, kind: Any = "long") -> dict[str, Any]:
    return {"id": field_id, "name": name, "required": False, "type": kind}


def structure(field_id: int) -> dict[str, Any]:
    return {"type": "struct", "fields": [column(field_id, "inner")]}


def items(element_id: int, element: Any = "long") -> dict[str, Any]:
    return {"type": "list", "element-id": element_id, "element": element, "element-required": False}


def test_a_column_that_was_dropped_and_added_again_is_replaced() -> None:
    assert replaced_column(schema(column(1, "a"), column(2, "b")), schema(column(1, "a"), column(3, "b"))) == "b"


@pytest.mark.parametrize(
    "current",
    [
        schema(column(1, "a"), column(2, "b")),
        schema(column(1, "a")),
        schema(column(1, "a"), column(2, "renamed")),
        schema(column(2, "b"), column(1, "a"), column(3, "c")),
    ],
    ids=["the same", "dropped", "renamed", "moved, and another added"],
)
def test_other_changes_replace_no_column(current: str) -> None:
    assert replaced_column(schema(column(1, "a"), column(2, "b")), current) is None


def test_nested_columns_are_compared() -> None:
    assert replaced_column(schema(column(1, "a", structure(2))), schema(column(1, "a", structure(3)))) == "a.inner"
    lists = schema(column(1, "a", items(2, structure(3)))), schema(column(1, "a", items(2, structure(4))))
    assert replaced_column(*lists) == "a.element.inner"
