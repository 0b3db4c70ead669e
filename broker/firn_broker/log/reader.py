"""Fetch's way to the bytes: find where batches lie, wait for them if there are too few, load what is not cached, slice.

Coordinates are always read from the coordinator after the request came, so offsets that are out of range are so now, on whatever broker.
Loads come in two lanes. Who reads up to the high watermark is served at once; who is behind goes through a lane of its own (`backfills`
reads at a time, its own cache), so that reading history cannot slow the tail, or the producers. One load serves all who want the range.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn_broker import metrics
from firn_broker.log.blocks import Block, BlockCache, Slot, numbered
from firn_broker.log.watermarks import Watch, Watermarks
from firn_broker.log_types import LOOKUP_RANGES, BatchRange, Lookup, LookupResult, Partition
from firn_broker.network.budget import Budget, Share
from firn_broker.ports import LogStore, ObjectStore
from firn_broker.settings import ReaderSettings

log = structlog.get_logger()

SMALL = 1 << 16
"""Answers below this are not counted: nobody should wait with the newest records because others read history."""

ANSWER_RANGES = 2048
"""Runs that are found for one answer, over all its partitions, unless these are more: each has one at least."""


@dataclass(frozen=True, slots=True)
class Position:
    """A consumer in one partition. ``max_bytes`` bounds what it takes."""

    partition: Partition
    offset: int
    max_bytes: int


@dataclass(slots=True)
class Records:
    """What a consumer is given of one partition: whole batches, the first of which may begin before its offset."""

    error: ErrorCode
    log_start: int = -1
    high_watermark: int = -1
    batches: Sequence[memoryview] = ()


@dataclass(slots=True)
class _Plan:
    """The ranges that one answer loads."""

    ranges: list[list[BatchRange]] = field(default_factory=list)
    """For each position of the request."""
    recent: set[Slot] = field(default_factory=set)
    """Those of partitions that are read up to their high watermark."""
    size: int = 0
    """Bytes of all ranges."""


class UnreadableError(Exception):
    """Batches that are committed cannot be read now; the consumer may try again."""


class Reader:
    """Serves consumers."""

    def __init__(
        self,
        log_store: LogStore,
        store: ObjectStore,
        cache: BlockCache,
        watermarks: Watermarks,
        settings: ReaderSettings,
    ) -> None:
        self._log_store = log_store
        self._store = store
        self._cache = cache
        self._watermarks = watermarks
        self._settings = settings
        self.answers = Budget(settings.answer_bytes)
        """Of records that answers hold from before they are loaded until they are sent, cached or not: a cache may drop them meanwhile."""
        self._loading: dict[Slot, asyncio.Future[Block]] = {}
        self._backfills = asyncio.Semaphore(settings.backfills)
        self._tails = asyncio.Semaphore(32)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def stop(self) -> None:
        """Wait for nothing any more."""
        self._stopping = True
        self._watermarks.wake()

    async def fetch(
        self, positions: Sequence[Position], *, min_bytes: int, max_bytes: int, max_wait_seconds: float, share: Share
    ) -> list[Records]:
        """One answer for each position, in their order: as soon as ``min_bytes`` are there, or as much as an answer may have, or anything
        is wrong, or the time is over. No partition may be there twice.

        ``share`` has the bytes then, if they are not few."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max_wait_seconds
        max_bytes = min(max_bytes, self._settings.max_response_bytes)
        # Who reads one partition wants what follows, too.
        ahead = self._settings.read_ahead_bytes if len(positions) == 1 else 0
        found: dict[Position, LookupResult] = {}
        with self._watermarks.watch(position.partition for position in positions) as watch:
            again = positions
            while True:
                full = await self._find(again, max_bytes, ahead, found, watch)
                left = deadline - loop.time()
                if (
                    left <= 0
                    or self._stopping
                    or full
                    or any(one.error for one in found.values())
                    or _bytes(found.values()) >= min(min_bytes, max_bytes)
                ):
                    break
                if not (grown := await watch.wait(left)):
                    break
                again = [position for position in positions if position.partition in grown]
        return await self._load(positions, [found[position] for position in positions], max_bytes, share)

    async def _find(
        self,
        positions: Sequence[Position],
        max_bytes: int,
        ahead: int,
        found: dict[Position, LookupResult],
        watch: Watch,
    ) -> bool:
        """Find what these positions want, beside what is found for others; whether more is there than one answer may have.

        Each has the same part of the ranges. What some leave is for those that have more, at a second look."""
        for position in positions:
            found.pop(position, None)
        left = ANSWER_RANGES - sum(len(one.ranges) for one in found.values())
        before = 0
        for _ in range(2):
            if not positions:
                return False
            allowed = max(min(left // len(positions), LOOKUP_RANGES), 1)
            if allowed <= before:
                break
            wanted = [Lookup(it.partition, it.offset, min(it.max_bytes, max_bytes) + ahead) for it in positions]
            with metrics.FIND_SECONDS.time():
                looked = await self._log_store.find(wanted, allowed)
            cut = []
            for position, want, one in zip(positions, wanted, looked, strict=True):
                self._watermarks.saw(position.partition, one.high_watermark, watch)
                found[position] = one
                if len(one.ranges) >= allowed and _bytes((one,)) < want.max_bytes:
                    cut.append(position)
                else:
                    left -= len(one.ranges)
            positions, before = cut, allowed
        return bool(positions)

    async def _load(
        self, positions: Sequence[Position], found: Sequence[LookupResult], max_bytes: int, share: Share
    ) -> list[Records]:
        plan = self._plan(positions, found, max_bytes)
        if plan.size >= SMALL:
            await share.take(plan.size)
        # The cache keeps nothing for an answer that waits for its share, so blocks are looked up only now.
        blocks = await self._blocks([batch_range for ranges in plan.ranges for batch_range in ranges], plan.recent)
        answers = []
        left = max_bytes
        for position, result, ranges in zip(positions, found, plan.ranges, strict=True):
            answer = Records(result.error, result.log_start, result.high_watermark)
            budget = min(position.max_bytes, left)
            # One batch larger than all bounds may pass in the whole answer, or no consumer could ever read it.
            answer.batches, complete = _slices(position.offset, ranges, blocks, budget, at_least_one=left == max_bytes)
            if not answer.batches and not complete:
                answer.error = ErrorCode.kafka_storage_error
            left -= sum(len(batches) for batches in answer.batches)
            answers.append(answer)
        return answers

    def _plan(self, positions: Sequence[Position], found: Sequence[LookupResult], max_bytes: int) -> "_Plan":
        """Choose the ranges for an answer of ``max_bytes``; one range at least if there is any."""
        plan = _Plan()
        left = max_bytes
        for position, result in zip(positions, found, strict=True):
            at_tail = bool(result.ranges) and result.ranges[-1].last_offset + 1 >= result.high_watermark
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
                plan.recent.update(_slot(batch_range) for batch_range in chosen)
            elif len(positions) == 1:
                self._ahead(result.ranges[len(chosen) :])
        return plan

    async def _blocks(self, ranges: Sequence[BatchRange], recent: Container[Slot]) -> dict[Slot, Block]:
        """The blocks of ranges; one that cannot be read is absent. Those that are cached now are held from now on."""
        found: dict[Slot, Block] = {}
        missing: list[BatchRange] = []
        for batch_range in ranges:
            if (block := self._cache.get(batch_range)) is None:
                missing.append(batch_range)
            else:
                found[_slot(batch_range)] = block
        if missing:
            for fresh in (True, False):
                self._start(
                    [batch_range for batch_range in missing if (_slot(batch_range) in recent) is fresh], recent=fresh
                )
            waiting = {_slot(batch_range): self._loading[_slot(batch_range)] for batch_range in missing}
            await asyncio.wait(waiting.values())
            for slot, future in waiting.items():
                if not future.cancelled() and future.exception() is None:
                    found[slot] = future.result()
        return found

    def _ahead(self, ranges: Sequence[BatchRange]) -> None:
        """Begin to load what will be asked for next."""
        self._start([batch_range for batch_range in ranges if self._cache.get(batch_range) is None], recent=False)

    def _start(self, ranges: Iterable[BatchRange], *, recent: bool) -> None:
        """Load ranges that nobody loads yet, those of an object together."""
        by_object: dict[str, list[BatchRange]] = {}
        for batch_range in ranges:
            if _slot(batch_range) not in self._loading:
                future: asyncio.Future[Block] = asyncio.get_running_loop().create_future()
                # Who asked may be gone by then: an exception that nobody fetches is no news.
                future.add_done_callback(lambda it: it.cancelled() or it.exception())
                self._loading[_slot(batch_range)] = future
                by_object.setdefault(batch_range.place.key, []).append(batch_range)
        for key, group in by_object.items():
            task = asyncio.create_task(self._read(key, group, recent=recent))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _read(self, key: str, ranges: Sequence[BatchRange], *, recent: bool) -> None:
        lane = "tail" if recent else "backfill"
        try:
            async with self._tails if recent else self._backfills:
                spans = [
                    (batch_range.place.position, batch_range.place.position + batch_range.place.length)
                    for batch_range in ranges
                ]
                with metrics.GET_SECONDS.labels(lane).time():
                    found = await self._store.get_ranges(key, spans)
            for batch_range, data in zip(ranges, found, strict=True):
                metrics.GET_BYTES.labels(lane).inc(len(data))
                block = numbered(batch_range, data)
                self._cache.read(batch_range, block, recent=recent)
                self._loading.pop(_slot(batch_range)).set_result(block)
        except Exception as error:
            if not isinstance(error, UnavailableError):
                log.exception("cannot read batches", key=key)
            for batch_range in ranges:
                if (future := self._loading.pop(_slot(batch_range), None)) is not None:
                    future.set_exception(UnreadableError(f"{key}: {error}"))

    async def read(self, batch_range: BatchRange) -> Block:
        """The block of one batch_range. Raises UnreadableError."""
        block = self._cache.get(batch_range)
        if block is None:
            self._start([batch_range], recent=False)
            block = await asyncio.shield(self._loading[_slot(batch_range)])
        return block

    async def poll(self, alone: Callable[[], bool]) -> None:
        """Look for what other brokers wrote to partitions that somebody waits for, for ever; while this one is ``alone``, it knows."""
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            partitions = self._watermarks.watched()
            if not partitions or alone():
                continue
            try:
                states = await self._log_store.states(partitions)
            except UnavailableError as error:
                log.warning("cannot poll high watermarks", error=str(error))
                continue
            except Exception:
                log.exception("cannot poll high watermarks")
                continue
            for partition, state in zip(partitions, states, strict=True):
                if state is None:
                    self._watermarks.gone(partition)
                else:
                    self._watermarks.saw(partition, state.high_watermark)


def _slices(
    offset: int, ranges: Sequence[BatchRange], blocks: Mapping[Slot, Block], budget: int, *, at_least_one: bool
) -> tuple[list[memoryview], bool]:
    """Slice whole batches from ``offset`` on, within ``budget`` bytes; also report whether no block was missing.

    The batches in front of a missing block are a good answer: the consumer asks for the rest again."""
    batches: list[memoryview] = []
    for batch_range in ranges:
        block = blocks.get(_slot(batch_range))
        if block is None:
            return batches, False
        part = block.slice(batch_range, offset, budget, at_least_one=at_least_one and not batches)
        if not len(part):
            break
        batches.append(part)
        budget -= len(part)
        if budget <= 0:
            break
    return batches, True


def _slot(batch_range: BatchRange) -> Slot:
    return batch_range.place.key, batch_range.place.position


def _bytes(found: Iterable[LookupResult]) -> int:
    return sum(batch_range.place.length for one in found for batch_range in one.ranges)
