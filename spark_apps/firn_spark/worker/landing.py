"""Lands records inside a Spark task: batches in, data files out (``mapInArrow``).

The driver makes a `LandingPlan`. Each task calls `land` with the Kafka records that it reads. The result is a few
small rows for the driver to commit: data-file descriptors, counts, and the place at which a topic must stop. A task
never changes table metadata. No table refers to the files of a failed task.

Rules for the caller:

- A batch has Spark's Kafka columns (with ``includeHeaders``): key, value, topic, partition, offset, timestamp,
  timestampType, headers; ``timestamp_ms`` (int64) may stand in place of ``timestamp``.
- Topics may be interleaved. The records of one partition come in offset order.
- If the job ``halts``, a partition's range has to be in one task, because another task would not know where it ends.
- A `Kind.DEAD_LETTERS_MISSING` row means that the topic met its first dead letter and has no table for it. The task
  returns no other row for that topic. Create the table, then land the topic's range again.
"""

import contextlib
import ctypes
import itertools
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypedDict

import numpy as np
import pyarrow as pa

from firn.model.jobs import IngestJob
from firn_spark.worker.data_files import DataFileWriter, TableSpec
from firn_spark.worker.decoding import Decoded, Decoder, Known
from firn_spark.worker.fetched import Fetched, Identities
from firn_spark.worker.formats.format import Times, add_times
from firn_spark.worker.formats.writer_schemas import MOST_NEEDED, Readers, Reference, SchemasNeededError, WriterSchemas
from firn_spark.worker.projections.routing import RouteValues
from firn_spark.worker.quality.rules import FailedRule

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)
DEFAULT_BUFFER_BYTES = 128 * 1024 * 1024
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Bytes of decoded rows that become a row group, if the file may take the rows in parts. Each row group has dictionaries of
its own. Files of benchmark records are 5 % smaller with 128 MiB, and 9 % larger with 32 MiB. Every task holds this number of bytes."""


class Kind(StrEnum):
    """The meaning of a result row's ``json``."""

    DATA = "data"
    """A data file of the topic's table, for ``org.apache.iceberg.ContentFileParser.fromJson``."""
    DEAD = "dead"
    """A data file of the dead-letter table."""
    STATS = "stats"
    """`TaskStats`, one row for each topic and task."""
    HALT = "halt"
    """`HaltPlace`: the data files have that partition's rows before this offset, and none from it on."""
    DEAD_LETTERS_MISSING = "dead-letters-missing"
    """An empty object. The module's rules say what to do."""
    SCHEMAS_NEEDED = "schemas-needed"
    """`NeededSchemas`: the task lacks schemas of values, or of keys. It returns no row of another kind for that topic. Land the range
    again with them."""
    DETOUR = "detour"
    """`Detour`: the task read partitions of the topic from brokers, because it could not read their bucket."""
    ERROR = "error"
    """`TaskError`: this topic failed in this task, which returns no other row for it. Other topics are not affected."""


class TaskStats(TypedDict):
    """Counts of a task for one topic.

    ``unrouted`` counts records of other tables of the topic, and ``bytes`` keys and values read. ``partitions`` maps the partition's
    number, as text, to [records read, first offset, last offset]. ``code`` and ``path`` are those of a dead or skipped
    record, empty if there is none; ``path`` has no text of the record. ``codes`` counts dead and skipped records by code. ``times``
    maps fields to `Times`, and ``rules`` quality rules to the records that failed them. ``filtered`` maps partitions, as text, to
    the records that the filter left out.
    """

    rows: int
    dead: int
    skipped: int
    excluded: int
    unrouted: int
    bytes: int
    partitions: dict[str, list[int]]
    code: str
    path: str
    codes: dict[str, int]
    times: dict[str, Times]
    rules: dict[str, int]
    filtered: dict[str, int]


class NeededSchemas(TypedDict):
    """Ids and GUIDs of schemas that records name, and that the task does not have."""

    ids: list[Reference]
    reader: Readers


class Detour(TypedDict):
    """The number of partitions that a task could not read from the bucket, and why."""

    partitions: int
    problem: str
    unusable: bool
    """True if the task could read no object of the bucket any more."""


class TaskError(TypedDict):
    """The failure of a topic: the exception's class and message."""

    type: str
    message: str


class HaltPlace(TypedDict):
    """The record at which a topic must stop, and the reason."""

    partition: int
    offset: int
    code: str
    stage: str
    path: str
    detail: str
    rule: str


@dataclass(frozen=True, slots=True)
class TopicLanding:
    """Instructions for one topic's records.

    ``exclude`` lists records that are dead letters already, because a crash came between the two tables' commits. They
    make no row and no second dead letter. Another record with the same offset lands. ``force_dead`` records become dead
    letters whatever they hold (resume: skip). ``writer_schemas`` are the known schemas of values in a registry,
    ``key_schemas`` those of keys, ``route_schemas`` those that decide about routes. ``rows_only``: bad records are skipped,
    because they are dead letters already.
    """

    job: IngestJob
    table: TableSpec
    dead_letters: TableSpec | None = None
    exclude: Identities = field(default_factory=dict)
    force_dead: Mapping[int, frozenset[int]] = field(default_factory=dict)
    writer_schemas: WriterSchemas = field(default_factory=dict)
    salts: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """The salts of digests that could be read, by name. They must not be in a message."""
    key_schemas: WriterSchemas = field(default_factory=dict)
    route_schemas: WriterSchemas = field(default_factory=dict)
    rows_only: bool = False


@dataclass(frozen=True, slots=True)
class LandingPlan:
    """The instructions for a task, by topic name; picklable. The name of a topic with routes ends in / and the uid of the contract.

    ``ingested_at`` is microseconds since 1970. ``buffer_bytes`` bounds the decoded rows that a task holds before it
    writes them.
    """

    topics: Mapping[str, TopicLanding]
    ingested_at: int
    buffer_bytes: int = DEFAULT_BUFFER_BYTES

    def tables(self) -> dict[str, list[str]]:
        """Return the names in ``topics`` by Kafka topic."""
        names: dict[str, list[str]] = {}
        for name in self.topics:
            names.setdefault(name.partition("/")[0], []).append(name)
        return names


RESULT_SCHEMA = pa.schema([("topic", pa.string()), ("kind", pa.string()), ("json", pa.string())])
RESULT_DDL = "topic string, kind string, json string"


def land(batches: Iterator[pa.RecordBatch], plan: LandingPlan) -> Iterator[pa.RecordBatch]:
    """Land Arrow batches as `land_fetched` lands records."""
    records = (Fetched.from_arrow(name, part) for batch in batches for name, part in _by_topic(batch))
    return land_fetched(records, plan)


def land_fetched(fetched: Iterator[Fetched], plan: LandingPlan) -> Iterator[pa.RecordBatch]:
    """Decode records, write data files, and give rows of `RESULT_SCHEMA` after everything is written.

    A failure of one topic is a row of kind ``error``. An exception of ``fetched`` passes through, after the files
    written so far were removed. Raises ValueError for a topic that the plan does not name.
    """
    topics: dict[str, _Topic] = {}
    tables, route_values = plan.tables(), RouteValues()
    try:
        for records in fetched:
            if records.topic not in tables:
                raise ValueError(
                    f"the task read records of topic {records.topic!r}, but the round does not include this topic"
                )
            for name in tables[records.topic]:
                if name not in topics:
                    topics[name] = _Topic(plan.topics[name], plan.ingested_at, route_values)
                topics[name].add(records)
                while sum(other.buffered for other in topics.values()) > plan.buffer_bytes:
                    max(topics.values(), key=lambda other: other.buffered).flush()
        for topic in topics.values():
            topic.finish()
    except BaseException:
        for topic in topics.values():
            topic.discard()
        raise
    results = [(name, kind, text) for name, topic in topics.items() for kind, text in topic.results()]
    topics.clear()
    _release_memory()
    yield pa.RecordBatch.from_arrays(
        [pa.array(column, pa.string()) for column in _columns(results)], schema=RESULT_SCHEMA
    )


def _release_memory() -> None:
    """Return freed memory to the operating system. A worker may wait for its next task for a long time, and the C library keeps what numpy frees."""
    pa.default_memory_pool().release_unused()
    if _TRIM is not None:
        _TRIM(0)


def _columns(results: list[tuple[str, Kind, str]]) -> list[list[str]]:
    return [[name for name, _, _ in results], [kind.value for _, kind, _ in results], [text for _, _, text in results]]


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield slices of consecutive records of one topic."""
    if not len(batch):
        return
    encoded = batch["topic"].dictionary_encode()
    names = encoded.dictionary.to_pylist()
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    edges = [0, *(np.flatnonzero(np.diff(indices)) + 1).tolist(), len(batch)]
    for start, end in itertools.pairwise(edges):
        yield names[indices[start]], batch.slice(start, end - start)


_MESSAGE_LIMIT = 2000


class _Topic:
    """A topic in a task: decoded rows, written files and counts."""

    def __init__(self, landing: TopicLanding, ingested_at: int, route_values: RouteValues) -> None:
        self._stats: TaskStats = {
            "rows": 0,
            "dead": 0,
            "skipped": 0,
            "excluded": 0,
            "unrouted": 0,
            "bytes": 0,
            "partitions": {},
            "code": "",
            "path": "",
            "codes": {},
            "times": {},
            "rules": {},
            "filtered": {},
        }
        self._rows: list[pa.Table] = []
        self._dead: list[pa.Table] = []
        self._files: list[tuple[Kind, str]] = []
        self._writers: list[DataFileWriter] = []
        self._dead_writer: DataFileWriter | None = None
        self._outcome: tuple[Kind, str] | None = None
        self._needed: dict[Readers, set[Reference]] | None = None
        """The schemas that the task lacks. None while it lacks none."""
        self._row_bytes = self._dead_bytes = 0
        with self._alone():
            self._decoder = Decoder(
                landing.job,
                ingested_at=ingested_at,
                exclude=landing.exclude,
                force_dead=landing.force_dead,
                known=Known(landing.writer_schemas, landing.key_schemas, landing.salts, landing.route_schemas),
                rows_only=landing.rows_only,
                route_values=route_values,
            )
            self._writer = DataFileWriter(landing.table)
            self._writers.append(self._writer)
            if landing.dead_letters is not None:
                self._dead_writer = DataFileWriter(landing.dead_letters)
                self._writers.append(self._dead_writer)

    def add(self, records: Fetched) -> None:
        """Decode records and hold the rows until the next flush. After the first missing schema, only look for other missing ones."""
        if self._outcome is not None:
            return
        if self._needed is None:
            with self._alone():
                for portion in self._decoder.portions(records):
                    self._add(portion)
        if self._needed is not None:
            with self._alone():
                for reader, missing in self._decoder.missing(records).items():
                    self._need(reader, missing)

    def _add(self, records: Fetched) -> None:
        if self._outcome is not None or self._needed is not None:
            return
        with self._alone():
            decoded = self._decoder.decode(records)
            self._count(records, decoded)
            if decoded.dead is not None:
                if self._dead_writer is None:
                    self._end(Kind.DEAD_LETTERS_MISSING, {})
                    return
                self._dead.append(decoded.dead)
                self._dead_bytes += decoded.dead.nbytes
            if decoded.rows.num_rows:
                self._rows.append(decoded.rows)
                self._row_bytes += decoded.rows.nbytes
            if self._writer.appends and self._row_bytes >= ROW_GROUP_BYTES:
                self._write_rows()

    def _count(self, records: Fetched, decoded: Decoded) -> None:
        stats = self._stats
        stats["rows"] += decoded.rows.num_rows
        stats["dead"] += 0 if decoded.dead is None else decoded.dead.num_rows
        stats["skipped"] += decoded.skipped
        stats["excluded"] += decoded.excluded
        stats["unrouted"] += decoded.unrouted
        if decoded.sample is not None:
            stats["code"], stats["path"] = decoded.sample.code.value, decoded.sample.schema_path
        for code, count in decoded.codes.items():
            stats["codes"][code] = stats["codes"].get(code, 0) + count
        add_times(stats["times"], decoded.times)
        for rule, failed in decoded.failed.items():
            stats["rules"][rule] = stats["rules"].get(rule, 0) + failed
        for partition, filtered in decoded.filtered.items():
            stats["filtered"][str(partition)] = stats["filtered"].get(str(partition), 0) + filtered
        stats["bytes"] += int(records.keys.lengths().sum() + records.values.lengths().sum())
        for partition in np.unique(records.partitions).tolist():
            own = records.offsets[records.partitions == partition]
            counted = stats["partitions"].setdefault(str(partition), [0, int(own.min()), int(own.max())])
            counted[0] += len(own)
            counted[2] = max(counted[2], int(own.max()))
        for halt in decoded.halts:
            error = halt.error
            place: HaltPlace = {
                "partition": halt.partition,
                "offset": halt.offset,
                "code": error.code.value,
                "stage": error.stage.value,
                "path": error.path,
                "detail": error.detail,
                "rule": error.rule if isinstance(error, FailedRule) else "",
            }
            self._files.append((Kind.HALT, json.dumps(place)))

    @property
    def buffered(self) -> int:
        """Bytes of decoded rows that are not written yet."""
        return self._row_bytes + self._dead_bytes

    def flush(self) -> None:
        """Write the decoded rows."""
        with self._alone():
            if self._dead and self._dead_writer is not None:
                self._files += [(Kind.DEAD, file) for file in self._dead_writer.write(pa.concat_tables(self._dead))]
            if self._rows:
                self._write_rows()
        self._forget_rows()

    def _write_rows(self) -> None:
        rows, self._rows, self._row_bytes = self._rows, [], 0
        self._files += [(Kind.DATA, file) for file in self._writer.write(pa.concat_tables(rows))]

    def finish(self) -> None:
        """Write the decoded rows, and complete the files."""
        self.flush()
        if self._outcome is None and self._needed is None:
            with self._alone():
                if self._dead_writer is not None:
                    self._files += [(Kind.DEAD, file) for file in self._dead_writer.finish()]
                self._files += [(Kind.DATA, file) for file in self._writer.finish()]

    def _forget_rows(self) -> None:
        self._rows, self._dead, self._row_bytes, self._dead_bytes = [], [], 0, 0

    def discard(self) -> None:
        """Delete the files written so far."""
        for writer in self._writers:
            writer.discard()

    def results(self) -> list[tuple[Kind, str]]:
        """Return the result rows for the driver."""
        if self._outcome is not None:
            return [self._outcome]
        if self._needed is not None:
            found = ((reader, [*ids]) for reader, ids in self._needed.items() if ids)
            return [(Kind.SCHEMAS_NEEDED, json.dumps(NeededSchemas(ids=ids, reader=reader))) for reader, ids in found]
        return [*self._files, (Kind.STATS, json.dumps(self._stats))]

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Confine a failure to this topic. Other topics of the task continue, and the driver decides what follows."""
        try:
            yield
        except SchemasNeededError as error:
            self._need(error.reader, error.ids)
        except Exception as error:
            failure: TaskError = {"type": type(error).__name__, "message": str(error)[:_MESSAGE_LIMIT]}
            self._end(Kind.ERROR, failure)

    def _need(self, reader: Readers, ids: Collection[Reference]) -> None:
        """Note missing schemas, `MOST_NEEDED` at most. The range has to land again, so its rows and files are deleted."""
        if self._needed is None:
            self._needed = {"values": set(), "keys": set(), "routes": set()}
            self._forget_rows()
            self.discard()
        known = self._needed[reader]
        known.update(itertools.islice((each for each in ids if each not in known), MOST_NEEDED - len(known)))

    def _end(self, kind: Kind, content: Mapping[str, object]) -> None:
        self._outcome = (kind, json.dumps(content))
        self._forget_rows()
        self.discard()
