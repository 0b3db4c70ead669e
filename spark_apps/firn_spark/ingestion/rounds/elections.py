"""Unclean elections: a leader without the newest records gives their offsets to other records.

When producers have written past the landed offsets again, the offsets no longer show it. Kafka's leader epoch shows it: each
election raises the epoch, and the leader knows at which offset each epoch began. So the driver keeps the epoch of the log that it
reads, and asks about that epoch after it changed.
"""

from collections.abc import Mapping

import structlog

from firn.model.errors import FirnError, NotReadyError
from firn.model.progress import LeaderEpochs, Offsets
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import Kafka, LogEnd, offsets_of
from firn_spark.worker.fetching.slices import Ranges

log = structlog.get_logger()

Ends = dict[int, LogEnd]


def compare_positions(topics: Mapping[Topic, tuple[Offsets, Ends]], kafka: Kafka) -> dict[Topic, FirnError]:
    """Find the landed offsets that the present logs have given to other records. They are gaps of the next commit.

    ``topics`` has the start and the end of each log. Returns the topics whose brokers gave no answer.
    """
    changed = {}
    for topic, (starts, ends) in topics.items():
        reading = topic.reading
        known = {
            part: LogEnd(position, reading.leader_epochs.get(part))
            for part, position in reading.position.items()
            if position > starts.get(part, position)
        }
        changed[topic.job.topic] = _of_earlier_leaders(known, ends)
    answers = kafka.divergences(changed)
    failed: dict[Topic, FirnError] = {}
    for topic, (_, ends) in topics.items():
        answer = answers[topic.job.topic]
        if isinstance(answer, FirnError):
            failed[topic] = answer
            continue
        position = topic.reading.position
        for part, offset in answer.items():
            if not topic.lose(part, offset):
                continue
            log.error(
                "the log has other records than those that landed",
                topic=topic.job.topic,
                namespace=topic.job.namespace,
                partition=part,
                offsets=position[part] - offset,
            )
        topic.reading.leader_epochs = _epochs(topic, ends)
    return failed


def _epochs(topic: Topic, ends: Ends) -> LeaderEpochs:
    """Return the epochs of leaders that had every record before the positions.

    While a log is shorter than its position, the earlier epoch stays: a later election may cut the log back further.
    """
    position, known = topic.reading.position, topic.reading.leader_epochs
    whole = {part: end.offset >= position.get(part, end.offset) for part, end in ends.items()}
    epochs = {
        part: end.epoch if whole[part] else known.get(part) for part, end in ends.items() if end.epoch is not None
    }
    return {part: epoch for part, epoch in epochs.items() if epoch is not None}


def compare_ranges(planned: Mapping[Topic, Ranges], kafka: Kafka) -> dict[Topic, FirnError]:
    """Return the topics whose ranges must not be committed: their records may be those of another leader."""
    read: dict[Topic, Ends] = {}
    for topic, ranges in planned.items():
        epochs = topic.reading.leader_epochs
        known = {part: LogEnd(end, epochs[part]) for part, (_, end) in ranges.items() if part in epochs}
        if known:
            read[topic] = known
    if not read:
        return {}
    ends = kafka.log_ends({topic.job.topic: tuple(known) for topic, known in read.items()})
    failed: dict[Topic, FirnError] = {}
    changed: dict[str, Ends] = {}
    for topic, known in read.items():
        try:
            changed[topic.job.topic] = _of_earlier_leaders(known, offsets_of(ends[topic.job.topic]))
        except FirnError as error:
            failed[topic] = error
    answers = kafka.divergences(changed)
    for topic in read.keys() - failed.keys():
        answer = answers[topic.job.topic]
        if isinstance(answer, FirnError):
            failed[topic] = answer
        elif answer:
            failed[topic] = NotReadyError(
                f"topic {topic.job.topic}: partition {min(answer)} got a leader with other records while it was read; "
                "the driver reads it again"
            )
    return failed


def _of_earlier_leaders(known: Ends, ends: Ends) -> Ends:
    """Return the ends that a leader before the present one had.

    Lower epochs than before are those of a cluster that was created again: they say nothing about the records.
    """
    return {
        part: end
        for part, end in known.items()
        if end.epoch is not None and (now := ends[part].epoch if part in ends else None) is not None and now > end.epoch
    }
