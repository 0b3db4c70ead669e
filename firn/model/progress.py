"""Reports of ingestion: offsets in snapshot summaries, losses and filtered records in table properties, and the `/progress` document.

The driver writes a loss in the commit that moves the landed offsets past it. So a restart neither forgets a loss nor
counts it twice.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from firn.model import names

Offsets = dict[int, int]
"""Next offset to land, by partition."""

LeaderEpochs = dict[int, int]
"""Kafka's leader epoch, by partition. A leader of this epoch had every record before the landed offset."""

_SINCE = "since"
"""Key in the offsets of a summary: the others are those of the commit with this id."""
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")


def encode_offsets(offsets: Mapping[int, int]) -> str:
    """Return the value of ``firn.offsets``: a JSON object, partitions ascending."""
    return json.dumps({str(partition): offsets[partition] for partition in sorted(offsets)}, separators=(",", ":"))


def encode_changes(offsets: Mapping[int, int], before: Mapping[int, int], since: str) -> str:
    """Return the value of ``firn.offsets`` in a summary that has only the offsets that its commit changed.

    ``since`` is the id of the ingestion commit with the offsets ``before``. An older version of Firn rejects the value:
    it would land the partitions that are not in it again.
    """
    changed = {
        str(partition): offsets[partition] for partition in sorted(offsets) if _changed(offsets, before, partition)
    }
    return json.dumps({_SINCE: since, **changed}, separators=(",", ":"))


def count_changes(offsets: Mapping[int, int], before: Mapping[int, int]) -> int:
    """Return the number of partitions whose offset differs from ``before``."""
    return sum(_changed(offsets, before, partition) for partition in offsets)


def _changed(offsets: Mapping[int, int], before: Mapping[int, int], partition: int) -> bool:
    return before.get(partition) != offsets[partition]


def decode_offsets(text: str) -> Offsets:
    """Read the offsets of all partitions from a value of ``firn.offsets``. Raises ValueError for any other text."""
    offsets, since = _decode(text)
    if since is not None:
        raise ValueError(f"{names.SUMMARY_OFFSETS} has only the offsets that changed since commit {since}")
    return offsets


def is_complete(text: str | None) -> bool:
    """Return True if a value of ``firn.offsets`` has the offsets of all partitions. Does not check the value further."""
    return text is not None and f'"{_SINCE}"' not in text


def _decode(text: str) -> tuple[Offsets, str | None]:
    value = json.loads(text)
    since = value.pop(_SINCE, None) if isinstance(value, dict) else None
    if (
        not isinstance(value, dict)
        or not (since is None or isinstance(since, str))
        or not all(
            _PARTITION.fullmatch(partition) and type(offset) is int and offset >= 0
            for partition, offset in value.items()
        )
    ):
        raise ValueError(f"{names.SUMMARY_OFFSETS} is not a JSON object of partitions and offsets: {text[:200]}")
    return {int(partition): offset for partition, offset in value.items()}, since


def _whole(text: str) -> Offsets | None:
    try:
        return decode_offsets(text)
    except ValueError:
        return None


def recorded_offsets(summaries: Iterable[Mapping[str, str]], properties: Mapping[str, str]) -> Offsets | None:
    """Return the offsets of the newest ingestion commit in a table's history; None for a table without ingestion.

    ``summaries`` are those of the history, newest first, and ``properties`` those of the table. The properties have the
    offsets of all partitions after the last commit that the table received. They count only if that commit is the
    newest of the history, because a rollback does not change them. Otherwise, summaries that have only changed offsets
    are completed from older ones. Raises ValueError if the history does not have the offsets of all partitions.
    """
    offsets: Offsets = {}
    since: str | None = None
    for summary in summaries:
        text = summary.get(names.SUMMARY_OFFSETS)
        if text is None:
            continue
        commit = summary.get(names.SUMMARY_COMMIT_ID)
        if since is not None and commit != since:
            break
        whole = _whole(text)
        if whole is None and commit and commit == properties.get(names.SUMMARY_COMMIT_ID):
            whole = _whole(properties.get(names.SUMMARY_OFFSETS, ""))
        if whole is not None:
            return {**whole, **offsets}
        changed, since = _decode(text)
        offsets = {**changed, **offsets}
    if since is not None:
        raise ValueError(f"the commit {since}, which has the offsets of the other partitions, is not in the history")
    text = properties.get(names.SUMMARY_OFFSETS)
    return decode_offsets(text) if text is not None else None


@dataclass(frozen=True, slots=True)
class View:
    """A topic of a shared table: only its commits count for its offsets."""

    topic_id: str
    resource: str
    """Name of the IcebergTopic. A topic that it had before has another id."""


LOOKS = 3
"""Number of counted looks without a topic of an id before its entry ends. A look counts only `LOOK_MS` or more after the previous one."""
LOOK_MS = 24 * 3600 * 1000
ENDED_MS = 30 * LOOK_MS
"""Least time in milliseconds from the first of these looks to the last one."""


@dataclass(frozen=True, slots=True)
class Look:
    """Which topics of a shared table a Kafka cluster has. A topic in neither part may be there or not."""

    at_ms: int
    present: frozenset[str]
    """Ids of topics that are there, or that an IcebergTopic still continues."""
    absent: Mapping[str, str]
    """Id of each other topic that the brokers do not have -> id of its newest commit at the time of the look."""


class TopicCommit(BaseModel):
    """The newest ingestion commit of a topic of a shared table."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    resource: str
    epoch: int
    commit: str = Field(min_length=1)
    writer: str = ""
    landed_at: int | None = None
    offsets: Offsets
    topic: str = Field(default="", exclude_if=lambda name: not name)
    """Name of the Kafka topic."""
    group: str = Field(default="", exclude_if=lambda name: not name)
    """Ingestion group whose driver made the commit."""
    absent: tuple[int, ...] = Field(default=(), exclude_if=lambda times: not times)
    """Times of the counted looks since this commit, in milliseconds since 1970; a later look replaces the last of `LOOKS`."""


class SharedOffsets(BaseModel):
    """The value of ``firn.offsets`` in a shared table: the newest commit of every topic, by Kafka's topic id.

    It is version 2 of that value. Earlier versions of Firn reject it, and land nothing. Every commit to a shared table has all
    topics in its summary. So each snapshot shows the offsets of all topics, also after a rollback or an expiry.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[2]
    topics: dict[str, TopicCommit]

    def of(self, view: View) -> tuple[str, TopicCommit] | None:
        """Return topic id and newest commit of a topic; without a commit, those of the resource's earlier topic."""
        own = self.topics.get(view.topic_id)
        if own is not None:
            return view.topic_id, own
        earlier = (item for item in self.topics.items() if item[1].resource == view.resource)
        return max(earlier, key=lambda item: item[1].epoch, default=None)

    def plus(self, topic_id: str, commit: TopicCommit) -> "SharedOffsets":
        """Return the value after a commit."""
        return SharedOffsets(version=2, topics={**self.topics, topic_id: commit})

    def after(self, look: Look) -> "SharedOffsets":
        """Return the value with the results of a look, and without the topics that ended long ago.

        Kafka never uses an id again. So a topic without an entry lands its records once more only if its brokers have it again.
        """
        topics = {}
        for topic_id, commit in self.topics.items():
            times = commit.absent
            if topic_id in look.present:
                times = ()
            elif look.absent.get(topic_id) == commit.commit:
                if not times or look.at_ms - times[-1] >= LOOK_MS:
                    times = (*times[: LOOKS - 1], look.at_ms)
                if len(times) == LOOKS and times[-1] - times[0] >= ENDED_MS:
                    continue
            topics[topic_id] = commit if times == commit.absent else commit.model_copy(update={"absent": times})
        return SharedOffsets(version=2, topics=topics)

    def encode(self) -> str:
        """Return the value as JSON, topics ascending."""
        listed = SharedOffsets(version=2, topics={topic: self.topics[topic] for topic in sorted(self.topics)})
        return listed.model_dump_json(exclude_none=True)

    @classmethod
    def none(cls) -> "SharedOffsets":
        """Return the value of a table without a commit."""
        return cls(version=2, topics={})

    @classmethod
    def read(cls, text: str) -> "SharedOffsets":
        """Read a value of ``firn.offsets`` in a shared table. Raises ValueError for any other text."""
        return cls.model_validate_json(text)

    @staticmethod
    def is_in(text: str | None) -> bool:
        """Return True if a value of ``firn.offsets`` is that of a shared table. Does not check the value further."""
        return text is not None and text.startswith('{"version":')


class _LeaderEpochs(BaseModel):
    """The value of ``firn.leader-epochs``: epochs by partition, -1 for an unknown one, after the commit with this id."""

    commit: str = Field(min_length=1)
    epochs: tuple[int, ...]


def encode_leader_epochs(epochs: Mapping[int, int], commit_id: str) -> str:
    """Return the value of ``firn.leader-epochs`` after the ingestion commit ``commit_id``."""
    listed = tuple(epochs.get(part, -1) for part in range(max(epochs, default=-1) + 1))
    return _LeaderEpochs(commit=commit_id, epochs=listed).model_dump_json()


def decode_leader_epochs(text: str | None, commit_id: str) -> LeaderEpochs:
    """Read ``firn.leader-epochs`` as of the ingestion commit ``commit_id``.

    The value of another commit counts as none: rollbacks and earlier versions of Firn leave such a value behind. An
    invalid value counts as none, too.
    """
    try:
        stored = _LeaderEpochs.model_validate_json(text or "")
    except ValidationError:
        return {}
    return {part: epoch for part, epoch in enumerate(stored.epochs) if epoch >= 0} if stored.commit == commit_id else {}


RANGES = 64
"""Number of ranges that a table keeps. Earlier ones are only counted."""
TABLE_PART = 8
"""Length of the part of a table's UUID in the names of its losses."""


class Cause(StrEnum):
    """Why offsets did not land."""

    DELETED = "Deleted"
    """The log deleted the records before they landed."""
    CUT_BACK = "CutBack"
    """The log lost landed offsets at its end. Records that are then written with these offsets do not land."""
    REPLACED = "TableReplaced"
    """The records are before the first offset of a table that replaced an earlier table of the same resource."""


class Gap(BaseModel):
    """Offsets of a partition that do not land: [start, end)."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    partition: int
    start: int
    end: int
    cause: Cause


class Loss(Gap):
    """A gap as the table records it. ``id`` counts the losses of the table from 1, ``at`` is in Unix seconds."""

    id: int
    topic_id: str
    at: int


def is_part_of(name: str, later: str) -> bool:
    """Return True if ``name`` is that of the loss ``later`` or of an earlier loss of the same table."""
    number, _, table = name.partition("-")
    newest, _, present = later.partition("-")
    return number.isdecimal() and newest.isdecimal() and table == present and int(number) <= int(newest)


def outside(start: int, end: int, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of [start, end) that are in none of ``ranges``, ascending."""
    parts = [(start, end)]
    for low, high in ranges:
        parts = [
            part
            for first, last in parts
            for part in ((first, min(last, low)), (max(first, high), last))
            if part[0] < part[1]
        ]
    return parts


class Losses(BaseModel):
    """All losses of a table. ``table`` is the first part of its UUID."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    table: str = ""
    ranges: tuple[Loss, ...] = ()
    dropped: int = 0
    """Offsets of the ranges that are no longer listed."""
    dropped_id: int = 0
    """Newest id of these."""
    cut_topic: str = ""
    """Topic id of ``cuts``."""
    cuts: tuple[tuple[int, int, int], ...] = ()
    """Partition, start and end of the highest range that is no longer listed and that the log lost at its end, of each
    partition. Without it, a driver that restarts records the range again, because the log is still shorter."""

    @property
    def newest(self) -> int:
        """Return the id of the newest loss, 0 without any."""
        return self.ranges[-1].id if self.ranges else self.dropped_id

    @property
    def name(self) -> str:
        """Return the name that acknowledges all losses so far. Another table has other names."""
        return f"{self.newest}-{self.table}"

    def acknowledged(self, name: str | None) -> int:
        """Return the id up to which the losses are acknowledged by ``name``; 0 for a name of no loss of this table."""
        return int(name.partition("-")[0]) if name is not None and self.covers(name) else 0

    def covers(self, name: str) -> bool:
        """Return True if ``name`` is the name of a loss of this table."""
        return is_part_of(name, self.name)

    def since(self, acknowledged: int) -> tuple[int, tuple[Loss, ...]]:
        """Return how many offsets were lost after the loss with this id, and the listed ranges of these."""
        later = tuple(loss for loss in self.ranges if loss.id > acknowledged)
        dropped = self.dropped if self.dropped_id > acknowledged else 0
        return dropped + sum(loss.end - loss.start for loss in later), later

    def missing(self, gaps: Iterable[Gap], topic_id: str) -> list[Gap]:
        """Return the parts of ``gaps`` that are not recorded yet."""
        return [rest for gap in gaps for rest in self._rest(gap, topic_id)]

    def of_topic(self, topic_id: str) -> dict[int, list[tuple[int, int]]]:
        """Return the recorded ranges [start, end) of a topic by partition, as far as they are known."""
        known: dict[int, list[tuple[int, int]]] = {}
        for loss in self.ranges:
            if loss.topic_id == topic_id:
                known.setdefault(loss.partition, []).append((loss.start, loss.end))
        for partition, start, end in self.cuts if self.cut_topic == topic_id else ():
            known.setdefault(partition, []).append((start, end))
        return known

    def _rest(self, gap: Gap, topic_id: str) -> list[Gap]:
        known = self.of_topic(topic_id).get(gap.partition, [])
        parts = outside(gap.start, gap.end, known)
        return [gap.model_copy(update={"start": start, "end": end}) for start, end in parts]

    def plus(self, gaps: Sequence[Gap], topic_id: str, table_uuid: str, now: float) -> "Losses":
        """Return the losses with ``gaps`` added, which are not recorded yet; ``now`` is Unix seconds."""
        added = tuple(
            Loss(**gap.model_dump(), id=number, topic_id=topic_id, at=int(now))
            for number, gap in enumerate(gaps, self.newest + 1)
        )
        every = (*self.ranges, *added)
        kept, gone = every[-RANGES:], every[:-RANGES]
        return Losses(
            table=table_uuid[:TABLE_PART],
            ranges=kept,
            dropped=self.dropped + sum(loss.end - loss.start for loss in gone),
            dropped_id=gone[-1].id if gone else self.dropped_id,
            cut_topic=topic_id,
            cuts=self._cuts(gone, topic_id),
        )

    def _cuts(self, gone: Sequence[Loss], topic_id: str) -> tuple[tuple[int, int, int], ...]:
        highest = {part: (start, end) for part, start, end in self.cuts} if self.cut_topic == topic_id else {}
        for loss in gone:
            if loss.cause is Cause.CUT_BACK and loss.topic_id == topic_id:
                highest[loss.partition] = max(
                    (loss.start, loss.end), highest.get(loss.partition, (0, 0)), key=lambda known: known[1]
                )
        return tuple((part, *highest[part]) for part in sorted(highest))

    @classmethod
    def read(cls, text: str | None) -> "Losses":
        """Read the value of the property. A value that is not valid counts as none, so that it stops no ingestion."""
        try:
            return cls.model_validate_json(text) if text else cls()
        except ValidationError:
            return cls()


def described(losses: Sequence[Loss], most: int = 3) -> str:
    """Describe ranges for a user, at most ``most`` of them."""
    texts = [
        f"partition {loss.partition}, offsets {loss.start} to {loss.end - 1}, {_CAUSES[loss.cause]}"
        for loss in losses[:most]
    ]
    if len(losses) > most:
        texts.append(f"and {len(losses) - most} more ranges")
    return "; ".join(texts)


_CAUSES = {
    Cause.DELETED: "deleted from the log before they landed",
    Cause.CUT_BACK: "missing at the end of the log after they had landed, so that later records with these offsets do not land",
    Cause.REPLACED: "before the first offset of this table, which replaced an earlier one",
}


class Replaying(BaseModel):
    """The newest replay of dead letters. The table's property `firn.model.names.REPLAY` has it as JSON.

    The commit that lands rows of letters writes it. Until ``done``, an offset may have a row and a letter, which are the same
    record. A pod that follows an evicted one continues from these counts, or reports them if the replay is done.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    replay: str
    """UID of the DeadLetterReplay."""
    part: int = 0
    """Number of commits of rows that the replay has made."""
    matched: dict[str, int] = Field(default_factory=dict)
    """Number of letters that the replay selected at its beginning, by cause."""
    landed: int = 0
    """Number of letters that became rows."""
    decoded: int = 0
    """Number of letters that count against the limit of the replay: those that the finished parts decoded."""
    failures: dict[str, int] = Field(default_factory=dict)
    """Number of letters of the finished parts that stay, by the cause that they have now."""
    through: int | None = None
    """Newest ``ingested_at`` of the finished parts, in microseconds since 1970."""
    remaining: int = 0
    """Number of the topic's letters that stay, selected or not. Known at the end."""
    done: bool = False
    """True if the replay has ended: no letter that it landed is a letter any more."""

    @classmethod
    def read(cls, text: str | None) -> "Replaying | None":
        """Read the value of the property; None if it is missing or not valid."""
        try:
            return cls.model_validate_json(text) if text else None
        except ValidationError:
            return None

    @classmethod
    def under_way(cls, text: str | None) -> bool:
        """Return whether letters may be rows already, by the value of the property. A value that cannot be read means yes."""
        if text is None:
            return False
        found = cls.read(text)
        return found is None or not found.done


class AuditFrom(BaseModel):
    """The offsets from which every record of a topic has to be in its table or its dead letters.

    Before them, an audit cannot decide about a missing record: it landed under an earlier version of Firn, ingestion
    began later, ``onBadRecord: Skip`` dropped it, or retention removed its row.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    topic_id: str
    offsets: Offsets = Field(default_factory=dict)
    """Of partitions that are not listed, 0."""
    mixed: bool = False
    """True if the table may have rows of an earlier topic, whose offsets mean other records."""
    commit: str = ""
    """Id of the table's last ingestion commit when the value was written."""

    @classmethod
    def first(
        cls, topic_id: str, landed: Offsets | None, offsets: Offsets, *, begins: bool, has_rows: bool
    ) -> "AuditFrom":
        """Return the value of the first commit that records one for the topic.

        ``landed`` are the offsets that the topic has landed before it, None for a new topic. ``offsets`` are those after
        it. ``begins``: ingestion begins at them, and not at the start of the log. ``has_rows``: the table may have rows already.
        """
        if landed is None:
            landed = offsets if begins else {}
        return cls(
            topic_id=topic_id, offsets={part: offset for part, offset in landed.items() if offset}, mixed=has_rows
        )

    def as_of(self, commit: str | None, landed: Offsets) -> "AuditFrom":
        """Return the value as it counts for a table that received the ingestion commit ``commit`` last, and landed these
        offsets.

        Another commit than that of the value is by an earlier version of Firn, which skips records without noting it. The
        id is that of the table's properties, because a rollback does not change it.
        """
        return self if self.commit == commit else self.raised(landed)

    def raised(self, offsets: Offsets) -> "AuditFrom":
        """Return the offsets, but at least these."""
        higher = {part: offset for part, offset in offsets.items() if offset > self.offsets.get(part, 0)}
        return self.model_copy(update={"offsets": {**self.offsets, **higher}}) if higher else self

    def joined(self, other: "AuditFrom") -> "AuditFrom":
        """Return the value that counts for this table and another one of the topic together."""
        return self.raised(other.offsets).model_copy(update={"mixed": self.mixed or other.mixed})

    @classmethod
    def read(cls, text: str | None) -> "AuditFrom | None":
        """Read the value of the property; None if it is missing or not valid."""
        try:
            return cls.model_validate_json(text) if text else None
        except ValidationError:
            return None


FILTERED_RANGES, FILTERED_RANGES_EACH = 512, 16
"""Most ranges of a topic in `Filtered`, and most of a partition."""
FILTERED_RANGES_LEAST = 2
"""Ranges that a partition may have in any case, also if the topic then has more than `FILTERED_RANGES`. With one range, each commit
would extend it. The range would never end before the start of the log, and audits could not decide about its offsets."""


class FilteredRange(NamedTuple):
    """Offsets of a partition from ``start`` to before ``end``, of which the filter left out ``records`` records."""

    start: int
    end: int
    records: int


class Filtered(BaseModel):
    """The records that the filter of a topic left out, as numbers in ranges of offsets.

    Each ingestion commit writes its own numbers with the offsets that it passes. So an audit knows how many records have
    neither a row nor a dead letter. Records outside of all ranges were not filtered.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    topic_id: str = ""
    commit: str = ""
    """Id of the table's last ingestion commit when the value was written."""
    ranges: dict[int, tuple[FilteredRange, ...]] = Field(default_factory=dict)
    """Ranges by partition, ascending and apart."""

    @property
    def records(self) -> int:
        """Return the number of filtered records."""
        return sum(each.records for ranges in self.ranges.values() for each in ranges)

    @classmethod
    def of_table(cls, properties: Mapping[str, str], topic_id: str, *, shared: bool) -> "Filtered":
        """Return the value of a topic in the properties of its table, as it counts after the last ingestion commit."""
        known = cls.read(properties.get(names.of_topic(names.TABLE_FILTERED, topic_id if shared else "")))
        # No earlier version of Firn commits to a shared table.
        return known.as_of(known.commit if shared else properties.get(names.SUMMARY_COMMIT_ID), topic_id)

    def as_of(self, commit: str | None, topic_id: str) -> "Filtered":
        """Return the value as it counts for a table that received the ingestion commit ``commit`` last, for a topic.

        `AuditFrom.as_of` makes the offsets before another commit undecided, so that their numbers do not matter.
        """
        return self if (self.commit, self.topic_id) == (commit, topic_id) else Filtered(topic_id=topic_id)

    def before(self, offsets: Offsets) -> tuple["Filtered", Offsets]:
        """Return the value without the offsets from ``offsets`` on, which land again after a rollback of the table.

        The second part has the offsets before which the number of filtered records is not known any more.
        """
        kept, unknown = dict[int, tuple[FilteredRange, ...]](), Offsets()
        for partition, ranges in self.ranges.items():
            end = offsets.get(partition, 0)
            kept[partition] = tuple(each for each in ranges if each.end <= end)
            if any(each.start < end < each.end for each in ranges):
                unknown[partition] = end
        return self.model_copy(update={"ranges": {part: ranges for part, ranges in kept.items() if ranges}}), unknown

    def plus(self, passed: Mapping[int, FilteredRange], starts: Offsets) -> "Filtered":
        """Return the value with the ranges of a commit. Ranges before ``starts``, where the log begins, are dropped.

        If there are too many ranges, neighbours become one: those that are the shortest together.
        """
        added = {part: each for part, each in passed.items() if each.records}
        parts = {*self.ranges, *added}
        most = max(FILTERED_RANGES_LEAST, min(FILTERED_RANGES_EACH, FILTERED_RANGES // max(1, len(parts))))
        ranges = {}
        for part in sorted(parts):
            every = [*self.ranges.get(part, ()), *([added[part]] if part in added else [])]
            kept = _joined([each for each in every if each.end > starts.get(part, 0)], most)
            if kept:
                ranges[part] = kept
        return self.model_copy(update={"ranges": ranges})

    @classmethod
    def read(cls, text: str | None) -> "Filtered":
        """Read the value of the property. One that is missing or not valid counts as none."""
        try:
            return cls.model_validate_json(text) if text else cls()
        except ValidationError:
            return cls()


def landed_together(landed: Sequence[Offsets]) -> Offsets:
    """Return the offsets before which all tables of a topic have landed their records."""
    common = set(landed[0]).intersection(*landed)
    return {partition: min(each[partition] for each in landed) for partition in sorted(common)}


def joined_ranges(many: Iterable[Mapping[int, Sequence[FilteredRange]]]) -> dict[int, tuple[FilteredRange, ...]]:
    """Return the ranges of several tables of one topic by partition. Ranges that overlap become one."""
    found: dict[int, list[FilteredRange]] = {}
    for ranges in many:
        for partition, listed in ranges.items():
            found.setdefault(partition, []).extend(listed)
    joined = {}
    for partition, listed in found.items():
        apart: list[FilteredRange] = []
        for each in sorted(listed):
            if apart and each.start < apart[-1].end:
                last = apart[-1]
                apart[-1] = FilteredRange(last.start, max(last.end, each.end), last.records + each.records)
            else:
                apart.append(each)
        joined[partition] = tuple(apart)
    return joined


def _joined(ranges: list[FilteredRange], most: int) -> tuple[FilteredRange, ...]:
    while len(ranges) > most:
        place = min(range(len(ranges) - 1), key=lambda place: ranges[place + 1].end - ranges[place].start)
        first, second = ranges[place : place + 2]
        ranges[place : place + 2] = [FilteredRange(first.start, second.end, first.records + second.records)]
    return tuple(ranges)


class HaltedAt(BaseModel):
    """The record at which ingestion of a topic stopped. It has no value of the record, because every reader of the resource sees it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    partition: int
    offset: int
    code: str = ""
    column: str = ""
    """Column of the schema whose value does not fit; empty if it is none."""
    rule: str = ""
    """Name of the quality rule that the record fails; empty if it is none."""


class SuspiciousTimes(BaseModel):
    """A column of which most integers are sensible times only in another ``epoch``. ``sample`` is the date of one in the table."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    column: str
    epoch: str
    sample: str


class RecentRecords(BaseModel):
    """The newest records that have landed. ``code`` and ``path`` belong to the newest that does not fit the schema."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    records: int
    rejected: int = 0
    code: str = ""
    path: str = ""
    times: SuspiciousTimes | None = None
    new_schema: bool = False
    """True if the records are those since a change of the schema, False if they are those since the start of the driver."""


class Proposal(BaseModel):
    """Changes of a table that wait for an approval: the value ``approve``."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    changes: tuple[str, ...]
    approve: str


class CheckResult(BaseModel):
    """The last result of a check of rows that wait to be published."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    passed: bool
    values: str = ""
    """The aggregates of the check, such as ``null_share(customer) = 0.02``."""


class PublishProgress(BaseModel):
    """The branch on which the rows of a topic land, and how far main is behind it. Times are Unix seconds."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    branch: str
    state: Literal["Published", "Waiting", "Held", "MainMoved"]
    """Waiting: rows wait for the next checks. Held: a check failed, or the checks have no result."""
    rows: int = 0
    """Number of rows that main does not have."""
    since: float | None = None
    """Time of the oldest commit that main does not have."""
    snapshot: int | None = None
    """Snapshot whose rows a check did not pass."""
    checks: tuple[CheckResult, ...] = ()
    """Results of the last checks."""
    message: str = ""
    """Why main cannot follow: in the state MainMoved, and in the state Held if the checks have no result."""
    failures: dict[str, int] = Field(default_factory=dict)
    """Name of each check -> how often it failed since the driver started."""


class HistoryProgress(BaseModel):
    """How far the brokers have compared the log of a topic with its table, if the log keeps no copy."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    waiting: Offsets = Field(default_factory=dict)
    """Partition -> first offset that they have not compared. Partitions without such offsets are absent."""
    untagged: Offsets | None = None
    """Partition -> first offset whose records only data files have that no tag of the table holds. None: not known yet."""
    problem: str = ""
    """Why the driver could not name data files to them."""


class TopicProgress(BaseModel):
    """The driver's report of a topic. Times are Unix seconds; lag is in records and in seconds."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    uid: str
    generation: int
    state: Literal["Starting", "Running", "CaughtUp", "BackingOff", "Halted", "Suspended", "Fenced"]
    reason: str = ""
    message: str = ""
    failures: int = 0
    next_attempt: float | None = None
    topic_id: str | None = None
    table_uuid: str | None = None
    table_location: str | None = None
    table_ready: bool = False
    table_reason: str = ""
    table_message: str = ""
    last_commit: float | None = None
    """When records landed last; None if none did, or if the table does not say when."""
    has_landed: bool = False
    """True if the table has landed offsets above 0."""
    lag_records: int | None = None
    lag_seconds: float | None = None
    lag_bytes: float | None = None
    """Estimated bytes, before compression, of the waiting records of the partition with the most of them. None if the
    driver has not read any record since its start, and records wait."""
    backfilling: bool = False
    rows: int = 0
    dead_letters: int = 0
    skipped: int = 0
    filtered: int = Field(default=0, exclude_if=lambda records: not records)
    """Records that the filter left out since the driver started."""
    dead_letter_table: str | None = None
    halted_at: HaltedAt | None = None
    recent: RecentRecords | None = None
    """None until a record lands after the start of the driver, or after a change of the schema."""
    losses: Losses | None = None
    """Offsets that did not land. None before the driver has read the table."""
    proposed: Proposal | None = None
    """Changes that the schemas of records need, and that the policy of the topic does not allow yet."""
    failed_rules: dict[str, int] = Field(default_factory=dict, exclude_if=lambda rules: not rules)
    """Name of each quality rule -> records that failed it since the driver started."""
    publish: PublishProgress | None = Field(default=None, exclude_if=lambda publish: publish is None)
    """None if rows land on main."""
    history: HistoryProgress | None = Field(default=None, exclude_if=lambda history: history is None)
    """None if the log keeps a copy, or before the driver has asked the brokers."""


class GroupProgress(BaseModel):
    """The `/progress` document of an ingestion application."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    group: str
    started: float
    version: str = ""
    topics: list[TopicProgress] = Field(default_factory=list)

    @cached_property
    def uids(self) -> frozenset[str]:
        """The uids of all topics of the report."""
        return frozenset(topic.uid for topic in self.topics)

    def encode(self, lines: Iterable[str] = ()) -> bytes:
        """Return the document as JSON with a line for each topic, so that `ReportReader` parses only changed lines.

        ``lines`` are topics that are JSON already, in addition to ``topics``.
        """
        begin = self.model_copy(update={"topics": []}).model_dump_json().removesuffix("]}")
        topics = chain((topic.model_dump_json() for topic in self.topics), lines)
        return "\n".join([begin, ",\n".join(topics), "]}"]).encode()


class ReportReader:
    """Reads the `/progress` documents of a driver one after the other. Topics whose line is the same are not parsed again."""

    def __init__(self) -> None:
        self._topics: dict[bytes, TopicProgress] = {}
        """Line -> topic, of the last document."""

    def read(self, document: bytes) -> GroupProgress:
        """Parse a document. A driver of an earlier version sends it as one line. Raises ValidationError."""
        begin, *lines = document.split(b"\n")
        if not lines:
            return GroupProgress.model_validate_json(document)
        group = GroupProgress.model_validate_json(begin + lines.pop())
        known, topics = self._topics, {}
        for line in filter(None, lines):
            topic = line.removesuffix(b",")
            topics[topic] = known.get(topic) or TopicProgress.model_validate_json(topic)
        self._topics = topics
        return group.model_copy(update={"topics": list(topics.values())})
