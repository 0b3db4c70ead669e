"""``firn audit``: proves that every record of a topic is in its table or its dead letters, exactly once.

The audit compares the offsets that the brokers still have (read committed, from the log start to the landed offsets)
with the offsets in the rows. It can compare older rows only with each other, because their log no longer exists. A note
gives the number of offsets without a row there (`PartitionAudit.gaps`).

In these cases the audit cannot decide. It counts the offsets as ``unproved``, and they do not fail the audit:

- The log of a compacted topic no longer has the replaced records. Rows of their offsets may be right or wrong.
- With ``onBadRecord: Skip``, a missing record was skipped or lost.
- With a RetentionPolicy that removes rows, a missing record was removed or lost, because retention selects rows by a column.
- A missing record before the offsets of the table property ``firn.audit-from`` may have landed elsewhere: ingestion began
  at these offsets with ``spec.ingestion.adopt``, or under an earlier version of Firn (`decided_from`).

A topic with ``schema.filter`` leaves out records. The table property ``firn.filtered`` has their number in ranges of offsets.
If more records of a range than this number lack a row, the others are missing. If fewer do, filtered records have landed, and the
difference is stray. If a range begins before the log, records without a row are unproved up to its number.

An offset that the table records as lost is neither missing nor stray: the brokers gave it to another record after it had
landed, so the table has the row of the earlier record, or none. Notes list these ranges.

Dead letters are committed before the table. Those at or beyond the landed offsets belong to a round that still runs, or
that was lost. A later audit finds them below the landed offsets. For the same reason the audit reads the table first and
its dead letters later. In the other order, letters that land in between would look missing (`tables`).

While the table property ``firn.replay`` says that a DeadLetterReplay has not ended, an offset may have a row and
a letter, which are the same record. Such a letter does not count. A replay that removes letters while the audit loads both
tables would leave out records, so the audit loads them again (`tables`).

The table's history shows the rows of an earlier topic of the same name: they are in the snapshot before the first one of
this topic's id. After that snapshot has expired, they count as doubled or stray (`Audit.history`). They are unproved if
``firn.audit-from`` says that the table had rows before the topic.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from firn.kafka_clients import kafka_id
from firn.model import names
from firn.model.config import Config
from firn.model.errors import AccessDeniedError, InvalidSpecError, UnavailableError
from firn.model.progress import (
    AuditFrom,
    Filtered,
    FilteredRange,
    Losses,
    Offsets,
    Replaying,
    SharedOffsets,
    described,
    joined_ranges,
    landed_together,
    recorded_offsets,
)
from firn.tables import rows
from firn.tables.table_properties import MAIN, landing_branch
from firn_controllers.ingestion_group import settings
from firn_operator.adapters.iceberg.tables import landed_snapshot
from firn_operator.adapters.kafka.admin import client_settings
from firn_operator.cli import database
from firn_operator.cli.lake import Lake, scan

_READ_TIMEOUT = 30.0
_OFFSETS = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
_CHUNK = 50_000
_LOADS = 10
"""Attempts to load both tables without a removal of replayed letters in between."""
_RETAIN = "retain"
"""Kind of the snapshots in which maintenance runs drop rows (`names.SUMMARY_KIND`)."""


TOO_MUCH_MEMORY = (
    "the audit needs more memory than the command has: read status.audit, which the audit of each night writes, or run firn audit with --config"
    " on a machine with more memory"
)


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """The audit of a partition.

    ``missing``, ``doubled`` and ``stray`` (rows of offsets that the log does not have, or of filtered records) are 0 if every
    record is there exactly once. ``filtered`` counts the records that the filter left out. ``unproved`` counts offsets for which
    the audit cannot decide. ``gaps`` counts offsets between the first row and the log start that have no row: the log no longer
    shows whether they had records.
    """

    partition: int
    log_start: int
    landed: int
    records: int
    rows: int
    dead_letters: int
    missing: int
    doubled: int
    stray: int
    unproved: int
    example: int | None
    gaps: int
    filtered: int = 0

    @property
    def exact(self) -> bool:
        """True if nothing is missing, doubled or stray."""
        return not (self.missing or self.doubled or self.stray)


COLUMNS = {
    "partition": "partition", "log start": "log_start", "landed to": "landed", "log records": "records", "rows": "rows",
    "dead letters": "dead_letters", "missing": "missing", "doubled": "doubled", "stray": "stray", "unproved": "unproved",
}  # fmt: skip
"""Columns for people, and the figures of `PartitionAudit` in them. Notes have the others."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The live Kafka topic: its id, and whether its log is compacted."""

    topic_id: str
    compacted: bool


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit of a topic.

    ``history`` is False if snapshots have expired, so that the audit cannot recognise rows of an earlier topic of that
    name.
    """

    partitions: list[PartitionAudit]
    compacted: bool
    skips: bool
    history: bool
    drops: bool = False
    """True if retention removes rows, or did."""
    waiting: int = 0
    """Offsets after the landed ones."""
    losses: Losses = field(default_factory=Losses)
    """Offsets that the table records as passed without landing."""
    decided: AuditFrom | None = None
    """The offsets from which the audit decides about missing records."""
    unpublished: str = ""
    """A note on the rows that main does not have yet."""

    @property
    def exact(self) -> bool:
        """True if every partition is exact."""
        return all(partition.exact for partition in self.partitions)

    @property
    def notes(self) -> list[str]:
        """Return the notes that explain the numbers."""
        lines = [f"lost before it landed: {described([loss])}" for loss in self.losses.ranges]
        if self.losses.dropped:
            lines.append(f"lost before they landed, and no longer listed: {self.losses.dropped} earlier offsets")
        if self.unpublished:
            lines.append(self.unpublished)
        filtered = sum(partition.filtered for partition in self.partitions)
        if filtered:
            lines.append(f"the filter of the topic left out {filtered:,} records ({names.TABLE_FILTERED})")
        unproved = sum(partition.unproved for partition in self.partitions)
        if unproved and self.decided is not None:
            lines += _undecided(self.decided)
        if unproved and self.compacted:
            lines.append(
                "the topic is compacted: the audit cannot check rows of records that the log no longer has (unproved)"
            )
        if unproved and self.skips:
            lines.append(
                "onBadRecord is Skip: missing records were skipped or lost, and the audit cannot decide (unproved)"
            )
        if unproved and self.drops:
            lines.append(
                "retention removes rows of the table: missing records were removed or lost, and the audit cannot decide (unproved)"
            )
        gaps = sum(partition.gaps for partition in self.partitions)
        if gaps:
            lines.append(
                f"{gaps:,} offsets before the log start have no row: Kafka deleted their records before they landed, or they had no record"
                " to land (markers of transactions, compaction, onBadRecord: Skip), or a RetentionPolicy removed the rows"
            )
        if not self.exact and not self.history:
            lines.append(
                "snapshots of the table have expired: if the topic was re-created before, rows of the earlier topic count as doubled or"
                " stray, and rows that an earlier RetentionPolicy removed count as missing"
            )
        return lines


def _undecided(decided: AuditFrom) -> list[str]:
    lines = []
    if decided.offsets:
        offsets = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(decided.offsets.items()))
        lines.append(
            f"an audit cannot decide about records without a row before these offsets ({names.TABLE_AUDIT_FROM}): {offsets} (unproved)"
        )
    if decided.mixed:
        lines.append(
            "the table had rows before the first commit of the topic, and the snapshot that shows them has expired: the audit cannot decide"
            " about surplus rows (unproved)"
        )
    return lines


def decided_from(table: Table, dead: Table | None, topic_id: str, landed: Offsets, *, has_history: bool) -> AuditFrom:
    """Return the offsets from which every record of the topic has to be a row or a dead letter.

    ``landed`` are the offsets that the table has landed. ``has_history``: the history shows which rows are of an earlier topic.
    """
    decided = AuditFrom(topic_id=topic_id)
    shared = is_shared(table)
    for each in (table, dead):
        key = names.of_topic(names.TABLE_AUDIT_FROM, topic_id if shared and each is table else "")
        known = AuditFrom.read(each.properties.get(key)) if each is not None else None
        if known is not None and known.topic_id == topic_id:
            # Retention of dead letters says nothing about rows of the table, and no commit of dead letters changes it.
            mixed = known.mixed and not has_history and each is table
            if each is table and not shared:  # no earlier version commits to a shared table
                known = known.as_of(table.properties.get(names.SUMMARY_COMMIT_ID), landed)
            decided = decided.joined(known.model_copy(update={"mixed": mixed}))
    return decided


def landed_offsets(table: Table, topic_id: str | None = None) -> Offsets:
    """Return the next offsets to land, from the newest ingestion commit in the table's history, else from its properties.

    Raises UnavailableError if they belong to another topic than ``topic_id``, or if the history lacks a part of them.
    """
    summaries = [_summary(snapshot) for snapshot in _history(table)]
    newest = next((each for each in summaries if names.SUMMARY_OFFSETS in each), table.properties)
    if is_shared(table):
        return _shared_offsets(table, newest.get(names.SUMMARY_OFFSETS), topic_id or "")
    if topic_id is not None and newest.get(names.SUMMARY_TOPIC_ID, topic_id) != topic_id:
        raise UnavailableError(
            f"table {'.'.join(table.name())}: the topic was created again, and no record of it has landed yet; retry after the first commit"
        )
    try:
        return recorded_offsets(summaries, table.properties) or {}
    except ValueError as error:
        raise UnavailableError(f"table {'.'.join(table.name())}: {error}") from error


def landed_topic(table: Table) -> str | None:
    """Return Kafka's id of the topic whose records landed last; None if it is not known."""
    summaries = (_summary(snapshot) for snapshot in _history(table))
    newest = next((each for each in summaries if names.SUMMARY_OFFSETS in each), table.properties)
    return newest.get(names.SUMMARY_TOPIC_ID)


def is_shared(table: Table) -> bool:
    """Return whether several topics land in the table. Each row names its topic then."""
    return table.properties.get(names.TABLE_OWNER) == names.SHARED


def _shared_offsets(table: Table, text: str | None, topic_id: str) -> Offsets:
    try:
        known = SharedOffsets.read(text).topics if text is not None else {}
    except ValueError as error:
        raise UnavailableError(
            f"table {'.'.join(table.name())}: {names.SUMMARY_OFFSETS} cannot be read: {error}"
        ) from error
    if topic_id not in known:
        raise UnavailableError(
            f"table {'.'.join(table.name())}: no record of the topic has landed yet; retry after its first commit"
        )
    return known[topic_id].offsets


def before(table: Table, topic_id: str) -> tuple[int | None, bool]:
    """Return the snapshot with all rows of earlier topics and none of this one, and whether the history goes back that far.

    The snapshot is None if there is none, if it has expired, or if each row of the table names its topic.
    """
    if is_shared(table):
        return None, True
    parent: int | None = None
    has_history = True
    for snapshot in _history(table):
        if _summary(snapshot).get(names.SUMMARY_TOPIC_ID) == topic_id:
            parent = snapshot.parent_snapshot_id
            has_history = parent is None or table.snapshot_by_id(parent) is not None
    return (parent if has_history else None), has_history


def removes_rows(policy: Mapping[str, Any]) -> bool:
    """Return True if a RetentionPolicy, given its manifest, deletes rows of tables."""
    spec = policy.get("spec") or {}
    return spec.get("mode") == "Enforce" and spec.get("rows") is not None


def rows_removed(table: Table) -> bool:
    """Return True if the known history of the table contains a retention run that removed rows."""
    return any(_summary(snapshot).get(names.SUMMARY_KIND) == _RETAIN for snapshot in _history(table))


def _history(table: Table) -> Iterator[Snapshot]:
    """Yield the known history, newest first. Ingestion removes old snapshots, so it may have gaps."""
    snapshot = landed_snapshot(table)
    while snapshot is not None:
        yield snapshot
        if snapshot.parent_snapshot_id is None:
            return
        parent = table.snapshot_by_id(snapshot.parent_snapshot_id)
        snapshot = parent if parent is not None else _newest_before(table, snapshot.sequence_number or 0)


def _landed_id(table: Table) -> int | None:
    """Return the id of `landed_snapshot` if rows do not land on main."""
    snapshot = landed_snapshot(table) if landing_branch(table.properties) != MAIN else None
    return snapshot.snapshot_id if snapshot is not None else None


def _unpublished(table: Table) -> str:
    """Return the branch that main follows, and how many rows main lacks, as a note; empty without such a branch."""
    branch, landed, main = landing_branch(table.properties), landed_snapshot(table), table.current_snapshot()
    if branch == MAIN or landed is None:
        return ""
    count = _records(landed) - (_records(main) if main is not None else 0)
    return f"the audit compares branch {branch}, on which rows land; main has {count:,} rows less, which wait for the checks of publish"


def _records(snapshot: Snapshot) -> int:
    return int(_summary(snapshot).get("total-records", 0))


def _newest_before(table: Table, sequence: int) -> Snapshot | None:
    older = [each for each in table.metadata.snapshots if (each.sequence_number or 0) < sequence]
    return max(older, key=lambda each: each.sequence_number or 0, default=None)


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def row_offsets(table: Table | None, snapshot_id: int | None = None, topic_id: str = "") -> Iterator[pa.Table]:
    """Yield (partition, offset) of every row of the table, or of a snapshot. Rows of another writer have neither.

    ``topic_id`` selects the rows of one topic of a shared table.
    """
    if table is None or not _has_offsets(table, snapshot_id):
        return
    flat = f"{rows.METADATA_COLUMN}_partition" in {field.name for field in table.schema().fields}
    members = ["partition", "offset", *(["topic_id"] if topic_id else [])]
    selected = [f"{rows.METADATA_COLUMN}_{name}" for name in members] if flat else [rows.METADATA_COLUMN]
    for batch in scan(table, selected, snapshot_id):
        every = [batch.column(name) for name in selected] if flat else [batch.column(0).field(name) for name in members]
        if topic_id:
            every = pa.Table.from_arrays(every, names=members).filter(pc.field("topic_id") == topic_id).columns
        columns = every[:2]
        found = pa.Table.from_arrays(
            [column.cast(kind) for column, kind in zip(columns, _OFFSETS.types, strict=True)], schema=_OFFSETS
        )
        yield found.drop_null()


def _has_offsets(table: Table, snapshot_id: int | None) -> bool:
    """Return whether the table, or the schema of a snapshot, has Kafka's columns. A table that was adopted got them later."""
    snapshot = table.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    schema = table.schemas()[snapshot.schema_id] if snapshot is not None and snapshot.schema_id is not None else None
    return schema is None or any(field.name.startswith(rows.METADATA_COLUMN) for field in schema.fields)


def live_topic(settings: Mapping[str, Any], topic: str) -> Topic:
    """Describe the live topic. Raises UnavailableError."""
    admin = AdminClient(dict(settings))
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=_READ_TIMEOUT)[topic].result()
        configs = admin.describe_configs([resource], request_timeout=_READ_TIMEOUT)[resource].result()
    except KafkaException as error:
        raise UnavailableError(f"topic {topic}: {error.args[0].str()}") from error
    return Topic(kafka_id(described.topic_id), "compact" in str(configs["cleanup.policy"].value))


def log_offsets(
    settings: Mapping[str, Any], topic: str, landed: Offsets, report: Callable[[str], None]
) -> tuple[Offsets, Offsets, Iterator[pa.Table]]:
    """Return start and end offsets of the log, and (partition, offset) of every committed record below ``landed``.

    Raises UnavailableError.
    """
    consumer = Consumer(
        {
            **settings,
            "group.id": "firn-audit",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.max.bytes": 8 * 2**20,
            "queued.max.messages.kbytes": 16 * 1024,
        }
    )
    try:
        known = consumer.list_topics(topic, timeout=_READ_TIMEOUT).topics[topic].partitions
        bounds = {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_READ_TIMEOUT)
            for partition in {*landed, *known}
        }
    except KafkaException as error:
        consumer.close()
        raise UnavailableError(f"topic {topic}: the brokers do not answer: {error}") from error
    starts = {partition: start for partition, (start, _) in bounds.items()}
    ends = {partition: end for partition, (_, end) in bounds.items()}
    return starts, ends, _read(consumer, topic, starts, landed, report)


def _read(
    consumer: Consumer, topic: str, starts: Offsets, landed: Offsets, report: Callable[[str], None]
) -> Iterator[pa.Table]:
    open_ = {partition for partition in landed if starts[partition] < landed[partition]}
    seen = 0
    partitions: list[int] = []
    offsets: list[int] = []
    try:
        if open_:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in sorted(open_)])
        while open_:
            messages = consumer.consume(10_000, timeout=1.0)
            for message in messages:
                partition, offset, error = cast(int, message.partition()), cast(int, message.offset()), message.error()
                if error is not None:
                    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                        continue  # librdkafka asks for the group's coordinator, which this client does not use
                    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                        raise AccessDeniedError(
                            f"topic {topic}: the user of this command may not read records; grant it Read on the topic for the audit, or read"
                            " status.audit, for which runs with a right of their own compare the log"
                        )
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise UnavailableError(f"topic {topic}: {error}")
                    # The end of the partition, even if its last offsets have no record (compaction, aborted transactions).
                    open_.discard(partition)
                elif offset >= landed[partition] - 1:
                    open_.discard(partition)
                if error is None and offset < landed[partition]:
                    partitions.append(partition)
                    offsets.append(offset)
            if len(offsets) >= _CHUNK or (not open_ and offsets):
                seen += len(offsets)
                report(f"read {seen:,} records of the log")
                yield pa.table({"partition": pa.array(partitions, pa.int32()), "offset": pa.array(offsets, pa.int64())})
                partitions, offsets = [], []
    finally:
        consumer.close()


@dataclass(frozen=True, slots=True)
class Rows:
    """(partition, offset) of rows: of the table, of its dead letters, and of both from earlier topics."""

    good: Iterator[pa.Table]
    dead: Iterator[pa.Table]
    earlier_good: Iterable[pa.Table] = ()
    earlier_dead: Iterable[pa.Table] = ()
    lost: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """Ranges by partition that the table records as lost. The log may have other records there than the rows."""
    filtered: Mapping[int, Sequence[FilteredRange]] = field(default_factory=dict)
    """Ranges by partition with records that the filter left out."""
    replaying: bool = False
    """True if letters of a replay may be rows already."""


def compare(
    landed: Offsets,
    starts: Offsets,
    log: Iterator[pa.Table],
    rows: Rows,
    *,
    from_earliest: bool = True,
    compacted: bool = False,
    skips: bool = False,
    decided: AuditFrom | None = None,
) -> list[PartitionAudit]:
    """Return the audit of every partition.

    ``from_earliest`` is False if ingestion did not begin at the start of the log: records before the first row are not
    missing then. ``compacted``: stray rows are unproved. ``skips``: missing records are unproved, and those before
    ``decided`` always. Surplus rows are unproved if ``decided`` is mixed.
    """
    decided = decided or AuditFrom(topic_id="")
    with database.connect(spills=True) as connection:
        batches: Iterable[pa.Table]
        for name, batches in (
            ("log", log),
            ("all_good", rows.good),
            ("all_dead", rows.dead),
            ("earlier_good", rows.earlier_good),
            ("earlier_dead", rows.earlier_dead),
        ):
            connection.execute(f'CREATE TABLE {name} (partition INTEGER, "offset" BIGINT)')
            for batch in batches:
                connection.register("batch", batch)
                connection.execute(f"INSERT INTO {name} SELECT * FROM batch")
                connection.unregister("batch")
        for name in ("good", "dead"):
            any_earlier = connection.execute(f"SELECT 1 FROM earlier_{name} LIMIT 1").fetchone()
            without = (
                f"EXCEPT ALL FROM earlier_{name}" if any_earlier else ""
            )  # expensive: the view may have any number of rows
            rest = f"FROM all_{name} {without}"
            if name == "dead" and rows.replaying:
                rest = f'SELECT d.* FROM ({rest}) d ANTI JOIN good g ON g.partition = d.partition AND g."offset" = d."offset"'
            connection.execute(f"CREATE VIEW {name} AS {rest}")
        bounds = pa.table(
            {
                "partition": pa.array(list(landed), pa.int32()),
                "start": pa.array([starts.get(partition, 0) for partition in landed], pa.int64()),
                "landed": pa.array([landed[partition] for partition in landed], pa.int64()),
                "decided": pa.array([decided.offsets.get(partition, 0) for partition in landed], pa.int64()),
            }
        )
        connection.register("bounds", bounds)
        connection.register("lost", _lost_ranges(rows))
        connection.register("left_out", _filtered_ranges(rows))
        flags = {"from_earliest": from_earliest, "compacted": compacted, "skips": skips, "mixed": decided.mixed}
        differences = connection.execute(_COMPARE, flags).fetchall()
    return [PartitionAudit(*row) for row in differences]


def _lost_ranges(rows: Rows) -> pa.Table:
    """Return ``rows.lost`` as a table."""
    ranges = [(partition, low, high) for partition, listed in rows.lost.items() for low, high in listed]
    columns = {"partition": pa.int32(), "low": pa.int64(), "high": pa.int64()}
    return pa.table(
        {name: pa.array([place[n] for place in ranges], kind) for n, (name, kind) in enumerate(columns.items())}
    )


def _filtered_ranges(rows: Rows) -> pa.Table:
    """Return ``rows.filtered`` as a table."""
    ranges = [(partition, *each) for partition, listed in rows.filtered.items() for each in listed]
    columns = {"partition": pa.int32(), "low": pa.int64(), "high": pa.int64(), "n": pa.int64()}
    return pa.table(
        {name: pa.array([each[n] for each in ranges], kind) for n, (name, kind) in enumerate(columns.items())}
    )


_COMPARE = """
WITH landed_dead AS (SELECT d.* FROM dead d JOIN bounds b USING (partition) WHERE d."offset" < b.landed),
landed_rows AS (SELECT partition, "offset", count(*) AS times FROM (FROM good UNION ALL FROM landed_dead) GROUP BY ALL),
firsts AS (SELECT partition, min("offset") AS first FROM landed_rows GROUP BY ALL),
gone AS (
  SELECT l.partition, l."offset", l."offset" >= b.decided AS sure FROM log l JOIN bounds b USING (partition) LEFT JOIN firsts f USING (partition)
  ANTI JOIN landed_rows r ON r.partition = l.partition AND r."offset" = l."offset"
  ANTI JOIN lost x ON x.partition = l.partition AND l."offset" >= x.low AND l."offset" < x.high
  WHERE l."offset" >= b.start AND l."offset" < b.landed AND ($from_earliest OR l."offset" >= f.first)),
parts AS (
  SELECT o.partition, o.n, count(g."offset") AS seen, min(g."offset") AS example,
    bool_and(o.low >= b.start AND o.low >= b.decided AND o.high <= b.landed AND x.low IS NULL AND ($from_earliest OR o.low >= f.first)) AS whole
  FROM left_out o JOIN bounds b USING (partition) LEFT JOIN firsts f USING (partition)
  LEFT JOIN (SELECT DISTINCT o.partition, o.low FROM left_out o JOIN lost x ON x.partition = o.partition AND x.low < o.high AND x.high > o.low) x
    ON x.partition = o.partition AND x.low = o.low
  LEFT JOIN gone g ON g.partition = o.partition AND g."offset" >= o.low AND g."offset" < o.high AND g.sure
  GROUP BY o.partition, o.low, o.n),
filtered AS (
  SELECT partition, coalesce(sum(least(seen, n)) FILTER (WHERE whole), 0)::BIGINT AS n,
    coalesce(sum(least(seen, n)) FILTER (WHERE whole IS NOT TRUE), 0)::BIGINT AS unsure, sum(greatest(seen - n, 0))::BIGINT AS more,
    coalesce(sum(greatest(n - seen, 0)) FILTER (WHERE whole), 0)::BIGINT AS fewer, min(example) FILTER (WHERE seen > n) AS example
  FROM parts GROUP BY ALL),
missing AS (
  SELECT g.partition, count(*) FILTER (WHERE sure) AS n, count(*) FILTER (WHERE NOT sure) AS undecided, min(g."offset") FILTER (WHERE sure) AS example
  FROM gone g ANTI JOIN left_out o ON g.sure AND o.partition = g.partition AND g."offset" >= o.low AND g."offset" < o.high GROUP BY ALL),
doubled AS (SELECT partition, count(*) AS n, min("offset") AS example FROM landed_rows WHERE times > 1 GROUP BY ALL),
stray AS (
  SELECT r.partition, count(*) AS n, min(r."offset") AS example FROM landed_rows r JOIN bounds b USING (partition)
  ANTI JOIN log l ON l.partition = r.partition AND l."offset" = r."offset"
  ANTI JOIN lost x ON x.partition = r.partition AND r."offset" >= x.low AND r."offset" < x.high
  WHERE r."offset" >= b.start GROUP BY ALL),
older AS (
  SELECT r.partition, any_value(b.start) - min(r."offset") - count(*) AS n FROM landed_rows r JOIN bounds b USING (partition)
  WHERE r."offset" < b.start GROUP BY r.partition)
SELECT b.partition, b.start, b.landed,
  (SELECT count(*) FROM log l WHERE l.partition = b.partition), (SELECT count(*) FROM good g WHERE g.partition = b.partition),
  (SELECT count(*) FROM landed_dead d WHERE d.partition = b.partition),
  CASE WHEN $skips THEN 0 ELSE coalesce(m.n, 0) + coalesce(u.more, 0) END, CASE WHEN $mixed THEN 0 ELSE coalesce(d.n, 0) END,
  CASE WHEN $compacted OR $mixed THEN 0 ELSE coalesce(s.n, 0) + coalesce(u.fewer, 0) END,
  CASE WHEN $skips THEN coalesce(m.n, 0) + coalesce(u.more, 0) ELSE 0 END + coalesce(m.undecided, 0) + coalesce(u.unsure, 0)
    + CASE WHEN $mixed THEN coalesce(d.n, 0) ELSE 0 END + CASE WHEN $compacted OR $mixed THEN coalesce(s.n, 0) ELSE 0 END,
  coalesce(CASE WHEN NOT $skips THEN coalesce(m.example, u.example) END, CASE WHEN NOT $mixed THEN d.example END,
    CASE WHEN NOT ($compacted OR $mixed) THEN s.example END),
  coalesce(o.n, 0), coalesce(u.n, 0)
FROM bounds b LEFT JOIN filtered u USING (partition)
  LEFT JOIN missing m USING (partition) LEFT JOIN doubled d USING (partition) LEFT JOIN stray s USING (partition)
  LEFT JOIN older o USING (partition)
ORDER BY ALL
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """The parts of a live IcebergTopic that the audit needs. ``from_earliest``: ingestion began at the log's start."""

    profile: str
    topic: str
    table: str
    from_earliest: bool
    skips: bool
    others: tuple[str, ...] = ()
    """Further tables of the topic: those of ``spec.routes``."""
    shared_by: str = ""
    """Name of the resource, if the table is shared."""

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> "Subject":
        """Read the manifest. Raises InvalidSpecError if its status does not name topic and table yet, or it has only a part of a
        topic's records."""
        status = manifest.get("status") or {}
        table = status.get("table") or {}
        if not table.get("identifier") or not status.get("topicName"):
            name = f"{manifest['metadata']['namespace']}/{manifest['metadata']['name']}"
            raise InvalidSpecError(f"IcebergTopic {name} has no topic and table yet; read its conditions")
        spec = manifest.get("spec") or {}
        if spec.get("route") is not None:
            parent = f"{manifest['metadata']['namespace']}/{spec['route']['of']}"
            raise InvalidSpecError(
                f"IcebergTopic {manifest['metadata']['name']} has only a part of the records of its Kafka topic; run firn audit {parent}, which"
                " compares all tables"
            )
        ingestion, shared = spec.get("ingestion") or {}, (spec.get("table") or {}).get("shared") is True
        place = table["identifier"].rpartition(".")[0]
        return cls(
            profile=status["profile"],
            topic=status["topicName"],
            table=table["identifier"],
            from_earliest=ingestion.get("startFrom", "Earliest") == "Earliest",
            skips=ingestion.get("onBadRecord") == "Skip",
            others=tuple(f"{place}.{each['name']}" for each in (spec.get("routes") or {}).get("tables") or ()),
            shared_by=manifest["metadata"]["name"] if shared else "",
        )


def audit_resource(
    config: Config,
    manifest: Mapping[str, Any],
    report: Callable[[str], None],
    retention: Mapping[str, Any] | None = None,
) -> Audit:
    """Audit a live IcebergTopic; ``retention`` is the RetentionPolicy that governs it.

    Raises InvalidSpecError and UnavailableError.
    """
    subject = Subject.from_manifest(manifest)
    connection = settings.kafka_connection(subject.profile, config.profiles[subject.profile], config.namespace)
    lake = Lake(config)
    return audit_tables(
        client_settings(connection),
        subject.topic,
        [tables(lake, identifier, subject.shared_by) for identifier in (subject.table, *subject.others)],
        report,
        from_earliest=subject.from_earliest,
        skips=subject.skips,
        drops=retention is not None and removes_rows(retention),
    )


def tables(lake: Lake, identifier: str, shared_by: str = "") -> tuple[Table, Table | None]:
    """Return the topic's table, and its dead letters if there are any. Raises InvalidSpecError.

    ``shared_by``: name of the resource, if the table is shared.

    The dead letters are loaded after the table, so that they have all letters below the landed offsets. They are found by
    name, because the status names them only some time after the first letter. Raises UnavailableError if replays remove
    letters all the time.
    """
    dead = lake.look_up(names.dead_letters(identifier, shared_by))
    for _ in range(_LOADS):
        before, table = _removal(dead), lake.find(identifier)
        dead = lake.look_up(names.dead_letters(identifier, shared_by))
        if _removal(dead) == before:
            return table, dead
    raise UnavailableError(
        f"table {identifier}: a DeadLetterReplay removes dead letters while the audit loads the tables; audit the topic after it"
    )


def _removal(dead: Table | None) -> str | None:
    """Return the name of the last removal of replayed letters."""
    return dead.properties.get(names.REPLAY) if dead is not None else None


def audit_tables(
    client: Mapping[str, Any],
    topic: str,
    parts: Sequence[tuple[Table, Table | None]],
    report: Callable[[str], None],
    *,
    from_earliest: bool = True,
    skips: bool = False,
    drops: bool = False,
) -> Audit:
    """Audit a topic and its `tables`, each with its dead letters. With several, each record has to be in one of them.

    ``client`` are librdkafka's settings. Raises UnavailableError.
    """
    live = live_topic(client, topic)
    own = [landed_offsets(table, live.topic_id) for table, _ in parts]
    landed = landed_together(own)
    starts, ends, log = log_offsets(client, topic, landed, report)
    all_tables = [each for pair in parts for each in pair if each is not None]
    earlier = {id(table): before(table, live.topic_id) for table in all_tables}
    history = all(has_history for _, has_history in earlier.values())
    views = [live.topic_id if is_shared(table) else "" for table, _ in parts]
    losses = [
        Losses.read(table.properties.get(names.of_topic(names.TABLE_LOST, of)))
        for (table, _), of in zip(parts, views, strict=True)
    ]
    rows = Rows(
        (
            batch
            for (table, _), its, of in zip(parts, own, views, strict=True)
            for batch in _without(row_offsets(table, _landed_id(table), of), landed, its)
        ),
        (batch for _, dead in parts for batch in row_offsets(dead)),
        [batch for table, _ in parts for batch in _earlier_offsets(table, earlier)],
        [batch for _, dead in parts if dead is not None for batch in _earlier_offsets(dead, earlier)],
        _joined([each.of_topic(live.topic_id) for each in losses]),
        joined_ranges(
            Filtered.of_table(table.properties, live.topic_id, shared=is_shared(table)).ranges for table, _ in parts
        ),
        any(_replays(table, of) for (table, _), of in zip(parts, views, strict=True)),
    )
    drops = drops or any(rows_removed(each) for each in all_tables)
    decided = AuditFrom(topic_id=live.topic_id)
    for (table, dead), its in zip(parts, own, strict=True):
        decided = decided.joined(decided_from(table, dead, live.topic_id, its, has_history=history))
    partitions = compare(
        landed,
        starts,
        log,
        rows,
        from_earliest=from_earliest,
        compacted=live.compacted,
        skips=skips or drops,
        decided=decided,
    )
    waiting = sum(max(0, end - max(landed.get(partition, 0), starts[partition])) for partition, end in ends.items())
    # All tables of a topic lose the same offsets.
    most = max(losses, key=lambda each: each.since(0)[0])
    unpublished = "; ".join(note for table, _ in parts if (note := _unpublished(table)))
    return Audit(partitions, live.compacted, skips, history, drops, waiting, most, decided, unpublished)


def _replays(table: Table, topic_id: str) -> bool:
    """Return whether letters of a replay may be rows of the table already. ``topic_id``: of the topic, if the table is shared."""
    return Replaying.under_way(table.properties.get(names.of_topic(names.REPLAY, topic_id)))


def _without(batches: Iterator[pa.Table], landed: Offsets, own: Offsets) -> Iterator[pa.Table]:
    """Yield rows without those that a table has landed before another table of the topic has read these offsets."""
    ahead = {
        partition: (landed.get(partition, 0), end) for partition, end in own.items() if landed.get(partition) != end
    }
    for batch in batches:
        if not ahead:
            yield batch
            continue
        partition, offset = (pc.field(name) for name in _OFFSETS.names)
        for number, (start, end) in ahead.items():
            batch = batch.filter(~((partition == number) & (offset >= start) & (offset < end)))
        yield batch


def _earlier_offsets(table: Table, earlier: Mapping[int, tuple[int | None, bool]]) -> Iterator[pa.Table]:
    snapshot, _ = earlier[id(table)]
    return row_offsets(table, snapshot) if snapshot is not None else iter(())


def _joined(ranges: Sequence[Mapping[int, Sequence[tuple[int, int]]]]) -> dict[int, list[tuple[int, int]]]:
    joined: dict[int, list[tuple[int, int]]] = {}
    for each in ranges:
        for partition, listed in each.items():
            joined.setdefault(partition, []).extend(place for place in listed if place not in joined[partition])
    return joined


def as_json(audit: Audit) -> str:
    """Return the audit as JSON."""
    fields = PartitionAudit.__slots__
    partitions = [{field: getattr(partition, field) for field in fields} for partition in audit.partitions]
    offsets, ranges = audit.losses.since(0)
    losses = {"offsets": offsets, "ranges": [loss.model_dump(mode="json") for loss in ranges]}
    return json.dumps(
        {
            "exact": audit.exact,
            "waiting": audit.waiting,
            "losses": losses,
            "notes": audit.notes,
            "partitions": partitions,
        }
    )
