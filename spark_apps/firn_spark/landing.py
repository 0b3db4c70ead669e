"""Record batches in, data files out: what every Spark task of an ingestion runs (``mapInArrow``).

The driver makes a `LandingPlan`, each task calls `land` with the Kafka records it reads, and what comes back are a few small
rows for the driver to commit: data-file descriptors, counts and, where a topic must stop, the place. A task never touches
table metadata; files of a task that failed are named by nobody.

Rules for the caller:

- A batch has Spark's Kafka columns (with ``includeHeaders``): key, value, topic, partition, offset, timestamp, timestampType,
  headers; or ``timestamp_ms`` (int64) in place of ``timestamp``.
- Topics may be interleaved; of one partition, the records come in offset order.
- With ``on_bad_record: Halt`` a partition's range has to be in one task: another task would not know where it ends.
- A `Kind.DEAD_LETTERS_MISSING` row means that the topic met its first dead letter and has no table for it: no other row is
  given for that topic by this task. Create the table, then land the topic's range again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypedDict

import pyarrow as pa

from firn.model.jobs import IngestJob
from firn_spark.data_files import TableSpec

DEFAULT_BUFFER_BYTES = 128 * 1024 * 1024


class Kind(StrEnum):
    """What the ``json`` of a result row is."""

    DATA = "data"
    """A data file of the topic's table, as ``org.apache.iceberg.ContentFileParser.fromJson`` takes it."""
    DEAD = "dead"
    """The same for the dead-letter table."""
    STATS = "stats"
    """`TaskStats`: one row a topic and task."""
    HALT = "halt"
    """`HaltPlace`: rows of that partition before this offset are in the data files, none from it on."""
    DEAD_LETTERS_MISSING = "dead-letters-missing"
    """An empty object; see the rules of this module."""


class TaskStats(TypedDict):
    """What a task did for a topic. ``bytes`` are of keys and values read; ``partitions`` maps the partition's number, as text,
    to [records read, first offset, last offset]."""

    rows: int
    dead: int
    skipped: int
    excluded: int
    bytes: int
    partitions: dict[str, list[int]]


class HaltPlace(TypedDict):
    """The record a topic must stop at, and why."""

    partition: int
    offset: int
    code: str
    stage: str
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class TopicLanding:
    """What to do with one topic's records. ``exclude`` are offsets by partition that are dead letters already (a crash came
    between the two tables' commits): they make no row and no second dead letter. ``force_dead`` go to the dead letters
    whatever they hold (resume: skip)."""

    job: IngestJob
    table: TableSpec
    dead_letters: TableSpec | None = None
    exclude: Mapping[int, frozenset[int]] = field(default_factory=dict)
    force_dead: Mapping[int, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LandingPlan:
    """Everything a task has to know, by topic name; picklable. ``ingested_at`` is microseconds since 1970;
    ``buffer_bytes`` bounds the decoded rows that one task holds before it writes files."""

    topics: Mapping[str, TopicLanding]
    ingested_at: int
    buffer_bytes: int = DEFAULT_BUFFER_BYTES


RESULT_SCHEMA = pa.schema([("topic", pa.string()), ("kind", pa.string()), ("json", pa.string())])
RESULT_DDL = "topic string, kind string, json string"


def land(batches: Iterator[pa.RecordBatch], plan: LandingPlan) -> Iterator[pa.RecordBatch]:
    """Decodes ``batches``, writes data files, and gives rows of `RESULT_SCHEMA` once everything is written.

    Raises ValueError for a topic that the plan does not name, OSError where the object store fails: the task then fails as a
    whole, after it has removed the files it wrote.
    """
    raise NotImplementedError
