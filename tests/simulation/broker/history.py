"""Actions and observations of clients, and the promises that must hold for them whatever happens to the brokers.

The bytes of a batch name its producer and its number. A history is complete when the log was read to its end (`logs`)
after all faults and all clients have ended."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.broker.world import LEASE_SECONDS

Log = tuple[str, int]
"""A partition: (topic, index)."""
NEVER = float("inf")
POLL_SECONDS = 0.2
"""Time between two looks at the lost commits."""
ANSWER_SECONDS = 0.5
"""Time after a lost second in which a broker may still answer a fetch from before its end."""


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
    id: int = -1
    """The producer id; -1 without one."""
    times: int = 0
    began: float = 0.0
    offset: int | None = None
    acknowledged: float = NEVER
    refused: bool = False
    """It was out of order although all earlier batches of its id were acknowledged."""


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
    """A member's part in a generation, which it asked for at ``began``."""

    group: str
    generation: int
    member: str
    partitions: tuple[int, ...]
    began: float
    ended: float


@dataclass(slots=True)
class History:
    """Everything, in the order in which it became known."""

    sent: list[Sent] = field(default_factory=list)
    seen: list[tuple[str, Log, list[Batch]]] = field(default_factory=list)
    """(reader, partition, batches), in each reader's order. A reader continues where it stopped, or at a log start
    from a broker."""
    seen_at: list[float] = field(default_factory=list)
    """The time of each item of ``seen``."""
    skipped: list[tuple[str, Log, int, int]] = field(default_factory=list)
    """(reader, partition, requested offset, log start that the broker returned)."""
    skipped_at: list[float] = field(default_factory=list)
    """The time of each item of ``skipped``."""
    absent: list[tuple[Log, int, int, float]] = field(default_factory=list)
    """(partition, first offset, last offset, time) of lost commits while the lease of the only broker that knows of them is over."""
    bounds: list[Bounds] = field(default_factory=list)
    commits: list[OffsetCommit] = field(default_factory=list)
    reads: list[OffsetRead] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    consumed: dict[Log, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Offsets that members of the group were given."""
    producer_ids: list[int] = field(default_factory=list)
    allocated: dict[int, float] = field(default_factory=dict)
    """The time at which each producer id was allocated."""
    made_anew: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Topics that were deleted and created again: start of each deletion, and time at which the new topic existed."""
    lost_seconds: list[tuple[float, float]] = field(default_factory=list)
    """Times that the coordinator lost: from the newest change that it kept to its restart."""
    recovered: bool = False
    """An administrator committed lost records again, so they may have other offsets."""
    unproven: set[tuple[Log, int, int]] = field(default_factory=set)
    """(partition, producer, number) of batches of objects without a commit, for which the coordinator could not tell at the
    recovery whether the log had them."""
    logs: dict[Log, tuple[int, list[Batch]]] = field(default_factory=dict)
    """(log start, batches) of each partition in the end."""


def violations(history: History) -> Iterator[str]:
    """Yield every broken promise."""
    if len(set(history.producer_ids)) < len(history.producer_ids):
        yield "a producer id was allocated twice"
    if history.recovered:
        yield from _recovered(history)
        return
    yield from _logs(history)
    yield from _acknowledged(history)
    yield from _orders(history)
    yield from _gaps(history)
    yield from _readers(history)
    yield from _bounds(history)
    yield from _offsets(history)
    yield from _groups(history)


def _recovered(history: History) -> Iterator[str]:
    """The log has every acknowledged batch, at any offset, and those of idempotent producers once if no loss forgot their id.

    A batch that its producer sent to two brokers may be there twice: once from a commit, and once from an object without a commit,
    for which the coordinator proves nothing (`RetentionStore.contains`). A coordinator that went back may give the id to another
    producer after the reservation of the object, so a recovery cannot take the two batches for copies.

    Logs from which retention or a client deletes records prove nothing, because offsets have changed.
    """
    for log, (start, batches) in history.logs.items():
        count = Counter((batch.producer, batch.number) for batch in batches)
        for sent in history.sent if start == 0 and log[0] not in history.made_anew else ():
            copies = count[sent.producer, sent.number]
            if sent.log == log and sent.offset is not None and not copies:
                yield f"{log}: {sent} was acknowledged, and is lost after the recovery"
            # A coordinator that lost the allocation of an id may give it to another producer. So a recovery takes no batch of
            # this id for a copy of another one.
            allocated = history.allocated.get(sent.id, NEVER)
            lost = any(since <= allocated <= end for since, end in history.lost_seconds)
            most = 2 if (log, sent.producer, sent.number) in history.unproven else 1
            if sent.log == log and sent.idempotent and copies > most and not lost:
                yield f"{log}: {sent} exists {copies} times after the recovery"


def _logs(history: History) -> Iterator[str]:
    """Offsets have no gaps, and no offset ever belonged to two batches, except for records that a reader saw in a lost second.

    A broker cannot repeat a lost commit whose answer it did not get.
    """
    for log, (start, batches) in history.logs.items():
        expected = None
        for batch in batches:
            if expected is None and not batch.offset <= start:
                yield f"{log}: the log starts at {start}, its first batch at {batch.offset}"
            if expected is not None and batch.offset != expected:
                yield f"{log}: {batch} has another offset than the expected {expected}"
            expected = batch.offset + batch.records
    at: dict[tuple[Log, int], Batch] = {}
    seen = [
        item
        for item, time in zip(history.seen, history.seen_at, strict=True)
        if not any(since <= time <= end + ANSWER_SECONDS for since, end in history.lost_seconds)
    ]
    final = [("the end", log, batches) for log, (_, batches) in history.logs.items()]
    for reader, log, batches in seen + final:
        for batch in batches:
            first = at.setdefault((log, batch.offset), batch)
            if first != batch:
                yield f"{log}: {reader} saw {batch}, and another reader saw {first}"


def _acknowledged(history: History) -> Iterator[str]:
    """Every acknowledged batch is at its acknowledged offset, unless it lies below the log start."""
    places = {log: {batch.offset: batch for batch in batches} for log, (_, batches) in history.logs.items()}
    for sent in history.sent:
        if sent.offset is None:
            continue
        generations = history.made_anew.get(sent.log[0], [])
        if generations and sent.began <= generations[-1][1]:
            # It was sent to a deleted topic.
            continue
        start = history.logs[sent.log][0]
        if sent.offset + sent.records <= start:
            continue
        stored = places[sent.log].get(sent.offset)
        if stored != Batch(sent.offset, sent.records, sent.producer, sent.number):
            yield f"{sent.log}: {stored} has the acknowledged offset of {sent}"


def _orders(history: History) -> Iterator[str]:
    """A producer's batches are in its order.

    An idempotent producer's batch exists once, any other at most as often as it was sent.
    """
    by_id = {(record.log, record.producer, record.number): record for record in history.sent}
    for log, (_, batches) in history.logs.items():
        last: dict[int, int] = {}
        count: dict[tuple[int, int], int] = defaultdict(int)
        for batch in batches:
            sent = by_id.get((log, batch.producer, batch.number))
            if sent is None:
                yield f"{log}: no producer sent {batch}"
                continue
            count[batch.producer, batch.number] += 1
            if count[batch.producer, batch.number] > (1 if sent.idempotent else sent.times):
                yield f"{log}: {batch} exists {count[batch.producer, batch.number]} times, and was sent {sent.times} times"
            before = last.get(batch.producer, -1)
            # A copy that was not acknowledged may have any place: its attempt timed out, or had acks=0.
            if sent.idempotent or sent.offset == batch.offset:
                if batch.number < before:
                    yield f"{log}: {batch} follows number {before} of its producer"
                last[batch.producer] = max(before, batch.number)
    for topic, generations in history.made_anew.items():
        for log, (_, batches) in history.logs.items():
            for batch in batches if log[0] == topic and generations else ():
                sent = by_id.get((log, batch.producer, batch.number))
                if sent is not None and sent.times == 1 and sent.acknowledged < generations[-1][0]:
                    yield f"{log}: {batch} was sent to a topic that is deleted"


def _gaps(history: History) -> Iterator[str]:
    """The log has every earlier batch of the same producer id as an acknowledged batch."""
    stored = {(log, batch.producer, batch.number) for log, (_, batches) in history.logs.items() for batch in batches}
    missing: dict[tuple[Log, int], Sent] = {}
    for sent in history.sent:
        if not sent.idempotent:
            continue
        if sent.refused:
            yield f"{sent.log}: {sent} was out of order after the last batch of its producer"
        if sent.offset is None:
            if (sent.log, sent.producer, sent.number) not in stored:
                missing.setdefault((sent.log, sent.id), sent)
        elif (earlier := missing.get((sent.log, sent.id))) and sent.offset >= history.logs[sent.log][0]:
            yield f"{sent.log}: {sent} was acknowledged, and the earlier {earlier} was never appended"


def _readers(history: History) -> Iterator[str]:
    """A reader gets every batch from its position on, and an out-of-range error only below the log start, or for lost records
    of a broker that is not live.

    Before an answer, brokers give each live broker the time of a lease to find its loss. A frozen broker may come back later,
    and repeat its commits then. The others cannot know that.
    """
    position: dict[tuple[str, Log], int] = {}
    for (reader, log, requested, start), time in zip(history.skipped, history.skipped_at, strict=True):
        if requested >= start and not _is_absent(history, log, requested, time):
            yield f"{log}: {reader} was refused offset {requested}, and the log starts at {start}"
    skips: dict[tuple[str, Log], set[int]] = defaultdict(set)
    for reader, log, _, start in history.skipped:
        skips[reader, log].add(start)
    for reader, log, batches in history.seen:
        for batch in batches:
            expected = position.get((reader, log), 0)
            end = batch.offset + batch.records
            # A log start may lie inside a batch.
            if batch.offset != expected and not any(batch.offset <= offset < end for offset in skips[reader, log]):
                yield f"{log}: {reader} got {batch} instead of offset {expected}"
            position[reader, log] = end
    for (reader, log), end in position.items():
        if log in history.logs and log[0] not in history.made_anew:
            batches = history.logs[log][1]
            if batches and end != batches[-1].offset + batches[-1].records:
                yield f"{log}: {reader} reached {end}, and the log ends with {batches[-1]}"


def _is_absent(history: History, log: Log, offset: int, time: float) -> bool:
    """Return whether an offset lay in or behind a lost commit whose broker was not live in the lease before ``time``."""
    return any(
        part == log and first < offset <= last + 1 and time - LEASE_SECONDS <= at <= time + POLL_SECONDS
        for part, first, last, at in history.absent
    )


def _bounds(history: History) -> Iterator[str]:
    """Log starts and high watermarks never go back, whichever broker reports them."""
    by_log: dict[tuple[Log, int], list[Bounds]] = defaultdict(list)
    for bounds in history.bounds:
        # A loss takes log starts back, and high watermarks until the commits are repeated.
        if (losses := _losses_before(history, bounds.began)) == _losses_before(history, bounds.ended):
            by_log[bounds.log, losses].append(bounds)
    for (log, _), all_bounds in by_log.items():
        ended = sorted(all_bounds, key=lambda bounds: bounds.ended)
        place, start, high = 0, 0, 0
        for bounds in sorted(all_bounds, key=lambda bounds: bounds.began):
            while place < len(ended) and ended[place].ended < bounds.began:
                start, high = max(start, ended[place].start), max(high, ended[place].high)
                place += 1
            if bounds.start < start or -1 < bounds.high < high:
                yield f"{log}: {bounds} after log start {start} and high watermark {high} were reported"


def _losses_before(history: History, time: float) -> int:
    return sum(restart <= time for _, restart in history.lost_seconds)


def _is_lost(history: History, commit: OffsetCommit, read: OffsetRead) -> bool:
    """Return whether the coordinator may have lost a group's commit before a read. Brokers do not repeat it."""
    return any(
        since <= commit.ended and commit.began <= restart <= read.ended for since, restart in history.lost_seconds
    )


def _offsets(history: History) -> Iterator[str]:
    """A group's offset comes from a commit that no later one has certainly replaced.

    Members were given all records below it.
    """
    for read in history.reads:
        commits = [commit for commit in history.commits if commit.log == read.log]
        begun = max(
            (commit.began for commit in commits if commit.ended < read.began and not _is_lost(history, commit, read)),
            default=None,
        )
        if read.offset < 0:
            if begun is not None:
                yield f"{read} although offsets were committed"
        elif not any(
            commit.offset == read.offset and commit.began < read.ended and (begun is None or commit.ended >= begun)
            for commit in commits
        ):
            yield f"{read} is older than an acknowledged commit, or was never committed"
        missing = set(range(max(read.offset, 0))) - history.consumed[read.log]
        if missing:
            yield f"{read}: no member was given {sorted(missing)[:5]}"


def _groups(history: History) -> Iterator[str]:
    """A partition has one owner in a generation. A lost generation may exist again."""
    owners: dict[tuple[object, ...], str] = {}
    for assignment in history.assignments:
        losses = _losses_before(history, assignment.began), _losses_before(history, assignment.ended)
        for partition in assignment.partitions:
            part = assignment.group, losses, assignment.generation, partition
            owner = owners.setdefault(part, assignment.member)
            if owner != assignment.member:
                yield f"generation {assignment.generation}: partition {partition} belongs to {owner} and {assignment.member}"
