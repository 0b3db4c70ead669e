"""Types as users write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.tables import types
from firn.tables.types import Decimal, Fixed, ListOf, MapOf, Primitive, Struct

_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
_leaves = st.one_of(
    st.sampled_from(types.PRIMITIVES).map(Primitive),
    st.integers(1, 38).flatmap(lambda precision: st.builds(Decimal, st.just(precision), st.integers(0, precision))),
    st.integers(1, 1_048_576).map(Fixed),
)
_types = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(ListOf, inner),
        st.builds(MapOf, inner.filter(lambda key: not types.has(key, types.VARIANT)), inner),
        st.lists(st.tuples(_names, inner), min_size=1, max_size=4, unique_by=lambda member: member[0].lower()).map(
            lambda members: Struct(tuple(members))
        ),
    ),
    max_leaves=8,
)


@given(_types)
def test_a_printed_type_parses_to_the_same_type(kind: types.Type) -> None:
    assert types.parse(str(kind)) == kind


@given(_types, st.sampled_from(["", " ", "  \t"]))
def test_blanks_and_upper_case_are_ignored(kind: types.Type, blank: str) -> None:
    text = str(kind)
    for sign in "<>(),:[]":
        text = text.replace(sign, f"{blank}{sign}{blank}")
    assert types.parse(f"{blank}{text}{blank}") == kind
    assert types.parse("LIST<Map<STRING, Decimal(3,1)>>") == ListOf(MapOf(Primitive("string"), Decimal(3, 1)))


@given(st.text(alphabet="abcint<>(),:[] 0129\u0661\n", max_size=40))
def test_any_text_parses_or_is_a_bad_schema(text: str) -> None:
    error = _refusal(text)
    assert error is None or (error.reason == Reason.BAD_SCHEMA and repr(text) in str(error))


def _refusal(text: str) -> InvalidSpecError | None:
    try:
        types.parse(text)
    except InvalidSpecError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "ends too early"),
        ("  ", "ends too early"),
        ("number", "'number' is not a type; did you mean decimal?"),
        ("bigint", "character 1: 'bigint' is not a type; did you mean long?"),
        ("strin", "'strin' is not a type; did you mean string?"),
        ("quaternion", "'quaternion' is not a type: use"),
        ("list< bigint>", "character 7: 'bigint' is not"),
        ("int32", "'int32' is not a type"),
        ("int int", "character 5: has characters after its end"),
        ("int;", "has characters after its end"),
        ("list", "ends too early"),
        ("list<int", "ends too early"),
        ("list<int, int>", "expected '>', found ','"),
        ("map<string>", "expected ',', found '>'"),
        ("map<list<variant>, int>", "a key of a map cannot be a variant"),
        ("struct<>", "expected a member name, found '>'"),
        ("struct<a int>", "character 10: expected ':', found 'int'"),
        ("struct<a: int b: int>", "expected ',' or '>', found 'b'"),
        ("struct<a: int, A: int>", "has the member 'A' twice"),
        ("struct<1: int>", "expected a member name, found '1'"),
        ("decimal", "ends too early"),
        ("decimal(10)", "expected ',', found ')'"),
        ("decimal(39, 2)", "precision of 1 to 38"),
        ("decimal(0, 0)", "precision of 1 to 38"),
        ("decimal(5, 6)", "scale of at most the precision"),
        ("decimal(a, 1)", "expected a number"),
        ("decimal(1" + "0" * 5000 + ", 1)", "expected a number of at most nine digits"),
        ("decimal(\u0661, 1)", "unexpected character"),
        ("fixed[0]", "length of 1 to 1048576"),
        ("fixed[1048577]", "length of 1 to 1048576"),
        ("fixed(16)", "expected '[', found '('"),
        ("list<" * 17 + "int" + ">" * 17, "more than 16 levels"),
        ("list<" * 2000 + "int", "more than 16 levels"),
        ("größe", "'gr' is not a type"),
    ],
)
def test_an_error_explains_an_invalid_type(text: str, problem: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        types.parse(text)
    assert problem in str(refused.value)
    assert refused.value.reason == Reason.BAD_SCHEMA


def test_a_message_shortens_a_long_type() -> None:
    with pytest.raises(InvalidSpecError) as refused:
        types.parse("list<" * 5000)
    assert len(str(refused.value)) < 400


def test_types_nest_up_to_a_depth() -> None:
    assert str(types.parse("list<" * 15 + "int" + ">" * 15)).count("list") == 15


def test_members_that_no_schema_can_have_are_left_out_of_the_type_of_a_column() -> None:
    def struct(**members: object) -> dict[str, object]:
        fields = [
            {"id": n, "name": name, "required": False, "type": kind} for n, (name, kind) in enumerate(members.items())
        ]
        return {"type": "struct", "fields": fields}

    def listed(element: object) -> dict[str, object]:
        return {"type": "list", "element-id": 9, "element-required": False, "element": element}

    inner = struct(a="int", shape="geometry(srid:4326)", shapes=listed("geography"), only=struct(x="unknown"))
    kind = struct(**{"id": "long", "my-field": "string", "größe": "int", "at": listed(inner)})
    assert types.of_json(kind) == "struct<id: long, at: list<struct<a: int>>>"
    assert types.of_table(types.of_json(kind)) == types.parse("struct<id: long, at: list<struct<a: int>>>")
    assert types.of_table(types.of_json("geometry")) == types.Primitive("geometry")
    assert types.of_table(types.of_json(listed("geometry"))) == types.Primitive("list<geometry>")
