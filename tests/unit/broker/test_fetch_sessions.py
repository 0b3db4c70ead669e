"""Incremental fetch sessions: answers have only changes, and a consumer with a session reads what any other reads."""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from firn_broker.log.fetch_sessions import FEW
from firn_broker.log_types import Lookup, LookupResult
from firn_broker.metadata_store.sqlite.logs.log import SqliteLog
from firn_broker.network.router import Client
from firn_broker.wire import fetch
from firn_broker.wire.fetch import FetchResult
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.connections import until
from tests.unit.broker.test_disconnected_clients import request as framed
from tests.unit.broker.test_disconnected_clients import seconds, serving
from tests.unit.broker.test_whole_brokers import bases, produce
from tests.unit.broker.whole import Asked, Shared, broker, counting_turns, create, zero

FETCH = 1
NONE = ErrorCode.none
BYTES = len(bytes(raw()))


class Consumer:
    """A client that fetches the topic "t", in a session or without one."""

    def __init__(self, asked: Asked, id: UUID, version: int = 12, peer: str = "test:1") -> None:
        self.asked = Asked(asked.broker)
        self.asked.client = Client(peer, "test")
        self.version = version
        self.topic: dict[str, Any] = {"topic": "t"} if version < 13 else {"topic_id": id}
        self.session, self.epoch = 0, 0
        self.rack = ""

    def fields(
        self, offsets: Mapping[int, int], forgotten: tuple[int, ...] = (), max_bytes: int = 1 << 20
    ) -> dict[str, Any]:
        partitions = [
            {
                "partition": index, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1,
                "log_start_offset": -1, "partition_max_bytes": 1 << 20,
            }
            for index, offset in offsets.items()
        ]  # fmt: skip
        return {
            "max_wait": zero(), "min_bytes": 1, "max_bytes": max_bytes, "isolation_level": 0, "session_id": self.session,
            "session_epoch": self.epoch, "topics": [{**self.topic, "partitions": partitions}] if partitions else [],
            "forgotten_topics_data": [{**self.topic, "partitions": forgotten}] if forgotten else [], "rack_id": self.rack,
            "replica_id": -1,
        }  # fmt: skip

    async def fetch(self, offsets: Mapping[int, int], *forgotten: int, max_bytes: int = 1 << 20) -> Any:
        """Fetch, and take the session of the answer."""
        answer = await self.asked.ask(FETCH, self.version, **self.fields(offsets, forgotten, max_bytes))
        if not answer.error_code:
            self.session = answer.session_id
            self.epoch = self.epoch + 1 if self.session else 0
        return answer

    async def changes(self, offsets: Mapping[int, int], *forgotten: int, max_bytes: int = 1 << 20) -> dict[int, Any]:
        answer = await self.fetch(offsets, *forgotten, max_bytes=max_bytes)
        assert answer.error_code is NONE
        return {partition.partition_index: partition for topic in answer.responses for partition in topic.partitions}


@pytest.mark.parametrize("version", [7, 9, 11, 12, 13, 16])
def test_an_answer_has_only_the_partitions_that_changed(version: int) -> None:
    async def story() -> None:
        async with broker() as asked:
            consumer = Consumer(asked, await create(asked, "t", 4), version)
            assert sorted(await consumer.changes(dict.fromkeys(range(4), 0))) == [0, 1, 2, 3]
            assert consumer.session > 0
            assert await consumer.changes({}) == {}
            await produce(asked, "t", 2, raw())
            changed = await consumer.changes({})
            assert [(index, bases(found.records)) for index, found in changed.items()] == [(2, [0])]
            assert [bases(found.records) for found in (await consumer.changes({})).values()] == [[0]], "not read yet"
            assert await consumer.changes({2: 1}) == {}
            await asyncio.gather(*(produce(asked, "t", index, raw()) for index in range(4)))
            assert sorted(await consumer.changes({}, 3)) == [0, 1, 2]
            assert sorted(await consumer.changes({0: 1, 1: 1, 2: 2, 3: 0})) == [3]

    run(story())


def test_an_idle_consumer_of_many_partitions_gets_a_short_answer() -> None:
    async def story() -> None:
        async with broker() as asked:
            consumer = Consumer(asked, await create(asked, "t", 2_000))
            assert len(await consumer.changes(dict.fromkeys(range(2_000), 0))) == 2_000
            answer = await consumer.fetch({})
            assert answer.responses == ()
            body = b"".join(fetch.write(12, 0, [], session=consumer.session))
            assert len(body) < 20
            full = [FetchResult(index, NONE, 0, 0) for index in range(2_000)]
            assert len(b"".join(fetch.write(12, 0, [("t", full)]))) > 50_000

    run(story())


def test_errors_are_repeated_until_they_end() -> None:
    async def story() -> None:
        async with broker() as asked:
            consumer = Consumer(asked, await create(asked, "t", 2))
            for _ in range(3):
                changed = await consumer.changes({} if consumer.session else {0: 0, 1: 7})
                assert changed[1].error_code is ErrorCode.offset_out_of_range
                assert (0 in changed) == (consumer.epoch == 1)
            assert (await consumer.changes({1: 0}))[1].error_code is NONE
            assert await consumer.changes({}) == {}

    run(story())


def test_partitions_behind_a_large_one_are_served_in_turn() -> None:
    async def story() -> None:
        async with broker() as asked:
            consumer = Consumer(asked, await create(asked, "t", 3))
            await consumer.changes(dict.fromkeys(range(3), 0))
            for index in range(3):
                await produce(asked, "t", index, raw())
            served = []
            for _ in range(3):
                changed = await consumer.changes({}, max_bytes=BYTES)
                served += [index for index, found in changed.items() if found.records]
            assert sorted(served) == [0, 1, 2]

    run(story())


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of partitions of each lookup."""
    numbers: list[int] = []
    find = SqliteLog.find

    async def counted(log: SqliteLog, lookups: Sequence[Lookup], *most: int) -> Sequence[LookupResult]:
        numbers.append(len(lookups))
        return await find(log, lookups, *most)

    monkeypatch.setattr(SqliteLog, "find", counted)
    return numbers


@pytest.mark.parametrize("idle", [0, 2 * FEW])
def test_only_the_partitions_that_fill_an_answer_are_looked_up(idle: int, looked_up: list[int]) -> None:
    async def story() -> None:
        count = 4 * FEW
        async with broker() as asked:
            consumer = Consumer(asked, await create(asked, "t", count))
            await consumer.changes(dict.fromkeys(range(count), 0))
            for index in range(idle, count):
                await produce(asked, "t", index, raw())
            looked_up.clear()
            served: list[int] = []
            offsets: dict[int, int] = {}
            while len(served) < count - idle:
                changed = await consumer.changes(offsets, max_bytes=8 * BYTES)
                offsets = {index: 1 for index, found in changed.items() if found.records}
                assert len(offsets) == 8
                served += offsets
            assert sorted(served) == list(range(idle, count))
            assert looked_up == [count] + [FEW] * ((count - idle) // 8 - 1)
            await produce(asked, "t", count // 2, raw())
            assert list(await consumer.changes(offsets)) == [count // 2], "the others are not full"

    run(story())


def test_few_fetches_look_up_partitions_that_fill_no_answer(looked_up: list[int]) -> None:
    async def story() -> None:
        count, fetches = 3 * FEW, 40
        async with broker() as asked:
            consumer = Consumer(asked, await create(asked, "t", count))
            await consumer.changes(dict.fromkeys(range(count), 0))
            for index in range(3):
                await produce(asked, "t", index, raw())
            looked_up.clear()
            for _ in range(fetches):
                # Each answer has three batches, and five would fill it.
                changed = await consumer.changes({}, max_bytes=5 * BYTES)
                assert sorted(index for index, found in changed.items() if found.records) == [0, 1, 2]
            assert looked_up.count(count) == fetches
            assert 1 < looked_up.count(FEW) < 6

    run(story())


@pytest.mark.parametrize("max_bytes", [-1, 0, 1])
def test_no_answer_is_empty_while_records_wait(max_bytes: int) -> None:
    async def story() -> None:
        count = 4 * FEW
        async with broker() as asked:
            consumer = Consumer(asked, await create(asked, "t", count))
            await consumer.changes(dict.fromkeys(range(count), 0))
            for index in (0, count // 2):
                await produce(asked, "t", index, raw())
            for _ in range(8):
                assert [bases(found.records) for found in (await consumer.changes({}, max_bytes=max_bytes)).values()]

    run(story())


def test_a_fetch_waits_although_the_last_answer_was_full() -> None:
    async def story() -> None:
        async with broker() as asked:
            consumer = Consumer(asked, await create(asked, "t", 2 * FEW))
            await consumer.changes(dict.fromkeys(range(2 * FEW), 0))
            await produce(asked, "t", 1, raw())
            assert list(await consumer.changes({}, max_bytes=BYTES)) == [1]
            fields = consumer.fields({1: 1}, max_bytes=BYTES) | {"max_wait": seconds(20)}
            clock = asyncio.get_running_loop().time
            began = clock()
            assert (await consumer.asked.ask(FETCH, consumer.version, **fields)).responses == ()
            assert clock() - began == pytest.approx(20, abs=1)

    run(story())


def test_only_the_next_request_of_a_connection_continues_its_session() -> None:
    async def story() -> None:
        async with broker() as asked:
            id = await create(asked, "t", 2)
            consumer, other = Consumer(asked, id), Consumer(asked, id, peer="test:2")
            await consumer.fetch({0: 0})
            other.session, other.epoch = consumer.session, consumer.epoch
            assert (await other.fetch({})).error_code is ErrorCode.fetch_session_id_not_found
            consumer.epoch = 7
            assert (await consumer.fetch({})).error_code is ErrorCode.invalid_fetch_session_epoch
            consumer.epoch = 1
            consumer.version, consumer.topic = 13, {"topic_id": id}
            for offsets in ({1: 0}, dict[int, int]()):
                assert (await consumer.fetch(offsets)).error_code is ErrorCode.fetch_session_topic_id_error
            consumer.version, consumer.topic = 12, {"topic": "t"}
            assert (await consumer.fetch({1: 0})).error_code is NONE
            consumer.epoch = -1
            last = await consumer.fetch({0: 0, 1: 0})
            assert (last.session_id, len(last.responses[0].partitions)) == (0, 2)
            assert asked.broker.fetch_sessions.partitions.used == 0

    run(story())


def test_consumers_without_room_for_a_session_get_full_answers() -> None:
    async def story() -> None:
        async with broker(reader={"max_session_partitions": 8}) as asked:
            id = await create(asked, "t", 8)
            first, second = Consumer(asked, id, peer="a:1"), Consumer(asked, id, peer="b:1")
            await first.fetch(dict.fromkeys(range(6), 0))
            for _ in range(2):
                answer = await second.fetch(dict.fromkeys(range(5), 0))
                assert (answer.session_id, len(answer.responses[0].partitions)) == (0, 5)
            assert (await first.fetch(dict.fromkeys(range(8), 0))).error_code is ErrorCode.fetch_session_id_not_found
            assert asked.broker.fetch_sessions.partitions.used == 0
            assert (await second.fetch(dict.fromkeys(range(5), 0))).session_id > 0

    run(story())


async def test_the_session_of_a_disconnected_client_ends() -> None:
    async with serving(Shared()) as (asked, server, connect):
        sessions = asked.broker.fetch_sessions
        client = await connect()
        fields = Consumer(asked, UUID(int=1)).fields({0: 0})
        assert (await client.ask(FETCH, 12, framed(FETCH, 12, **fields))).session_id > 0
        assert sessions.partitions.used == 1
        client.go()
        await until(lambda: not server._connections)
        assert sessions.partitions.used == 0


@pytest.mark.slow
def test_a_consumer_may_read_more_partitions_than_other_requests_name() -> None:
    async def story() -> None:
        count = 7_000
        async with broker() as asked:
            consumer = Consumer(asked, await create(asked, "t", count))
            fields = consumer.fields(dict.fromkeys(range(count), 0))
            for name in ("u", "v"):
                await create(asked, name, count)
                fields["topics"] = [*fields["topics"], {**fields["topics"][0], "topic": name}]
            answer, turns = await counting_turns(asked.ask(FETCH, 12, **fields))
            assert [len(topic.partitions) for topic in answer.responses] == [count] * 3
            assert turns > 20
            # It takes memory that others wait for, so its long poll is short.
            clock = asyncio.get_running_loop().time
            fields |= {"session_id": answer.session_id, "session_epoch": 1, "topics": [], "max_wait": seconds(300)}
            began = clock()
            assert (await asked.ask(FETCH, 12, **fields)).responses == ()
            assert clock() - began < 2
            await produce(asked, "v", count - 1, raw())
            fields |= {"session_epoch": 2}
            (topic,) = (await asked.ask(FETCH, 12, **fields)).responses
            assert (topic.topic, topic.partitions[0].partition_index) == ("v", count - 1)
            assert asked.broker.large_fetches.used == 0

    run(story())


@pytest.mark.parametrize("seed", range(3))
def test_a_session_tells_what_full_answers_tell(seed: int) -> None:
    partitions = 5

    async def story() -> None:
        random = Random(seed)
        async with broker() as asked:
            id = await create(asked, "t", partitions)
            incremental, full = Consumer(asked, id), Consumer(asked, id, peer="test:2")
            full.epoch = -1
            offsets: dict[int, int] = {}
            known: dict[int, tuple[int, int, int]] = {}
            for _ in range(40):
                if random.random() < 0.5:
                    await produce(asked, "t", random.randrange(partitions), raw(random.randrange(1, 4)))
                forgotten = [index for index in offsets if random.random() < 0.1]
                for index in forgotten:
                    del offsets[index]
                added = {index: 0 for index in range(partitions) if index not in offsets and random.random() < 0.3}
                moved = {index: known[index][1] for index in offsets if random.random() < 0.3}
                offsets |= added | moved
                if not offsets:
                    continue
                changed = await incremental.changes(
                    added | moved if incremental.session else offsets, *(set(forgotten) - set(added))
                )
                full.session, full.epoch = 0, -1
                expected = await full.changes(offsets)
                for index, found in expected.items():
                    now = found.error_code, found.high_watermark, found.log_start_offset
                    if index in changed:
                        answer = changed[index]
                        known[index] = answer.error_code, answer.high_watermark, answer.log_start_offset
                        assert bytes(answer.records) == bytes(found.records)
                    else:
                        assert not found.records
                    assert known[index] == now

    run(story())
