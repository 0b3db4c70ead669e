"""Checks quality rules: the columns exist, the types fit, and RE2 accepts the patterns."""

from collections.abc import Sequence

import re2

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, PublishCheck, QualityRule
from firn.quality import syntax
from firn.quality.aggregates import bind_aggregates
from firn.quality.binding import bind
from firn.quality.expressions import patterns

PATTERN_BYTES = 1 << 20
"""Most memory of a compiled pattern. Each task compiles it."""


def check_rule(rule: QualityRule, columns: Sequence[Column]) -> None:
    """Check a rule for a table with these columns. Raises InvalidSpecError: BadRule or UnknownColumn."""
    for found in patterns(bind(rule.check, columns)):
        problem = _problem(found.pattern)
        if problem:
            raise syntax.error(
                rule.check, found.position, f"{found.pattern!r} is not a pattern of RE2: {problem}; correct the pattern"
            )


def check_filter(condition: str, columns: Sequence[Column]) -> None:
    """Check the filter of a topic for a table with these columns. Raises InvalidSpecError (BadSchema)."""
    try:
        check_rule(QualityRule(name="filter", check=condition), columns)
    except InvalidSpecError as error:
        raise InvalidSpecError(str(error), reason=Reason.BAD_SCHEMA) from error


def _problem(pattern: str) -> str:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        return str(error.args[0].decode(errors="replace"))
    return ""


def check_publish(check: PublishCheck, columns: Sequence[Column]) -> None:
    """Check a check of many rows for a table with these columns. Raises InvalidSpecError: BadRule or UnknownColumn."""
    bind_aggregates(check.check, columns)


def duplicate(rules: Sequence[QualityRule | PublishCheck]) -> InvalidSpecError | None:
    """Return the error that two rules have one name, or None."""
    names = [rule.name for rule in rules]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is None:
        return None
    return InvalidSpecError(f"two rules have the name {twice}; rename one of them", reason=Reason.BAD_RULE)
