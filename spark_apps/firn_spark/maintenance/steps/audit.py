"""The full audit of a topic: every offset of its log that has landed has exactly one row or dead letter, in one of its tables.

The audit reads two columns, the partition and the offset, of the files that may have offsets which the log still has.
It reads the log only at offsets without a row: markers of transactions, aborted and compacted records leave them.
Rows before the start of the log are not compared, because nothing can show what they should be. An audit has compared
them while the log had their records.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np
from pyspark.sql import functions

from firn.model import names
from firn.model.errors import FirnError
from firn.model.maintenance import MOST_RANGES, AuditReport, OffsetRange, covering
from firn.model.progress import AuditFrom, Filtered, Offsets, Replaying, View, joined_ranges, landed_together, outside
from firn_spark.kafka.admin import Kafka, offsets_of
from firn_spark.kafka.clients import client_config
from firn_spark.kafka.gaps import find_records
from firn_spark.maintenance.scans import read_snapshot
from firn_spark.tables.branches.landing import head
from firn_spark.tables.commits import Landed, key_of, read_landed, read_losses
from firn_spark.tables.java_errors import JAVA_ERRORS, translate

MOST_OFFSETS = 2**32
"""Number of offsets that an audit compares. Of a longer log, it compares the newest, the same share of each partition."""
WINDOW = 2**28
"""Number of offsets that one Spark job compares. It bounds the memory for logs in which most offsets lack a row."""
MOST_GAPS = 200_000
"""Number of ranges without a row that an audit looks for in the log. It cannot decide about further ranges."""
MOST_SURPLUS = 10_000
"""Number of ranges of surplus rows that an audit keeps in memory. It joins further ranges."""
WORD = 64
"""Number of offsets whose rows are one number: a bit for each."""
CHUNK = WORD * WORD
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
    shared_by: str = ""
    """Name of the resource, if the table is shared."""

    def view(self, topic_id: str) -> View | None:
        """Return the topic whose rows count, if the table is shared."""
        return View(topic_id, self.shared_by) if self.shared_by else None

    @property
    def topic_column(self) -> str:
        """The column of a shared table with the id of the topic."""
        return "_kafka_topic_id" if self.flat else "_kafka.topic_id"

    @property
    def columns(self) -> tuple[str, str]:
        """The columns of partition and offset."""
        separator = "_" if self.flat else "."
        return f"_kafka{separator}partition", f"_kafka{separator}offset"


@dataclass(frozen=True, slots=True)
class Tables:
    """A table of a topic, and the function that loads its dead letters, which has to be called after the table was read."""

    source: Source
    dead: Callable[[], Source | None]


@dataclass(frozen=True, slots=True)
class _Read:
    """A table as it was read first, with the offsets that it has landed, and its dead letters, which were read later."""

    source: Source
    landed: Landed
    snapshot: Any
    decided: AuditFrom
    dead: Source | None = None
    since: int = 0

    @property
    def view(self) -> View | None:
        """The topic, if the table is shared."""
        return self.source.view(self.landed.topic_id)

    def rows(self, spark: Any) -> "Rows":
        """Return the places of the topic's rows and dead letters."""
        replaying = is_replaying(self.source.table, self.view)
        return Rows(spark, self.source, self.snapshot, self.dead, self.since, self.view, replaying=replaying)

    def with_letters(self, load: Callable[[], Source | None]) -> "_Read":
        """Return the table with its dead letters, if these are of the same topic."""
        dead = load()
        landed = read_landed(dead.table) if dead is not None else None
        if dead is None or landed is None or landed.topic_id != self.landed.topic_id:
            return self
        decided = self.decided.raised(_dropped(dead.table, self.landed.topic_id))
        return replace(self, dead=dead, since=landed.letters[0], decided=decided)


def audit(
    spark: Any, tables: Sequence[Tables], kafka: Kafka, topic: str, may: Callable[[], None]
) -> AuditReport | None:
    """Compare the offsets of ``topic`` with the rows of its tables. None if it has records of which none has landed.

    With several tables, each record has to be in one of them. ``may`` raises if the run has to stop. Raises FirnError.
    """
    try:
        return _audit(spark, tables, kafka, topic, may)
    except JAVA_ERRORS as error:
        raise translate(error, f"table {tables[0].source.table.name()}, audit") from error


def _audit(
    spark: Any, tables: Sequence[Tables], kafka: Kafka, topic: str, may: Callable[[], None]
) -> AuditReport | None:
    described = kafka.topics([topic])[topic]
    if isinstance(described, FirnError):
        raise described
    found = [_read_first(each.source, described.topic_id) for each in tables]
    read = [each for each in found if each is not None]
    if len(read) < len(tables):
        # A topic that was created again may stay without records: then no offset is to be compared.
        first = offsets_of(kafka.starts({topic: described.partitions})[topic])
        empty = first == offsets_of(kafka.ends({topic: described.partitions})[topic])
        return AuditReport(topic_id=described.topic_id, offsets=0) if empty else None
    starts = offsets_of(kafka.starts({topic: described.partitions})[topic])
    may()
    read = [each.with_letters(own.dead) for each, own in zip(read, tables, strict=True)]
    return _compare(spark, read, starts, kafka, topic, may)


def _read_first(source: Source, topic_id: str) -> _Read | None:
    """Return a table as it is now; None if it has landed nothing of the topic."""
    view = source.view(topic_id)
    landed, snapshot = read_landed(source.table, view), head(source.table)
    if landed is None or snapshot is None or landed.topic_id != topic_id:
        return None
    return _Read(source, landed, snapshot, _audit_from(source.table, landed, view))


def _compare(
    spark: Any, read: Sequence[_Read], starts: Offsets, kafka: Kafka, topic: str, may: Callable[[], None]
) -> AuditReport:
    parts = [each.rows(spark) for each in read]
    rows, topic_id = parts[0].beside(parts[1:]) if parts[1:] else parts[0], read[0].landed.topic_id
    decided = read[0].decided
    lost: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for each in read:
        decided = decided.joined(each.decided)
        for partition, ranges in read_losses(each.source.table, each.view).of_topic(topic_id).items():
            lost[partition] += ranges
    counted = Counted(decided.offsets, lost)
    bounds = compared(starts, landed_together([each.landed.offsets for each in read]))
    for window in windows(bounds):
        may()
        counted.add(window, rows.chunks(window))
    may()
    filtered = joined_ranges(
        Filtered.of_table(each.source.table.properties(), topic_id, shared=each.view is not None).ranges
        for each in read
    )
    found = find_records(client_config(kafka.connection), topic, counted.gaps, may, filtered=filtered)
    left_out, unsure = found.filtered.decided(_decided(bounds, decided.offsets))
    beyond = [part.beyond(each.landed.offsets) for part, each in zip(parts, read, strict=True)]
    stray = sum(count for count, _, _ in beyond)
    missing = {
        "missing_ranges": covering(found.ranges, MOST_RANGES),
        "unsearched_ranges": covering([*found.unsearched, *counted.unlisted], MOST_RANGES),
    }
    stray_ranges = [own for _, _, ranges in beyond for own in ranges]
    surplus = {"surplus_ranges": covering([*counted.surplus, *stray_ranges], MOST_RANGES)}
    report = AuditReport(
        topic_id=topic_id,
        offsets=sum(end - start for start, end in bounds.values()),
        missing=found.records,
        doubled=0 if decided.mixed else counted.doubled,
        stray=0 if decided.mixed else stray,
        filtered=left_out,
        unproved=counted.undecided + found.unknown + unsure + (counted.doubled + stray if decided.mixed else 0),
        **(missing if found.records else {}),
        **(surplus if not decided.mixed else {}),
    )
    example = found.first
    if example is None and report.doubled and counted.doubled_at is not None:
        example = rows.doubled(*counted.doubled_at)
    if example is None and report.stray:
        example = min((at for _, at, _ in beyond if at is not None), default=None)
    return report if example is None else report.model_copy(update={"partition": example[0], "offset": example[1]})


def _decided(bounds: Bounds, since: Offsets) -> dict[int, tuple[int, int]]:
    """Return the bounds without the offsets for which the audit cannot decide."""
    return {part: (max(start, since.get(part, 0)), end) for part, (start, end) in bounds.items()}


def compared(starts: Offsets, landed: Offsets) -> dict[int, tuple[int, int]]:
    """Return the offsets to compare: those of the log that have landed, at most the newest `MOST_OFFSETS`."""
    bounds = {part: (starts[part], end) for part, end in landed.items() if starts.get(part, end) < end}
    total = sum(end - start for start, end in bounds.values())
    if total <= MOST_OFFSETS:
        return bounds
    return {part: (end - (end - start) * MOST_OFFSETS // total, end) for part, (start, end) in bounds.items()}


def windows(bounds: Bounds) -> Iterator[dict[int, tuple[int, int]]]:
    """Divide the offsets to compare into windows of at most `WINDOW` offsets."""
    window: dict[int, tuple[int, int]] = {}
    room = WINDOW
    for partition, (start, end) in sorted(bounds.items()):
        while start < end:
            stop = min(end, start + room)
            window[partition] = (start, stop)
            room -= stop - start
            start = stop
            if not room:
                yield window
                window, room = {}, WINDOW
    if window:
        yield window


def _audit_from(table: Any, landed: Landed, view: View | None) -> AuditFrom:
    properties = table.properties()
    known = AuditFrom.read(properties.get(key_of(names.TABLE_AUDIT_FROM, view)))
    if view is not None:
        # Each row names its topic, and no earlier version commits to a shared table.
        return known or AuditFrom(topic_id=landed.topic_id, offsets=landed.offsets)
    if known is not None and known.topic_id == landed.topic_id:
        return known.as_of(properties.get(names.SUMMARY_COMMIT_ID), landed.offsets)
    # No commit of this version yet: an earlier version may have skipped records, or removed rows.
    return AuditFrom(topic_id=landed.topic_id, offsets=landed.offsets, mixed=True)


def is_replaying(table: Any, view: View | None = None) -> bool:
    """Return whether letters of a replay may be rows of the table already."""
    return Replaying.under_way(table.properties().get(key_of(names.REPLAY, view)))


def _dropped(dead: Any, topic_id: str) -> Offsets:
    """Return the offsets up to which retention has removed dead letters."""
    known = AuditFrom.read(dead.properties().get(names.TABLE_AUDIT_FROM))
    return known.offsets if known is not None and known.topic_id == topic_id else {}


class Rows:
    """The places of a topic's rows and dead letters in snapshots of both tables: partition ``p`` and offset ``o``."""

    def __init__(
        self,
        spark: Any,
        source: Source,
        snapshot: Any,
        dead: Source | None,
        since: int,
        view: View | None = None,
        *,
        replaying: bool = False,
    ) -> None:
        """Read ``snapshot`` of the table, and the newest of ``dead`` with its letters from ``since`` on. In a shared table, only
        the rows of ``view`` count.

        Letters do not record the id of their topic. Those of an earlier topic are older. ``replaying``: letters whose
        offset has a row do not count, because a replay has landed them and not yet removed them.
        """
        self._spark = spark
        self._others: Sequence[Rows] = ()
        own = f"{source.topic_column} = '{view.topic_id}'" if view is not None else "true"
        self._good = _read(spark, source, snapshot, own)
        self._dead = None
        if dead is not None and (newest := dead.table.currentSnapshot()) is not None:
            self._dead = _read(spark, dead, newest, f"ingested_at >= timestamp_micros({since})")
            if replaying:
                self._dead = self._dead.join(self._good, ["p", "o"], "left_anti")

    def beside(self, others: Sequence["Rows"]) -> "Rows":
        """Return the rows and dead letters of all tables of the topic together."""
        whole = copy.copy(self)
        whole._others = others
        return whole

    def chunks(self, window: Bounds) -> Any:
        """Return the chunks of a window as Arrow: ``p``, ``c``, the bits of its ``whole`` words, and the ``odd`` words.

        In a whole word, each offset of the window has one row. An odd word has its number ``w``, its rows ``n`` and its
        ``bits``.
        """
        low, high = f"greatest(s, w * {WORD})", f"least(e, (w + 1) * {WORD})"
        words = (
            self._within(window)
            .withColumn("w", functions.expr(f"o div {WORD}"))
            .groupBy("p", "s", "e", "w")
            .agg(
                functions.expr("count(*)").alias("n"),
                functions.expr(f"bit_or(shiftleft(1L, int(o % {WORD})))").alias("bits"),
            )
            .withColumn("is_whole", functions.expr(f"n = {high} - {low} and bit_count(bits) = n"))
        )
        return (
            words.groupBy("p", functions.expr(f"w div {WORD}").alias("c"))
            .agg(
                functions.expr(f"bit_or(if(is_whole, shiftleft(1L, int(w % {WORD})), 0L))").alias("whole"),
                functions.expr("collect_list(if(is_whole, null, struct(w, n, bits)))").alias("odd"),
            )
            .toArrow()
        )

    def doubled(self, partition: int, word: int) -> tuple[int, int] | None:
        """Return the place of the first offset of a word with several rows."""
        own = self._within({partition: (word * WORD, (word + 1) * WORD)}).groupBy("o").count().where("count > 1")
        rows = own.orderBy("o").limit(1).collect()
        return (partition, int(rows[0][0])) if rows else None

    def beyond(self, landed: Offsets) -> tuple[int, tuple[int, int] | None, list[OffsetRange]]:
        """Count rows at or beyond the landed offsets, and return the place of one, and a range of each partition."""
        bounds = {partition: (offset, 2**63 - 1) for partition, offset in landed.items()}
        if not bounds:
            return 0, None, []
        figures = [functions.expr(text) for text in ("count(*)", "min(o)", "max(o)")]
        found = self._within(bounds, letters=False).groupBy("p").agg(*figures).collect()
        places = [(int(partition), int(low)) for partition, _, low, _ in found]
        # Words as of doubled rows: a record that lands at the offset of a stray row makes it a doubled one.
        ranges = [OffsetRange(int(part), low // WORD * WORD, (high // WORD + 1) * WORD) for part, _, low, high in found]
        return sum(int(row[1]) for row in found), min(places, default=None), ranges

    def _within(self, bounds: Bounds, *, letters: bool = True) -> Any:
        """Return the rows within ``bounds``, and their bounds ``s`` and ``e``.

        Dead letters at or beyond the landed offsets are never within bounds: their round is not committed yet.
        """
        least = min(start for start, _ in bounds.values())
        condition = f"o >= {least}L and o < {max(end for _, end in bounds.values())}L"
        if len(bounds) <= LISTED:
            ranges = (f"(p = {part} and o >= {start}L and o < {end}L)" for part, (start, end) in sorted(bounds.items()))
            condition = " or ".join(ranges)
        values = ", ".join(f"({part}, {start}L, {end}L)" for part, (start, end) in sorted(bounds.items()))
        limits = functions.broadcast(self._spark.sql(f"SELECT * FROM VALUES {values} AS limits(p, s, e)"))
        frame = self._good.where(condition)
        more = [each for own in (self, *self._others) for each in (own._good, own._dead if letters else None)]
        for each in more[1:]:
            if each is not None:
                frame = frame.unionAll(each.where(condition))
        return frame.join(limits, "p").where("o >= s and o < e")


def _read(spark: Any, source: Source, snapshot: Any, condition: str = "true") -> Any:
    partition, offset = source.columns
    return (
        read_snapshot(spark, source.table, snapshot).where(condition).selectExpr(f"{partition} AS p", f"{offset} AS o")
    )


@dataclass(slots=True)
class Counted:
    """The sums of an audit. Before the offsets ``decided``, it cannot decide about offsets without a row."""

    decided: Offsets
    lost: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """Ranges by partition that the table records as lost: the log may have records there that must not have a row."""
    gaps: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Ranges without a row, by partition, to look for in the log."""
    undecided: int = 0
    doubled: int = 0
    doubled_at: tuple[int, int] | None = None
    """Partition and word of a surplus row."""
    surplus: list[OffsetRange] = field(default_factory=list)
    """Ranges of words with surplus rows."""
    _unlisted: dict[int, tuple[int, int]] = field(default_factory=dict)
    _listed: int = 0

    @property
    def unlisted(self) -> list[OffsetRange]:
        """For each partition, one range around all ranges without a row that are not in ``gaps``."""
        return [OffsetRange(partition, start, end) for partition, (start, end) in sorted(self._unlisted.items())]

    def add(self, window: Bounds, chunks: Any) -> None:
        """Add the chunks of a window, as `Rows.chunks` returns them."""
        places = {
            place: number
            for number, place in enumerate(zip(chunks["p"].to_pylist(), chunks["c"].to_pylist(), strict=True))
        }
        whole, odd = chunks["whole"].to_pylist(), chunks["odd"].combine_chunks() if len(chunks) else []
        for partition, (start, end) in sorted(window.items()):
            for chunk in range(start // CHUNK, (end - 1) // CHUNK + 1):
                number = places.get((partition, chunk))
                if number is None:
                    self._add_gap(partition, max(start, chunk * CHUNK), min(end, (chunk + 1) * CHUNK))
                elif whole[number] != -1:
                    self._add_chunk(partition, chunk, (start, end), whole[number], odd[number].as_py())

    def _add_chunk(
        self, partition: int, chunk: int, bounds: tuple[int, int], whole: int, odd: Sequence[Mapping[str, int]]
    ) -> None:
        base = chunk * CHUNK
        bits = np.where(np.int64(whole) >> np.arange(WORD) & 1, np.int64(-1), np.int64(0))
        for word in sorted(odd, key=itemgetter("w")):
            bits[word["w"] % WORD] = word["bits"]
            surplus = word["n"] - (word["bits"] & (2**WORD - 1)).bit_count()
            if surplus:
                self.doubled += surplus
                self.doubled_at = self.doubled_at or (partition, word["w"])
                self._add_surplus(OffsetRange(partition, word["w"] * WORD, (word["w"] + 1) * WORD))
        low, high = max(bounds[0], base), min(bounds[1], base + CHUNK)
        inside = np.unpackbits(bits.view(np.uint8), bitorder="little")[low - base : high - base]
        edges = np.flatnonzero(np.diff(np.concatenate(([1], inside, [1])).astype(np.int8))).tolist()
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            self._add_gap(partition, low + first, low + last)

    def _add_gap(self, partition: int, start: int, end: int) -> None:
        for low, high in outside(start, end, self.lost.get(partition, ())):
            self._add_missing(partition, low, high)

    def _add_missing(self, partition: int, start: int, end: int) -> None:
        first = max(start, min(end, self.decided.get(partition, 0)))
        self.undecided += first - start
        if first == end:
            return
        ranges = self.gaps[partition]
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], end)
        elif self._listed < MOST_GAPS:
            ranges.append((first, end))
            self._listed += 1
        else:
            self.undecided += end - first
            self._unlisted[partition] = (self._unlisted.get(partition, (first, end))[0], end)

    def _add_surplus(self, word: OffsetRange) -> None:
        last = self.surplus[-1] if self.surplus else None
        if last is not None and last.partition == word.partition and last.end == word.start:
            self.surplus[-1] = last._replace(end=word.end)
        else:
            self.surplus.append(word)
        if len(self.surplus) > 2 * MOST_SURPLUS:
            self.surplus = list(covering(self.surplus, MOST_SURPLUS))
