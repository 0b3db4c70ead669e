"""Dead letters as Spark reads them: which letters a replay selects, and which of them are rows of the table already.

A letter and a row are the same record if they have the same partition, offset, timestamp and key. A row with the offset of
a letter may be another record, because an unclean election gives an offset again. Such a letter stays: its offset is taken.
Rows of an earlier topic of the same name are not compared. They are in the snapshot before the topic's first one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions

from firn.model import names
from firn.model.maintenance import ReplayWork
from firn.model.progress import Offsets
from firn_spark.maintenance.scans import read_snapshot
from firn_spark.tables.branches.landing import head

LETTERS_PER_PART = 1_000_000
"""Letters from which a commit of rows has enough. A run that ends early loses the work of one commit."""
LISTED = 64
"""Number of partitions up to which a scan of rows names each one."""
_IDENTITY = ("p", "o", "t", "k")


@dataclass(frozen=True, slots=True)
class Selection:
    """The letters that a replay selects.

    ``since`` is the first ``ingested_at`` of the topic (microseconds since 1970): older letters are of an earlier topic.
    ``landed`` are the landed offsets of the table. A letter beyond them is of a round whose rows are not committed yet.
    """

    work: ReplayWork
    topic_id: str
    since: int
    landed: Offsets


@dataclass(frozen=True, slots=True)
class Part:
    """Letters that are one commit: those with an ``ingested_at`` from ``first`` to ``last``, in microseconds since 1970."""

    first: int
    last: int
    letters: int


def of_topic(spark: Any, dead: Any, since: int) -> Any | None:
    """Return the letters of the topic in the current snapshot of ``dead``; None without a snapshot."""
    snapshot = dead.currentSnapshot()
    if snapshot is None:
        return None
    return read_snapshot(spark, dead, snapshot).where(f"ingested_at >= timestamp_micros({since})")


def selected(letters: Any, selection: Selection) -> Any:
    """Return the letters of `of_topic` that the replay selects."""
    work = selection.work
    landed = ", ".join(f"{partition}, {offset}L" for partition, offset in sorted(selection.landed.items()))
    frame = letters.where(f"_kafka.offset < map({landed})[_kafka.partition]" if landed else "false")
    if work.codes:
        frame = frame.where(functions.col("error_code").isin(*work.codes))
    if work.since_ms is not None:
        frame = frame.where(f"ingested_at >= timestamp_micros({work.since_ms * 1000})")
    if work.generations:
        frame = frame.where(functions.col("generation").isin(*work.generations))
    return frame


def by_code(frame: Any) -> dict[str, int]:
    """Count letters by their cause."""
    return {str(code): int(count) for code, count in frame.groupBy("error_code").count().collect()}


def parts(frame: Any, most: int = LETTERS_PER_PART) -> list[Part]:
    """Divide letters by the day of ``ingested_at``, by which their files are partitioned. Days with few letters share a part."""
    days = (
        frame.groupBy(functions.expr("unix_micros(ingested_at) div 86400000000").alias("day"))
        .agg(
            functions.expr("unix_micros(min(ingested_at))"),
            functions.expr("unix_micros(max(ingested_at))"),
            functions.expr("count(*)"),
        )
        .orderBy("day")
        .collect()
    )
    found: list[Part] = []
    for _, first, last, count in days:
        if found and found[-1].letters + count <= most:
            found[-1] = Part(found[-1].first, last, found[-1].letters + count)
        else:
            found.append(Part(first, last, count))
    return found


def after(frame: Any, through: int | None) -> Any:
    """Return the letters that are newer than those of finished parts: ``through`` is their newest ``ingested_at``, if there are any."""
    return frame.where(f"ingested_at > timestamp_micros({through})") if through is not None else frame


def within(frame: Any, part: Part) -> Any:
    """Return the letters of a part."""
    return frame.where(
        f"ingested_at >= timestamp_micros({part.first}) and ingested_at <= timestamp_micros({part.last})"
    )


def as_records(frame: Any, topic: str) -> Any:
    """Return letters in the columns of Spark's Kafka source, as the decoders read them."""
    return frame.selectExpr(
        "key",
        "value",
        f"'{topic}' AS topic",
        "_kafka.partition AS partition",
        "_kafka.offset AS offset",
        "_kafka.timestamp_ms AS timestamp_ms",
        "_kafka.timestamp_type AS timestampType",
        "_kafka.headers AS headers",
    )


def identities(frame: Any, *, flat: bool = False) -> Any:
    """Return what identifies the records of letters or rows: partition, offset, time, and a digest of the key."""
    member = "_kafka_" if flat else "_kafka."
    return frame.selectExpr(
        f"{member}partition AS p",
        f"{member}offset AS o",
        f"coalesce({member}timestamp_ms, -1L) AS t",
        f"xxhash64({member}key) AS k",
    )


def before(table: Any, topic_id: str) -> Any | None:
    """Return the snapshot with all rows of earlier topics and none of this one; None if there is none, or if it has expired.

    ``table`` has its newest metadata. Ingestion keeps this snapshot, and the history after it may have gaps.
    """
    first = None
    for snapshot in _history(table):
        if snapshot.summary().get(names.SUMMARY_TOPIC_ID) == topic_id:
            first = snapshot
    parent = first.parentId() if first is not None else None
    return table.snapshot(parent) if parent is not None else None


def _history(table: Any) -> Iterator[Any]:
    """Yield the known snapshots of the landed history, newest first."""
    older = sorted(table.snapshots(), key=lambda each: int(each.sequenceNumber()))
    snapshot = head(table)
    while snapshot is not None:
        yield snapshot
        parent, sequence = snapshot.parentId(), int(snapshot.sequenceNumber())
        if parent is None:
            return
        snapshot = table.snapshot(parent)
        while snapshot is None and older:
            newest = older.pop()
            snapshot = newest if int(newest.sequenceNumber()) < sequence else None


def occupied(spark: Any, frame: Any, table: Any, topic_id: str, *, flat: bool, shared: bool = False) -> Any | None:
    """Return the letters whose offset has a landed row in ``table``, computed once; None if there are none.

    The columns are those of `identities`, and ``same``: whether the row is of the same record. ``topic_id``: Kafka's id of
    the letters' topic. Rows of an earlier topic do not count. ``shared``: each row names its topic.
    """
    snapshot = head(table)
    places = identities(frame)
    bounds = places.groupBy("p").agg(functions.expr("min(o)"), functions.expr("max(o)")).collect()
    if snapshot is None or not bounds:
        return None
    rows = _rows(spark, table, snapshot, bounds, topic_id if shared else "", flat=flat)
    if rows is None:
        return None
    earlier = before(table, topic_id) if not shared else None
    if earlier is not None and (others := _rows(spark, table, earlier, bounds, flat=flat)) is not None:
        # A producer may have sent the records of the earlier topic again, with the same times and keys.
        rows = rows.exceptAll(others)
    rows = rows.selectExpr("p", "o", "t AS row_t", "k AS row_k")
    found = (
        places.join(rows, ["p", "o"])
        .groupBy(*_IDENTITY)
        .agg(functions.expr("bool_or(t = row_t and k = row_k) AS same"))
    )
    found = found.localCheckpoint()
    return found if found.head(1) else None


def _rows(
    spark: Any, table: Any, snapshot: Any, bounds: Sequence[Any], topic_id: str = "", *, flat: bool
) -> Any | None:
    """Return the `identities` of the rows with such offsets in a snapshot; None if the snapshot has no columns of Kafka.

    ``topic_id``: only the rows that name this topic.
    """
    frame = read_snapshot(spark, table, snapshot)
    if ("_kafka_offset" if flat else "_kafka") not in frame.columns:
        return None
    if topic_id:
        frame = frame.where(f"{'_kafka_' if flat else '_kafka.'}topic_id = '{topic_id}'")
    return identities(frame.where(_between(bounds, flat=flat)), flat=flat)


def without(frame: Any, taken: Any) -> Any:
    """Return the letters that are not in ``taken``, which `occupied` returns."""
    named = taken.selectExpr("p AS taken_p", "o AS taken_o")
    same = (functions.col("_kafka.partition") == functions.col("taken_p")) & (
        functions.col("_kafka.offset") == functions.col("taken_o")
    )
    return frame.join(named, same, "left_anti")


def _between(bounds: Sequence[Any], *, flat: bool) -> str:
    """Return the condition that selects the files of rows with such offsets, by their statistics."""
    member = "_kafka_" if flat else "_kafka."
    if len(bounds) > LISTED:
        low, high = min(row[1] for row in bounds), max(row[2] for row in bounds)
        return f"{member}offset >= {low}L and {member}offset <= {high}L"
    return " or ".join(
        f"({member}partition = {partition} and {member}offset >= {low}L and {member}offset <= {high}L)"
        for partition, low, high in bounds
    )


def is_one_of(view: str, since: int) -> str:
    """Return the SQL condition that is true for letters of the topic whose identity is in a temporary view."""
    return (
        f"ingested_at >= timestamp_micros({since}) AND EXISTS (SELECT 1 FROM {view} WHERE {view}.p = _kafka.partition"
        f" AND {view}.o = _kafka.offset AND {view}.t = coalesce(_kafka.timestamp_ms, -1L) AND {view}.k = xxhash64(_kafka.key))"
    )
