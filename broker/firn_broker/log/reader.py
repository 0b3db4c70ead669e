"""The path of a fetch to the bytes: look up where batches lie, wait while there are too few, load those that are not
cached, slice.

The reader looks up batches in the coordinator after the request arrived. So an offset that is out of range is so now,
whichever broker answers. Loads have two lanes. A consumer that reads up to the high watermark is served at once. A
consumer that is behind uses a lane of its own with `backfills` reads at a time and its own cache, so that history slows
neither the tail nor the producers. One load serves all fetches of a batch range."""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import structlog
from kio.schema.errors import ErrorCode

from firn.model.errors import CorruptDataError, UnavailableError
from firn_broker import metrics
from firn_broker.log.blocks import Block, BlockCache, Slot, number_batches, slot_of
from firn_broker.log.watermarks import Waiter, Watermarks
from firn_broker.log_types import LOOKUP_RANGES, BatchRange, Lookup, LookupResult, Partition, TableRange
from firn_broker.network.budget import SHARES, Budget, Share
from firn_broker.ports import History, LogStore, ObjectStore
from firn_broker.settings import ReaderSettings
from firn_broker.storage import wal

log = structlog.get_logger()

SMALL = 1 << 16
"""Bytes below which an answer is not counted, so that the newest records never wait for memory that readers of history
hold."""

LOOKUPS = 2_000
"""Partitions that one call of the coordinator looks up."""

ANSWER_RANGES = 2048
"""Batch ranges of one answer over all its partitions. Each partition may have one, even if there are more partitions
than this."""


@dataclass(frozen=True, slots=True)
class Position:
    """The place of a consumer in one partition, and the bytes that it accepts."""

    partition: Partition
    offset: int
    max_bytes: int
    insists: bool = False
    """True if this broker serves the consumer in any case."""


@dataclass(slots=True)
class Records:
    """The answer for one partition: whole batches, of which the first may begin before the consumer's offset."""

    error: ErrorCode
    log_start: int = -1
    high_watermark: int = -1
    batches: Sequence[bytes | memoryview] = ()
    elsewhere: bool = False
    """True if another broker serves this position."""


class Serves(Enum):
    """The positions that a broker serves. Other brokers serve the others."""

    ALL = "all"
    NEWEST = "newest"
    """All but old records."""
    HISTORY = "history"
    """Old records: those that a merge, a compaction or a table has."""


@dataclass(slots=True)
class _Plan:
    """The ranges that one answer loads."""

    ranges: list[list[BatchRange]] = field(default_factory=list)
    """Batch ranges for each position of the request."""
    recent: set[Slot] = field(default_factory=set)
    """Ranges of partitions that are read up to their high watermark."""
    size: int = 0
    """Bytes of all ranges."""


class UnreadableError(Exception):
    """Committed batches cannot be read now; the consumer may retry."""


class Reader:
    """Answers the fetches of consumers."""

    def __init__(
        self,
        log_store: LogStore,
        store: ObjectStore,
        cache: BlockCache,
        watermarks: Watermarks,
        settings: ReaderSettings,
        history: History | None = None,
    ) -> None:
        """Read batches from ``store``, and those whose records lie in tables through ``history``."""
        self._log_store = log_store
        self._store = store
        self._history = history
        self._cache = cache
        self._watermarks = watermarks
        self._settings = settings
        self.response_bytes = min(settings.max_response_bytes, settings.answer_bytes // SHARES)
        """The largest answer. One beyond the share of its connection would wait until other connections have read
        theirs, and then keep them waiting."""
        if self.response_bytes < settings.max_response_bytes:
            log.warning(
                "responses are smaller than reader.maxResponseBytes, because one connection may hold an eighth of reader.answerBytes",
                bytes=self.response_bytes,
            )
        self.answers = Budget(settings.answer_bytes)
        """Bytes of records that answers hold from before they are loaded until they are sent. Cached records count too:
        the cache may evict them."""
        self._loading: dict[Slot, asyncio.Future[Block]] = {}
        self._backfills = asyncio.Semaphore(settings.backfills)
        self._rebuilds = asyncio.Semaphore(settings.backfills)
        self._tails = asyncio.Semaphore(32)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def stop(self) -> None:
        """Answer all waiting fetches with the records that there are."""
        self._stopping = True
        self._watermarks.wake()

    def close(self) -> None:
        """End the processes that rebuild batches."""
        if self._history is not None:
            self._history.close()

    async def fetch(
        self,
        positions: Sequence[Position],
        *,
        min_bytes: int,
        max_bytes: int,
        max_wait_seconds: float,
        share: Share,
        serves: Serves = Serves.ALL,
    ) -> list[Records]:
        """Answer for each position, in their order; no partition may occur twice.

        The answer comes when ``min_bytes`` are there, when it is as large as it may be, when a partition has an error,
        or after ``max_wait_seconds``. An answer of `SMALL` bytes or more has acquired its bytes for ``share``. Positions that this broker
        does not serve have no records."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max_wait_seconds
        max_bytes = min(max_bytes, self.response_bytes)
        # A consumer of one partition reads on from where the answer ends.
        ahead = self._settings.read_ahead_bytes if len(positions) == 1 else 0
        results: dict[Position, LookupResult] = {}
        with self._watermarks.watch(position.partition for position in positions) as watch:
            if max_wait_seconds > 0 and min_bytes > 0 and len(positions) <= LOOKUPS:
                results = _at_known_end(self._watermarks, positions, watch)
            claimed = set(results)
            pending = () if claimed else positions
            while True:
                claimed.difference_update(pending)
                full = bool(pending) and await self._find(pending, max_bytes, ahead, results, watch)
                left = deadline - loop.time()
                if (
                    left <= 0
                    or self._stopping
                    or full
                    or any(result.error for result in results.values())
                    or _bytes(results.values()) >= min(min_bytes, max_bytes)
                ):
                    break
                if not (grown := await watch.wait(left)):
                    break
                # One lookup for those that have grown, and for those whose bounds may be older than the request.
                unsure = () if watch.confirmed else claimed
                pending = [position for position in positions if position.partition in grown or position in unsure]
            if claimed:
                await self._confirm(claimed, max_bytes, ahead, results, watch)
        located = [results[position] for position in positions]
        served = [_served(*each, serves) for each in zip(positions, located, strict=True)]
        found = await self._load(positions, served, max_bytes, share)
        for records, before, after in zip(found, located, served, strict=True):
            records.elsewhere = after is not before
        return found

    async def fetch_full(
        self, positions: Sequence[Position], max_bytes: int, share: Share, serves: Serves = Serves.ALL
    ) -> list[Records] | None:
        """Answer at once, as `fetch` does, if these positions have as many bytes as an answer may have. Otherwise load
        nothing, and return None."""
        max_bytes = min(max_bytes, self.response_bytes)
        results: dict[Position, LookupResult] = {}
        with self._watermarks.watch(position.partition for position in positions) as watch:
            await self._find(positions, max_bytes, 0, results, watch)
        located = [results[position] for position in positions]
        served = [_served(*each, serves) for each in zip(positions, located, strict=True)]
        if served != located or any(result.error for result in located) or _bytes(located) < max(max_bytes, 1):
            return None
        return await self._load(positions, located, max_bytes, share)

    async def _confirm(
        self,
        claimed: Iterable[Position],
        max_bytes: int,
        ahead: int,
        results: dict[Position, LookupResult],
        watch: Waiter,
    ) -> None:
        """Use the bounds that a poll has read since the fetch arrived, or look them up.

        The answer must not report bounds that are older than the request."""
        unconfirmed = []
        for position in claimed:
            known = self._watermarks.known(position.partition)
            if watch.confirmed and known is not None:
                results[position] = LookupResult(ErrorCode.none, *known)
            else:
                unconfirmed.append(position)
        if unconfirmed:
            await self._find(unconfirmed, max_bytes, ahead, results, watch)

    async def _find(
        self,
        positions: Sequence[Position],
        max_bytes: int,
        ahead: int,
        results: dict[Position, LookupResult],
        watch: Waiter,
    ) -> bool:
        """Look up the batches of these positions into ``results``; return whether there are more than one answer may
        have.

        Each position may have the same number of ranges. A second lookup gives the ranges that some positions leave to
        those that have more."""
        for position in positions:
            results.pop(position, None)
        left = ANSWER_RANGES - sum(len(result.ranges) for result in results.values())
        before = 0
        for _ in range(2):
            if not positions:
                return False
            allowed = max(min(left // len(positions), LOOKUP_RANGES), 1)
            if allowed <= before:
                break
            cut = []
            for start in range(0, len(positions), LOOKUPS):
                some = positions[start : start + LOOKUPS]
                lookups = [
                    Lookup(position.partition, position.offset, min(position.max_bytes, max_bytes) + ahead)
                    for position in some
                ]
                with metrics.FIND_SECONDS.time():
                    looked_up = await self._log_store.find(lookups, allowed)
                for position, lookup, result in zip(some, lookups, looked_up, strict=True):
                    if not result.error:
                        self._watermarks.observe(position.partition, result.log_start, result.high_watermark, watch)
                    results[position] = result
                    if len(result.ranges) >= allowed and _bytes((result,)) < lookup.max_bytes:
                        cut.append(position)
                    else:
                        left -= len(result.ranges)
            positions, before = cut, allowed
        return bool(positions)

    async def _load(
        self, positions: Sequence[Position], located: Sequence[LookupResult], max_bytes: int, share: Share
    ) -> list[Records]:
        plan = self._plan(positions, located, max_bytes)
        if plan.size >= SMALL:
            await share.acquire(plan.size)
        # The cache keeps nothing for an answer that waits for its share, so blocks are looked up only now.
        blocks = await self._blocks([batch_range for ranges in plan.ranges for batch_range in ranges], plan.recent)
        answers: list[Records] = []
        left = max_bytes
        for position, result, ranges in zip(positions, located, plan.ranges, strict=True):
            if len(answers) % LOOKUPS == LOOKUPS - 1:
                # Other requests must not wait for many partitions.
                await asyncio.sleep(0)
            answer = Records(result.error, result.log_start, result.high_watermark)
            answers.append(answer)
            if not ranges:
                continue
            budget = min(position.max_bytes, left)
            # One batch larger than all bounds may pass in the whole answer, or no consumer could ever read it.
            answer.batches, complete = _slices(position.offset, ranges, blocks, budget, at_least_one=left == max_bytes)
            if not answer.batches and not complete:
                answer.error = ErrorCode.kafka_storage_error
            left -= sum(len(batches) for batches in answer.batches)
        return answers

    def _plan(self, positions: Sequence[Position], located: Sequence[LookupResult], max_bytes: int) -> "_Plan":
        """Choose the ranges for an answer of ``max_bytes``; one range at least if there is any."""
        plan = _Plan()
        left = max_bytes
        for position, result in zip(positions, located, strict=True):
            if not result.ranges:
                plan.ranges.append([])
                continue
            at_tail = result.ranges[-1].last_offset + 1 >= result.high_watermark
            budget = min(position.max_bytes, left)
            chosen: list[BatchRange] = []
            for batch_range in result.ranges:
                if budget <= 0 and plan.size:
                    break
                chosen.append(batch_range)
                plan.size += batch_range.place.length
                budget -= batch_range.place.length
                left -= batch_range.place.length
            plan.ranges.append(chosen)
            if at_tail:
                plan.recent.update(slot_of(batch_range) for batch_range in chosen)
            elif len(positions) == 1:
                self._ahead(result.ranges[len(chosen) :])
        return plan

    async def _blocks(self, ranges: Sequence[BatchRange], recent: Container[Slot]) -> dict[Slot, Block]:
        """Load the blocks of ranges, without those that cannot be read. The result holds cached blocks, so their
        eviction does no harm."""
        blocks: dict[Slot, Block] = {}
        missing: list[BatchRange] = []
        for batch_range in ranges:
            if (block := self._cache.get(batch_range)) is None:
                missing.append(batch_range)
            else:
                blocks[slot_of(batch_range)] = block
        if missing:
            for fresh in (True, False):
                self._start(
                    [batch_range for batch_range in missing if (slot_of(batch_range) in recent) is fresh], recent=fresh
                )
            waiting = {slot_of(batch_range): self._loading[slot_of(batch_range)] for batch_range in missing}
            await asyncio.wait(waiting.values())
            for slot, future in waiting.items():
                if not future.cancelled() and future.exception() is None:
                    blocks[slot] = future.result()
        return blocks

    def _ahead(self, ranges: Sequence[BatchRange]) -> None:
        """Start to load the ranges that the consumer will request next."""
        self._start([batch_range for batch_range in ranges if self._cache.get(batch_range) is None], recent=False)

    def _start(self, ranges: Iterable[BatchRange], *, recent: bool) -> None:
        """Start to load ranges that are not being loaded, with one read for each object or entry of a history object."""
        groups: dict[str, list[BatchRange]] = {}
        for batch_range in ranges:
            if slot_of(batch_range) not in self._loading:
                future: asyncio.Future[Block] = asyncio.get_running_loop().create_future()
                # The fetch may be cancelled by then: asyncio must not report an exception that no fetch retrieves.
                future.add_done_callback(lambda loaded: loaded.cancelled() or loaded.exception())
                self._loading[slot_of(batch_range)] = future
                groups.setdefault(slot_of(batch_range)[0], []).append(batch_range)
        for group in groups.values():
            task = asyncio.create_task(self._read(group[0].place.key, group, recent=recent))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _read(self, key: str, ranges: Sequence[BatchRange], *, recent: bool) -> None:
        try:
            damaged = await self._get(key, ranges, recent=recent, read="first")
            if damaged:
                # The damage may have happened on the way from the store.
                await self._get(key, damaged, recent=recent, read="second")
        except Exception as error:
            if isinstance(error, CorruptDataError):
                log.warning("batches are damaged", key=key, error=str(error))
            elif not isinstance(error, UnavailableError):
                log.exception("cannot read batches", key=key)
            for batch_range in ranges:
                if (future := self._loading.pop(slot_of(batch_range), None)) is not None:
                    future.set_exception(UnreadableError(f"{key}: {error}"))

    async def _get(self, key: str, ranges: Sequence[BatchRange], *, recent: bool, read: str) -> list[BatchRange]:
        """Read ranges from the object store, and return those that are damaged. Raises CorruptDataError in the second
        read."""
        lane = "tail" if recent else "backfill"
        lanes = self._tails if recent else self._backfills
        # Rebuilding waits for a process. Other reads do not wait behind it.
        async with self._rebuilds if isinstance(ranges[0].place, TableRange) else lanes:
            with metrics.GET_SECONDS.labels(lane).time():
                contents = await self._contents(key, ranges)
        damaged, errors = [], []
        for batch_range, data in zip(ranges, contents, strict=True):
            if data is None:
                continue
            metrics.GET_BYTES.labels(lane).inc(len(data))
            try:
                block = number_batches(batch_range, data)
            except CorruptDataError as error:
                metrics.DAMAGED_RANGES.labels(read).inc()
                log.warning("the object store returned damaged batches", key=key, read=read, error=str(error))
                damaged.append(batch_range)
                errors.append(error)
                continue
            self._cache.put_read(batch_range, block, recent=recent)
            self._loading.pop(slot_of(batch_range)).set_result(block)
        if errors and read == "second":
            raise errors[0]
        return damaged

    async def _contents(self, key: str, ranges: Sequence[BatchRange]) -> Sequence[memoryview | None]:
        """Return the bytes of ranges of one object, or of one entry of a history object. None: a table does not give the range back, and
        its readers know."""
        if not isinstance(ranges[0].place, TableRange):
            places = [each.place for each in ranges]
            return await self._store.get_ranges(
                key, [(place.position, place.position + place.length) for place in places]
            )
        if self._history is None:
            raise UnavailableError("this broker cannot read tables")
        try:
            return await _rebuilt(self._history, ranges)
        except CorruptDataError as error:
            if len(ranges) == 1:
                self._give_up(ranges[0], error)
                return [None]
        # The others are good answers.
        return await self._one_by_one(self._history, ranges)

    async def _one_by_one(self, history: History, ranges: Sequence[BatchRange]) -> list[memoryview | None]:
        """Rebuild ranges one after the other, and give up those that the table does not give back."""
        found: list[memoryview | None] = []
        for each in ranges:
            try:
                found += await _rebuilt(history, [each])
            except CorruptDataError as error:
                self._give_up(each, error)
                found.append(None)
        return found

    def _give_up(self, batch_range: BatchRange, error: CorruptDataError) -> None:
        """Report a range that a table does not give back. A second read would find the same rows."""
        metrics.UNREBUILT_RANGES.labels("rows").inc()
        key = batch_range.place.key
        log.warning("a table does not give batches back", key=key, error=str(error))
        self._loading.pop(slot_of(batch_range)).set_exception(UnreadableError(f"{key}: {error}"))

    async def read(self, batch_range: BatchRange) -> Block:
        """Load the block of one batch range. Raises UnreadableError."""
        block = self._cache.get(batch_range)
        if block is None:
            self._start([batch_range], recent=False)
            block = await asyncio.shield(self._loading[slot_of(batch_range)])
        return block

    async def poll(self, alone: Callable[[], bool]) -> None:
        """Poll the high watermarks of partitions with waiting fetches, which other brokers may have moved. Runs until
        it is cancelled.

        The own commits of a broker that is ``alone`` report all changes. It polls only to confirm the ends that it
        knows.
        """
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            claims = self._watermarks.claims()
            partitions = (
                list(dict.fromkeys(partition for claim in claims for partition in claim.partitions))
                if alone()
                else self._watermarks.watched()
            )
            if not partitions:
                continue
            try:
                states = await self._log_store.states(partitions)
            except UnavailableError as error:
                log.warning("cannot poll high watermarks", error=str(error))
                self._watermarks.doubt(claims)
                continue
            except Exception:
                log.exception("cannot poll high watermarks")
                self._watermarks.doubt(claims)
                continue
            for partition, state in zip(partitions, states, strict=True):
                if state is None:
                    self._watermarks.forget(partition)
                else:
                    self._watermarks.poll(partition, state.log_start, state.high_watermark)
            self._watermarks.confirm(claims)


async def _rebuilt(history: History, ranges: Sequence[BatchRange]) -> Sequence[memoryview]:
    """Return the bytes of ranges of one entry. Raises CorruptDataError and UnavailableError."""
    try:
        found = await history.rebuild(ranges)
    except UnavailableError as error:
        metrics.UNREBUILT_RANGES.labels("unavailable").inc(len(ranges))
        log.warning(
            "cannot rebuild batches from data files; consumers try again", key=ranges[0].place.key, error=str(error)
        )
        raise
    metrics.REBUILT_BYTES.inc(sum(map(len, found)))
    return found


def _at_known_end(watermarks: Watermarks, positions: Sequence[Position], watch: Waiter) -> dict[Position, LookupResult]:
    """Return empty results if all positions are at the known ends of their partitions. The next poll confirms them."""
    results = {}
    for position in positions:
        known = watermarks.known(position.partition)
        if known is None or known[1] != position.offset:
            return {}
        results[position] = LookupResult(ErrorCode.none, *known)
    watermarks.claim(watch)
    return results


def _served(position: Position, result: LookupResult, serves: Serves) -> LookupResult:
    """Return the result, without ranges if another broker serves this position."""
    if result.error or serves is Serves.ALL or position.insists:
        return result
    first = next(iter(result.ranges), None)
    is_old = first is not None and (isinstance(first.place, TableRange) or wal.is_copy(first.place.key))
    here = is_old if serves is Serves.HISTORY else not is_old
    return result if here else result._replace(ranges=())


def _slices(
    offset: int, ranges: Sequence[BatchRange], blocks: Mapping[Slot, Block], budget: int, *, at_least_one: bool
) -> tuple[list[bytes | memoryview], bool]:
    """Slice whole batches from ``offset`` on, within ``budget`` bytes; also report whether no block was missing.

    The batches in front of a missing block are a good answer: the consumer asks for the rest again."""
    batches: list[bytes | memoryview] = []
    for batch_range in ranges:
        block = blocks.get(slot_of(batch_range))
        if block is None:
            return batches, False
        part = block.slice(batch_range, offset, budget, at_least_one=at_least_one and not batches)
        if not part:
            break
        batches += part
        budget -= sum(map(len, part))
        if budget <= 0:
            break
    return batches, True


def _bytes(results: Iterable[LookupResult]) -> int:
    return sum(batch_range.place.length for result in results for batch_range in result.ranges)
