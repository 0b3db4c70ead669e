"""Checks as trees. Logic has three values, as in SQL: a comparison with null is null."""

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Literal
from uuid import UUID

Value = bool | int | Decimal | str | date | datetime | UUID
Function = Literal["length", "lower", "upper"]
AggregateFunction = Literal["count", "null_share", "min", "max"]
Operator = Literal["=", "!=", "<", "<=", ">", ">="]
Sign = Literal["+", "-", "*", "/"]


@dataclass(frozen=True, slots=True)
class Name:
    """A column, or a member of a struct column. ``position`` is the first character in the check, from 0, as in all nodes."""

    path: tuple[str, ...]
    position: int

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: Value
    position: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function of one argument."""

    function: Function
    argument: "Expression"
    position: int


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function of all rows. A check of many rows has a `Name` in its place, whose only part is the text of the aggregate."""

    function: AggregateFunction
    column: Name | None
    """None for ``count(*)``."""
    position: int

    def __str__(self) -> str:
        return f"{self.function}({self.column or '*'})"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Two numbers, in double precision. A quotient with the divisor 0 is null."""

    sign: Sign
    left: "Expression"
    right: "Expression"
    position: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two values of one type, or two numbers."""

    operator: Operator
    left: "Expression"
    right: "Expression"
    position: int


@dataclass(frozen=True, slots=True)
class IsOneOf:
    """A value in a list of literals."""

    operand: "Expression"
    items: tuple[Constant, ...]
    position: int


@dataclass(frozen=True, slots=True)
class IsNull:
    """True or false, never null."""

    operand: "Expression"
    position: int


@dataclass(frozen=True, slots=True)
class Matches:
    """A text that a pattern describes: ``like`` the whole text, as in SQL; otherwise RE2 finds the pattern anywhere in it."""

    operand: "Expression"
    pattern: str
    like: bool
    position: int


@dataclass(frozen=True, slots=True)
class Not:
    """The other truth value; null stays null."""

    operand: "Expression"
    position: int


@dataclass(frozen=True, slots=True)
class AllOf:
    """``and``: false if an operand is false, else null if an operand is null."""

    operands: tuple["Expression", ...]
    position: int


@dataclass(frozen=True, slots=True)
class AnyOf:
    """``or``: true if an operand is true, else null if an operand is null."""

    operands: tuple["Expression", ...]
    position: int


Expression = Name | Constant | Call | Arithmetic | Comparison | IsOneOf | IsNull | Matches | Not | AllOf | AnyOf


def parts(expression: Expression) -> tuple[Expression, ...]:
    """Return the direct parts of an expression."""
    match expression:
        case Name() | Constant():
            return ()
        case Call(argument=operand) | IsNull(operand) | Matches(operand) | Not(operand):
            return (operand,)
        case IsOneOf(operand, items):
            return (operand, *items)
        case Arithmetic(left=left, right=right) | Comparison(left=left, right=right):
            return (left, right)
        case AllOf(operands) | AnyOf(operands):
            return operands


def names(expression: Expression) -> list[Name]:
    """Return the columns of an expression, in the order of the check."""
    own = [expression] if isinstance(expression, Name) else []
    return own + [name for part in parts(expression) for name in names(part)]


def patterns(expression: Expression) -> list[Matches]:
    """Return the parts that match a regular expression."""
    own = [expression] if isinstance(expression, Matches) and not expression.like else []
    return own + [found for part in parts(expression) for found in patterns(part)]
