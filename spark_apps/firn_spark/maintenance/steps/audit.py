"""The full audit of a topic: every offset of its log that has landed has exactly one row or dead letter.

The audit reads two columns, the partition and the offset, of the files that may have offsets which the log still has.
It reads the log only at offsets without a row: markers of transactions, aborted and compacted records leave them.
Rows before the start of the log are not compared, because nothing can show what they should be. An audit has compared
them while the log had their records.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyspark.sql import functions

from firn.model import names
from firn.model.errors import FirnError
from firn.model.maintenance import AuditReport
from firn.model.progress import AuditFrom, Offsets
from firn_spark.kafka.admin import Kafka, offsets_of
from firn_spark.kafka.clients import client_config
from firn_spark.kafka.gaps import find_records
from firn_spark.tables.commits import Landed, read_landed
from firn_spark.tables.java_errors import JAVA_ERRORS, translate

MOST_OFFSETS = 2**30
"""Number of offsets that an audit compares. Of a longer log, it compares the newest, the same share of each partition."""
CHUNK = 2**15
"""Number of offsets of one bitmap of Spark's ``bitmap_construct_agg``."""
LISTED = 64
"""Number of partitions up to which the scan names each one. With more, the lowest offset of all selects the files."""

Bounds = Mapping[int, tuple[int, int]]
"""Partition -> first offset to compare, next offset to land."""


@dataclass(frozen=True, slots=True)
class Source:
    """A table to read: Iceberg's object, its name for Spark, and whether its Kafka columns are flat."""

    table: Any
    name: str
    flat: bool = False

    @property
    def columns(self) -> tuple[str, str]:
        """The columns of partition and offset."""
        separator = "_" if self.flat else "."
        return f"_kafka{separator}partition", f"_kafka{separator}offset"


def audit(
    spark: Any, source: Source, dead: Callable[[], Source | None], kafka: Kafka, topic: str, may: Callable[[], None]
) -> AuditReport | None:
    """Compare the offsets of ``topic`` with the rows of its tables. None if nothing of the live topic has landed.

    ``dead`` loads the dead-letter table, after the topic's table was read. ``may`` raises if the run has to stop. Raises
    FirnError.
    """
    try:
        return _audit(spark, source, dead, kafka, topic, may)
    except JAVA_ERRORS as error:
        raise translate(error, f"table {source.table.name()}, audit") from error


def _audit(
    spark: Any,
    source: Source,
    load_dead: Callable[[], Source | None],
    kafka: Kafka,
    topic: str,
    may: Callable[[], None],
) -> AuditReport | None:
    described = kafka.topics([topic])[topic]
    if isinstance(described, FirnError):
        raise described
    landed, snapshot = read_landed(source.table), source.table.currentSnapshot()
    if landed is None or snapshot is None or landed.topic_id != described.topic_id:
        return None
    starts = offsets_of(kafka.starts({topic: described.partitions})[topic])
    bounds = compared(starts, landed.offsets)
    decided = _audit_from(source.table, landed)
    may()
    dead = load_dead()
    dead_landed = read_landed(dead.table) if dead is not None else None
    if dead is not None and dead_landed is not None and dead_landed.topic_id == landed.topic_id:
        decided = decided.raised(_dropped(dead.table, landed.topic_id))
    else:
        dead, dead_landed = None, None
    places = _places(spark, source, int(snapshot.snapshotId()), bounds, "false")
    if dead is not None and dead_landed is not None:
        letters = _places(spark, dead, int(dead.table.currentSnapshot().snapshotId()), bounds, "true", dead_landed)
        places = places.unionAll(letters)
    counted = Counted()
    if bounds:
        counted.add(bounds, _chunks(spark, places, bounds).collect())
    may()
    gaps, undecided = decidable(counted.gaps, decided.offsets)
    found = find_records(client_config(kafka.connection), topic, gaps, may)
    report = AuditReport(
        topic_id=landed.topic_id,
        offsets=sum(end - start for start, end in bounds.values()),
        missing=found.records,
        doubled=0 if decided.mixed else counted.doubled,
        stray=0 if decided.mixed else counted.stray,
        unproved=undecided + found.unknown + (counted.doubled + counted.stray if decided.mixed else 0),
    )
    example = found.first
    if example is None and report.doubled:
        example = _doubled(_joined(spark, places, bounds), *counted.doubled_at[0])
    if example is None and report.stray:
        example = counted.stray_at
    return report if example is None else report.model_copy(update={"partition": example[0], "offset": example[1]})


def compared(starts: Offsets, landed: Offsets) -> dict[int, tuple[int, int]]:
    """Return the offsets to compare: those of the log that have landed, at most the newest `MOST_OFFSETS`."""
    bounds = {part: (starts[part], end) for part, end in landed.items() if starts.get(part, end) < end}
    total = sum(end - start for start, end in bounds.values())
    if total <= MOST_OFFSETS:
        return bounds
    return {part: (end - (end - start) * MOST_OFFSETS // total, end) for part, (start, end) in bounds.items()}


def _audit_from(table: Any, landed: Landed) -> AuditFrom:
    known = AuditFrom.read(table.properties().get(names.TABLE_AUDIT_FROM))
    if known is not None and known.topic_id == landed.topic_id:
        return known
    # No commit of this version yet: an earlier version may have skipped records, or removed rows.
    return AuditFrom(topic_id=landed.topic_id, offsets=landed.offsets, mixed=True)


def _dropped(dead: Any, topic_id: str) -> Offsets:
    """Return the offsets up to which retention has removed dead letters."""
    known = AuditFrom.read(dead.properties().get(names.TABLE_AUDIT_FROM))
    return known.offsets if known is not None and known.topic_id == topic_id else {}


# Rows


def _places(
    spark: Any, source: Source, snapshot: int, bounds: Bounds, letters: str, landed: Landed | None = None
) -> Any:
    """Return partition ``p`` and offset ``o`` of rows of a snapshot, and ``d``: whether they are dead letters."""
    partition, offset = source.columns
    least = min((start for start, _ in bounds.values()), default=0)
    condition = f"{offset} >= {least}"
    if len(bounds) <= LISTED:
        condition = " or ".join(
            f"({partition} = {part} and {offset} >= {start})" for part, (start, _) in bounds.items()
        )
    # Letters do not record the id of their topic. Those of an earlier topic are older.
    since = f" and ingested_at >= timestamp_micros({landed.letters[0]})" if landed is not None else ""
    frame = spark.read.format("iceberg").option("versionAsOf", str(snapshot)).load(source.name)
    return frame.where(f"({condition or 'false'}){since}").selectExpr(
        f"{partition} AS p", f"{offset} AS o", f"{letters} AS d"
    )


def _joined(spark: Any, places: Any, bounds: Bounds) -> Any:
    values = ", ".join(f"({part}, {start}L, {end}L)" for part, (start, end) in sorted(bounds.items()))
    limits = functions.broadcast(spark.sql(f"SELECT * FROM VALUES {values} AS limits(p, s, e)"))
    # Dead letters at or beyond the landed offsets belong to a round whose rows are not committed yet.
    return places.join(limits, "p").where("o >= s and (o < e or not d)")


def _chunks(spark: Any, places: Any, bounds: Bounds) -> Any:
    """Return for each chunk its rows, a bitmap of their offsets unless each has exactly one row, and stray rows."""
    grouped = (
        _joined(spark, places, bounds)
        .withColumn("c", functions.expr(f"o div {CHUNK}"))
        .groupBy("p", "c", "s", "e")
        .agg(
            functions.expr("count_if(o < e)").alias("n"),
            functions.expr(f"bitmap_construct_agg(o % {CHUNK}) FILTER (WHERE o < e)").alias("bits"),
            functions.expr("count_if(o >= e)").alias("beyond"),
            functions.expr("min(o) FILTER (WHERE o >= e)").alias("first_beyond"),
        )
    )
    width = f"least(e, (c + 1) * {CHUNK}) - greatest(s, c * {CHUNK})"
    whole = f"n = {width} AND bitmap_count(bits) = n"
    return grouped.selectExpr("p", "c", "n", f"IF({whole}, NULL, bits) AS bits", "beyond", "first_beyond")


def _doubled(joined: Any, partition: int, chunk: int) -> tuple[int, int] | None:
    """Return the place of the first offset of a chunk with several rows."""
    own = joined.where(f"p = {partition} and o div {CHUNK} = {chunk} and o < e").groupBy("o").count()
    rows = own.where("count > 1").orderBy("o").limit(1).collect()
    return (partition, int(rows[0][0])) if rows else None


@dataclass(slots=True)
class Counted:
    """Offsets without a row, by partition, and numbers of surplus and stray rows with examples."""

    gaps: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    doubled: int = 0
    doubled_at: list[tuple[int, int]] = field(default_factory=list)
    """Partitions and chunks."""
    stray: int = 0
    stray_at: tuple[int, int] | None = None

    def add(self, bounds: Bounds, chunks: Iterable[tuple[int, int, int, bytes | None, int, int | None]]) -> None:
        """Add the rows of all chunks: partition, chunk, number of rows, bitmap, stray rows, the first of these."""
        by_partition: dict[int, dict[int, tuple[int, bytes | None]]] = defaultdict(dict)
        for partition, chunk, rows, bits, beyond, first in chunks:
            by_partition[partition][chunk] = (rows, bits)
            self.stray += beyond
            if first is not None:
                self.stray_at = min(self.stray_at or (partition, first), (partition, first))
        for partition, (start, end) in sorted(bounds.items()):
            for chunk in range(start // CHUNK, (end - 1) // CHUNK + 1):
                rows, bits = by_partition[partition].get(chunk, (0, b""))
                if bits is not None:
                    self._add_chunk(partition, chunk, (start, end), rows, bits)

    def _add_chunk(self, partition: int, chunk: int, bounds: tuple[int, int], rows: int, bits: bytes) -> None:
        base = chunk * CHUNK
        low, high = max(bounds[0], base), min(bounds[1], base + CHUNK)
        present = np.zeros(CHUNK, np.uint8)
        if bits:
            present = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
        inside = present[low - base : high - base]
        surplus = rows - int(inside.sum())
        if surplus:
            self.doubled += surplus
            self.doubled_at.append((partition, chunk))
        edges = np.flatnonzero(np.diff(np.concatenate(([1], inside, [1])).astype(np.int8))).tolist()
        ranges = self.gaps[partition]
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            first = low + start
            if ranges and ranges[-1][1] == first:
                first = ranges.pop()[0]
            ranges.append((first, low + end))


def decidable(
    gaps: Mapping[int, list[tuple[int, int]]], decided: Offsets
) -> tuple[dict[int, list[tuple[int, int]]], int]:
    """Return the parts of ``gaps`` from the offsets ``decided`` on, and the number of offsets before them."""
    later: dict[int, list[tuple[int, int]]] = {}
    before = 0
    for partition, ranges in gaps.items():
        first = decided.get(partition, 0)
        before += sum(min(end, first) - start for start, end in ranges if start < first)
        later[partition] = [(max(start, first), end) for start, end in ranges if end > first]
    return later, before
