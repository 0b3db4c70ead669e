"""Binds checks to the columns of a table: names exist, and types fit."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from uuid import UUID

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, Rename
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
    names,
)
from firn.tables import types
from firn.tables.renames import destination
from firn.tables.types import Fixed, ListOf, MapOf, Primitive, Struct, Type

BOOLEAN, LONG, DOUBLE, STRING = (Primitive(name) for name in ("boolean", "long", "double", "string"))
UUID_TYPE, DATE, TIMESTAMP, TIMESTAMPTZ = (Primitive(name) for name in ("uuid", "date", "timestamp", "timestamptz"))
_OF_NANOSECONDS: Mapping[Type, Type] = {Primitive("timestamp_ns"): TIMESTAMP, Primitive("timestamptz_ns"): TIMESTAMPTZ}
"""Types with nanoseconds, and those of the literals with which they are compared."""
_NANOSECOND_YEARS = range(1678, 2262)
"""Years whose times all have a number of nanoseconds since 1970."""
_NUMBERS = frozenset({"int", "long", "float", "double"})
_LONGEST_CHOICE = 12
"""Most columns that a message lists."""


def bind(text: str, columns: Sequence[Column], renames: Sequence[Rename] = ()) -> Expression:
    """Parse a check, and return it for a table with these columns. It may have the names that columns had before ``renames``.

    Raises InvalidSpecError that names the place: BadRule for the syntax or a type, UnknownColumn for a name.
    """
    kinds = {column.name: types.parse(column.type) for column in columns}
    bound = bind_parsed(text, syntax.parse(text), kinds, renames)
    if not names(bound):
        raise syntax.error(text, bound.position, "the check names no column; add a column of the table")
    return bound


def bind_parsed(
    text: str, expression: Expression, columns: Mapping[str, Type], renames: Sequence[Rename] = ()
) -> Expression:
    """Return the expression of a check for columns of these types. Raises the errors of `bind`."""
    binder = _Binder(text, columns, renames)
    bound, kind = binder.bind(expression)
    if kind != BOOLEAN:
        raise binder.error(expression, f"the check has type {kind} and is not a condition; compare it, as in a > 0")
    return bound


def type_of(text: str, name: Name, columns: Mapping[str, Type]) -> Type:
    """Return the type of a column that a check names. Raises InvalidSpecError (UnknownColumn)."""
    return _Binder(text, columns).bind(name)[1]


@dataclass(frozen=True, slots=True)
class _Binder:
    text: str
    columns: Mapping[str, Type]
    renames: Sequence[Rename] = ()

    def error(self, at: Expression, problem: str, reason: Reason = Reason.BAD_RULE) -> InvalidSpecError:
        return syntax.error(self.text, at.position, problem, reason)

    def bind(self, expression: Expression) -> tuple[Expression, Type]:
        """Return the expression with literals of the types that they are compared with, and its type."""
        match expression:
            case Name():
                name = self._present(expression)
                return name, self._type_of(name)
            case Constant(value):
                return expression, _type_of(value)
            case Call():
                return self._call(expression)
            case Arithmetic():
                return self._arithmetic(expression), DOUBLE
            case Comparison():
                return self._comparison(expression), BOOLEAN
            case IsOneOf():
                return self._is_one_of(expression), BOOLEAN
            case IsNull(operand):
                return replace(expression, operand=self.bind(operand)[0]), BOOLEAN
            case Matches():
                return self._matches(expression), BOOLEAN
            case Not(operand):
                return replace(expression, operand=self._condition(operand)), BOOLEAN
            case AllOf(operands) | AnyOf(operands):
                return replace(expression, operands=tuple(map(self._condition, operands))), BOOLEAN

    def _condition(self, expression: Expression) -> Expression:
        bound, kind = self.bind(expression)
        if kind != BOOLEAN:
            raise self.error(expression, f"a value of type {kind} is not a condition; compare it, as in a > 0")
        return bound

    def _present(self, name: Name) -> Name:
        """Return the name that a column has after the renames, if no column has the given one."""
        if not self.renames or types.at(self.columns, name.path) is not None:
            return name
        path = tuple(destination(str(name), self.renames).split("."))
        return name if types.at(self.columns, path) is None else replace(name, path=path)

    def _type_of(self, name: Name) -> Type:
        first, *rest = name.path
        kind = self.columns.get(first)
        if kind is None:
            raise self.error(name, self._unknown(first), Reason.UNKNOWN_COLUMN)
        for depth, member in enumerate(rest, 1):
            if not isinstance(kind, Struct) or member not in dict(kind.fields):
                above = ".".join(name.path[:depth])
                members = (
                    f"; choose one of {', '.join(dict(kind.fields))}" if isinstance(kind, Struct) else ", not a struct"
                )
                problem = f"{above} has no member {member}: its type is {kind}{members}"
                raise self.error(name, problem, Reason.UNKNOWN_COLUMN)
            kind = dict(kind.fields)[member]
        return kind

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, self.columns, n=1)
        listed = [*close, *(column for column in self.columns if column not in close)]
        more = f" and {len(listed) - _LONGEST_CHOICE} more" if len(listed) > _LONGEST_CHOICE else ""
        return f"{name!r} is not a column of the table; choose one of {', '.join(listed[:_LONGEST_CHOICE])}{more}"

    def _call(self, call: Call) -> tuple[Expression, Type]:
        argument, kind = self.bind(call.argument)
        bound = replace(call, argument=argument)
        if call.function == "length":
            if kind in (STRING, Primitive("binary")) or isinstance(kind, Fixed | ListOf | MapOf):
                return bound, LONG
            raise self.error(
                argument,
                f"length takes a string, binary, list or map, and this value has type {kind}; use one of these",
            )
        if kind != STRING:
            raise self.error(argument, f"{call.function} takes a string, and this value has type {kind}; use a string")
        return bound, STRING

    def _arithmetic(self, expression: Arithmetic) -> Arithmetic:
        (left, one), (right, other) = self.bind(expression.left), self.bind(expression.right)
        for part, kind in ((left, one), (right, other)):
            if not is_number(kind):
                raise self.error(part, f"{expression.sign} takes numbers, and this value has type {kind}; use a number")
        return replace(expression, left=left, right=right)

    def _is_one_of(self, expression: IsOneOf) -> IsOneOf:
        operand, kind = self.bind(expression.operand)
        fitted = (self._fitted(item, kind, ordered=False)[0] for item in expression.items)
        return replace(expression, operand=operand, items=tuple(item for item in fitted if isinstance(item, Constant)))

    def _matches(self, expression: Matches) -> Matches:
        operand, kind = self.bind(expression.operand)
        if kind != STRING:
            word = "like" if expression.like else "matches"
            raise self.error(operand, f"{word} takes a string, and this value has type {kind}; use a string")
        return replace(expression, operand=operand)

    def _comparison(self, comparison: Comparison) -> Comparison:
        ordered = comparison.operator not in ("=", "!=")
        left, kind = self.bind(comparison.left)
        if isinstance(left, Constant):
            right, other = self.bind(comparison.right)
            left, _ = self._fitted(left, other, ordered=ordered)
            return replace(comparison, left=left, right=right)
        right, _ = self._fitted(comparison.right, kind, ordered=ordered)
        return replace(comparison, left=left, right=right)

    def _fitted(self, expression: Expression, wanted: Type, *, ordered: bool) -> tuple[Expression, Type]:
        """Return an expression that can be compared with ``wanted``. ``ordered``: by size, not only for equality."""
        bound, kind = self.bind(expression)
        for nested in (kind, wanted):
            if isinstance(nested, Struct | ListOf | MapOf) or nested == Primitive("variant"):
                problem = f"a value of type {nested} cannot be compared; use is null, length or a member"
                raise self.error(expression, problem)
        if wanted == UUID_TYPE and isinstance(bound, Constant) and isinstance(bound.value, str):
            try:
                bound, kind = replace(bound, value=UUID(bound.value)), UUID_TYPE
            except ValueError:
                raise self.error(expression, f"{bound.value!r} is not a UUID; correct it") from None
        if isinstance(bound, Constant) and isinstance(bound.value, datetime) and _OF_NANOSECONDS.get(wanted) == kind:
            if bound.value.year not in _NANOSECOND_YEARS:
                raise self.error(
                    expression,
                    f"type {wanted} has no time of the year {bound.value.year}; write a year from 1678 to 2261",
                )
            kind = wanted
        if not (kind == wanted or (is_number(kind) and is_number(wanted))):
            raise self.error(
                expression,
                f"a value of type {kind} cannot be compared with one of type {wanted}; {_advice(kind, wanted)}",
            )
        if ordered and wanted in (BOOLEAN, UUID_TYPE):
            raise self.error(expression, f"values of type {wanted} have no order; use = or !=")
        return bound, kind


def is_number(kind: Type) -> bool:
    """Return whether values of a type are numbers."""
    return isinstance(kind, types.Decimal) or (isinstance(kind, Primitive) and kind.name in _NUMBERS)


def _type_of(value: object) -> Type:
    match value:
        case bool():
            return BOOLEAN
        case int():
            return LONG
        case Decimal():
            return decimal_type(value)
        case str():
            return STRING
        case datetime():
            return TIMESTAMP if value.tzinfo is None else TIMESTAMPTZ
        case date():
            return DATE
    return UUID_TYPE


def decimal_type(value: Decimal) -> types.Decimal:
    """Return the narrowest type that holds a value of at most 38 digits."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    return types.Decimal(max(len(digits) + max(0, exponent), scale, 1), scale)


def _advice(kind: Type, wanted: Type) -> str:
    match kind, wanted:
        case Primitive("timestamp"), Primitive("timestamptz" | "timestamptz_ns"):
            return "write the zone of the time, such as timestamp '2026-01-31 12:00:00Z'"
        case Primitive("timestamptz"), Primitive("timestamp" | "timestamp_ns"):
            return "write the time without a zone"
        case _, Primitive("date"):
            return "write date '2026-01-31'"
        case _, Primitive("timestamp" | "timestamp_ns"):
            return "write timestamp '2026-01-31 12:00:00'"
        case _, Primitive("timestamptz" | "timestamptz_ns"):
            return "write timestamp '2026-01-31 12:00:00Z'"
        case _, Primitive("string"):
            return "write the text in single quotes"
        case _, Primitive("boolean"):
            return "write true or false"
    if is_number(wanted):
        return "write a number"
    has_literals = wanted == UUID_TYPE
    return (
        f"compare it with a value of type {wanted}"
        if has_literals
        else f"use is null, or another column of type {wanted}"
    )
