"""Partition and sort terms as users write them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn.model import rows, transforms
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, RecordSchema
from firn.model.transforms import PartitionTerm, SortTerm

_columns = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}(\.[a-z_][a-z0-9_]{0,4}){0,2}", fullmatch=True)
_numbers = st.integers(1, 2**31 - 1)
_terms = st.one_of(
    st.builds(PartitionTerm, st.sampled_from(["identity", "year", "month", "day", "hour", "void"]), _columns),
    st.builds(PartitionTerm, st.sampled_from(["bucket", "truncate"]), _columns, _numbers),
)


@given(_terms)
def test_what_a_term_prints_reads_back_as_the_same_term(term: PartitionTerm) -> None:
    assert transforms.parse(str(term)) == term


@given(
    _terms.filter(lambda term: term.column.lower() not in ("asc", "desc")),
    st.sampled_from(["", " asc", " DESC", "  desc "]),
    st.sampled_from(["", " nulls first", " NULLS  last"]),
)
def test_a_sort_term_is_a_term_with_direction_and_place_of_nulls(term: PartitionTerm, way: str, nulls: str) -> None:
    found = transforms.parse_sort(f" {term}{way}{nulls}")
    assert found.term == term
    assert found.descending == ("desc" in way.lower())
    assert found.nulls_first == ("first" in nulls if nulls else not found.descending)


@given(st.text(alphabet="abyer(), .018dsc\u0661\n_", max_size=40))
def test_any_text_is_a_term_or_a_bad_transform(text: str) -> None:
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
def test_ways_to_write_a_term(text: str, term: PartitionTerm, name: str) -> None:
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
        ("bucket(a)", "bucket needs a number"),
        ("month(8, a)", "month takes no number"),
        ("bucket(8, a, 9)", "one number is enough"),
        ("bucket(0, a)", "at least 1"),
        ("bucket(2147483648, a)", "fit 32 bits"),
        ("bucket(" + "9" * 5000 + ", a)", "fit 32 bits"),
        ("bucket(-1, a)", "write a column, or a transform"),
    ],
)
def test_a_bad_term_says_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        transforms.parse(text)
    assert problem in str(refused.value)
    assert refused.value.reason == Reason.BAD_TRANSFORM


def test_ways_to_write_an_order() -> None:
    assert transforms.parse_sort("time_hour desc nulls last") == SortTerm(
        PartitionTerm("identity", "time_hour"), True, False
    )
    assert transforms.parse_sort("bucket(8, a) nulls last") == SortTerm(PartitionTerm("bucket", "a", 8), False, False)
    for text in ("a descending", "a nulls", "a nulls middle", "a asc desc"):
        with pytest.raises(InvalidSpecError):
            transforms.parse_sort(text)


COLUMNS = (
    *(
        Column(name=name, type=name)
        for name in ("boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "string")
    ),
    Column(name="uuid", type="uuid"),
    Column(name="binary", type="binary"),
    Column(name="decimal", type="decimal(9, 2)"),
    Column(name="fixed", type="fixed[4]"),
    Column(name="inner", type="struct<a: int, deep: struct<at: timestamp>, many: list<int>>"),
    Column(name="many", type="list<int>"),
    Column(name="pairs", type="map<string, int>"),
)
SINGLE = {column.name for column in COLUMNS} - {"inner", "many", "pairs"}
TIMES = {"date", "timestamp", "timestamptz"}
TAKES = {
    "identity({})": SINGLE,
    "void({})": SINGLE,
    "bucket(8, {})": SINGLE - {"boolean", "float", "double"},
    "truncate(8, {})": {"int", "long", "decimal", "string", "binary"},
    "year({})": TIMES,
    "month({})": TIMES,
    "day({})": TIMES,
    "hour({})": TIMES - {"date"},
}


@pytest.mark.parametrize("template", TAKES)
@pytest.mark.parametrize("column", [column.name for column in COLUMNS])
def test_a_transform_takes_the_types_that_the_iceberg_spec_says(template: str, column: str) -> None:
    term = template.format(column)
    if column in TAKES[template]:
        transforms.check([term], [f"{term} desc"], COLUMNS)
        return
    for partition_by, sort_by in (([term], []), ([], [term])):
        with pytest.raises(InvalidSpecError) as refused:
            transforms.check(partition_by, sort_by, COLUMNS)
        assert refused.value.reason == Reason.BAD_TRANSFORM
        assert column in str(refused.value)


@pytest.mark.parametrize(
    ("term", "reason", "problem"),
    [
        ("missing", Reason.UNKNOWN_COLUMN, "there is no column 'missing'; columns are boolean, int"),
        ("month(inner.missing)", Reason.UNKNOWN_COLUMN, "there is no member 'missing'; members are a, deep, many"),
        ("INT", Reason.UNKNOWN_COLUMN, "there is no column 'INT'"),
        ("int.a", Reason.BAD_TRANSFORM, "nothing to name inside a int"),
        ("many.element", Reason.BAD_TRANSFORM, "members of structs only"),
        ("pairs.value", Reason.BAD_TRANSFORM, "members of structs only"),
        ("inner.deep", Reason.BAD_TRANSFORM, "only single values"),
        ("inner.many", Reason.BAD_TRANSFORM, "only single values"),
    ],
)
def test_a_column_that_is_not_there_or_not_a_single_value(term: str, reason: Reason, problem: str) -> None:
    for partition_by, sort_by in (([term], []), ([], [term])):
        with pytest.raises(InvalidSpecError) as refused:
            transforms.check(partition_by, sort_by, COLUMNS)
        assert (refused.value.reason, problem in str(refused.value)) == (reason, True), str(refused.value)


def test_members_of_structs_and_kafka_s_columns_can_be_used() -> None:
    transforms.check(["hour(inner.deep.at)", "bucket(4, inner.a)"], ["inner.deep.at"], COLUMNS)
    for shape, columns in (
        ("Struct", ["day(_kafka.timestamp)", "_kafka.partition"]),
        ("Flat", ["day(_kafka_timestamp)", "_kafka_partition"]),
    ):
        transforms.check(columns, columns, rows.table_columns(RecordSchema(format="Raw"), shape))


def test_what_says_the_same_twice_is_refused() -> None:
    for partition_by in (["int", "identity(int)"], ["day(date)", "month(date)"], ["bucket(8, int)", "bucket(8, int)"]):
        with pytest.raises(InvalidSpecError, match="keep one of them"):
            transforms.check(partition_by, [], COLUMNS)
    transforms.check(["bucket(8, int)", "bucket(16, int)", "int", "truncate(8, int)"], ["int", "int"], COLUMNS)
