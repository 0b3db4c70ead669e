"""The topics of a profile, as its brokers last listed them. All sets of the profile share the list."""

from dataclasses import dataclass

from firn.model.errors import FirnError

INTERVAL = 30.0
"""Least seconds between two lists of the topics of a profile."""
TOPICS_PER_SECOND = 200
"""Topics for each second between two lists. So the lists of many topics cost a small share of the processor."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Names of topics, and the Kafka cluster that has them."""

    topics: frozenset[str] | None = None
    """None before the first list."""
    cluster_id: str = ""
    """Kafka's id of the cluster that answered; empty if it is not known."""
    problem: FirnError | None = None
    """The error of the last attempt."""

    @property
    def interval(self) -> float:
        """Seconds until the next list."""
        return max(INTERVAL, len(self.topics or ()) / TOPICS_PER_SECOND)
