"""Derived names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn.model import names

LONGEST = "p" * 40


@pytest.mark.parametrize(
    ("text", "name"),
    [("flights", "flights"), ("my-topic", "my_topic"), ("Orders.EU", "orders_eu"), ("größe", "gr__e"), ("a/b", "a_b")],
)
def test_table_names_have_only_lower_case_letters_digits_and_underscores(text: str, name: str) -> None:
    assert names.table_part(text) == name


@given(st.text(min_size=1))
def test_any_name_becomes_a_table_name(text: str) -> None:
    assert re.fullmatch(r"[a-z0-9_]+", names.table_part(text))


@pytest.mark.parametrize("name", [names.fleet(LONGEST), names.bootstrap(LONGEST), names.ingestion(LONGEST)])
def test_children_of_the_longest_profile_and_group_fit_kubernetes(name: str) -> None:
    assert len(name) <= 63
    if not name.endswith("-bootstrap"):
        assert len(name) + len("-0123456789") <= 63, "a StatefulSet's revision label is its name and a hash"
