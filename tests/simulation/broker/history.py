"""Actions and observations of clients, and the promises that must hold for them whatever happens to the brokers.

The bytes of a batch name its producer and its number. A history is complete when the log was read to its end (`logs`)
after all faults and all clients have ended."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Log = tuple[str, int]
"""A partition: (topic, index)."""
NEVER = float("inf")


class Batch(NamedTuple):
    """A batch as a consumer has it."""

    offset: int
    records: int
    producer: int
    number: int


@dataclass(slots=True)
class Sent:
    """A batch that a producer sent, perhaps more than once, last at ``began``. ``offset`` was acknowledged at
    ``acknowledged``."""

    log: Log
    producer: int
    number: int
    records: int
    idempotent: bool
    times: int = 0
    began: float = 0.0
    offset: int | None = None
    acknowledged: float = NEVER


class Bounds(NamedTuple):
    """Log start and high watermark of an answer (-1 without one), requested at ``began``."""

    log: Log
    began: float
    ended: float
    start: int
    high: int


@dataclass(slots=True)
class OffsetCommit:
    """A group's commit; ``ended`` is when it was acknowledged."""

    log: Log
    offset: int
    began: float
    ended: float = NEVER


class OffsetRead(NamedTuple):
    """A group's offset that a broker returned; -1 for none."""

    log: Log
    offset: int
    began: float
    ended: float


class Assignment(NamedTuple):
    """A member's part in a generation."""

    group: str
    generation: int
    member: str
    partitions: tuple[int, ...]


@dataclass(slots=True)
class History:
    """Everything, in the order in which it became known."""

    sent: list[Sent] = field(default_factory=list)
    seen: list[tuple[str, Log, list[Batch]]] = field(default_factory=list)
    """(reader, partition, batches), in each reader's order. A reader continues where it stopped, or at a log start
    from a broker."""
    skipped: list[tuple[str, Log, int, int]] = field(default_factory=list)
    """(reader, partition, requested offset, log start that the broker returned)."""
    bounds: list[Bounds] = field(default_factory=list)
    commits: list[OffsetCommit] = field(default_factory=list)
    reads: list[OffsetRead] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    consumed: dict[Log, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Offsets that members of the group were given."""
    producer_ids: list[int] = field(default_factory=list)
    made_anew: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Topics that were deleted and created again: start of each deletion, and time at which the new topic existed."""
    logs: dict[Log, tuple[int, list[Batch]]] = field(default_factory=dict)
    """(log start, batches) of each partition in the end."""


def violations(history: History) -> Iterator[str]:
    """Everything that is not as promised."""
    yield from _logs(history)
    yield from _acknowledged(history)
    yield from _orders(history)
    yield from _readers(history)
    yield from _bounds(history)
    yield from _offsets(history)
    yield from _groups(history)
    if len(set(history.producer_ids)) < len(history.producer_ids):
        yield "a producer id was given twice"


def _logs(history: History) -> Iterator[str]:
    """Offsets have no gaps, and none was ever another batch's."""
    for log, (start, batches) in history.logs.items():
        expected = None
        for batch in batches:
            if expected is None and not batch.offset <= start:
                yield f"{log}: the log starts at {start}, its first batch at {batch.offset}"
            if expected is not None and batch.offset != expected:
                yield f"{log}: {batch} where offset {expected} should be"
            expected = batch.offset + batch.records
    at: dict[tuple[Log, int], Batch] = {}
    final = [("the end", log, batches) for log, (_, batches) in history.logs.items()]
    for reader, log, found in history.seen + final:
        for batch in found:
            known = at.setdefault((log, batch.offset), batch)
            if known != batch:
                yield f"{log}: {reader} saw {batch}, and another saw {known}"


def _acknowledged(history: History) -> Iterator[str]:
    """Every acknowledged batch is at its acknowledged offset, unless it lies below the log start."""
    places = {log: {it.offset: it for it in batches} for log, (_, batches) in history.logs.items()}
    for sent in history.sent:
        if sent.offset is None:
            continue
        generations = history.made_anew.get(sent.log[0], [])
        if generations and sent.began <= generations[-1][1]:
            # Into a topic that is no more.
            continue
        start = history.logs[sent.log][0]
        if sent.offset + sent.records <= start:
            continue
        found = places[sent.log].get(sent.offset)
        if found != Batch(sent.offset, sent.records, sent.producer, sent.number):
            yield f"{sent.log}: {found} is where {sent} was acknowledged"


def _orders(history: History) -> Iterator[str]:
    """Batches of a producer are in its order, those of idempotent ones once, and none more often than it was sent."""
    by_id = {(it.log, it.producer, it.number): it for it in history.sent}
    for log, (_, batches) in history.logs.items():
        last: dict[int, int] = {}
        count: dict[tuple[int, int], int] = defaultdict(int)
        for batch in batches:
            sent = by_id.get((log, batch.producer, batch.number))
            if sent is None:
                yield f"{log}: nobody sent {batch}"
                continue
            count[batch.producer, batch.number] += 1
            if count[batch.producer, batch.number] > (1 if sent.idempotent else sent.times):
                yield f"{log}: {batch} is there {count[batch.producer, batch.number]} times, and was sent {sent.times} times"
            before = last.get(batch.producer, -1)
            # A copy that nobody was told of may lie anywhere: of an attempt that was given up, or one that nobody was to answer (acks=0).
            if sent.idempotent or sent.offset == batch.offset:
                if batch.number < before:
                    yield f"{log}: {batch} comes after number {before} of its producer"
                last[batch.producer] = max(before, batch.number)
    for topic, generations in history.made_anew.items():
        for log, (_, batches) in history.logs.items():
            for batch in batches if log[0] == topic and generations else ():
                sent = by_id.get((log, batch.producer, batch.number))
                if sent is not None and sent.times == 1 and sent.acknowledged < generations[-1][0]:
                    yield f"{log}: {batch} was of a topic that is deleted"


def _readers(history: History) -> Iterator[str]:
    """Readers get every batch from where they are on, and are sent away only below the log start."""
    position: dict[tuple[str, Log], int] = {}
    highest: dict[Log, int] = defaultdict(int)
    for reader, log, wanted, start in history.skipped:
        if wanted >= start:
            yield f"{log}: {reader} was sent away from {wanted}, and the log starts at {start}"
        highest[log] = max(highest[log], start)
    skips: dict[tuple[str, Log], set[int]] = defaultdict(set)
    for reader, log, _, start in history.skipped:
        skips[reader, log].add(start)
    for reader, log, batches in history.seen:
        for batch in batches:
            expected = position.get((reader, log), 0)
            end = batch.offset + batch.records
            # A log start may lie inside a batch.
            if batch.offset != expected and not any(batch.offset <= it < end for it in skips[reader, log]):
                yield f"{log}: {reader} got {batch} where offset {expected} should be"
            position[reader, log] = end
    for (reader, log), end in position.items():
        if log in history.logs and log[0] not in history.made_anew:
            batches = history.logs[log][1]
            if batches and end != batches[-1].offset + batches[-1].records:
                yield f"{log}: {reader} came to {end}, and the log to {batches[-1]}"


def _bounds(history: History) -> Iterator[str]:
    """Log starts and high watermarks never go back, whichever broker tells them."""
    by_log: dict[Log, list[Bounds]] = defaultdict(list)
    for one in history.bounds:
        by_log[one.log].append(one)
    for log, found in by_log.items():
        ended = sorted(found, key=lambda it: it.ended)
        place, start, high = 0, 0, 0
        for one in sorted(found, key=lambda it: it.began):
            while place < len(ended) and ended[place].ended < one.began:
                start, high = max(start, ended[place].start), max(high, ended[place].high)
                place += 1
            if one.start < start or -1 < one.high < high:
                yield f"{log}: {one} after log start {start} and high watermark {high} were told"


def _offsets(history: History) -> Iterator[str]:
    """A group's offset is that of a commit which no later one has replaced for certain; all below it was given to members."""
    for read in history.reads:
        commits = [it for it in history.commits if it.log == read.log]
        begun = max((it.began for it in commits if it.ended < read.began), default=None)
        if read.offset < 0:
            if begun is not None:
                yield f"{read} although offsets were committed"
        elif not any(
            it.offset == read.offset and it.began < read.ended and (begun is None or it.ended >= begun)
            for it in commits
        ):
            yield f"{read} is older than a commit that was acknowledged, or nobody's"
        missing = set(range(max(read.offset, 0))) - history.consumed[read.log]
        if missing:
            yield f"{read}: members were never given {sorted(missing)[:5]}"


def _groups(history: History) -> Iterator[str]:
    """In a generation a partition has one owner."""
    owners: dict[tuple[str, int, int], str] = {}
    for one in history.assignments:
        for partition in one.partitions:
            owner = owners.setdefault((one.group, one.generation, partition), one.member)
            if owner != one.member:
                yield f"generation {one.generation}: partition {partition} is of {owner} and of {one.member}"
