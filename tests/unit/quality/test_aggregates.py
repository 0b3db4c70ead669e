"""Checks of many rows: the aggregates, their types, and errors with their places."""

import pytest

from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column
from firn.quality.aggregates import bind_aggregates

COLUMNS = [
    Column(name="customer", type="string"),
    Column(name="amount", type="decimal(9,2)"),
    Column(name="place", type="struct<depth: double>"),
    Column(name="at", type="timestamptz"),
]


@pytest.mark.parametrize(
    ("check", "found"),
    [
        ("count(*) >= 10", {"count(*)": "long"}),
        ("COUNT(customer) = count(*)", {"count(customer)": "long", "count(*)": "long"}),
        ("null_share(place.depth) between 0 and 0.01", {"null_share(place.depth)": "double"}),
        ("min(amount) > 0 and max(amount) < 100", {"min(amount)": "decimal(9,2)", "max(amount)": "decimal(9,2)"}),
        ("max(at) - 1 > 0 or max(at) is null", None),
        ("max(at) < timestamp '2030-01-01 00:00:00Z'", {"max(at)": "timestamptz"}),
        ('null_share("customer") < 1', {"null_share(customer)": "double"}),
    ],
)
def test_an_aggregate_has_a_type(check: str, found: dict[str, str] | None) -> None:
    if found is None:
        with pytest.raises(InvalidSpecError, match="takes numbers"):
            bind_aggregates(check, COLUMNS)
        return
    bound = bind_aggregates(check, COLUMNS)
    assert {text: str(kind).replace(" ", "") for text, kind in bound.types.items()} == found
    assert {str(aggregate) for aggregate in bound.aggregates} == found.keys()


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        ("amount > 0", "character 8: the check has no aggregate; use"),
        ("count(*) > 0 and amount > 0", "character 18: amount is a column, and the check is about many rows"),
        ("max(customer) > 'a'", "character 1: max takes numbers, dates and times, and customer has type string"),
        ("null_share(*) < 1", "character 12: null_share takes a column, found"),
        ("count(count(*)) > 1", "character 12: expected ')', found"),
        ("sum(amount) > 1", "character 1: 'sum' is not a function; use one of count, null_share, min, max, length"),
        ("count(*)", "the check has type long and is not a condition"),
        ("min(x) > 0", "character 5: 'x' is not a column of the table; choose one of"),
    ],
)
def test_an_error_names_its_place(check: str, problem: str) -> None:
    with pytest.raises(InvalidSpecError) as raised:
        bind_aggregates(check, COLUMNS)
    assert problem in str(raised.value)
