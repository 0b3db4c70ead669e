"""Filters that DuckDB pushes into a scan: read from Arrow's expressions, and translated for PyIceberg.

DuckDB hands a filter over as an Arrow expression, which Python cannot inspect. Arrow serializes expressions, so `parse` reads the serialized
form. For a form that it does not know, nothing is pushed into the Iceberg scan, and Arrow still applies the whole filter.
"""

import ctypes
import functools
import itertools
import math
import operator
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions as iceberg
from pyiceberg import types
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema


class UnknownExpressionError(Exception):
    """An expression has a form that this version does not know."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a member of a struct."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: an Arrow scalar."""

    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an Arrow function."""

    function: str
    arguments: tuple["Node", ...]
    values: pa.Scalar | None = None
    """The list of ``is_in``."""


Node = Column | Literal | Call

_COMPARISONS: dict[str, Callable[[pc.Expression, pa.Scalar], pc.Expression]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
_ICEBERG: dict[str, Any] = {
    "equal": iceberg.EqualTo,
    "not_equal": iceberg.NotEqualTo,
    "less": iceberg.LessThan,
    "less_equal": iceberg.LessThanOrEqual,
    "greater": iceberg.GreaterThan,
    "greater_equal": iceberg.GreaterThanOrEqual,
}
_ABOVE = ("greater", "greater_equal")
"""Comparisons that NaN satisfies: in DuckDB, NaN is greater than all numbers. In Arrow, it satisfies neither."""
_WITHOUT_NAN = ("equal", "less", "less_equal")
"""Comparisons with a number that NaN does not satisfy. The bounds of files and row groups leave out NaN, so Arrow skips row groups with NaN for
the others."""
_PUSHED = (
    types.BooleanType,
    types.IntegerType,
    types.LongType,
    types.FloatType,
    types.DoubleType,
    types.DateType,
    types.TimestampType,
    types.TimestamptzType,
    types.StringType,
)
"""Types whose values DuckDB, Arrow and Iceberg order in the same way."""
_MOST_VALUES = 1000
"""Most values of an IN that is pushed into the Iceberg scan. Each file is compared with each of them."""


class _ArrowSchema(ctypes.Structure):
    """The beginning of ``struct ArrowSchema`` of Arrow's C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def parse(expression: pc.Expression) -> Node:
    """Return the tree of an Arrow expression. Raises UnknownExpressionError."""
    _, (buffer,) = expression.__reduce__()
    with pa.ipc.open_file(buffer) as reader:
        literals = [column[0] for column in reader.read_all().columns]
        pairs = _metadata(reader.schema)
    node = _parsed(pairs, literals)
    if next(pairs, None) is not None:
        raise UnknownExpressionError("an expression has more than one root")
    return node


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield the metadata of a schema in their order. ``schema.metadata`` would drop all but one value of a key."""
    capsule = schema.__arrow_c_schema__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    address = _ArrowSchema.from_address(pointer(capsule, b"arrow_schema")).metadata

    def number() -> int:
        nonlocal address
        (value,) = struct.unpack("=i", ctypes.string_at(address, 4))
        address += 4
        return int(value)

    def text() -> str:
        nonlocal address
        size = number()
        value = ctypes.string_at(address, size).decode()
        address += size
        return value

    for _ in range(number() if address else 0):
        yield text(), text()


def _parsed(pairs: Iterator[tuple[str, str]], literals: Sequence[pa.Scalar]) -> Node:
    match next(pairs, None):
        case ("literal", index):
            return Literal(literals[int(index)])
        case ("field_ref", name):
            return Column((name,))
        case ("nested_field_ref", length):
            parts = [next(pairs, ("", "")) for _ in range(int(length))]
            if any(kind != "field_ref" for kind, _ in parts):
                raise UnknownExpressionError("a member of a struct has no name")
            return Column(tuple(name for _, name in parts))
        case ("call", function):
            return _call(function, pairs, literals)
        case pair:
            raise UnknownExpressionError(f"an expression has {pair}")


def _call(function: str, pairs: Iterator[tuple[str, str]], literals: Sequence[pa.Scalar]) -> Call:
    arguments: list[Node] = []
    values: pa.Scalar | None = None
    for key, value in pairs:
        if (key, value) == ("end", function):
            return Call(function, tuple(arguments), values)
        if key == "options":
            options = literals[int(value)]
            values = options["value_set"] if function == "is_in" else None
        else:
            # The pair is the beginning of an argument.
            arguments.append(_parsed(itertools.chain([(key, value)], pairs), literals))
    raise UnknownExpressionError(f"the call of {function} has no end")


def exact(expression: pc.Expression, node: Node, schema: pa.Schema) -> pc.Expression:
    """Return the filter with DuckDB's order of floating-point numbers, in which NaN equals NaN and is the greatest number.

    Arrow's own comparisons are wrong for NaN only, so a filter without such columns stays as it is. Raises UnknownExpressionError.
    """
    if not any(pa.types.is_floating(_type(column, schema)) for column in _columns(node)):
        return expression
    return _rebuilt(node)


def _columns(node: Node) -> Iterator[Column]:
    if isinstance(node, Column):
        yield node
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from _columns(argument)


def _type(column: Column, schema: pa.Schema) -> pa.DataType:
    kind = schema.field(column.path[0]).type
    for name in column.path[1:]:
        kind = kind.field(name).type
    return kind


def _rebuilt(node: Node) -> pc.Expression:
    match node:
        case Column(path):
            return pc.field(*path) if len(path) > 1 else pc.field(path[0])
        case Literal(value):
            return pc.scalar(value)
        case Call("and_kleene", arguments):
            return functools.reduce(operator.and_, map(_rebuilt, arguments))
        case Call("or_kleene", arguments):
            return functools.reduce(operator.or_, map(_rebuilt, arguments))
        case Call("invert", (argument,)):
            return ~_rebuilt(argument)
        case Call("is_nan", (argument,)):
            return _nan(_rebuilt(argument))
        case Call("is_valid", (argument,)):
            return _rebuilt(argument).is_valid()
        case Call("is_null", (argument,)):
            return _rebuilt(argument).is_null()
        case Call("is_in", (Column() as column,), values) if values is not None:
            return functools.reduce(operator.or_, (_compared("equal", column, value) for value in values.values))
        case Call(function, (Column() as column, Literal(value))) if function in _COMPARISONS:
            return _compared(function, column, value)
    raise UnknownExpressionError(f"the filter {node} has no known form")


def _nan(field: pc.Expression) -> pc.Expression:
    return pc.is_nan(field)  # type: ignore[attr-defined]


def _compared(function: str, column: Column, value: pa.Scalar) -> pc.Expression:
    field = _rebuilt(column)
    if not pa.types.is_floating(value.type):
        return _COMPARISONS[function](field, value)
    if _is_nan(value):
        nan, known = _nan(field), field.is_valid()
        never = known & ~known
        return {
            "equal": nan,
            "not_equal": ~nan,
            "less": ~nan,
            "less_equal": known,
            "greater": never,
            "greater_equal": nan,
        }[function]
    compared = _COMPARISONS[function](field, value)
    return compared | _nan(field) if function in _ABOVE else compared


def _is_nan(value: pa.Scalar) -> bool:
    number = value.as_py()
    return bool(number != number)


def for_scan(node: Node, schema: Schema) -> iceberg.BooleanExpression:
    """Return a filter for PyIceberg that all rows of ``node`` pass. It leaves out the parts that cannot be translated."""
    match node:
        case Call("and_kleene", arguments):
            return _all(for_scan(each, schema) for each in arguments)
        case Call("or_kleene", arguments):
            return _any(for_scan(each, schema) for each in arguments)
        case Call("is_in", (Column((name,)),), values) if values is not None and len(values) <= _MOST_VALUES:
            return _any(_predicate("equal", name, value, schema) for value in values.values)
        case Call("is_null", (Column((name,)),)) if _is_pushed(name, schema):
            return iceberg.IsNull(term=name)
        case Call("is_valid", (Column((name,)),)) if _is_pushed(name, schema):
            return iceberg.NotNull(term=name)
        case Call(function, (Column((name,)), Literal(value))) if function in _ICEBERG:
            return _predicate(function, name, value, schema)
    return iceberg.AlwaysTrue()


def _all(parts: Iterable[iceberg.BooleanExpression]) -> iceberg.BooleanExpression:
    joined: iceberg.BooleanExpression = iceberg.AlwaysTrue()
    for part in parts:
        joined = iceberg.And(joined, part)
    return joined


def _any(parts: Iterable[iceberg.BooleanExpression]) -> iceberg.BooleanExpression:
    joined: iceberg.BooleanExpression = iceberg.AlwaysFalse()
    for part in parts:
        joined = iceberg.Or(joined, part)
    return joined


def _is_pushed(name: str, schema: Schema) -> bool:
    # PyIceberg reads a dot as a step into a struct.
    return "." not in name and isinstance(schema.find_field(name).field_type, _PUSHED)


def _predicate(function: str, name: str, value: pa.Scalar, schema: Schema) -> iceberg.BooleanExpression:
    if not value.is_valid or not _is_pushed(name, schema):
        return iceberg.AlwaysTrue()
    # PyIceberg takes an infinite value for one outside the range of a float column, and would skip its rows.
    if pa.types.is_floating(value.type) and (function not in _WITHOUT_NAN or not math.isfinite(value.as_py())):
        return iceberg.AlwaysTrue()
    try:
        predicate: iceberg.BooleanExpression = _ICEBERG[function](name, value.as_py())
        # A value that the type of the column does not have, such as a time after the year 9999, is left to Arrow.
        bind(schema, predicate, case_sensitive=True)
    except (ValueError, OverflowError, TypeError):
        return iceberg.AlwaysTrue()
    return predicate
