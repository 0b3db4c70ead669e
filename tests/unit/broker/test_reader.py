"""The path of a fetch to the bytes: whole batches with their offsets, from the cache or the store."""

import asyncio
import struct
from collections.abc import Sequence

import pytest
import structlog
from kio.schema.errors import ErrorCode

from firn.records import record_batch
from firn_broker.log import reader as reading
from firn_broker.log.blocks import Block, BlockCache
from firn_broker.log.reader import Position, Reader, Records
from firn_broker.log.watermarks import Watermarks
from firn_broker.log.writer import Append
from firn_broker.log_types import LogState, Lookup, LookupResult, Partition
from firn_broker.network.budget import SHARES, Budget, Share
from firn_broker.settings import ReaderSettings
from tests.unit.broker.batches import batch
from tests.unit.broker.rig import FIRST, SECOND, Rig, rig

SIZE = len(batch().data)


async def produce(parts: Rig, *counts: int, partition: Partition = FIRST) -> None:
    for count in counts:
        await parts.writer.append([Append(partition, batch(count), False)])


def cold(parts: Rig) -> Reader:
    """Return the reader of another broker: it has no cache, and only its poll wakes it."""
    return Reader(
        parts.store.log, parts.objects, BlockCache(1 << 24, 1 << 24), Watermarks(), ReaderSettings(poll_seconds=0.01)
    )


async def fetch(
    reader: Reader, *positions: Position, min_bytes: int = 1, max_bytes: int = 1 << 20, wait: float = 0
) -> list[Records]:
    share = Share(reader.answers, "test:1")
    records = await reader.fetch(
        positions, min_bytes=min_bytes, max_bytes=max_bytes, max_wait_seconds=wait, share=share
    )
    share.release()
    return records


def bases(records: Records) -> list[int]:
    data = memoryview(b"".join(records.batches))
    return [struct.unpack_from(">q", data, place)[0] for place, _, _ in record_batch.walk(data)]


async def test_batches_get_their_offsets_with_and_without_the_cache() -> None:
    async with rig() as parts:
        await produce(parts, 2, 3, 1)
        for reader in (parts.reader, cold(parts), cold(parts)):
            (records,) = await fetch(reader, Position(FIRST, 0, 1 << 20))
            assert bases(records) == [0, 2, 5]
            assert (records.high_watermark, records.log_start) == (6, 0)
        assert parts.objects.reads > 0


async def test_batches_of_this_broker_are_served_from_memory() -> None:
    async with rig() as parts:
        await produce(parts, 2, 3)
        await fetch(parts.reader, Position(FIRST, 0, 1 << 20))
        assert parts.objects.reads == 0


async def test_an_offset_inside_a_batch_returns_the_whole_batch() -> None:
    async with rig() as parts:
        await produce(parts, 2, 3, 1)
        for reader in (parts.reader, cold(parts)):
            assert bases((await fetch(reader, Position(FIRST, 4, 1 << 20)))[0]) == [2, 5]


async def test_the_byte_limit_always_allows_one_batch() -> None:
    async with rig() as parts:
        await produce(parts, 1, 1, 1)
        await produce(parts, 1, 1, 1, partition=SECOND)
        for reader in (parts.reader, cold(parts)):
            first, second = await fetch(reader, Position(FIRST, 0, 1), Position(SECOND, 0, 1))
            assert (bases(first), bases(second)) == ([0], [])
            first, second = await fetch(
                reader, Position(FIRST, 0, 2 * SIZE), Position(SECOND, 0, 2 * SIZE), max_bytes=3 * SIZE
            )
            assert (bases(first), bases(second)) == ([0, 1], [0])


async def test_a_consumer_waits_for_records() -> None:
    async with rig() as parts:
        await produce(parts, 1)
        asked = asyncio.create_task(
            fetch(parts.reader, Position(FIRST, 1, 1 << 20), Position(SECOND, 0, 1 << 20), wait=20)
        )
        await asyncio.sleep(0.01)
        assert not asked.done()
        await produce(parts, 1)
        first, second = await asked
        assert (bases(first), bases(second)) == ([1], [])


async def test_a_consumer_waits_for_its_minimum_of_bytes() -> None:
    async with rig() as parts:
        asked = asyncio.create_task(fetch(parts.reader, Position(FIRST, 0, 1 << 20), min_bytes=2 * SIZE, wait=20))
        await produce(parts, 1)
        assert not asked.done()
        await produce(parts, 1)
        assert bases((await asked)[0]) == [0, 1]


async def test_a_fetch_without_records_times_out() -> None:
    async with rig() as parts:
        (records,) = await fetch(parts.reader, Position(FIRST, 0, 1 << 20), wait=0.01)
        assert (records.error, list(records.batches), records.high_watermark) == (ErrorCode.none, [], 0)


async def test_records_of_another_broker_end_the_wait() -> None:
    async with rig() as parts:
        other = cold(parts)
        poll = asyncio.create_task(other.poll(lambda: False))
        asked = asyncio.create_task(fetch(other, Position(FIRST, 0, 1 << 20), wait=20))
        await asyncio.sleep(0.03)
        await produce(parts, 1)
        assert bases((await asked)[0]) == [0]
        poll.cancel()


async def test_records_that_arrive_during_a_lookup_end_the_wait() -> None:
    async with rig() as parts:
        other = cold(parts)
        find, read, answered = parts.store.log.find, asyncio.Event(), asyncio.Event()

        async def late(wanted: Sequence[Lookup], runs: int) -> Sequence[LookupResult]:
            result = await find(wanted, runs)
            read.set()
            await answered.wait()
            return result

        parts.store.log.find = late  # type: ignore[assignment,method-assign]
        asked = asyncio.create_task(fetch(other, Position(FIRST, 0, 1 << 20), wait=20))
        async with asyncio.timeout(5):
            await read.wait()
        await produce(parts, 1)
        states, asked_states, heard = parts.store.log.states, asyncio.Event(), asyncio.Event()

        async def once(partitions: Sequence[Partition]) -> Sequence[LogState | None]:
            if asked_states.is_set():
                heard.set()
                await asyncio.Event().wait()
            asked_states.set()
            return await states(partitions)

        parts.store.log.states = once  # type: ignore[method-assign]
        poll = asyncio.create_task(other.poll(lambda: False))
        async with asyncio.timeout(5):
            await heard.wait()
        answered.set()
        async with asyncio.timeout(5):
            assert bases((await asked)[0]) == [0]
        poll.cancel()


async def test_an_offset_beyond_the_end_fails_at_once() -> None:
    async with rig() as parts:
        await produce(parts, 2)
        (records,) = await fetch(parts.reader, Position(FIRST, 3, 1 << 20), wait=20)
        assert (records.error, records.high_watermark) == (ErrorCode.offset_out_of_range, 2)


async def test_one_load_serves_all_fetches_of_a_range() -> None:
    async with rig() as parts:
        await produce(parts, 2)
        reader = cold(parts)
        fetches = await asyncio.gather(*(fetch(reader, Position(FIRST, 0, 1 << 20)) for _ in range(10)))
        assert [bases(fetched[0]) for fetched in fetches] == [[0]] * 10
        assert parts.objects.reads == 1


async def test_an_unreadable_object_is_a_retriable_error() -> None:
    async with rig() as parts:
        await produce(parts, 2)
        reader = cold(parts)
        parts.objects.broken = True
        (records,) = await fetch(reader, Position(FIRST, 0, 1 << 20))
        assert records.error is ErrorCode.kafka_storage_error
        parts.objects.broken = False
        assert bases((await fetch(reader, Position(FIRST, 0, 1 << 20)))[0]) == [0]


async def test_batches_get_append_time_with_and_without_the_cache() -> None:
    async with rig() as parts:
        await parts.writer.append([Append(FIRST, batch(3, time=5), True)])
        for reader in (parts.reader, cold(parts)):
            (records,) = await fetch(reader, Position(FIRST, 0, 1 << 20))
            data = memoryview(bytearray(b"".join(records.batches)))
            newest, attributes, _ = record_batch.header(data)
            assert newest > 5
            assert attributes & record_batch.APPEND_TIME_BIT
            struct.pack_into(">q", data, 0, 0)
            assert record_batch.parse(data).records == 3, "the checksum is valid"


async def test_batches_beyond_the_limit_are_not_loaded() -> None:
    async with rig() as parts:
        await produce(parts, 1)
        await produce(parts, 1, partition=SECOND)
        reader = cold(parts)
        first, second = await fetch(reader, Position(FIRST, 0, 1 << 20), Position(SECOND, 0, 1 << 20), max_bytes=1)
        assert (bases(first), bases(second)) == ([0], [])
        assert parts.objects.reads == 1


@pytest.mark.parametrize(
    ("first", "second", "given"), [(20, 20, (5, 5)), (20, 0, (10, 0)), (20, 2, (8, 2)), (2, 20, (2, 8)), (3, 3, (3, 3))]
)
async def test_partitions_share_the_ranges_of_an_answer(
    monkeypatch: pytest.MonkeyPatch, first: int, second: int, given: tuple[int, int]
) -> None:
    monkeypatch.setattr(reading, "ANSWER_RANGES", 10)
    async with rig() as parts:
        await produce(parts, *[1] * first)
        await produce(parts, *[1] * second, partition=SECOND)
        fetched = await fetch(cold(parts), Position(FIRST, 0, 1 << 20), Position(SECOND, 0, 1 << 20))
        assert tuple(map(bases, fetched)) == tuple(list(range(count)) for count in given)


async def test_each_partition_gets_at_least_one_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ANSWER_RANGES", 1)
    async with rig() as parts:
        await produce(parts, 1, 1)
        await produce(parts, 1, 1, partition=SECOND)
        fetched = await fetch(cold(parts), Position(FIRST, 0, 1 << 20), Position(SECOND, 1, 1 << 20))
        assert list(map(bases, fetched)) == [[0], [1]]


async def test_an_answer_at_its_limits_is_returned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ANSWER_RANGES", 4)
    async with rig() as parts:
        await produce(parts, *[1] * 9)
        positions = Position(FIRST, 0, 1 << 20), Position(SECOND, 0, 1 << 20)
        async with asyncio.timeout(5):
            runs, _ = await fetch(parts.reader, *positions, min_bytes=1 << 20, wait=20)
            bytes, _ = await fetch(parts.reader, *positions, min_bytes=1 << 20, max_bytes=2 * SIZE, wait=20)
        assert (bases(runs), bases(bytes)) == ([0, 1, 2, 3], [0, 1])


async def test_only_fetches_of_one_partition_read_ahead() -> None:
    async with rig() as parts:
        await produce(parts, *[1] * 8)
        await produce(parts, 1, 1, partition=SECOND)
        # The limit of the answer counts, and not how much a partition has.
        first, other = Position(FIRST, 0, 1 << 30), Position(SECOND, 0, 1 << 30)
        for positions, loaded in (((first,), 5), ((other, first), 2)):
            cache = BlockCache(1 << 24, 1 << 24)
            settings = ReaderSettings(read_ahead_bytes=3 * SIZE)
            reader = Reader(parts.store.log, parts.objects, cache, Watermarks(), settings)
            before = parts.objects.reads
            fetched = await fetch(reader, *positions, max_bytes=2 * SIZE)
            await asyncio.gather(*reader._tasks)
            assert (bases(fetched[0]), parts.objects.reads - before) == ([0, 1], loaded)


async def test_answers_wait_for_memory_before_they_are_loaded() -> None:
    async with rig() as parts:
        await parts.writer.append([Append(FIRST, batch(body=b"x" * 700_000), False)])
        await parts.writer.append([Append(SECOND, batch(body=b"y" * 700_000), False)])
        await produce(parts, 1, partition=SECOND)
        reader = Reader(
            parts.store.log,
            parts.objects,
            BlockCache(1 << 24, 1 << 24),
            Watermarks(),
            ReaderSettings(answer_bytes=1 << 20),
        )

        def ask(share: Share, position: Position) -> "asyncio.Task[list[Records]]":
            return asyncio.create_task(
                reader.fetch([position], min_bytes=1, max_bytes=1 << 20, max_wait_seconds=0, share=share)
            )

        first, second, third = [Share(reader.answers, f"test:{number}") for number in range(3)]
        assert bases((await ask(first, Position(FIRST, 0, 1 << 20)))[0]) == [0]
        waiting, gone = ask(second, Position(SECOND, 0, 1 << 20)), ask(third, Position(SECOND, 0, 1 << 20))
        await asyncio.sleep(0.02)
        assert (waiting.done(), parts.objects.reads, reader.answers.waiting) == (False, 1, 2)
        assert bases((await fetch(reader, Position(SECOND, 1, 1 << 20)))[0]) == [1], "a small answer needs no memory"
        gone.cancel()
        await asyncio.wait((gone,))
        assert reader.answers.waiting == 1
        first.release()
        assert bases((await waiting)[0]) == [0]
        assert reader.answers.used > 700_000
        second.release()
        first.release()
        assert reader.answers.used == 0, "a second release frees nothing more"


@pytest.mark.parametrize("asked", [1 << 20, 50 << 20])
async def test_an_answer_is_no_larger_than_the_share_of_its_connection(asked: int) -> None:
    settings = ReaderSettings(max_response_bytes=asked, answer_bytes=8 << 20)
    share = settings.answer_bytes // SHARES
    async with rig() as parts:
        for _ in range(5):
            await parts.writer.append([Append(FIRST, batch(body=b"x" * 400_000), False)])
        with structlog.testing.capture_logs() as logged:
            reader = Reader(parts.store.log, parts.objects, BlockCache(1 << 24, 1 << 24), Watermarks(), settings)
        assert bases((await fetch(reader, Position(FIRST, 0, 1 << 30), max_bytes=1 << 30))[0]) == [0, 1]
        assert [line["bytes"] for line in logged] == ([share] if asked > share else [])


async def test_blocks_evicted_during_a_wait_for_memory_are_read_again() -> None:
    async with rig() as parts:
        await parts.writer.append([Append(FIRST, batch(body=b"x" * 100_000), False)])
        parts.reader.answers = Budget(1 << 20)
        others = Share(parts.reader.answers, "others:1")
        await others.acquire(1 << 20)
        asked = asyncio.create_task(fetch(parts.reader, Position(FIRST, 0, 1 << 20)))
        async with asyncio.timeout(5):
            while not parts.reader.answers.waiting:
                await asyncio.sleep(0)
        parts.cache.tail.put(("others", -1, -1), Block(0, memoryview(bytes(parts.cache.tail.budget)), [], [], []))
        others.release()
        (records,) = await asked
        assert (records.error, bases(records), parts.objects.reads) == (ErrorCode.none, [0], 1)


async def test_an_answer_larger_than_the_memory_is_loaded_alone() -> None:
    async with rig() as parts:
        await parts.writer.append([Append(FIRST, batch(body=b"x" * (2 << 20)), False)])
        parts.reader.answers = Budget(1 << 20)
        assert bases((await fetch(parts.reader, Position(FIRST, 0, 1 << 20)))[0]) == [0]
