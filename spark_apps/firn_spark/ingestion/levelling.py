"""The tables of a topic with routes, level with each other: one read of the log serves them, and they ask for missing schemas again.

After a failure or a restart, a table can be a little behind the others. Then it reads on its own up to the others, which wait.
"""

from collections.abc import Sequence

from firn.model.progress import Offsets
from firn_spark.ingestion.rounds.planning import LARGE_BYTES
from firn_spark.ingestion.topics.topic import Topic


def next_reader(due: Topic, tables: Sequence[Topic]) -> tuple[Topic, list[Topic]]:
    """Return the table that reads next for ``due``, and those that wait for it.

    ``tables`` are the idle tables of the same Kafka topic. Failing tables, and those far behind, read on their own.
    """
    near = [each for each in tables if _is_near(each, due)]
    if due not in near:
        return due, []
    first = min(near, key=_place)
    return first, [each for each in near if _place(each) > _place(first)]


def until(waiting: Sequence[Topic]) -> Offsets | None:
    """Return the offsets up to which the next table reads, because the first of ``waiting`` is there; None if none waits."""
    return dict(min(waiting, key=_place).reading.position) if waiting else None


def _is_near(topic: Topic, due: Topic) -> bool:
    if topic.busy or topic.attempts.failures or not topic.active or topic.reading.spark_source:
        return False
    mine, others = topic.reading.position, due.reading.position
    if topic.reading.topic != due.reading.topic or mine.keys() != others.keys():
        return False
    distances = [mine[part] - others[part] for part in mine]
    in_order = min(distances, default=0) >= 0 or max(distances) <= 0
    return in_order and abs(sum(distances)) * topic.reading.record_bytes <= LARGE_BYTES


def _place(topic: Topic) -> int:
    return sum(topic.reading.position.values())
