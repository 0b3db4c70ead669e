"""The types of checks: columns of the table, and the operators that take them."""

import re

import pytest

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column
from firn.quality.binding import bind

COLUMNS = tuple(
    Column(name=name, type=kind)
    for name, kind in {
        "i": "int", "l": "long", "f": "float", "x": "double", "m": "decimal(10,2)", "s": "string", "b": "boolean", "d": "date",
        "t": "time", "at": "timestamp", "atz": "timestamptz", "u": "uuid", "raw": "binary", "id": "fixed[4]", "tags": "list<string>",
        "v": "variant", "ns": "timestamp_ns", "nsz": "timestamptz_ns",
        "labels": "map<string, int>", "place": "struct<lat: double, city: struct<name: string>>",
    }.items()
)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "i > l and f < x and m >= i and x != m",
        "b", "not b", "b = true", "b is null or tags is not null and place is null",
        "place.lat between -90 and 90 and place.city.name like 'Z%'",
        "length(s) < 3 and length(raw) < 3 and length(id) = 4 and length(tags) < 3 and length(labels) < 3",
        "d >= date '2026-01-01' and at >= timestamp '2026-01-01' and atz >= timestamp '2026-01-01 00:00Z'",
        "ns < timestamp '2026-01-01' and nsz between timestamp '1678-01-01 00:00Z' and timestamp '2261-12-31 00:00Z' and ns = ns",
        "u in ('00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002')",
        "'00000000-0000-0000-0000-000000000001' != u",
        "lower(s) in ('a') and i in (1, 2.5) and b in (true)",
        "(i + 1) * x / m - 2 > 0", "t = t", "raw = raw", "1 = 1 or i > 2",
    ],
)  # fmt: skip
def test_a_check_that_fits_the_columns_passes(text: str) -> None:
    bind(text, COLUMNS)


@pytest.mark.parametrize(
    ("text", "position", "reason", "problem"),
    [
        ("temp > 1", 1, "UnknownColumn", "'temp' is not a column of the table; choose one of i, l,"),
        ("placs.lat > 1", 1, "UnknownColumn", "'placs' is not a column of the table; choose one of place, "),
        ("x > 1 and place.lon > 1", 11, "UnknownColumn", "place has no member lon: its type is struct<lat: double, "),
        ("x > 1 and place.lon > 1", 11, "UnknownColumn", "; choose one of lat, city"),
        ("i.a > 1", 1, "UnknownColumn", "i has no member a: its type is int, not a struct"),
        ("i", 1, "BadRule", "the check has type int and is not a condition"),
        ("i and b", 1, "BadRule", "a value of type int is not a condition"),
        ("not s", 5, "BadRule", "a value of type string is not a condition"),
        ("1 = 1", 3, "BadRule", "the check names no column"),
        ("i > 'x'", 5, "BadRule", "a value of type string cannot be compared with one of type int; write a number"),
        ("'x' > i", 1, "BadRule", "a value of type string cannot be compared with one of type int; write a number"),
        (
            "s = 5",
            5,
            "BadRule",
            "a value of type long cannot be compared with one of type string; write the text in single quotes",
        ),
        ("d > '2026-01-01'", 5, "BadRule", "write date '2026-01-31'"),
        ("at > timestamp '2026-01-01 00:00Z'", 6, "BadRule", "write the time without a zone"),
        ("atz > timestamp '2026-01-01'", 7, "BadRule", "write the zone of the time"),
        ("at > atz", 6, "BadRule", "write the time without a zone"),
        ("nsz > timestamp '2026-01-01'", 7, "BadRule", "write the zone of the time"),
        ("ns > timestamp '2026-01-01 00:00Z'", 6, "BadRule", "write the time without a zone"),
        ("nsz > '2026-01-01'", 7, "BadRule", "write timestamp '2026-01-31 12:00:00Z'"),
        (
            "ns > timestamp '1677-12-31'",
            6,
            "BadRule",
            "type timestamp_ns has no time of the year 1677; write a year from 1678 to",
        ),
        ("nsz > atz", 7, "BadRule", "a value of type timestamptz cannot be compared with one of type timestamptz_ns"),
        ("t > '10:00'", 5, "BadRule", "of type time; use is null, or another column of type time"),
        ("v = v", 5, "BadRule", "a value of type variant cannot be compared; use is null"),
        ("b > false", 5, "BadRule", "values of type boolean have no order"),
        ("b = 1", 5, "BadRule", "write true or false"),
        ("u > '00000000-0000-0000-0000-000000000001'", 5, "BadRule", "values of type uuid have no order"),
        ("u = 'x'", 5, "BadRule", "'x' is not a UUID"),
        ("s in ('a', 1)", 12, "BadRule", "a value of type long cannot be compared with one of type string"),
        (
            "tags = tags",
            8,
            "BadRule",
            "a value of type list<string> cannot be compared; use is null, length or a member",
        ),
        (
            "place in (1)",
            11,
            "BadRule",
            "a value of type struct<lat: double, city: struct<name: string>> cannot be compared",
        ),
        ("s + 1 > 0", 1, "BadRule", "+ takes numbers, and this value has type string"),
        ("length(i) > 0", 8, "BadRule", "length takes a string, binary, list or map, and this value has type int"),
        ("lower(i) = 'x'", 7, "BadRule", "lower takes a string"),
        ("i like '1%'", 1, "BadRule", "like takes a string"),
        ("b matches 'x'", 1, "BadRule", "matches takes a string"),
        ("raw = id", 7, "BadRule", "a value of type fixed[4] cannot be compared with one of type binary"),
    ],
)
def test_a_check_that_does_not_fit_has_its_error(text: str, position: int, reason: str, problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=re.escape(problem)) as caught:
        bind(text, COLUMNS)
    assert caught.value.reason == Reason(reason)
    assert f"check {text!r}, character {position}: " in str(caught.value)


def test_a_message_lists_a_few_columns_of_a_wide_table() -> None:
    wide = tuple(Column(name=f"c{number}", type="int") for number in range(1000))
    with pytest.raises(InvalidSpecError, match="c10 and 988 more"):
        bind("c1000 > 1", wide)
