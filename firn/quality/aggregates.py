"""Checks of many rows: ``count(*) >= 1000 and null_share(customer) < 0.01``.

Their words are those of checks of one row, with aggregates instead of columns. A check has no column outside an
aggregate, so that the metrics of data files can answer it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from firn.model.jobs import Column
from firn.quality import syntax
from firn.quality.binding import DATE, DOUBLE, LONG, TIMESTAMP, TIMESTAMPTZ, bind_parsed, is_number, type_of
from firn.quality.expressions import Aggregate, Expression, names
from firn.tables import types
from firn.tables.types import Type


@dataclass(frozen=True, slots=True)
class BoundCheck:
    """A check for a table. ``expression`` names each aggregate as a column, by its text."""

    expression: Expression
    aggregates: tuple[Aggregate, ...]
    types: dict[str, Type]
    """Text of an aggregate -> its type."""


def bind_aggregates(text: str, columns: Sequence[Column]) -> BoundCheck:
    """Parse a check of many rows, and return it for a table with these columns.

    Raises InvalidSpecError that names the place: BadRule for the syntax or a type, UnknownColumn for a name.
    """
    found: list[Aggregate] = []
    expression = syntax.parse(text, found)
    if not found:
        raise syntax.error(
            text, expression.position, "the check has no aggregate; use count(*), count, null_share, min or max"
        )
    texts = {str(aggregate) for aggregate in found}
    for name in names(expression):
        if str(name) not in texts:
            problem = f"{name} is a column, and the check is about many rows; write an aggregate, such as min({name})"
            raise syntax.error(text, name.position, problem)
    known = {column.name: types.parse(column.type) for column in columns}
    kinds = {str(aggregate): _type_of(text, aggregate, known) for aggregate in found}
    return BoundCheck(bind_parsed(text, expression, kinds), tuple({str(each): each for each in found}.values()), kinds)


def _type_of(text: str, aggregate: Aggregate, columns: dict[str, Type]) -> Type:
    if aggregate.column is None:
        return LONG
    kind = type_of(text, aggregate.column, columns)
    if aggregate.function == "count":
        return LONG
    if aggregate.function == "null_share":
        return DOUBLE
    if not (is_number(kind) or kind in (DATE, TIMESTAMP, TIMESTAMPTZ)):
        problem = f"{aggregate.function} takes numbers, dates and times, and {aggregate.column} has type {kind}; use another column"
        raise syntax.error(text, aggregate.position, problem)
    return kind
