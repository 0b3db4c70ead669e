"""The offsets that a round reads, and their distribution over tasks."""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence

import structlog

from firn.model.errors import FirnError
from firn.model.progress import Offsets
from firn_spark.ingestion.rounds.elections import Ends, compare_positions
from firn_spark.ingestion.rounds.failures import fail
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import Kafka, offsets_of
from firn_spark.worker.fetching.slices import Ranges, Slice

log = structlog.get_logger()

SLICE_BYTES = 2 << 20
"""Least bytes of a task, unless the round has fewer. Smaller tasks save little time, and make small files."""
LARGE_BYTES = 8 << 20
"""Bytes of a topic in a round above which several tasks may read it."""
AHEAD_SHARE = 0.25
"""Share of the bytes of a round that must wait in the log, so that the driver reads the round during the commit before it.
A round with fewer bytes would make a small file."""

Plan = dict[Topic, dict[int, tuple[int, int]]]
"""Topic -> partition -> (first offset to read, offset to stop before)."""


def plan(topics: Sequence[Topic], kafka: Kafka, round_bytes: int) -> Plan:
    """Return the ranges of topics that have records to read, from the present ends and log starts.

    ``round_bytes`` is shared by the topics. Raises FirnError if the brokers do not answer.
    """
    topics = _alike(topics)
    partitions = {topic.job.topic: tuple(topic.reading.position) for topic in topics}
    now = time.monotonic()
    starts, ends = kafka.starts(partitions), kafka.log_ends(partitions)
    room = round_bytes / len(partitions)
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
        topic.reading.log_starts = first
        topic.observe(now, {part: end.offset for part, end in last.items()})
        ranges = _ranges(topic, _limited(topic), room * topic.fence.share(now))
        if ranges:
            planned[topic] = ranges
    return _together(planned)


def _alike(topics: Sequence[Topic]) -> list[Topic]:
    """Return the topics without those that read another part of a log than the first topic of this log.

    A claim may have moved their position. They get a round of their own.
    """
    first: dict[str, Topic] = {}
    for topic in topics:
        first.setdefault(topic.job.topic, topic)
    return [
        topic
        for topic in topics
        if topic.job.route is None or topic is first[topic.job.topic] or topic.reads_with(first[topic.job.topic])
    ]


def _together(planned: Plan) -> Plan:
    """Return the plan with the same ranges for all topics that share a log. Otherwise estimates of their bytes could differ."""
    first: dict[str, dict[int, tuple[int, int]]] = {}
    return {
        topic: ranges if topic.job.route is None else first.setdefault(topic.job.topic, ranges)
        for topic, ranges in planned.items()
    }


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


@dataclasses.dataclass(frozen=True, slots=True)
class NextPlan:
    """The plan of a round before the commit of the round before it."""

    ranges: dict[int, tuple[int, int]]
    starts: Offsets
    """The position of every partition after the round before it."""
    ends: Offsets
    """The ends of the log, asked for at ``asked_at`` (monotonic seconds)."""
    asked_at: float


def plan_next(topic: Topic, reached: Offsets, kafka: Kafka, round_bytes: int) -> NextPlan | None:
    """Return the plan of the round that begins at ``reached``. It changes nothing of the topic, which a commit still uses.

    Returns None unless `AHEAD_SHARE` of a round waits, and the log has the leaders and records that the present round found.
    Raises FirnError if the brokers do not answer.
    """
    name, partitions = topic.job.topic, {topic.job.topic: tuple(reached)}
    now = time.monotonic()
    starts, ends = offsets_of(kafka.starts(partitions)[name]), offsets_of(kafka.log_ends(partitions)[name])
    epochs = topic.reading.leader_epochs
    if any(
        starts[part] > offset or ends[part].offset < offset or ends[part].epoch != epochs.get(part)
        for part, offset in reached.items()
    ):
        return None
    last = {part: end.offset for part, end in ends.items()}
    behind = {part: (offset, last[part]) for part, offset in reached.items() if offset < last[part]}
    room = round_bytes * topic.fence.share(now)
    if _records(behind) * topic.reading.record_bytes < AHEAD_SHARE * room:
        return None
    return NextPlan(_ranges(topic, behind, room), reached, last, now)


def _limited(topic: Topic) -> Ranges:
    """Return the ranges where records wait, up to the offsets at which other tables of the topic wait."""
    behind, until = topic.behind(), topic.reading.until
    if until is None:
        return behind
    limited = {part: (start, min(end, until.get(part, end))) for part, (start, end) in behind.items()}
    return {part: (start, end) for part, (start, end) in limited.items() if start < end}


def _ranges(topic: Topic, behind: Ranges, room: float) -> dict[int, tuple[int, int]]:
    """Return ranges of about ``room`` bytes of the waiting records, the same share of each partition."""
    allowed = max(1.0, room / topic.reading.record_bytes)
    total = sum(end - start for start, end in behind.values())
    share = min(1.0, allowed / total) if total else 1.0
    return {
        part: (start, min(end, start + max(1, int((end - start) * share + 0.999))))
        for part, (start, end) in behind.items()
    }


def slices(planned: Mapping[Topic, Ranges], tasks: int) -> list[list[Slice]]:
    """Distribute the ranges over at most ``tasks`` tasks of about equal bytes.

    Each task writes files of its own, so a topic with few bytes stays in one task. So does a partition whose topic stops at a bad record.
    """
    planned = _logs(planned)
    total = sum(_bytes(topic, ranges) for topic, ranges in planned.items())
    groups: list[list[Slice]] = [[] for _ in range(max(1, min(tasks, math.ceil(total / SLICE_BYTES))))]
    sizes = [0.0] * len(groups)
    share = total / len(groups)

    def give(parts: Sequence[Slice], record_bytes: float) -> None:
        least = sizes.index(min(sizes))
        groups[least] += parts
        sizes[least] += sum(part.end - part.start for part in parts) * record_bytes

    # Parts that stay whole come first, the largest of them first. The rest fills the tasks.
    rest: list[tuple[Slice, float]] = []
    for topic, ranges in sorted(planned.items(), key=lambda entry: -_bytes(*entry)):
        parts = [Slice(topic.job.topic, part, start, end) for part, (start, end) in sorted(ranges.items())]
        if _bytes(topic, ranges) <= LARGE_BYTES:
            give(parts, topic.reading.record_bytes)
        elif topic.job.halts:
            for part in sorted(parts, key=lambda part: part.start - part.end):
                give([part], topic.reading.record_bytes)
        else:
            rest += [(part, topic.reading.record_bytes) for part in parts]
    for part, record_bytes in rest:
        while part.start < part.end:
            least = math.ceil(SLICE_BYTES / record_bytes)
            # Rounded up: a task that was filled never has the least again, so no task gets two parts of a partition.
            room = max(least, math.ceil((share - min(sizes)) / record_bytes))
            # A few records more cost less than one file more.
            end = part.end if part.end - part.start <= room + least else part.start + room
            give([dataclasses.replace(part, end=end)], record_bytes)
            part = dataclasses.replace(part, start=end)
    return [sorted(group, key=_place) for group in groups if group]


def _logs(planned: Mapping[Topic, Ranges]) -> dict[Topic, Ranges]:
    """Return one topic for each log to read: one that stops at a bad record, if any does."""
    chosen: dict[str, Topic] = {}
    for topic in planned:
        if topic.job.topic not in chosen or topic.job.halts:
            chosen[topic.job.topic] = topic
    return {topic: planned[topic] for topic in chosen.values()}


def _records(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges.values())


def _bytes(topic: Topic, ranges: Ranges) -> float:
    return _records(ranges) * topic.reading.record_bytes


def _place(part: Slice) -> tuple[str, int, int]:
    return part.topic, part.partition, part.start
