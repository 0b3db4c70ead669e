"""RE2 expressions of specs. RE2 matches in linear time, so no expression can stop the operator."""

from typing import Any

import re2

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError

PATTERN_BYTES = 1 << 20
"""Most memory of a compiled expression."""


def compiled(field: str, expression: str, reason: Reason) -> Any:
    """Return the compiled expression. Raises InvalidSpecError, which names the field and has this reason."""
    try:
        return compile_expression(expression)
    except ValueError as error:
        raise InvalidSpecError(
            f"{field}: {expression} is no RE2 expression: {error}; correct it", reason=reason
        ) from error


def compile_expression(expression: str) -> Any:
    """Return the compiled expression. Raises ValueError with the cause."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        cause = error.args[0].decode(errors="replace") if error.args else "unknown error"
        raise ValueError(cause) from error
