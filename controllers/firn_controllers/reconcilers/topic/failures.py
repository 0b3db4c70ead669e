"""Failures of dependencies by topic, and the retries of these topics.

A dependency is the brokers of a profile or a catalog. The board only shows whether it answers at all. A catalog may
answer while its object store does not, and a grant may be missing for one topic. So each topic retries on its own, but
not many at a time.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping

from firn.model.errors import FirnError, InvalidSpecError
from firn_controllers.cache.topics import Name
from firn_controllers.ports import TableState, TopicState
from firn_controllers.queue import Outcome

LONGEST_RETRY = 15.0
"""Seconds after which a topic or table that a dependency failed is retried at the latest, so that Ready follows its
recovery soon.
"""
RETRIES_PER_SECOND = 20
"""Retries of all topics together. With more failed topics, each waits longer than `LONGEST_RETRY`."""


class DependencyFailures:
    """Errors of dependencies by topic. ``wake`` reconciles a topic."""

    def __init__(self, wake: Callable[[Name], None]) -> None:
        self._wake = wake
        self._failing: dict[Name, dict[str, FirnError]] = {}
        self._retrying: set[str] = set()

    @contextlib.contextmanager
    def turn(self, name: Name, dependency: str) -> Iterator[None]:
        """Let one topic at a time retry a dependency that failed it.

        Raises the topic's earlier error while another one retries.

        Without turns, a store that swallows requests would hold up every worker of the queue.
        """
        before = self._failing.get(name, {}).get(dependency)
        if before is None:
            yield
            return
        if dependency in self._retrying:
            raise before.with_traceback(None)
        self._retrying.add(dependency)
        try:
            yield
        finally:
            self._retrying.discard(dependency)

    def settle(self, name: Name, results: Mapping[str, object]) -> Outcome | None:
        """Record the result of each dependency. Returns how the topic is retried, or None if no dependency failed it.

        A topic that the spec's author has to repair is not retried: its next spec is an event. The first topic for
        which a dependency recovers wakes the others that it failed.
        """
        before = self._failing.pop(name, {})
        self._wake_failed_by(
            {dependency for dependency in before if isinstance(results.get(dependency), TopicState | TableState)}
        )
        errors = {
            dependency: result
            for dependency, result in results.items()
            if isinstance(result, FirnError) and not isinstance(result, InvalidSpecError)
        }
        if not errors:
            return None
        self._failing[name] = errors
        return Outcome(failed=True, longest=max(LONGEST_RETRY, len(self._failing) / RETRIES_PER_SECOND))

    def forget(self, name: Name) -> None:
        """Forget the errors of a topic."""
        self._failing.pop(name, None)

    def _wake_failed_by(self, recovered: set[str]) -> None:
        affected = [(name, errors) for name, errors in self._failing.items() if recovered & errors.keys()]
        for name, errors in affected:
            # Errors of other dependencies stay, so that the topic still takes turns on them.
            rest = {dependency: error for dependency, error in errors.items() if dependency not in recovered}
            if rest:
                self._failing[name] = rest
            else:
                del self._failing[name]
            self._wake(name)
