"""Types that a column of a table can become without a rewrite of its files."""

import pytest

from firn.tables import types
from firn.tables.evolution import can_become

UNCHANGED = ("int", "string", "decimal(9,2)", "list<int>", "map<string, decimal(9,2)>", "struct<a: int, b: string>")


@pytest.mark.parametrize("kind", UNCHANGED)
def test_a_type_stays(kind: str) -> None:
    assert can_become(types.parse(kind), types.parse(kind))


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
def test_a_type_becomes_a_wider_one_and_never_again_the_narrow_one(old: str, new: str) -> None:
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
def test_a_type_does_not_become_another(old: str, new: str) -> None:
    assert not can_become(types.parse(old), types.parse(new))
