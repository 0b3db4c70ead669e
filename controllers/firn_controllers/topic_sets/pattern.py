"""The names of topics that a TopicSet matches, with RE2, which matches in linear time."""

from collections.abc import Mapping

from firn.model import names
from firn.model.conditions import Reason
from firn_controllers.specs.expressions import compiled


class TopicPattern:
    """The names that ``match`` finds and ``exclude`` does not find."""

    def __init__(self, match: str, exclude: str | None) -> None:
        """Raises InvalidSpecError (BadPattern) that names the field."""
        self._match = compiled("spec.match", match, Reason.BAD_PATTERN)
        self._exclude = compiled("spec.exclude", exclude, Reason.BAD_PATTERN) if exclude is not None else None
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
