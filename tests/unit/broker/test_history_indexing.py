"""Indexing on whole brokers: WAL objects are replaced by the data files of a table, and consumers get the same batches."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import REGISTRY

from firn.driver_requests.landed_offsets import DataFile, Landed, LandedRange
from firn.model.errors import UnavailableError
from firn.records import contents, record_batch
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.history import entries as history_entries
from firn_broker.history import heads
from firn_broker.history.indexing import building, indexing
from firn_broker.history.indexing.indexing import Indexed, Indexing
from firn_broker.history.rebuilding.rebuilder import Rebuilder
from firn_broker.history.rows import RowReader
from firn_broker.log_types import BatchRange, Lookup, Partition, TableRange, Unindexed
from firn_broker.maintenance import fsck
from firn_broker.storage import wal
from tests.fakes.virtual_time import LoopClock, run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_history_entries import FIELDS, MEMBERS, Local, write
from tests.unit.broker.test_history_entries import Landed as LandedRow
from tests.unit.broker.test_json_shapes import ORDERS, orders
from tests.unit.broker.test_rebuilt_batches import Row, produced
from tests.unit.broker.test_whole_brokers import fetch, produce
from tests.unit.broker.typed_rows import Typed
from tests.unit.broker.whole import Asked, Shared, broker, create

UPKEEP: dict[str, Any] = {"upkeep": {"interval_seconds": 10, "grace_seconds": 60, "merged_bytes": 0}}


LATE = 1 << 50
BOTH = pytest.mark.parametrize("typed", [None, ORDERS], ids=["raw", "json"])
"""The kinds of values that brokers rebuild."""


class World:
    """A topic of two partitions, and the rows of its table."""

    def __init__(self, directory: Path, typed: Typed | None = None) -> None:
        """``typed``: the columns of a topic whose values are JSON."""
        self.typed = typed
        self.shared = Shared()
        self.directory = directory
        self.topic = UUID(int=0)
        self.sent: dict[int, list[memoryview]] = {0: [], 1: []}
        self.rows: list[LandedRow] = []
        self.landed_to = {0: 0, 1: 0}
        self.identifiers = Identifiers(LoopClock(), random.Random(7))

    def tables(self) -> Rebuilder:
        return Rebuilder(self.shared.objects, Local())

    async def fill(self, asked: Asked, count: int, seed: int = 1) -> None:
        """Produce batches to both partitions, and keep the rows that land."""
        rng = random.Random(seed)
        for number in range(count):
            for partition in (0, 1):
                rows = [Row(rng.randrange(10**12), None, self._value(rng)) for _ in range(rng.randrange(1, 9))]
                offset = self.landed_to[partition]
                self.sent[partition].append(produced(rows, offset, idempotent=False))
                answer = await produce(asked, "t", partition, produced(rows, 0, number % 5, idempotent=False))
                assert (answer.error_code, answer.base_offset) == (ErrorCode.none, offset)
                self.rows += [(partition, offset + place, row) for place, row in enumerate(rows)]
                self.landed_to[partition] += len(rows)

    def _value(self, rng: random.Random) -> bytes | None:
        if self.typed is None:
            return b"v" * rng.randrange(40)
        (order,) = orders(rng.randrange(2**32), 1)
        text = json.dumps(order, separators=rng.choice([(", ", ": "), (",", ":")]))
        return rng.choice([None, *[text.encode()] * 9])

    async def index(
        self, asked: Asked, rows: Sequence[LandedRow] | None = None, *, name: str = "file", generation: int = 1
    ) -> Indexed:
        """Write the rows to a data file, and index all offsets."""
        file = write(self.directory / name, self.rows if rows is None else rows, group=60, typed=self.typed)
        indexing = Indexing(self.shared.store, self.shared.objects, self.identifiers, Local(), LoopClock())
        ranges = [LandedRange(number, 0, end - 1) for number, end in self.landed_to.items() if end]
        return await indexing.index(asked.broker.membership.lease, self.named(ranges, (file,), generation, LATE))

    def named(self, ranges: Sequence[LandedRange], files: Sequence[DataFile], generation: int, until: int) -> Landed:
        """Return the request of a driver."""
        typed = self.typed
        return Landed(
            topic=self.topic,
            generation=generation,
            until_ms=until,
            ranges=tuple(ranges),
            files=tuple(files),
            fields=FIELDS if typed is None else MEMBERS,
            members=() if typed is None else typed.members,
        )

    async def ranges(self, partition: int) -> list[BatchRange]:
        (result,) = await self.shared.store.log.find([Lookup(Partition(self.topic, partition), 0, 1 << 60)])
        return list(result.ranges)

    async def check(self, asked: Asked) -> None:
        """Read both partitions from each batch on."""
        for partition, sent in self.sent.items():
            offset = 0
            for number, batch in enumerate(sent):
                answer = await fetch(asked, "t", partition, offset)
                assert answer.error_code is ErrorCode.none
                assert uncompressed(answer.records) == b"".join(map(bytes, sent[number:]))
                offset += record_batch.walk(batch)[0][2]


def uncompressed(data: bytes) -> bytes:
    """Return batches as they would be without compression."""
    view, found = memoryview(bytearray(data)), []
    for place, size, _ in record_batch.walk(view):
        batch = view[place : place + size]
        head = heads.read([batch])
        section = contents.record_bytes(batch, int(head.attributes[0]))
        found.append(bytes(heads.assemble(head, [memoryview(section)])))
    return b"".join(found)


def counted() -> Counter[str]:
    """Return the failed reads of ranges by cause, the rebuilt bytes, and the ranges that did not match their checksums."""
    unrebuilt, damaged = "firn_broker_unrebuilt_ranges_total", "firn_broker_damaged_ranges_total"
    return Counter(
        {
            **{cause: _value(unrebuilt, cause=cause) for cause in ("rows", "unavailable")},
            **{read: _value(damaged, read=read) for read in ("first", "second")},
            "rebuilt": _value("firn_broker_rebuilt_bytes_total"),
        }
    )


def _value(name: str, **labels: str) -> int:
    return int(REGISTRY.get_sample_value(name, labels) or 0)


async def made(world: World, asked: Asked) -> None:
    world.topic = await create(asked, "t", partitions=2, retention_ms="-1")


async def moved(directory: Path) -> World:
    """Return a world whose broker has stopped, with all batches in the table."""
    world = World(directory)
    async with broker(world.shared, **UPKEEP) as asked:
        await made(world, asked)
        await world.fill(asked, 5)
        await world.index(asked)
    return world


@BOTH
def test_consumers_get_the_same_batches_from_the_table(tmp_path: Path, typed: Typed | None) -> None:
    async def story() -> None:
        world = World(tmp_path, typed)
        async with broker(world.shared, **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 20)
            before = await asked.broker.metadata_store.log.states([Partition(world.topic, 0)])
            indexed = await world.index(asked)
            assert (indexed.batches, indexed.kept, indexed.objects, indexed.refused) == (40, 0, 1, 0)
            assert indexed.problems == {}
            for partition in (0, 1):
                assert all(isinstance(each.place, TableRange) for each in await world.ranges(partition))
            assert await asked.broker.metadata_store.log.states([Partition(world.topic, 0)]) == before
            await asyncio.sleep(100)
            (key,) = world.shared.objects.objects
            assert key.endswith(wal.HISTORY)
            await world.fill(asked, 3, seed=2)
        async with broker(world.shared, 2, tables=world.tables(), **UPKEEP) as other:
            await world.check(other)
            findings = await fsck.check(world.shared.store.retention, world.shared.objects, read=True)
            assert (findings.lost, findings.unknown, findings.newer) == (False, [], [])

    run(story())


@BOTH
def test_batches_without_rows_stay_in_the_history_object(tmp_path: Path, typed: Typed | None) -> None:
    async def story() -> None:
        world = World(tmp_path, typed)
        async with broker(world.shared, **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 20)
            rng = random.Random(3)
            gone = {(partition, rng.randrange(world.landed_to[partition])) for partition in (0, 1, 0, 1, 0)}
            indexed = await world.index(asked, [row for row in world.rows if row[:2] not in gone])
            assert indexed.batches + indexed.kept == 40
            assert 0 < indexed.kept <= 5
            await asyncio.sleep(100)
            (key,) = world.shared.objects.objects
            assert len(await wal.read_batches(world.shared.objects, key, len(world.shared.objects.objects[key]))) > 0
        async with broker(world.shared, 2, tables=world.tables(), **UPKEEP) as other:
            await world.check(other)

    run(story())


def test_nothing_moves_while_no_row_gives_a_batch_back(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 5)
            before = await world.ranges(0)
            indexed = await world.index(asked, [(0, 0, Row(1, b"another", None))])
            assert (indexed.batches, indexed.left, indexed.objects) == (0, 10, 0)
            assert indexed.left_bytes == sum([each.stored for part in (0, 1) for each in await world.ranges(part)])
            assert await world.ranges(0) == before
            await world.check(asked)

    run(story())


def test_offsets_are_indexed_once(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 5)
            assert (await world.index(asked)).batches == 10
            assert (await world.index(asked, name="same")).batches == 0
            await world.fill(asked, 5, seed=2)
            assert (await world.index(asked, name="more")).batches == 10
            await world.check(asked)

    run(story())


def test_a_swap_that_another_process_made_first_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with (
            broker(world.shared, tables=world.tables(), **UPKEEP) as asked,
            broker(world.shared, 2, **UPKEEP) as other,
        ):
            await made(world, asked)
            await world.fill(asked, 5)
            true, counts = world.shared.objects.put, list[Indexed]()

            async def put(key: str, data: memoryview) -> None:
                await true(key, data)
                if not counts:
                    counts.append(Indexed())
                    counts.append(await world.index(other, name="other"))

            monkeypatch.setattr(world.shared.objects, "put", put)
            late = await world.index(asked)
            assert (counts[1].batches, late.batches, late.refused, late.objects) == (10, 0, 2, 0)
            await asyncio.sleep(100)
            assert len(world.shared.objects.objects) == 1
            await world.check(asked)

    run(story())


def test_a_failed_upload_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 5)

            async def put(key: str, data: memoryview) -> None:
                raise UnavailableError("the store ended")

            with monkeypatch.context() as patch:
                patch.setattr(world.shared.objects, "put", put)
                with pytest.raises(UnavailableError):
                    await world.index(asked)
            assert not any(isinstance(each.place, TableRange) for each in await world.ranges(0))
            assert (await world.index(asked)).batches == 10
            await world.check(asked)

    run(story())


def test_the_next_indexing_gives_up_the_object_of_a_killed_one(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 2)
            key = wal.history_key(world.identifiers.uuid7(), 7)
            await world.shared.store.log.reserve(asked.broker.membership.lease, [key])
            await world.shared.objects.put(key, memoryview(b"half of it"))
            assert (await world.index(asked)).batches == 4
            await asyncio.sleep(100)
            assert len(world.shared.objects.objects) == 1
            assert key not in world.shared.objects.objects
            await world.check(asked)

    run(story())


def test_an_object_that_cannot_be_read_stays_where_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 6)
            missing, damaged, *_ = (each.place.key for each in await world.ranges(0))
            kept = world.shared.objects.objects.pop(missing)
            whole = world.shared.objects.objects[damaged]
            data = bytearray(whole)
            data[wal.HEAD + 70] ^= 1
            world.shared.objects.objects[damaged] = bytes(data)
            indexed = await world.index(asked)
            assert indexed.batches == 12 - 2
            assert sorted(indexed.problems.values()) == [1, 1]
            world.shared.objects.objects |= {missing: kept, damaged: whole}
            await world.check(asked)

    run(story())


def test_a_damaged_table_is_a_storage_error_and_never_wrong_records(tmp_path: Path) -> None:
    async def story() -> None:
        world = await moved(tmp_path)
        changed = [(*row[:2], row[2]._replace(value=b"other")) if row[:2] == (0, 0) else row for row in world.rows]
        write(tmp_path / "file", changed, group=60)
        async with broker(world.shared, 2, tables=world.tables(), **UPKEEP) as other:
            before = counted()
            answer = await fetch(other, "t", 0, 0)
            assert (answer.error_code, answer.records) == (ErrorCode.kafka_storage_error, b"")
            assert counted() - before == {"rows": 1}
            good = await fetch(other, "t", 1, 0)
            assert good.error_code is ErrorCode.none
            assert counted() - before == {"rows": 1, "rebuilt": len(good.records)}
        async with broker(world.shared, 3, **UPKEEP) as blind:
            assert (await fetch(blind, "t", 1, 0)).error_code is ErrorCode.kafka_storage_error

    run(story())


def test_data_files_that_cannot_be_read_now_are_tried_again(tmp_path: Path) -> None:
    class Away(Local):
        def open(self, file: DataFile) -> pq.ParquetFile:
            raise UnavailableError("the store of the table does not answer")

    async def story() -> None:
        world = await moved(tmp_path)
        away = Rebuilder(world.shared.objects, Away())
        async with broker(world.shared, 2, tables=away, **UPKEEP) as other:
            before = counted()
            assert (await fetch(other, "t", 0, 0)).error_code is ErrorCode.kafka_storage_error
            assert set(counted() - before) == {"unavailable"}
        async with broker(world.shared, 3, tables=world.tables(), **UPKEEP) as again:
            await world.check(again)

    run(story())


def test_one_damaged_batch_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_entries, "RANGE_BYTES", 200)

    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 8)
            await world.index(asked)
            ranges = await world.ranges(0)
            assert len(ranges) > 3
        bad = ranges[2].base_offset
        changed = [(*row[:2], row[2]._replace(value=b"other")) if row[:2] == (0, bad) else row for row in world.rows]
        write(tmp_path / "file", changed, group=60)
        async with broker(world.shared, 2, tables=world.tables(), **UPKEEP) as other:
            known = counted()
            answer = await fetch(other, "t", 0, 0)
            assert answer.error_code is ErrorCode.none
            assert set(counted() - known) == {"rows", "rebuilt"}
            ends = [int.from_bytes(batch[:8], "big") for batch in world.sent[0]]
            before = [batch for batch, base in zip(world.sent[0], ends, strict=True) if base < bad]
            assert uncompressed(answer.records) == b"".join(map(bytes, before))
            assert (await fetch(other, "t", 0, bad)).error_code is ErrorCode.kafka_storage_error
            later = await fetch(other, "t", 0, ranges[3].base_offset)
            assert uncompressed(later.records).endswith(bytes(world.sent[0][-1]))

    run(story())


def test_offsets_that_are_named_several_times_are_indexed_once(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 5)
            file = write(tmp_path / "file", world.rows, group=60)
            end = world.landed_to[0]
            ranges = (
                LandedRange(0, 2, end - 1),
                LandedRange(0, 0, 3),
                LandedRange(0, 0, end - 1),
                LandedRange(0, 0, 1),
            )
            landed = Landed(topic=world.topic, generation=1, until_ms=LATE, ranges=ranges, files=(file,), fields=FIELDS)
            indexing = Indexing(world.shared.store, world.shared.objects, world.identifiers, Local(), LoopClock())
            indexed = await indexing.index(asked.broker.membership.lease, landed)
            assert (indexed.batches, indexed.kept, indexed.refused) == (5, 0, 0)
            await world.check(asked)

    run(story())


def test_an_indexing_names_few_problems() -> None:
    counts = Indexed()
    for number in range(1_000):
        counts.note(ValueError(f"file {number % 500} is damaged"))
    assert len(counts.problems) == 21
    assert sum(counts.problems.values()) == 1_000


def test_records_that_were_deleted_meanwhile_are_passed_over(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 6)
            second, third = (int.from_bytes(batch[:8], "big") for batch in world.sent[0][1:3])
            await world.shared.store.log.advance_start(Partition(world.topic, 0), third)
            indexed = await world.index(asked)
            assert (second < third, indexed.batches) == (True, 12 - 2)
            answer = await fetch(asked, "t", 0, third)
            assert uncompressed(answer.records) == b"".join(map(bytes, world.sent[0][2:]))

    run(story())


def test_a_range_whose_first_records_were_deleted_moves(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 6)
            bases = [int.from_bytes(batch[:8], "big") for batch in world.sent[0]]
            number = next(at for at in range(5) if bases[at + 1] - bases[at] > 1)
            await world.shared.store.log.advance_start(Partition(world.topic, 0), bases[number] + 1)
            for generation in (1, 2):
                indexed = await world.index(asked, name=f"files-{generation}", generation=generation)
                assert indexed.batches == 12 - number
            found = await world.shared.store.log.unindexed(world.topic, 2, [2])
            assert found == Unindexed({}, {}, {})
            answer = await fetch(asked, "t", 0, bases[number] + 1)
            assert uncompressed(answer.records) == b"".join(map(bytes, world.sent[0][number:]))

    run(story())


def test_a_long_indexing_moves_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "MOVED_BYTES", 500)
    monkeypatch.setattr(indexing, "ENTRY_BYTES", 300)

    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 12)
            indexed = await world.index(asked)
            assert indexed.batches == 24
            assert indexed.objects > 2
            await world.check(asked)

    run(story())


def test_a_batch_that_is_large_without_compression_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "LARGE_BYTES", 1_000)

    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            for codec, size in ((4, 5_000), (4, 300), (0, 5_000)):
                rows = [Row(5, None, b"v" * size)]
                offset = world.landed_to[0]
                await produce(asked, "t", 0, produced(rows, 0, codec, idempotent=False))
                world.sent[0].append(produced(rows, offset, idempotent=False))
                world.rows.append((0, offset, rows[0]))
                world.landed_to[0] += 1
            world.landed_to.pop(1)
            indexed = await world.index(asked)
            assert (indexed.batches, indexed.kept) == (2, 1)
            await world.check(asked)

    run(story())


def test_undecodable_batches_are_kept(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 2)
            answer = await produce(asked, "t", 0, raw(3, body=b"no records at all, or are they"))
            assert answer.error_code is ErrorCode.none
            record_batch.number(bad := raw(3, body=b"no records at all, or are they"), 0, answer.base_offset)
            world.sent[0].append(bad)
            world.landed_to[0] += 3
            await world.fill(asked, 2, seed=2)
            indexed = await world.index(asked)
            assert (indexed.batches, indexed.kept) == (8, 1)
            await world.check(asked)

    run(story())


def generations(world: World) -> set[int]:
    """Return the generations of the history objects in the bucket."""
    return {wal.generation(key) for key in world.shared.objects.objects if key.endswith(wal.HISTORY)}


@BOTH
def test_batches_move_to_data_files_of_a_later_generation(tmp_path: Path, typed: Typed | None) -> None:
    async def story() -> None:
        world = World(tmp_path, typed)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 12)
            gone = {row[:2] for row in world.rows[::40]}
            first = await world.index(asked, [row for row in world.rows if row[:2] not in gone])
            await world.fill(asked, 4, seed=2)
            # The table lost rows of a batch, and has the rows that were missing.
            lost = world.rows[20][:2]
            moved = await world.index(asked, [row for row in world.rows if row[:2] != lost], name="new", generation=5)
            assert (moved.refused, moved.problems) == (0, {})
            assert moved.batches + moved.kept + first.kept >= 32
            assert moved.kept == 1
            (tmp_path / "file").unlink()
            await asyncio.sleep(200)
            assert await asked.broker.metadata_store.log.unindexed(world.topic, 5, [5]) == Unindexed({}, {}, {})
            assert 5 in generations(world)
        async with broker(world.shared, 2, tables=world.tables(), **UPKEEP) as other:
            await world.check(other)
            findings = await fsck.check(world.shared.store.retention, world.shared.objects, read=True)
            assert (findings.lost, findings.unknown) == (False, [])

    run(story())


@BOTH
def test_moved_batches_keep_codecs_and_sizes_of_their_producers(tmp_path: Path, typed: Typed | None) -> None:
    async def story() -> None:
        world = World(tmp_path, typed)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 10)
            await world.index(asked)
            before = [each.stored for each in await world.ranges(0)]
            state = await asked.broker.metadata_store.log.states([Partition(world.topic, 0)])
            again = await world.index(asked, name="new", generation=2)
            assert (again.batches, again.kept) == (20, 0)
            assert [each.stored for each in await world.ranges(0)] == before
            assert await asked.broker.metadata_store.log.states([Partition(world.topic, 0)]) == state
            third = await world.index(asked, name="new", generation=2)
            assert (third.batches, third.objects) == (0, 0), "the batches lie in files of this generation"
            await world.check(asked)

    run(story())


def test_batches_that_their_files_no_longer_give_back_stay_where_they_are(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 5)
            await world.index(asked)
            before = await world.ranges(0)
            write(tmp_path / "file", [(*row[:2], row[2]._replace(time=1)) for row in world.rows], group=60)
            moved = await world.index(asked, name="new", generation=2)
            assert (moved.batches, moved.kept) == (0, 0)
            assert any("do not give back" in problem for problem in moved.problems)
            assert await world.ranges(0) == before

    run(story())


def test_files_are_not_used_after_their_time(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 5)
            file = write(tmp_path / "file", world.rows, group=60)
            indexing = Indexing(
                world.shared.store, world.shared.objects, world.identifiers, Local(), clock := LoopClock()
            )
            now = int(clock.now().timestamp() * 1000)
            ranges = (LandedRange(0, 0, world.landed_to[0] - 1),)
            for until, batches in ((now - 1, 0), (now + 60_000, 5)):
                landed = Landed(
                    topic=world.topic, generation=1, until_ms=until, ranges=ranges, files=(file,), fields=FIELDS
                )
                assert (await indexing.index(asked.broker.membership.lease, landed)).batches == batches

    run(story())


def test_entries_move_unread_if_their_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 10)
            await world.index(asked)
            before = [each.stored for each in await world.ranges(0)]

            def unread(*_: object) -> None:
                raise AssertionError("no row is needed")

            with monkeypatch.context() as patched:
                patched.setattr(RowReader, "read", unread)
                moved = await world.index(asked, generation=2)
            assert (moved.batches, moved.kept, moved.refused) == (20, 0, 0)
            assert [each.stored for each in await world.ranges(0)] == before
            assert {wal.generation(each.place.key) for each in await world.ranges(0)} == {2}
            await world.check(asked)

    run(story())
