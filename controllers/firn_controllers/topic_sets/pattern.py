"""The names of topics that a TopicSet matches, with RE2, which matches in linear time."""

from collections.abc import Mapping
from typing import Any

import re2

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError

PATTERN_BYTES = 1 << 20
"""Most memory of a compiled expression."""


class TopicPattern:
    """The names that ``match`` finds and ``exclude`` does not find."""

    def __init__(self, match: str, exclude: str | None) -> None:
        """Raises InvalidSpecError (BadPattern) that names the field."""
        self._match = _compiled("match", match)
        self._exclude = _compiled("exclude", exclude) if exclude is not None else None
        self._underscored = match.startswith(("_", "^_"))
        self._dead_letters = names.DEAD_LETTER_SUFFIX in match
        self.groups: frozenset[str] = frozenset(self._match.groupindex)

    def values(self, topic: str) -> Mapping[str, str] | None:
        """Return the values of the named groups, or None if the topic does not match."""
        if self._is_internal(topic):
            return None
        found = self._match.search(topic)
        if found is None or (self._exclude is not None and self._exclude.search(topic) is not None):
            return None
        return {name: value or "" for name, value in found.groupdict().items()}

    def _is_internal(self, topic: str) -> bool:
        """Return whether the topic belongs to a tool, or has the name of dead letters, and ``match`` does not name such topics.

        Kafka reserves ``__``. The schema registry and Kafka Connect begin the names of their topics with ``_``.
        """
        if topic.startswith("_"):
            return topic.startswith("__") or not self._underscored
        return topic.endswith(names.DEAD_LETTER_SUFFIX) and not self._dead_letters


def _compiled(field: str, expression: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        cause = error.args[0].decode(errors="replace") if error.args else "unknown error"
        raise InvalidSpecError(
            f"spec.{field}: {expression} is no RE2 expression: {cause}; correct it", reason=Reason.BAD_PATTERN
        ) from error
