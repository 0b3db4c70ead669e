"""The syntax of checks: trees, precedence, and errors with their places."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.quality import syntax
from firn.quality.expressions import (
    AllOf,
    AnyOf,
    Arithmetic,
    Call,
    Comparison,
    Constant,
    Expression,
    IsNull,
    IsOneOf,
    Matches,
    Name,
    Not,
)


def form(expression: Expression) -> Any:
    """Return the tree without positions."""
    match expression:
        case Name(path):
            return ".".join(path)
        case Constant(value):
            return ("value", value)
        case Call(function, argument):
            return (function, form(argument))
        case Arithmetic(sign, left, right):
            return (sign, form(left), form(right))
        case Comparison(operator, left, right):
            return (operator, form(left), form(right))
        case IsOneOf(operand, items):
            return ("in", form(operand), *(item.value for item in items))
        case IsNull(operand):
            return ("null", form(operand))
        case Matches(operand, pattern, like):
            return ("like" if like else "matches", form(operand), pattern)
        case Not(operand):
            return ("not", form(operand))
        case AllOf(operands):
            return ("and", *map(form, operands))
        case AnyOf(operands):
            return ("or", *map(form, operands))


def value(of: Any) -> Any:
    return ("value", of)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a > 1", (">", "a", value(1))),
        ("a == 1", ("=", "a", value(1))),
        ("a <> 1.50", ("!=", "a", value(Decimal("1.50")))),
        ("a = -9223372036854775808", ("=", "a", value(Decimal(-(2**63))))),
        ("a >= -" + "9" * 36 + ".01", (">=", "a", value(Decimal("-" + "9" * 36 + ".01")))),
        ("a < 1e3", ("<", "a", value(Decimal(1000)))),
        ("place.lat <= .5", ("<=", "place.lat", value(Decimal("0.5")))),
        ('"select"."a ""b""" = \'it\'\'s\'', ("=", 'select.a "b"', value("it's"))),
        ("t between -90 and 60", ("and", (">=", "t", value(-90)), ("<=", "t", value(60)))),
        ("t NOT BETWEEN 1 AND 2", ("not", ("and", (">=", "t", value(1)), ("<=", "t", value(2))))),
        ("s in ('a', 'b')", ("in", "s", "a", "b")),
        ("s not in (1, -2)", ("not", ("in", "s", 1, -2))),
        ("a is null or b is not null", ("or", ("null", "a"), ("not", ("null", "b")))),
        ("not a = 1 and b", ("and", ("not", ("=", "a", value(1))), "b")),
        ("a or b and c or d", ("or", "a", ("and", "b", "c"), "d")),
        ("(a or b) and c", ("and", ("or", "a", "b"), "c")),
        ("a + 2 * b - c > 0", (">", ("-", ("+", "a", ("*", value(2), "b")), "c"), value(0))),
        ("-a / (b + 1) < 2", ("<", ("/", ("-", value(0), "a"), ("+", "b", value(1))), value(2))),
        ("length(lower(s)) < 3", ("<", ("length", ("lower", "s")), value(3))),
        ("s like 'a%' or s not matches '^x'", ("or", ("like", "s", "a%"), ("not", ("matches", "s", "^x")))),
        ("d >= date '2026-01-31'", (">=", "d", value(date(2026, 1, 31)))),
        ("at < timestamp '2026-01-31 12:00:00+02:00'", ("<", "at", value(datetime(2026, 1, 31, 10, tzinfo=UTC)))),
        ("date > 1 and length", ("and", (">", "date", value(1)), "length")),
    ],
)  # fmt: skip
def test_a_check_has_its_tree(text: str, tree: Any) -> None:
    assert form(syntax.parse(text)) == tree


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 1, "expected a column or a literal, found the end"),
        ("a >", 4, "found the end"),
        ("a > 1 b", 7, "did not expect 'b'"),
        ("a = b = c", 7, "did not expect '='"),
        ("(a > 1", 7, "expected ')'"),
        ("a ; b", 3, "';' is not part of the language"),
        ("a = 'x", 5, "the closing ' is missing"),
        ("a = null", 5, "write is null"),
        ("a in (1, null)", 10, "write is null"),
        ("a in (b)", 7, "literals only"),
        ("a in ()", 7, "expected a column or a literal, found ')'"),
        ("a is 1", 6, "expected 'null'"),
        ("a not > 1", 7, "expected between, in, like or matches"),
        ("a between 1 or 2", 13, "expected 'and'"),
        ("a like b", 8, "like takes a text in single quotes"),
        ("sqrt(a) > 1", 1, "'sqrt' is not a function; use one of length, lower, upper"),
        ("d > date '31.1.2026'", 10, "write it like '2026-01-31'"),
        ("at > timestamp '0001-01-01T00:00:00+14:00'", 16, "is not a timestamp"),
        ("a. = 1", 4, "expected the name of a member"),
        ("a > 1" + "0" * 40, 5, "at most 38 digits"),
        ("a > 1e400", 5, "at most 38 digits"),
        ("a > 1e99999999999999999999", 5, "at most 38 digits"),
        ("select > 1 where", 12, "did not expect 'where'"),
        ("between > 1", 1, "words of the language in double quotes"),
        ("(" * 200 + "a" + ")" * 200, 33, "more than 32 levels"),
        ("not " * 100 + "a", 133, "more than 32 levels"),
        ("a in ((" * 100, 0, "more than 32 levels"),
        ("a" + " + a" * 100 + " > 0", 0, "more than 32 levels"),
        ("-" * 1000 + "a > 0", 0, "more than 32 levels"),
    ],
)
def test_an_error_names_the_place(text: str, position: int, problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=re.escape(problem)) as caught:
        syntax.parse(text)
    assert caught.value.reason == Reason.BAD_RULE
    if position:
        assert f", character {position}: " in str(caught.value)


def test_long_chains_of_conditions_are_not_nested() -> None:
    assert isinstance(syntax.parse(" and ".join(["a > 1"] * 150)), AllOf)
