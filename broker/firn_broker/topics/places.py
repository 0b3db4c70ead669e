"""The partitions that a request names, and their bounds."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from firn_broker.log_types import LogState, Partition
from firn_broker.ports import LogStore
from firn_broker.topics.topic_metadata import TopicMetadata


class Places(NamedTuple):
    """The partitions of a request by topic and in its order, None for those that do not exist, and their bounds."""

    by_topic: Sequence[Sequence[Partition | None]]
    states: Mapping[Partition, LogState | None]

    def state(self, place: Partition | None) -> LogState | None:
        """Return the bounds of a partition; None if it does not exist."""
        return None if place is None else self.states[place]


async def find_places(
    topic_metadata: TopicMetadata,
    log_store: LogStore,
    requested: Iterable[tuple[str, Sequence[int]]],
    hidden: Container[str] = (),
) -> Places:
    """Find the partitions of these topics and indexes, and read their bounds in one call. Those of ``hidden`` topics do not
    exist for the client. Raises UnavailableError."""
    by_topic = []
    for name, indexes in requested:
        topic = None if name in hidden else await topic_metadata.find(name)
        by_topic.append([None if topic is None else topic.partition(index) for index in indexes])
    existing = list(dict.fromkeys(place for places in by_topic for place in places if place is not None))
    if not existing:
        return Places(by_topic, {})
    return Places(by_topic, dict(zip(existing, await log_store.states(existing), strict=True)))
