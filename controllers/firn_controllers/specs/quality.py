"""Checks quality rules: the columns exist, the types fit, and RE2 accepts the patterns."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, PublishCheck, QualityRule
from firn.quality import syntax
from firn.quality.aggregates import bind_aggregates
from firn.quality.binding import bind
from firn.quality.expressions import patterns
from firn_controllers.specs.expressions import compile_expression

Named = TypeVar("Named", QualityRule, PublishCheck)


def check_rule(rule: QualityRule, columns: Sequence[Column]) -> None:
    """Check a rule for a table with these columns. Raises InvalidSpecError: BadRule or UnknownColumn."""
    for found in patterns(bind(rule.check, columns)):
        try:
            compile_expression(found.pattern)
        except ValueError as error:
            problem = f"{found.pattern!r} is not a pattern of RE2: {error}; correct the pattern"
            raise syntax.error(rule.check, found.position, problem) from error


def check_filter(condition: str, columns: Sequence[Column]) -> None:
    """Check the filter of a topic for a table with these columns. Raises InvalidSpecError (BadSchema)."""
    try:
        check_rule(QualityRule(name="filter", check=condition), columns)
    except InvalidSpecError as error:
        raise InvalidSpecError(str(error), reason=Reason.BAD_SCHEMA) from error


def check_publish(check: PublishCheck, columns: Sequence[Column]) -> None:
    """Check a check of many rows for a table with these columns. Raises InvalidSpecError: BadRule or UnknownColumn."""
    bind_aggregates(check.check, columns)


def check_all(
    kind: str, named: Sequence[Named], check: Callable[[Named, Sequence[Column]], None], columns: Sequence[Column]
) -> None:
    """Check rules or checks, each with a name of its own. Raises the InvalidSpecError of ``check`` with the name, and BadRule."""
    names: set[str] = set()
    for each in named:
        if each.name in names:
            raise InvalidSpecError(f"two {kind}s have the name {each.name}; rename one of them", reason=Reason.BAD_RULE)
        names.add(each.name)
    for each in named:
        try:
            check(each, columns)
        except InvalidSpecError as error:
            raise InvalidSpecError(f"{kind} {each.name}: {error}", reason=error.reason) from error
