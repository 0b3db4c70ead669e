"""Requests of many small elements: one bound holds over all arrays, and other requests run beside them."""

import asyncio
import struct
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from firn.records import message_reader
from firn.records.cursor import ELEMENTS, MalformedError, varint
from firn_broker import api_table
from firn_broker.network.budget import Share
from firn_broker.network.router import Client
from firn_broker.wire import fetch, produce
from firn_broker.wire.produce import ProduceRequest, ProduceResult
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_whole_brokers import bases
from tests.unit.broker.test_whole_brokers import produce as produce_one
from tests.unit.broker.whole import Asked, broker, counting_turns, create, zero

REQUESTS = {api.key: api.request for api in api_table.APIS if api.request is not None}


def produced(topics: int, partitions: int) -> bytes:
    """Return a Produce request of version 9 with null for the records of each partition."""
    topic = (
        b"\2t" + varint(partitions + 1) + b"".join(struct.pack(">ixx", number) for number in range(partitions)) + b"\0"
    )
    return b"\0" + struct.pack(">hi", -1, 1000) + varint(topics + 1) + topic * topics + b"\0"


def fetched(topics: int, partitions: int) -> bytes:
    """Return a Fetch request of version 12."""
    partition = struct.pack(">iiqiqix", 0, -1, 0, -1, -1, 1)
    topic = b"\2t" + varint(partitions + 1) + partition * partitions + b"\0"
    head = struct.pack(">iiiibii", -1, 0, 0, 1, 0, 0, -1)
    return head + varint(topics + 1) + topic * topics + b"\1\1\0"


def one_record(number: int) -> bytes:
    """Return a Produce request of version 9 with a batch for the first partition."""
    data = bytes(raw(time=1000 + number))
    topic = b"\2t\2" + struct.pack(">i", 0) + varint(len(data) + 1) + data + b"\0\0"
    return b"\0" + struct.pack(">hi", -1, 1000) + b"\2" + topic + b"\0"


def kio_produced(answer: bytes) -> Any:
    """Return the first partition of an answer."""
    response: Any = entity_reader(load_response_schema(0, 9))(answer, 0)[0]
    return response.responses[0].partition_responses[0]


def test_elements_are_counted_over_the_whole_request() -> None:
    half = ELEMENTS // 2 - 1
    assert len(produce.read(memoryview(produced(2, half)), 0, 9).topics[1][1]) == half
    most = fetch.ELEMENTS // 2 - 1
    assert len(fetch.read(memoryview(fetched(2, most)), 0, 12).topics[1][1]) == most
    with pytest.raises(MalformedError):
        produce.read(memoryview(produced(3, half)), 0, 9)
    with pytest.raises(MalformedError):
        fetch.read(memoryview(fetched(3, most)), 0, 12)


@pytest.mark.parametrize(
    ("api", "version", "body"),
    [
        # DescribeGroups: empty names. OffsetFetch: a group's topic with many partitions.
        (15, 5, varint(ELEMENTS + 2) + b"\1" * (ELEMENTS + 1) + b"\0\0"),
        (9, 6, b"\2g\2\2t" + varint(ELEMENTS + 1) + bytes(4 * ELEMENTS) + b"\0\0\0"),
        # Empty tagged fields.
        (15, 5, b"\1\0" + varint(ELEMENTS + 1) + b"\x63\0" * (ELEMENTS + 1)),
    ],
)
def test_elements_of_other_requests_are_counted(api: int, version: int, body: bytes) -> None:
    with pytest.raises(MalformedError):
        message_reader.decode(REQUESTS[api], api, version, memoryview(body), 0)


def test_tagged_fields_are_counted() -> None:
    tags = varint(ELEMENTS + 1) + b"\x63\0" * (ELEMENTS + 1)
    with pytest.raises(MalformedError):
        produce.read(memoryview(b"\0" + struct.pack(">hi", -1, 1000) + b"\1" + tags), 0, 9)


def test_a_repeated_partition_is_answered_once_from_its_last_offset() -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t", 2)
            for _ in range(3):
                await produce_one(asked, "t", 0, raw())

            def at(partition: int, offset: int) -> dict[str, int]:
                return {
                    "partition": partition, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1,
                    "log_start_offset": -1, "partition_max_bytes": 1 << 20,
                }  # fmt: skip

            answer = await asked.ask(
                1, 12, max_wait=zero(), min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0, session_epoch=-1,
                topics=[
                    {"topic": "t", "partitions": [at(0, 0), at(1, 0), at(0, 1)]}, {"topic": "t", "partitions": [at(0, 2)]},
                ],
                forgotten_topics_data=[], rack_id="", replica_id=-1,
            )  # fmt: skip
            (topic,) = answer.responses
            assert [(partition.partition_index, partition.error_code) for partition in topic.partitions] == [
                (0, 0),
                (1, 0),
            ]
            assert bases(topic.partitions[0].records) == [2]

    run(story())


@pytest.mark.slow
def test_produce_requests_wait_for_memory_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t")
            read, write, parsed, most = produce.read, produce.write, 0, 0

            def counted(frame: memoryview, place: int, version: int) -> ProduceRequest:
                nonlocal parsed
                parsed += 1
                return read(frame, place, version)

            def answered(version: int, topics: list[tuple[str, list[ProduceResult]]], throttle_ms: int = 0) -> bytes:
                nonlocal most
                most = max(most, memory.used)
                return write(version, topics, throttle_ms)

            monkeypatch.setattr(produce, "write", answered)
            monkeypatch.setattr(produce, "read", counted)
            memory = asked.broker.parsed
            others = Share(memory, "others:1")
            await others.acquire(memory.total)
            requests = [
                asyncio.create_task(asked.raw(0, 9, produced(1, ELEMENTS - 10) if many else one_record(number)))
                for many in (True, False)
                for number in range(5)
            ]
            await asyncio.sleep(1)
            assert (parsed, memory.waiting) == (1, 1)
            others.release()
            await asyncio.wait(requests)
            # The first request was dropped while it waited, and parsed again.
            assert (parsed, memory.used) == (11, 0)
            assert ELEMENTS * 1000 < most <= memory.total
            errors = [kio_produced(await request).error_code for request in requests]
            assert errors == [ErrorCode.invalid_record] * 5 + [ErrorCode.none] * 5
            # The answers have the order of the requests.
            assert [kio_produced(await request).base_offset for request in requests[5:]] == [0, 1, 2, 3, 4]

    run(story())


def mixed(number: int) -> bytes:
    """Return a Produce request of version 9 with a batch for the first partition, and null for almost all others."""
    data = bytes(raw(time=1000 + number))
    nothing = b"".join(struct.pack(">ixx", index) for index in range(1, ELEMENTS - 20))
    first = struct.pack(">i", 0) + varint(len(data) + 1) + data + b"\0"
    topic = b"\2t" + varint(ELEMENTS - 20 + 1) + first + nothing + b"\0"
    return b"\0" + struct.pack(">hi", -1, 1000) + b"\2" + topic + b"\0"


def test_requests_that_wait_for_memory_do_not_hold_up_other_clients() -> None:
    async def story() -> float:
        # Requests hold their memory until the interval ends.
        async with broker(writer={"puts_per_second": 0}) as asked:
            await create(asked, "t")
            await asked.raw(0, 9, one_record(0))
            hostile = []
            for port in range(10):
                client = Asked(asked.broker)
                client.client = Client(f"10.0.0.66:{port}", "hostile")
                hostile += [asyncio.create_task(client.raw(0, 9, mixed(number))) for number in range(5)]
            while not asked.broker.parsed.waiting:
                await asyncio.sleep(0.001)
            began = asyncio.get_running_loop().time()
            await asked.raw(0, 9, one_record(1))
            took = asyncio.get_running_loop().time() - began
            await asyncio.wait(hostile)
            return took

    # A flush. Behind the 50 other requests, it took 12.5 s.
    assert run(story()) < 0.5


def test_rejecting_many_batches_yields_to_other_tasks() -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t")
            count = ELEMENTS - 10
            answer, turns = await counting_turns(asked.raw(0, 9, produced(1, count)))
            response: Any = entity_reader(load_response_schema(0, 9))(answer, 0)[0]
            results = response.responses[0].partition_responses
            assert len(results) == count
            assert {result.error_code for result in results} == {ErrorCode.invalid_record}
            assert turns > count / 300

    run(story())
