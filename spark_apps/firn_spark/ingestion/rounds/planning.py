"""The offsets that a round reads, and their distribution over tasks."""

import time
from collections.abc import Mapping, Sequence

import structlog

from firn.model.errors import FirnError
from firn.model.progress import Offsets
from firn_spark.ingestion.rounds.elections import Ends, compare_positions
from firn_spark.ingestion.rounds.failures import fail
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import Kafka, offsets_of
from firn_spark.kafka.client_reader import Ranges, Slice

log = structlog.get_logger()

Plan = dict[Topic, dict[int, tuple[int, int]]]
"""Topic -> partition -> (first offset to read, offset to stop before)."""


def plan(topics: Sequence[Topic], kafka: Kafka, round_bytes: int) -> Plan:
    """Return the ranges of topics that have records to read, from the present ends and log starts.

    ``round_bytes`` is shared by the topics. Raises FirnError if the brokers do not answer.
    """
    partitions = {topic.job.topic: tuple(topic.reading.position) for topic in topics}
    now = time.monotonic()
    starts, ends = kafka.starts(partitions), kafka.log_ends(partitions)
    room = round_bytes / len(topics)
    logs: dict[Topic, tuple[Offsets, Ends]] = {}
    for topic in topics:
        try:
            logs[topic] = offsets_of(starts[topic.job.topic]), offsets_of(ends[topic.job.topic])
        except FirnError as error:
            fail(topic, error)
    unanswered = compare_positions(logs, kafka)
    planned: Plan = {}
    for topic, (first, last) in logs.items():
        if topic in unanswered:
            fail(topic, unanswered[topic])
            continue
        _skip_deleted(topic, first)
        topic.observe(now, {part: end.offset for part, end in last.items()})
        ranges = _ranges(topic, room * topic.fence.share(now))
        if ranges:
            planned[topic] = ranges
    return planned


def _skip_deleted(topic: Topic, first: Offsets) -> None:
    """Move positions to the log's start. Offsets between what landed and that start are lost."""
    for part, start in first.items():
        if topic.reading.position.get(part, start) >= start:
            continue
        if topic.landed_offsets or topic.replaced_table or topic.job.topic_created:
            # An earlier table of the resource may have had the records before a new table's first offset. A topic that the
            # resource created has had no records before it. Those of a topic that existed before may be no loss.
            # Every partition of a landed topic has an offset, unless it is new: then its records from 0 on are lost, too.
            position = topic.reading.position[part]
            topic.reading.deleted[part] = (topic.reading.deleted.get(part, (position, start))[0], start)
            log.error(
                "records were deleted from the log before they landed",
                topic=topic.job.topic,
                namespace=topic.job.namespace,
                partition=part,
                offsets=start - topic.reading.position[part],
            )
        topic.reading.position[part] = start


def _ranges(topic: Topic, room: float) -> dict[int, tuple[int, int]]:
    """Return ranges of about ``room`` waiting bytes, the same share of each partition."""
    behind = topic.behind()
    allowed = max(1.0, room / topic.reading.record_bytes)
    total = sum(end - start for start, end in behind.values())
    share = min(1.0, allowed / total) if total else 1.0
    return {
        part: (start, min(end, start + max(1, int((end - start) * share + 0.999))))
        for part, (start, end) in behind.items()
    }


def slices(planned: Mapping[Topic, Ranges], tasks: int) -> list[list[Slice]]:
    """Distribute the ranges over at most ``tasks`` tasks of about equal work.

    A topic stays in one task, because each task writes files of its own.
    """
    groups: list[list[Slice]] = [[] for _ in range(max(1, tasks))]
    sizes = [0] * len(groups)
    by_size = sorted(planned.items(), key=lambda item: -sum(end - start for start, end in item[1].values()))
    for topic, ranges in by_size:
        least = sizes.index(min(sizes))
        groups[least] += [Slice(topic.job.topic, part, start, end) for part, (start, end) in sorted(ranges.items())]
        sizes[least] += sum(end - start for start, end in ranges.values())
    return [group for group in groups if group]
