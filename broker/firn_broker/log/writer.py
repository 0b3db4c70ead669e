"""The path of produced batches to the log: the writer buffers them, uploads them as one object, commits them, and
answers.

::

    append -> active file -(idle, 250 ms or 8 MiB)-> queue of files, by rotation
                                                         | up to 4 uploads at a time  | commits one by one, in order of rotation
                                                         v                            v
                                                    one PUT an object       offsets, one outcome a batch -> answers, cache, fetches

Rotation: a file does not wait for the end of its interval if the writer is idle. The batches that arrive until its
commit share the next file. So a lone batch waits for no interval, and many batches share few objects. `PutBudget` bounds
the uploads that begin before the interval ends.

Order: a producer with several requests in flight has consecutive sequences in consecutive files. So commits follow the
order of rotation, and a late upload delays the commits of later files. When a file fails, later batches of the same
producers may already be accepted. They must not be committed before the retry, so they fail too (`_Failed`).

Unknown outcomes: the writer sends a commit without a reply again, with the same key, until the coordinator replies or
the broker redirects its clients (`Membership.redirects`). The writer deletes no object. It commits the key of an
abandoned file with no batches (`settle`). That returns the outcome of an earlier commit, or makes sure that the key is
never committed with batches."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog
from kio.schema.errors import ErrorCode

from firn.model.errors import FencedError, UnavailableError
from firn.records import record_batch
from firn.records.record_batch import Batch
from firn_broker import metrics
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.membership import Membership
from firn_broker.log.blocks import Block, BlockCache
from firn_broker.log.watermarks import Watermarks
from firn_broker.log_types import BatchEntry, BatchOutcome, Commit, NodeLease, Partition
from firn_broker.ports import LogStore, ObjectStore
from firn_broker.settings import WriterSettings
from firn_broker.storage import wal
from firn_broker.storage.put_budget import PutBudget

log = structlog.get_logger()

RESERVED_AHEAD = 64
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)

UNEXPECTED_ATTEMPTS = 10
"""Attempts of a commit that end in an unexpected error, before the writer gives the commit up. Later commits wait for
about seven seconds."""

GIVEN_UP = 3
"""Commits in a row that the writer gives up before it fails."""
TRIED_AGAIN_SECONDS = 60.0
"""Seconds from the last commit given up until the writer no longer fails. Only new batches show whether commits succeed."""

_Producer = tuple[Partition, int]
_NO_DATA = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Append:
    """A batch for a partition, as the producer sent it."""

    partition: Partition
    batch: Batch
    append_time: bool


@dataclass(slots=True)
class _Entry:
    append: Append
    group: "_Group"
    index: int
    """Position in the outcomes of the group."""


class _Group:
    """The batches of one request, which are answered together. All of them are in one file."""

    __slots__ = ("future", "missing", "outcomes")

    def __init__(self, count: int, future: "asyncio.Future[list[BatchOutcome]]") -> None:
        self.outcomes: list[BatchOutcome | None] = [None] * count
        self.missing = count
        self.future = future

    def answer(self, index: int, outcome: BatchOutcome) -> None:
        if self.outcomes[index] is not None:
            return
        self.outcomes[index] = outcome
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result([outcome for outcome in self.outcomes if outcome is not None])


@dataclass(slots=True)
class _File:
    number: int
    entries: list[_Entry] = field(default_factory=list)
    size: int = 0
    data: memoryview = _NO_DATA
    positions: list[int] = field(default_factory=list)
    key: str = ""
    upload: "asyncio.Task[bool] | None" = None


@dataclass(frozen=True, slots=True)
class _Failed:
    """Producers that lost a batch in a file. Nothing of theirs may be committed until file number ``last`` is done."""

    last: int
    producers: frozenset[_Producer]


class WalWriter:
    """Appends batches in the order of their arrival and answers each with its offset."""

    def __init__(
        self,
        log_store: LogStore,
        store: ObjectStore,
        membership: Membership,
        cache: BlockCache,
        watermarks: Watermarks,
        identifiers: Identifiers,
        settings: WriterSettings,
        budget: PutBudget,
    ) -> None:
        self._log_store = log_store
        self._store = store
        self._membership = membership
        self._cache = cache
        self._watermarks = watermarks
        self._identifiers = identifiers
        self._settings = settings
        self._budget = budget
        self._active = _File(0)
        self._interval: asyncio.TimerHandle | None = None
        self._sooner: asyncio.Handle | None = None
        """The next check whether the active file rotates before its interval ends."""
        self._queue: asyncio.Queue[_File] = asyncio.Queue()
        self._uploads = asyncio.Semaphore(settings.uploads)
        self._failed: list[_Failed] = []
        self._keys: deque[tuple[str, int]] = deque()
        """Reserved keys with the membership term of their reservation. In a later term they may be withdrawn and
        forgotten."""
        self._abandoned: asyncio.Queue[Commit] = asyncio.Queue()
        """Empty commits for the keys of abandoned files: those that were pending when the lease expired, or whose
        upload failed for too long."""
        self._given_up = 0
        """Commits in a row that were given up after unexpected errors. Only a commit with batches sets it to 0: the
        coordinator may reject what those have, and accept the empty commits of abandoned keys."""
        self._ready_again = 0.0
        self._reserving = asyncio.Lock()
        self._uploading = 0
        self._early = False
        self._unfinished = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def append(self, batches: Sequence[Append]) -> "asyncio.Future[list[BatchOutcome]]":
        """Buffer the batches of one request, in the order of the calls. The future gives one outcome for each."""
        future: asyncio.Future[list[BatchOutcome]] = asyncio.get_running_loop().create_future()
        if not batches or self._membership.redirects:
            future.set_result([BatchOutcome(ErrorCode.kafka_storage_error)] * len(batches))
            return future
        size = sum(len(append.batch.data) for append in batches)
        if self._active.entries and self._active.size + size > self._settings.flush_bytes:
            self._rotate()
        group = _Group(len(batches), future)
        file = self._active
        if not file.entries:
            self._unfinished += 1
            self._idle.clear()
            self._interval = asyncio.get_running_loop().call_later(self._settings.flush_seconds, self._rotate)
        file.entries += [_Entry(append, group, index) for index, append in enumerate(batches)]
        file.size += size
        if file.size >= self._settings.flush_bytes:
            self._rotate()
        elif self._unfinished == 1 and self._sooner is None:
            # In the next turn of the event loop: the other requests that have arrived by now share the object.
            self._sooner = asyncio.get_running_loop().call_soon(self._rotate_sooner)
        return future

    def flush_early(self) -> None:
        """Flush before the interval ends: a producer has all the requests in flight that it may have, and can send no
        more records."""
        self._early = True
        self._rotate_early()

    def _rotate_early(self) -> None:
        if (
            self._early
            and self._uploading < self._settings.early_uploads
            and self._active.size >= self._settings.early_bytes
        ):
            self._rotate()

    def _rotate_sooner(self) -> None:
        """Rotate the active file if no other file is unfinished: now, or when the budget has a token."""
        self._sooner = None
        if self._unfinished > 1 or not self._active.entries:
            return
        loop = asyncio.get_running_loop()
        wait = self._budget.wait(loop.time())
        if wait <= 0:
            self._rotate()
        elif wait < self._settings.flush_seconds:
            self._sooner = loop.call_later(wait, self._rotate_sooner)

    def _rotate(self) -> None:
        self._early = False
        file = self._active
        for handle in (self._interval, self._sooner):
            if handle is not None:
                handle.cancel()
        self._interval = self._sooner = None
        if not file.entries:
            return
        self._budget.take(asyncio.get_running_loop().time())
        self._active = _File(file.number + 1)
        self._uploading += 1
        file.upload = asyncio.create_task(self._upload(file))
        self._queue.put_nowait(file)

    async def _upload(self, file: _File) -> bool:
        """Upload the object; return whether the store has it."""
        try:
            return await self._put(file)
        finally:
            self._uploading -= 1
            self._rotate_early()

    async def _put(self, file: _File) -> bool:
        async with self._uploads:
            deadline = asyncio.get_running_loop().time() + self._settings.upload_seconds
            for attempt in range(1 << 30):
                try:
                    if not file.key:
                        file.key = await self._key()
                        self._assemble(file)
                    with metrics.PUT_SECONDS.time():
                        await self._store.put(file.key, file.data)
                    metrics.PUT_BYTES.inc(len(file.data))
                    return True
                except (UnavailableError, FencedError) as error:
                    log.warning("upload failed", key=file.key, attempt=attempt, error=str(error))
                    if asyncio.get_running_loop().time() > deadline or self._membership.redirects:
                        return False
                    await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
        return False

    def _assemble(self, file: _File) -> None:
        # The sort is stable: the batches of a partition keep the order of their arrival.
        file.entries.sort(key=_by_partition)
        segments: list[tuple[Partition, list[Batch]]] = []
        for entry in file.entries:
            if not segments or segments[-1][0] != entry.append.partition:
                segments.append((entry.append.partition, []))
            segments[-1][1].append(entry.append.batch)
        id = wal.id_of(file.key)
        lease = self._membership.lease
        file.data, file.positions = wal.assemble(id, lease.node, lease.epoch, segments)

    async def _key(self) -> str:
        """Return the next key that is reserved in the present term."""
        async with self._reserving:
            while True:
                term = self._membership.term
                while self._keys:
                    key, reserved = self._keys.popleft()
                    if reserved == term:
                        return key
                # A recovery commits objects in the order of their ids.
                keys = [wal.key(id) for id in sorted(self._identifiers.uuid7() for _ in range(RESERVED_AHEAD))]
                await self._log_store.reserve(self._membership.lease, keys)
                self._keys.extend((key, term) for key in keys)

    async def run(self) -> None:
        """Commit files in the order of their rotation until cancelled."""
        while True:
            file = await self._queue.get()
            try:
                await self._finish(file)
            except Exception:
                # Otherwise the producers would never get an answer, and the files behind this one would wait.
                log.exception("cannot commit a file", key=file.key)
                self._fail(file, file.entries)
            finally:
                self._unfinished -= 1
                if not self._unfinished:
                    self._idle.set()
            if self._sooner is None:
                self._rotate_sooner()

    async def _finish(self, file: _File) -> None:
        assert file.upload is not None
        try:
            uploaded = await file.upload
        except Exception:
            log.exception("upload failed", key=file.key)
            uploaded = False
        if not uploaded:
            self._fail(file, file.entries)
            if file.key:
                # The object may have been stored all the same, or arrive late: maintenance deletes it.
                self._abandon(file, self._membership.lease)
            return
        banned = frozenset[_Producer]().union(
            *(failed.producers for failed in self._failed if file.number <= failed.last)
        )
        self._failed = [failed for failed in self._failed if file.number < failed.last]
        numbered = list(zip(file.entries, file.positions, strict=True))
        if banned:
            late = [entry for entry in file.entries if _producer(entry) in banned]
            numbered = [(entry, position) for entry, position in numbered if _producer(entry) not in banned]
            for entry in late:
                entry.group.answer(entry.index, BatchOutcome(ErrorCode.kafka_storage_error))
        outcomes = await self._commit(file, [_batch_entry(entry, position) for entry, position in numbered])
        if outcomes is None:
            self._fail(file, [entry for entry, _ in numbered])
            return
        self._publish(file, numbered, outcomes)

    async def _commit(self, file: _File, entries: Sequence[BatchEntry]) -> Sequence[BatchOutcome] | None:
        """Commit the file; return None if it never will be committed, or if the coordinator cannot be asked for now."""
        commit = Commit(self._membership.lease, file.key, len(file.data), entries)
        unexpected = 0
        for attempt in range(1 << 30):
            try:
                with metrics.COMMIT_SECONDS.time():
                    outcomes = await self._log_store.commit(commit)
                metrics.COMMIT_BATCHES.inc(len(entries))
                if entries:
                    self._given_up = 0
                return outcomes
            except FencedError as error:
                log.warning("the coordinator rejected the commit", key=file.key, error=str(error))
                # The coordinator has withdrawn the other reservations of the same time too.
                self._keys.clear()
                return None
            except UnavailableError as error:
                # The outcome is unknown: only the same commit, with the same key, can find it out.
                log.warning(
                    "the coordinator did not answer the commit", key=file.key, attempt=attempt, error=str(error)
                )
            except Exception:
                # The outcome is unknown here, too.
                log.exception("the coordinator did not answer the commit", key=file.key, attempt=attempt)
                unexpected += 1
            if unexpected == UNEXPECTED_ATTEMPTS:
                metrics.ABANDONED_COMMITS.inc()
                self._given_up += 1
                self._ready_again = asyncio.get_running_loop().time() + TRIED_AGAIN_SECONDS
            if unexpected == UNEXPECTED_ATTEMPTS or self._membership.redirects:
                self._abandon(file, commit.lease)
                return None
            await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
        return None

    def _abandon(self, file: _File, lease: NodeLease) -> None:
        # The lease of the first attempt: its commit may have happened, and counts for that lease.
        self._abandoned.put_nowait(Commit(lease, file.key, len(file.data), ()))

    async def settle(self) -> None:
        """Commit the keys of abandoned files with no batches, until cancelled. A key that fails waits behind the others."""
        failures = 0
        while True:
            commit = await self._abandoned.get()
            try:
                await self._log_store.commit(commit)
                failures = 0
                continue
            except FencedError:
                failures = 0
                continue
            except UnavailableError:
                pass
            except Exception:
                log.exception("cannot commit the key of an abandoned file", key=commit.key)
            self._abandoned.put_nowait(commit)
            await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
            failures += 1

    def _fail(self, file: _File, entries: Sequence[_Entry]) -> None:
        producers = frozenset(_producer(entry) for entry in entries if entry.append.batch.producer_id >= 0)
        if producers:
            # Batches that the producers send after this answer go into a new file, and may be committed.
            self._rotate()
            self._failed.append(_Failed(self._active.number - 1, producers))
        for entry in entries:
            entry.group.answer(entry.index, BatchOutcome(ErrorCode.kafka_storage_error))

    def _publish(self, file: _File, numbered: Sequence[tuple[_Entry, int]], outcomes: Sequence[BatchOutcome]) -> None:
        """Write the offsets into the bytes of the object and cache them, then wake the fetches, then answer the
        producers."""
        data = file.data
        positions, ends, bases = [], [], []
        grown: dict[Partition, int] = {}
        produced = 0
        for (entry, position), outcome in zip(numbered, outcomes, strict=True):
            if outcome.error or outcome.duplicate:
                continue
            batch = entry.append.batch
            end = position + len(batch.data)
            if outcome.append_ms >= 0:
                record_batch.stamp(data[position:end], outcome.append_ms)
            record_batch.number(data, position, outcome.base_offset)
            positions.append(position)
            ends.append(end)
            bases.append(outcome.base_offset)
            grown[entry.append.partition] = outcome.base_offset + batch.records
            produced += batch.records
        metrics.PRODUCED_RECORDS.inc(produced)
        self._cache.put_written(file.key, Block(0, data, positions, ends, bases))
        for partition, high_watermark in grown.items():
            self._watermarks.advance(partition, high_watermark)
        for (entry, _), outcome in zip(numbered, outcomes, strict=True):
            entry.group.answer(entry.index, outcome)

    async def drain(self) -> None:
        """Flush, and wait until all batches are answered."""
        self._rotate()
        await self._idle.wait()

    @property
    def failing(self) -> bool:
        """Return whether the coordinator lately answered the last commits with unexpected errors."""
        return self._given_up >= GIVEN_UP and asyncio.get_running_loop().time() < self._ready_again

    @property
    def unfinished(self) -> int:
        """Return the number of unanswered files, the active one included."""
        return self._unfinished


def _by_partition(entry: _Entry) -> tuple[int, int]:
    return entry.append.partition.topic.int, entry.append.partition.index


def _producer(entry: _Entry) -> _Producer:
    return entry.append.partition, entry.append.batch.producer_id


def _batch_entry(entry: _Entry, position: int) -> BatchEntry:
    batch = entry.append.batch
    return BatchEntry(
        entry.append.partition, position, len(batch.data), batch.records, batch.max_timestamp, entry.append.append_time,
        batch.producer_id, batch.producer_epoch, batch.base_sequence,
    )  # fmt: skip
