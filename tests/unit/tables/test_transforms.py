"""Partition and sort terms as users write them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.tables import transforms
from firn.tables.transforms import PartitionTerm, SortTerm

_columns = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}(\.[a-z_][a-z0-9_]{0,4}){0,2}", fullmatch=True)
_numbers = st.integers(1, 2**31 - 1)
_terms = st.one_of(
    st.builds(PartitionTerm, st.sampled_from(["identity", "year", "month", "day", "hour", "void"]), _columns),
    st.builds(PartitionTerm, st.sampled_from(["bucket", "truncate"]), _columns, _numbers),
)


@given(_terms)
def test_a_printed_term_parses_to_the_same_term(term: PartitionTerm) -> None:
    assert transforms.parse(str(term)) == term


@given(
    _terms.filter(lambda term: term.column.lower() not in ("asc", "desc")),
    st.sampled_from(["", " asc", " DESC", "  desc "]),
    st.sampled_from(["", " nulls first", " NULLS  last"]),
)
def test_a_sort_term_has_a_direction_and_an_order_of_nulls(term: PartitionTerm, way: str, nulls: str) -> None:
    parsed = transforms.parse_sort(f" {term}{way}{nulls}")
    assert parsed.term == term
    assert parsed.descending == ("desc" in way.lower())
    assert parsed.nulls_first == ("first" in nulls if nulls else not parsed.descending)


@given(st.text(alphabet="abyer(), .018dsc\u0661\n_", max_size=40))
def test_any_text_parses_or_is_a_bad_transform(text: str) -> None:
    for parse in (transforms.parse, transforms.parse_sort):
        error = _refusal(parse, text)
        assert error is None or error.reason == Reason.BAD_TRANSFORM


def _refusal(parse: Callable[[str], object], text: str) -> InvalidSpecError | None:
    try:
        parse(text)
    except InvalidSpecError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("text", "term", "name"),
    [
        ("origin", PartitionTerm("identity", "origin"), "origin"),
        ("identity(origin)", PartitionTerm("identity", "origin"), "origin"),
        ("months(t)", PartitionTerm("month", "t"), "t_month"),
        ("hour( t )", PartitionTerm("hour", "t"), "t_hour"),
        ("bucket(8,carrier)", PartitionTerm("bucket", "carrier", 8), "carrier_bucket"),
        ("bucket(carrier, 8)", PartitionTerm("bucket", "carrier", 8), "carrier_bucket"),
        ("truncate (4, a.b)", PartitionTerm("truncate", "a.b", 4), "a.b_trunc"),
        ("void(a)", PartitionTerm("void", "a"), "a_null"),
    ],
)
def test_equivalent_texts_are_one_term(text: str, term: PartitionTerm, name: str) -> None:
    assert transforms.parse(text) == term
    assert term.field_name == name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "write a column, or a transform"),
        ("a-b", "write a column, or a transform"),
        ("a.", "write a column, or a transform"),
        (".a", "write a column, or a transform"),
        ("month(a) b", "write a column, or a transform"),
        ("month()", "write a column, or a transform"),
        ("week(a)", "'week' is not one of identity, bucket"),
        ("bucket(a)", "bucket requires a number"),
        ("month(8, a)", "month takes no number"),
        ("bucket(8, a, 9)", "write only one number"),
        ("bucket(0, a)", "from 1 to 2147483647"),
        ("bucket(2147483648, a)", "from 1 to 2147483647"),
        ("bucket(" + "9" * 5000 + ", a)", "from 1 to 2147483647"),
        ("bucket(-1, a)", "write a column, or a transform"),
    ],
)
def test_an_error_explains_an_invalid_term(text: str, problem: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        transforms.parse(text)
    assert problem in str(refused.value)
    assert refused.value.reason == Reason.BAD_TRANSFORM


def test_sort_orders_are_parsed_or_rejected() -> None:
    assert transforms.parse_sort("time_hour desc nulls last") == SortTerm(
        PartitionTerm("identity", "time_hour"), True, False
    )
    assert transforms.parse_sort("bucket(8, a) nulls last") == SortTerm(PartitionTerm("bucket", "a", 8), False, False)
    for text in ("a descending", "a nulls", "a nulls middle", "a asc desc"):
        with pytest.raises(InvalidSpecError):
            transforms.parse_sort(text)
