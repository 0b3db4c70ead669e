"""Brokers rebuild the log from a table, while the table is written, rewritten and cleaned, by a seed.

A consumer always gets the bytes of the producers, from any offset at any time: also while an indexing runs, after one was killed, and
from a broker that has just started."""

import asyncio
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kio.schema.errors import ErrorCode

from firn.driver_requests.landed_offsets import DataFile, Landed, LandedRange
from firn.model.errors import CorruptDataError, UnavailableError
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.history import entries
from firn_broker.history.indexing import indexing
from firn_broker.history.indexing.indexing import Indexed, Indexing
from firn_broker.history.rebuilding.rebuilder import Rebuilder
from firn_broker.log_types import Partition, Unindexed
from firn_broker.maintenance import fsck
from firn_broker.storage.objects import MemoryObjects
from tests.fakes.virtual_time import LoopClock, run
from tests.unit.broker.test_history_entries import Landed as Row
from tests.unit.broker.test_history_entries import write
from tests.unit.broker.test_history_indexing import UPKEEP, World, made, uncompressed
from tests.unit.broker.test_json_shapes import ORDERS
from tests.unit.broker.test_whole_brokers import fetch
from tests.unit.broker.typed_rows import Typed
from tests.unit.broker.whole import Asked, broker

SEEDS = 200 if os.environ.get("FIRN_LONG") else 8
TURNS, ACTIONS = 4, 25
"""Starts of the brokers, and actions after each of them."""
VALID_SECONDS, RELEASED_SECONDS = 200, 400
"""Seconds after which brokers do not begin to use named files, and for which a tag stays after the next one has begun."""
PARTITIONS = (0, 1)


class Lake:
    """A table: data files in a directory, those that the newest snapshot has, and the tags that a driver sets."""

    def __init__(self, directory: Path, chance: random.Random, typed: Typed | None) -> None:
        self.typed = typed
        self.directory = directory
        self.chance = chance
        self.rows: dict[str, Sequence[Row]] = {}
        """The rows of each data file that exists."""
        self.live: set[str] = set()
        self.tags: dict[int, set[str]] = {}
        self.begun: dict[int, float] = {}
        """The time at which each generation began."""

    def open(self, file: DataFile) -> pq.ParquetFile:
        """Return a data file. Raises CorruptDataError if it does not exist."""
        if file.path not in self.rows:
            raise CorruptDataError(f"{file.path} does not exist")
        return pq.ParquetFile(file.path)

    def add(self, rows: Sequence[Row], spread: int) -> None:
        """Commit data files with these rows, each in one of ``spread`` partitions of the table."""
        parts: dict[int, list[Row]] = {}
        for row in rows:
            parts.setdefault(self.chance.randrange(spread), []).append(row)
        for part in parts.values():
            path = str(self.directory / f"file-{len(self.begun)}-{self.chance.getrandbits(64):x}")
            write(Path(path), part, group=self.chance.choice((3, 20, 100)), typed=self.typed)
            self.rows[path] = part
            self.live.add(path)

    def rewrite(self) -> None:
        """Replace some data files by others with the same rows, in an order by time or by offset."""
        some = self.chance.sample(sorted(self.live), self.chance.randint(0, len(self.live)))
        rows = [row for path in some for row in self.rows[path]]
        rows.sort(key=self.chance.choice((lambda row: row[:2], lambda row: row[2].time)))
        self.live -= set(some)
        self.add(rows, self.chance.choice((1, 1, 3)))

    def delete(self) -> None:
        """Delete some rows of a data file."""
        if self.live:
            path = self.chance.choice(sorted(self.live))
            self.live.remove(path)
            self.add([row for row in self.rows[path] if self.chance.random() < 0.9], 1)

    def expire(self) -> None:
        """Delete the data files that no snapshot and no tag has."""
        for path in self.rows.keys() - self.live.union(*self.tags.values()):
            del self.rows[path]
            Path(path).unlink()

    def hold(self) -> int:
        """Let a tag hold the live files, and return its generation."""
        newest = max(self.tags, default=0)
        if not newest or not self.tags[newest] <= self.live:
            newest += 1
            self.begun[newest] = asyncio.get_running_loop().time()
        self.tags[newest] = set(self.live)
        return newest

    def replaced_before(self, moment: float) -> int:
        """Return the newest generation that had begun by ``moment``."""
        return max((each for each in self.tags if self.begun[each] <= moment), default=0)

    def files(self) -> tuple[DataFile, ...]:
        """Return the live files."""
        return tuple(DataFile(path, Path(path).stat().st_size) for path in sorted(self.live))


class Slow(MemoryObjects):
    """The objects of a world, for an indexing: each request takes time, and some uploads fail, before or after the object exists."""

    def __init__(self, objects: MemoryObjects, chance: random.Random, faults: float) -> None:
        super().__init__()
        self.objects = objects.objects
        self.chance = chance
        self.faults = faults

    async def put(self, key: str, data: memoryview) -> None:
        """Store the object, or fail. Raises UnavailableError."""
        await asyncio.sleep(self.chance.random() * 20)
        if self.chance.random() < self.faults:
            if self.chance.random() < 0.5:
                await super().put(key, data)
            raise UnavailableError("the store did not answer")
        await super().put(key, data)
        await asyncio.sleep(self.chance.random() * 20)

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read byte ranges of the object."""
        await asyncio.sleep(self.chance.random() * 2)
        return await super().get_ranges(key, ranges)


class Story:
    """A topic and its table, and all that happens to them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        # The values of some topics are JSON.
        typed = ORDERS if seed % 4 == 1 else None
        self.world = World(directory, typed)
        self.lake = Lake(directory, self.chance, typed)
        self.landed = dict.fromkeys(PARTITIONS, 0)
        self.log_start = dict.fromkeys(PARTITIONS, 0)
        self.running: dict[int, asyncio.Task[Indexed]] = {}
        """The indexing of each broker, by its number."""
        self.ended: list[asyncio.Task[Indexed]] = []
        self.reads = 0
        self.faults = 0.15

    def tables(self) -> Rebuilder:
        return Rebuilder(self.world.shared.objects, self.lake)

    async def live(self, brokers: Sequence[Asked]) -> None:
        """Run random actions while consumers read."""
        readers = [asyncio.create_task(self.consume(each)) for each in brokers]
        actions = {
            self.produce: 4, self.land: 5, self.name: 6, self.rewrite: 2, self.delete_rows: 1, self.expire: 4, self.delete_records: 1,
            self.kill: 1, self.wait: 4,
        }  # fmt: skip
        for action in self.chance.choices([*actions], [*actions.values()], k=ACTIONS):
            await action(brokers)
            await asyncio.sleep(self.chance.random() * 5)
        await self.indexed()
        for reader in readers:
            reader.cancel()
        for ended in await asyncio.gather(*readers, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended

    async def produce(self, brokers: Sequence[Asked]) -> None:
        await self.world.fill(self.chance.choice(brokers), self.chance.randint(1, 12), self.chance.getrandbits(32))

    async def land(self, brokers: Sequence[Asked]) -> None:
        """Land records up to some offset of each partition. Some records become dead letters."""
        ends = {part: self.chance.randint(self.landed[part], end) for part, end in self.world.landed_to.items()}
        rows = [row for row in self.world.rows if self.landed[row[0]] <= row[1] < ends[row[0]]]
        self.landed = ends
        self.lake.add([row for row in rows if self.chance.random() > 0.005], self.chance.choice((1, 1, 2, 8)))

    async def rewrite(self, brokers: Sequence[Asked]) -> None:
        self.lake.rewrite()

    async def delete_rows(self, brokers: Sequence[Asked]) -> None:
        self.lake.delete()

    async def expire(self, brokers: Sequence[Asked]) -> None:
        self.lake.expire()

    async def wait(self, brokers: Sequence[Asked]) -> None:
        await asyncio.sleep(self.chance.random() * RELEASED_SECONDS)

    async def delete_records(self, brokers: Sequence[Asked]) -> None:
        """Move the start of a partition, as retention does."""
        part = self.chance.choice(PARTITIONS)
        offset = self.chance.randint(self.log_start[part], self.world.landed_to[part])
        if self.chance.random() < 0.5:
            await self.world.shared.store.log.advance_start(Partition(self.world.topic, part), offset)
            self.log_start[part] = offset

    async def unindexed(self, generation: int) -> Unindexed:
        return await self.world.shared.store.log.unindexed(self.world.topic, generation, [*self.lake.tags])

    async def name(self, brokers: Sequence[Asked]) -> None:
        """Name files as a driver does, to a broker that is not busy."""
        await self.release()
        generation, number = self.lake.hold(), self.chance.randrange(len(brokers))
        found = await self.unindexed(generation)
        firsts = {
            part: min(offsets)
            for part in PARTITIONS
            if (offsets := [each[part] for each in (found.waiting, found.older) if part in each])
        }
        ranges = [LandedRange(part, first, self.landed[part] - 1) for part, first in firsts.items()]
        if number not in self.running and (ranges := [each for each in ranges if each.first <= each.last]):
            until = int((LoopClock().now().timestamp() + VALID_SECONDS) * 1000)
            named = self.world.named(ranges, self.lake.files(), generation, until)
            self.running[number] = asyncio.create_task(self.index(brokers[number], number, named))
            self.ended.append(self.running[number])

    async def index(self, asked: Asked, number: int, named: Landed) -> Indexed:
        shared = self.world.shared
        identifiers = Identifiers(LoopClock(), self.chance)
        objects = Slow(shared.objects, self.chance, self.faults)
        indexing = Indexing(shared.store, objects, identifiers, self.lake, LoopClock())
        try:
            return await indexing.index(asked.broker.membership.lease, named)
        except UnavailableError:
            return Indexed()
        finally:
            self.running.pop(number, None)

    async def kill(self, brokers: Sequence[Asked]) -> None:
        """Kill an indexing wherever it is."""
        for number, task in list(self.running.items())[:1]:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self.running.pop(number, None)

    async def release(self) -> None:
        """Drop the tags that no broker needs."""
        generation = self.lake.replaced_before(asyncio.get_running_loop().time() - RELEASED_SECONDS)
        if generation and not (await self.unindexed(generation)).older:
            self.lake.tags = {each: files for each, files in self.lake.tags.items() if each >= generation}
        assert not (await self.unindexed(1)).untagged, "no tag is dropped while brokers need its files"

    async def indexed(self) -> None:
        """Wait until no indexing runs."""
        await asyncio.gather(*self.running.values(), return_exceptions=True)

    async def consume(self, asked: Asked) -> None:
        """Read from random offsets, until cancelled."""
        while True:
            await asyncio.sleep(self.chance.random() * 20)
            part = self.chance.choice(PARTITIONS)
            if self.log_start[part] < self.world.landed_to[part]:
                await self.read(asked, part, self.chance.randrange(self.log_start[part], self.world.landed_to[part]))

    async def read(self, asked: Asked, part: int, offset: int) -> None:
        answer = await fetch(asked, "t", part, offset)
        if offset < self.log_start[part]:
            # Retention deleted the record meanwhile.
            return
        assert answer.error_code is ErrorCode.none, (part, offset, answer)
        found = uncompressed(answer.records)
        sent = self.world.sent[part]
        number = max(at for at, batch in enumerate(sent) if int.from_bytes(batch[:8], "big") <= offset)
        expected = b"".join(map(bytes, sent[number:]))
        assert len(found) >= len(sent[number]), (part, offset)
        assert expected.startswith(found), (part, offset)
        self.reads += 1

    async def settle(self, brokers: Sequence[Asked]) -> None:
        """Let all records land, and name files until brokers need one tag only."""
        self.faults = 0
        while any(self.landed[part] < end for part, end in self.world.landed_to.items()):
            await self.land(brokers)
        for _ in range(4):
            await self.name(brokers)
            await self.indexed()
            await asyncio.sleep(RELEASED_SECONDS)
        await self.release()
        self.lake.expire()
        assert len(self.lake.tags) == 1
        assert set(self.lake.rows) == self.lake.live
        await asyncio.sleep(100)

    async def run(self) -> None:
        shared = self.world.shared
        for turn in range(TURNS):
            numbers = (1 + 2 * turn, 2 + 2 * turn)
            async with (
                broker(shared, numbers[0], tables=self.tables(), **UPKEEP) as first,
                broker(shared, numbers[1], tables=self.tables(), **UPKEEP) as second,
            ):
                if not turn:
                    await made(self.world, first)
                await self.live([first, second])
        async with broker(shared, 100, tables=self.tables(), **UPKEEP) as last:
            await self.settle([last])
        async with broker(shared, 101, tables=self.tables(), **UPKEEP) as fresh:
            for part in PARTITIONS:
                for offset in range(self.log_start[part], self.world.landed_to[part], 7):
                    await self.read(fresh, part, offset)
            findings = await fsck.check(shared.store.retention, shared.objects, read=True)
            assert (findings.lost, findings.unknown, findings.newer) == (False, [], [])


@pytest.mark.parametrize("seed", range(SEEDS))
def test_consumers_get_the_bytes_of_producers(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(indexing, "ENTRY_BYTES", chance.choice((300, 2_000, 1 << 20)))
    monkeypatch.setattr(indexing, "MOVED_BYTES", chance.choice((500, 5_000, 1 << 30)))
    monkeypatch.setattr(entries, "RANGE_BYTES", chance.choice((200, 1 << 20)))
    story = Story(tmp_path, seed)
    run(story.run())
    assert story.reads > 100
    # Any other end than a kill has a result, or is an error of the indexing.
    assert sum(task.result().batches for task in story.ended if not task.cancelled()) > 0
