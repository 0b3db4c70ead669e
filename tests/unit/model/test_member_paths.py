"""Paths to members of records: their notation, and texts that are no path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn import member_paths
from firn.member_paths import BadPathError, parse, shown


@pytest.mark.parametrize(
    ("text", "path", "written"),
    [
        ("$.id", ("id",), "$.id"),
        ("$.customer.mail", ("customer", "mail"), "$.customer.mail"),
        ("$['order-id']", ("order-id",), "$['order-id']"),
        ("$['user.name'].first", ("user.name", "first"), "$['user.name'].first"),
        ("$.customer['order-id']['n']", ("customer", "order-id", "n"), "$.customer['order-id'].n"),
        ("$['@timestamp']", ("@timestamp",), "$['@timestamp']"),
        (r"$['it\'s \\ \\\'']", (r"it's \ \'",), r"$['it\'s \\ \\\'']"),
        ("$['a\"]']['größe 🦀']", ('a"]', "größe 🦀"), "$['a\"]']['größe 🦀']"),
        ("$['1']", ("1",), "$['1']"),
    ],
)
def test_a_path_is_its_names(text: str, path: tuple[str, ...], written: str) -> None:
    assert parse(text) == path
    assert shown(path) == written


@given(st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1), min_size=1, max_size=4).map(tuple))
def test_any_names_are_written_and_read_again(path: tuple[str, ...]) -> None:
    assert parse(shown(path)) == path
    assert tuple(member_paths.step_name(member_paths.step(name)) for name in path) == path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("$", "the path $ names no member of the record; write $.FIELD or $['NAME']"),
        ("id", "character 2 of the path id: a name after a dot"),
        ("x.b", "the path x.b names no member of the record"),
        ("$.order-id", "character 8 of the path $.order-id: a name after a dot has letters, digits and _"),
        ("$..id", "character 2 of the path $..id: a name after a dot"),
        ("$.größe", "character 5 of the path $.größe: a name after a dot"),
        ("$.1st", "character 2 of the path $.1st: a name after a dot"),
        ('$["order-id"]', "character 2 of the path $[\"order-id\"]: a name in brackets has single quotes; write it as in $['order-id']"),
        ("$.lines[0]", "character 8 of the path $.lines[0]: brackets hold a name in single quotes"),
        ("$['']", "character 2 of the path $['']: a name in brackets ends with '], is not empty"),
        ("$['a", "character 2 of the path $['a: a name in brackets ends with ']"),
        (r"$['a\']", r"character 2 of the path $['a\']: a name in brackets ends with ']"),
        (r"$['a\n']", r"character 2 of the path $['a\n']: a name in brackets ends with '], is not empty, and has \' for ' and \\ for \;"),
        ("$['it's']", "character 2 of the path $['it's']: a name in brackets ends with ']"),
        ("$['a\tb']", "character 2 of the path $['a\tb']: a name in brackets"),
        ("$['a'] ", "character 7 of the path $['a'] : a name after a dot"),
    ],
)  # fmt: skip
def test_a_bad_path_says_where_and_what_to_write(text: str, problem: str) -> None:
    with pytest.raises(BadPathError) as error:
        parse(text)
    assert str(error.value).startswith(problem)
