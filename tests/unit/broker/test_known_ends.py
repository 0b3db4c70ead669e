"""Fetches from the known end of a partition: they wait without a lookup, and their answers are not old."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn_broker.log import watermarks
from firn_broker.log.reader import Position, Reader
from firn_broker.log.watermarks import Watermarks
from firn_broker.log_types import Lookup, LookupResult, Partition
from tests.unit.broker.rig import FIRST, SECOND, Rig, rig
from tests.unit.broker.test_reader import bases, cold, fetch, produce

NONE = ErrorCode.none


class Finds:
    """Records the lookups and their partitions."""

    def __init__(self, parts: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.partitions: list[Partition] = []
        self._find = parts.store.log.find
        monkeypatch.setattr(parts.store.log, "find", self._counted)

    async def _counted(self, lookups: Sequence[Lookup], *more: Any) -> Sequence[LookupResult]:
        self.calls += 1
        self.partitions += [lookup.partition for lookup in lookups]
        return await self._find(lookups, *more)


@asynccontextmanager
async def polled(reader: Reader, *, alone: bool = False) -> AsyncIterator[None]:
    poll = asyncio.create_task(reader.poll(lambda: alone))
    try:
        yield
    finally:
        poll.cancel()


def cut_off(parts: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all reads of the coordinator fail."""

    async def lost(*_: Any) -> Any:
        raise UnavailableError("no way there")

    for name in ("find", "states"):
        monkeypatch.setattr(parts.store.log, name, lost)


def end(offset: int, partition: Partition = FIRST) -> Position:
    return Position(partition, offset, 1 << 20)


@pytest.mark.parametrize("alone", [True, False])
async def test_only_the_first_fetch_at_the_end_looks_it_up(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as parts:
        await produce(parts, 2)
        reader, finds = cold(parts), Finds(parts, monkeypatch)
        async with polled(reader, alone=alone):
            for _ in range(3):
                (records,) = await fetch(reader, end(2), wait=0.1)
                assert (records.error, records.high_watermark, records.log_start) == (NONE, 2, 0)
        assert finds.partitions == [FIRST]


async def test_records_after_the_known_end_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as parts:
        await produce(parts, 1)
        await fetch(parts.reader, end(1), wait=0.01)
        asked = asyncio.create_task(fetch(parts.reader, end(1), wait=20))
        await asyncio.sleep(0)
        await produce(parts, 1)
        assert bases((await asked)[0]) == [1]


async def test_records_of_another_broker_after_the_known_end_are_found() -> None:
    async with rig() as parts:
        other = cold(parts)
        async with polled(other):
            await fetch(other, end(0), wait=0.01)
            await produce(parts, 1)
            assert bases((await fetch(other, end(0), wait=20))[0]) == [0]


async def test_an_end_that_no_poll_confirms_is_looked_up_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as parts:
        other = cold(parts)
        await fetch(other, end(0), wait=0.01)
        await produce(parts, 1)
        (records,) = await fetch(other, end(0), wait=0.01)
        assert bases(records) == [0]


async def test_a_fetch_that_waits_for_nothing_is_looked_up() -> None:
    async with rig() as parts:
        other = cold(parts)
        async with polled(other):
            await fetch(other, end(0), wait=0.05)
            await produce(parts, 1)
            assert bases((await fetch(other, end(0), wait=0))[0]) == [0]


async def test_only_partitions_that_have_grown_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as parts:
        reader, watermarks = parts.reader, parts.watermarks
        async with polled(reader):
            await fetch(reader, end(0), end(0, SECOND), wait=0.05)
            finds = Finds(parts, monkeypatch)
            asked = asyncio.create_task(fetch(reader, end(0), end(0, SECOND), wait=20))
            while not watermarks.claims():
                await asyncio.sleep(0)
            while watermarks.claims():
                await asyncio.sleep(0.001)
            await produce(parts, 1, partition=SECOND)
            first, second = await asked
        assert (bases(first), bases(second)) == ([], [0])
        assert finds.partitions == [SECOND]


async def test_an_answer_reports_no_log_start_that_is_older_than_its_request() -> None:
    async with rig() as parts:
        await produce(parts, 4)
        async with polled(parts.reader):
            await fetch(parts.reader, end(4), wait=0.05)
            await parts.store.log.advance_start(FIRST, 3)
            (records,) = await fetch(parts.reader, end(4), wait=0.3)
            assert (records.log_start, records.high_watermark) == (3, 4)


async def test_records_of_one_partition_do_not_come_with_old_bounds_of_another() -> None:
    async with rig() as parts:
        await produce(parts, 4)
        await fetch(parts.reader, end(4), end(0, SECOND), wait=0.01)
        await parts.store.log.advance_start(FIRST, 3)
        await produce(parts, 1, partition=SECOND)
        first, second = await fetch(parts.reader, end(4), end(0, SECOND), wait=20)
        assert (first.log_start, bases(second)) == (3, [0])


async def test_an_outage_is_reported_to_a_fetch_at_the_known_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as parts:
        reader = cold(parts)
        async with polled(reader):
            await fetch(reader, end(0), wait=0.05)
            cut_off(parts, monkeypatch)
            with pytest.raises(UnavailableError):
                await fetch(reader, end(0), wait=0.05)


async def test_a_failed_poll_ends_the_wait_at_the_known_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as parts:
        reader = cold(parts)
        async with polled(reader):
            await fetch(reader, end(0), wait=0.05)
            cut_off(parts, monkeypatch)
            async with asyncio.timeout(10):
                with pytest.raises(UnavailableError):
                    await fetch(reader, end(0), wait=300)


async def test_one_lookup_serves_a_fetch_of_which_one_partition_has_records(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as parts:
        await fetch(parts.reader, end(0), end(0, SECOND), wait=0.01)
        await produce(parts, 1, partition=SECOND)
        finds = Finds(parts, monkeypatch)
        _, second = await fetch(parts.reader, end(0), end(0, SECOND), wait=20)
        assert (bases(second), finds.calls) == ([0], 1)


def test_a_log_start_that_went_back_does_not_stay() -> None:
    known = Watermarks()
    known.observe(FIRST, 3, 5)
    known.poll(FIRST, 1, 5)
    assert known.known(FIRST) is None


async def test_a_partition_that_lost_records_does_not_keep_its_known_end() -> None:
    async with rig() as parts:
        await produce(parts, 3)
        other = cold(parts)
        async with polled(other):
            await fetch(other, end(3), wait=0.05)
            parts.store.database.connection.execute("UPDATE log SET hw = 1")
            (records,) = await fetch(other, end(3), wait=20)
            assert records.error is ErrorCode.offset_out_of_range


async def test_a_deleted_partition_does_not_keep_its_known_end() -> None:
    async with rig() as parts:
        other = cold(parts)
        async with polled(other):
            await fetch(other, end(0), wait=0.05)
            await parts.store.topics.delete_topic(FIRST.topic)
            (records,) = await fetch(other, end(0), wait=20)
            assert records.error is ErrorCode.unknown_topic_or_partition


def test_the_least_recently_used_ends_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watermarks, "KNOWN", 2)
    known = Watermarks()
    third = Partition(FIRST.topic, 2)
    known.observe(FIRST, 0, 1)
    known.observe(SECOND, 0, 2)
    assert known.known(FIRST) == (0, 1)
    known.observe(third, 0, 3)
    assert [known.known(partition) for partition in (FIRST, SECOND, third)] == [(0, 1), None, (0, 3)]


def test_an_older_high_watermark_does_not_replace_a_newer_one() -> None:
    known = Watermarks()
    known.observe(FIRST, 0, 5)
    known.observe(FIRST, 0, 4)
    assert known.known(FIRST) == (0, 5)
    known.advance(FIRST, 7)
    known.advance(FIRST, 6)
    assert known.known(FIRST) == (0, 7)


def test_an_older_log_start_does_not_replace_a_newer_one() -> None:
    known = Watermarks()
    known.observe(FIRST, 3, 5)
    known.observe(FIRST, 2, 5)
    assert known.known(FIRST) == (3, 5)
