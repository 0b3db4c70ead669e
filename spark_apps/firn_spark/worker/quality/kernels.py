"""Checks as Arrow kernels. Numbers compare by value: integers and decimals exactly, with a float in double precision."""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import partial, reduce
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from firn.quality.binding import decimal_type
from firn.quality.expressions import (
    AllOf,
    AnyOf,
    Arithmetic,
    Call,
    Comparison,
    Constant,
    Expression,
    Function,
    IsNull,
    IsOneOf,
    Matches,
    Name,
    Not,
    Operator,
    Sign,
    Value,
)
from firn.tables import types

Columns = Mapping[str, pa.Array]
Datum = Any
"""An array with a value for each row, or a scalar."""
Kernel = Callable[[Columns], Datum]

_COMPARISONS: dict[Operator, str] = {
    "=": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal",
}  # fmt: skip
_ARITHMETIC: dict[Sign, str] = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
_LETTERS: dict[Function, str] = {"lower": "utf8_lower", "upper": "utf8_upper"}
_NULL = pa.scalar(None, pa.bool_())
_LONG = pa.decimal128(19, 0)
"""The decimal type that holds every integer of 64 bits."""


def kernel(expression: Expression) -> Kernel:
    """Return the function that computes an expression for the rows of a batch. Raises ArrowInvalid for a wrong pattern."""
    match expression:
        case Name(path):
            return _column(path)
        case Constant(value):
            scalar = _scalar(value)
            return lambda columns: scalar
        case Call(function, argument):
            return _call(function, kernel(argument))
        case Arithmetic(sign, left, right):
            return _arithmetic(sign, kernel(left), kernel(right))
        case Comparison(operator, left, right):
            return _comparison(operator, kernel(left), kernel(right))
        case IsOneOf(operand, items):
            return _is_one_of(kernel(operand), [item.value for item in items])
        case IsNull(operand):
            of_null = kernel(operand)
            return lambda columns: call("is_null", of_null(columns))
        case Matches(operand, pattern, like):
            return _matches(kernel(operand), pattern, like=like)
        case Not(operand):
            negated = kernel(operand)
            return lambda columns: call("invert", negated(columns))
        case AllOf(operands):
            return _folded("and_kleene", [kernel(each) for each in operands])
        case AnyOf(operands):
            return _folded("or_kleene", [kernel(each) for each in operands])


def call(name: str, *arguments: Datum, options: Any = None) -> Datum:
    """Return the result of an Arrow function."""
    return pc.call_function(name, list(arguments), options)


def _column(path: tuple[str, ...]) -> Kernel:
    first, *members = path

    def column(columns: Columns) -> Datum:
        found = columns[first]
        return call("struct_field", found, options=pc.StructFieldOptions(members)) if members else found

    return column


def _scalar(value: Value) -> pa.Scalar:
    match value:
        case bool():
            return pa.scalar(value, pa.bool_())
        case int():
            return pa.scalar(value, pa.int64())
        case Decimal():
            kind = decimal_type(value)
            return pa.scalar(value, pa.decimal128(kind.precision, kind.scale))
        case str():
            return pa.scalar(value, pa.string())
        case datetime():
            return pa.scalar(value, pa.timestamp("us", tz=None if value.tzinfo is None else "UTC"))
        case date():
            return pa.scalar(value, pa.date32())
        case UUID():
            return pa.scalar(value.bytes, pa.binary(16))


def _call(function: Function, argument: Kernel) -> Kernel:
    if function != "length":
        letters = _LETTERS[function]
        return lambda columns: call(letters, argument(columns))

    def length(columns: Columns) -> Datum:
        found = argument(columns)
        if pa.types.is_string(found.type):
            return call("utf8_length", found)
        if pa.types.is_map(found.type):
            return call(
                "list_value_length", found.cast(pa.list_(pa.struct([found.type.key_field, found.type.item_field])))
            )
        if pa.types.is_list(found.type):
            return call("list_value_length", found)
        return call("binary_length", found)

    return length


def _arithmetic(sign: Sign, left: Kernel, right: Kernel) -> Kernel:
    name = _ARITHMETIC[sign]

    def result(columns: Columns) -> Datum:
        one, other = _double(left(columns)), _double(right(columns))
        if sign == "/":
            other = call("if_else", call("equal", other, pa.scalar(0.0)), pa.scalar(None, pa.float64()), other)
        return call(name, one, other)

    return result


def _comparison(operator: Operator, left: Kernel, right: Kernel) -> Kernel:
    name = _COMPARISONS[operator]
    return lambda columns: call(name, *_comparable(left(columns), right(columns)))


def _is_one_of(operand: Kernel, values: list[Value]) -> Kernel:
    scalars = [_scalar(value) for value in values]
    kinds = {scalar.type for scalar in scalars}
    members = pa.array([scalar.as_py() for scalar in scalars], kinds.pop()) if len(kinds) == 1 else None

    def is_one_of(columns: Columns) -> Datum:
        found = operand(columns)
        if pa.types.is_int32(found.type) and members is not None and pa.types.is_int64(members.type):
            found = found.cast(pa.int64())
        if members is not None and found.type == members.type:
            found_in = call("is_in", found, options=pc.SetLookupOptions(value_set=members))
            return call("if_else", call("is_valid", found), found_in, _NULL)
        return reduce(partial(call, "or_kleene"), (call("equal", *_comparable(found, scalar)) for scalar in scalars))

    return is_one_of


def _matches(operand: Kernel, pattern: str, *, like: bool) -> Kernel:
    name, options = "match_like" if like else "match_substring_regex", pc.MatchSubstringOptions(pattern)
    call(name, pa.array([""]), options=options)  # Arrow compiles a pattern when it is used.
    return lambda columns: call(name, operand(columns), options=options)


def _folded(name: str, operands: list[Kernel]) -> Kernel:
    return lambda columns: reduce(partial(call, name), (operand(columns) for operand in operands))


def _comparable(left: Datum, right: Datum) -> tuple[Datum, Datum]:
    """Return both values in a type in which they can be compared."""
    if left.type == right.type or not (_is_number(left.type) and _is_number(right.type)):
        return left, right
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        return _double(left), _double(right)
    if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
        return left.cast(pa.int64()), right.cast(pa.int64())
    left, right = (value.cast(_LONG) if pa.types.is_integer(value.type) else value for value in (left, right))
    scale = max(left.type.scale, right.type.scale)
    digits = max(left.type.precision - left.type.scale, right.type.precision - right.type.scale) + scale
    common = pa.decimal128(digits, scale) if digits <= types.MOST_DIGITS else pa.decimal256(digits, scale)
    return left.cast(common), right.cast(common)


def _double(value: Datum) -> Datum:
    # Not safe: integers beyond 2^53 are rounded.
    return value if pa.types.is_float64(value.type) else pc.cast(value, pa.float64(), safe=False)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
