"""Brings the tables of a topic with routes to the same offsets, so that one read of the log serves all of them.

After a failure or a restart, a table can be behind the others. It then reads up to the offsets of the next table, which waits for it.
After that, both read together. Otherwise, each table would read to the end of a growing log, and would never meet the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from firn.model.progress import Offsets
from firn_spark.ingestion.rounds.planning import LARGE_BYTES
from firn_spark.ingestion.topics.topic import Topic

MOST_HELD = 5
"""Most rounds of other tables in a row for which a table waits. Without this limit, many tables at different offsets would delay it."""


@dataclass(frozen=True, slots=True)
class Levelling:
    """A round that brings tables to the offsets of the next ones."""

    group: Sequence[Topic]
    """The tables that read."""
    end: Offsets
    """The offsets up to which they read."""
    held: Sequence[Topic]
    """The tables that wait for the round."""


class RoutedTables:
    """The idle tables of the topics with routes."""

    def __init__(self, bytes_per_commit: int) -> None:
        """A round has ``bytes_per_commit`` at most."""
        self._most = max(LARGE_BYTES, bytes_per_commit)
        self._tables: dict[tuple[str, str], list[Topic]] = {}

    def add(self, topic: Topic) -> None:
        """Add a table, if its topic has routes."""
        if topic.job.route is not None:
            self._tables.setdefault((topic.job.profile, topic.job.topic), []).append(topic)

    def readers(self, first: Topic) -> list[Topic]:
        """Return ``first`` and the tables at the same offsets, which share its read of the log, also before they are due."""
        return [
            first,
            *(each for each in self._of(first) if each is not first and _is_ready(each) and each.reads_with(first)),
        ]

    def levelling(self, due: Topic) -> Levelling | None:
        """Return the round that serves ``due`` best if tables near it have other offsets; None if ``due`` reads to the log's end.

        A table that fails, or that is more than a round behind, reads on its own: the others would wait for long.
        """
        # The offsets of a gap are lost, and its commit needs no records.
        if due.job.route is None or due.gaps or due.reading.held >= MOST_HELD:
            return None
        near = [each for each in self._of(due) if self._is_near(each, due)]
        if due not in near:
            return None
        first = min(near, key=lambda each: (_sum(each), each is not due))
        ahead = [each for each in near if _sum(each) > _sum(first)]
        if not ahead:
            return None
        end = dict(min(ahead, key=_sum).reading.position)
        if not any(start < end[part] for part, (start, _) in first.behind().items()):
            return None
        return Levelling(self.readers(first), end, [each for each in ahead if each.reading.held < MOST_HELD])

    def _of(self, topic: Topic) -> Sequence[Topic]:
        return self._tables.get((topic.job.profile, topic.job.topic), ())

    def _is_near(self, topic: Topic, due: Topic) -> bool:
        """Return whether the offsets of two tables are at most a round apart."""
        mine, others = topic.reading.position, due.reading.position
        if not _is_ready(topic) or topic.reading.topic != due.reading.topic or mine.keys() != others.keys():
            return False
        distances = [mine[part] - others[part] for part in mine]
        in_order = min(distances, default=0) >= 0 or max(distances) <= 0
        return in_order and abs(sum(distances)) * topic.reading.record_bytes <= self._most


def _is_ready(topic: Topic) -> bool:
    """Return whether a table can read together with others."""
    return topic.active and not (topic.busy or topic.attempts.failures or topic.reading.spark_source)


def _sum(topic: Topic) -> int:
    return sum(topic.reading.position.values())
