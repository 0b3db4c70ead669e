"""Whole brokers in virtual time: the answers of one broker, and the agreement of two brokers over one log."""

import asyncio
import struct
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from firn.model.errors import UnavailableError
from firn.records import record_batch
from firn.records.cursor import MalformedError
from firn_broker import api_table
from firn_broker.log_types import EXTERNAL, Endpoint
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.whole import Asked, Shared, broker, create


async def produce(asked: Asked, topic: str, partition: int, batch: memoryview, version: int = 9, acks: int = -1) -> Any:
    answer = await produce_answer(asked, topic, partition, batch, version, acks)
    return answer.responses[0].partition_responses[0]


async def produce_answer(
    asked: Asked, topic: str, partition: int, batch: memoryview, version: int = 9, acks: int = -1
) -> Any:
    return await asked.ask(
        0, version, acks=acks, timeout=_seconds(1),
        topic_data=[{"name": topic, "partition_data": [{"index": partition, "records": bytes(batch)}]}],
    )  # fmt: skip


def _seconds(seconds: float) -> Any:
    return i32Timedelta.parse(timedelta(seconds=seconds))


async def fetch(
    asked: Asked, topic: str, partition: int, offset: int, *, wait: float = 0.5, max_bytes: int = 1 << 20
) -> Any:
    answer = await asked.ask(
        1, 12, max_wait=_seconds(wait), min_bytes=1, max_bytes=max_bytes, isolation_level=0, session_id=0, session_epoch=-1,
        topics=[
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": partition, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1,
                        "log_start_offset": -1, "partition_max_bytes": max_bytes,
                    }
                ],
            }
        ],
        forgotten_topics_data=[], rack_id="", replica_id=-1,
    )  # fmt: skip
    return answer.responses[0].partitions[0]


def bases(data: bytes) -> list[int]:
    return [struct.unpack_from(">q", data, place)[0] for place, _, _ in record_batch.walk(memoryview(data))]


def test_every_advertised_version_gets_an_answer_or_an_error_code() -> None:
    async def story() -> None:
        async with broker() as asked:
            answer = await asked.ask(18, 3, client_software_name="test", client_software_version="1")
            advertised = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
            assert advertised == {route.key: route.versions for route in api_table.routes(asked.broker)}
            assert advertised[0][0] == 0
            assert advertised[23][0] == 2
            assert not answer.finalized_features
            for key, (low, high) in advertised.items():
                for version in range(max(low, {0: 3}.get(key, 0)), high + 1):
                    if key not in (18,):
                        await asked.ask(key, version, **GIVEN.get(key, {}), **COMMON)

    run(story())


COMMON: dict[str, Any] = {
    "timeout": _seconds(1), "max_wait": _seconds(0), "session_timeout": _seconds(10), "rebalance_timeout": _seconds(10),
    "transaction_timeout": _seconds(0), "retention_time": _seconds(0), "group_id": "g", "member_id": "", "protocol_type": "consumer",
    "key": "g", "name": "t", "acks": -1, "mechanism": "PLAIN",
}  # fmt: skip
GIVEN: dict[int, dict[str, Any]] = {3: {"topics": []}, 1: {"rack_id": ""}}


def test_an_unknown_version_of_api_versions_gets_the_oldest_reply() -> None:
    async def story() -> None:
        async with broker() as asked:
            body = await asked.raw(18, 99, b"")
            assert struct.unpack_from(">h", body)[0] == ErrorCode.unsupported_version
            assert struct.unpack_from(">i", body, 2)[0] == len(api_table.routes(asked.broker))

    run(story())


@pytest.mark.parametrize(("api", "version"), [(24, 0), (999, 0), (3, 99), (1, 3), (-1, 0)])
def test_an_unsupported_request_closes_the_connection(api: int, version: int) -> None:
    async def story() -> None:
        async with broker() as asked:
            with pytest.raises(MalformedError):
                await asked.raw(api, version, b"\0" * 20)

    run(story())


def test_a_broker_serves_records_of_another() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1) as first_broker, broker(shared, 2) as other:
            await create(first_broker, "t")
            waiting = asyncio.create_task(fetch(other, "t", 0, 0, wait=100))
            first = await produce(first_broker, "t", 0, raw(3))
            assert (first.error_code, first.base_offset) == (ErrorCode.none, 0)
            answer = await waiting
            assert (bases(answer.records), answer.high_watermark) == ([0], 3)
            second = await produce(other, "t", 0, raw(2))
            assert second.base_offset == 3
            assert bases((await fetch(first_broker, "t", 0, 0)).records) == [0, 3]
            assert bases((await fetch(first_broker, "t", 0, 4)).records) == [3]
            # Another broker may have commits that the coordinator lost, until it has renewed its lease.
            assert (await fetch(first_broker, "t", 0, 6)).error_code == ErrorCode.kafka_storage_error
            await asyncio.sleep(1.5 * first_broker.broker.settings.lease_seconds)
            assert (await fetch(first_broker, "t", 0, 6)).error_code == ErrorCode.offset_out_of_range

    run(story())


def test_every_broker_detects_a_duplicate() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1) as first, broker(shared, 2) as other:
            await create(first, "t")
            batch = raw(3, producer=9, epoch=0, sequence=0)
            assert (await produce(first, "t", 0, batch)).base_offset == 0
            assert (await produce(other, "t", 0, batch)).base_offset == 0
            after = await produce(other, "t", 0, raw(1, producer=9, epoch=0, sequence=7))
            assert after.error_code == ErrorCode.out_of_order_sequence_number

    run(story())


def test_each_invalid_request_gets_its_error_code() -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t", max_message_bytes="200")
            for topic, partition, batch, acks, code in (
                ("t", 5, raw(), -1, ErrorCode.unknown_topic_or_partition),
                ("nobody", 0, raw(), -1, ErrorCode.unknown_topic_or_partition),
                ("t", 0, raw(body=b"x" * 300), -1, ErrorCode.message_too_large),
                ("t", 0, raw(base=1), -1, ErrorCode.invalid_record),
                ("t", 0, raw(), 2, ErrorCode.invalid_required_acks),
                ("t", 0, raw(attributes=0x10, producer=1, epoch=0, sequence=0), -1, ErrorCode.invalid_txn_state),
            ):
                assert (await produce(asked, topic, partition, batch, acks=acks)).error_code == code
            answer = await asked.ask(
                22, 4, transactional_id="x", transaction_timeout=_seconds(1), producer_id=-1, producer_epoch=-1
            )
            assert answer.error_code == ErrorCode.transactional_id_authorization_failed
            refused: tuple[dict[str, Any], ...] = (
                {"cleanup_policy": "tidy"},
                {"no_such": "1"},
                {"retention_ms": "long"},
            )
            for configs in refused:
                with pytest.raises(AssertionError):
                    await create(asked, "u", **configs)

    run(story())


def test_a_broker_that_dies_leaves_the_metadata_within_its_lease() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1) as first, broker(shared, 2) as other:
            await asyncio.sleep(3)
            assert len(first.broker.live_nodes()) == 2
            for task in other.broker._background:
                task.cancel()
            await asyncio.sleep(7)
            assert len(first.broker.live_nodes()) == 1
            answer = await first.ask(3, 12, topics=[], allow_auto_topic_creation=False)
            assert [node.node_id for node in answer.brokers] == [first.broker.membership.lease.node]

    run(story())


def test_a_client_gets_the_addresses_of_its_listener() -> None:
    async def addresses(asked: Asked) -> list[set[tuple[str, int]]]:
        metadata = await asked.ask(3, 12, topics=None, allow_auto_topic_creation=False)
        cluster = await asked.ask(60, 1)
        groups = await asked.ask(10, 4, key_type=0, coordinator_keys=[f"group-{number}" for number in range(50)])
        assert not [coordinator for coordinator in groups.coordinators if coordinator.error_code]
        return [
            {(node.host, node.port) for node in nodes}
            for nodes in (metadata.brokers, cluster.brokers, groups.coordinators)
        ]

    async def story() -> None:
        shared = Shared()
        address, other_address = Endpoint("a.example", 31000), Endpoint("b.example", 31001)
        async with broker(shared, 1, address) as first, broker(shared, 2, other_address):
            await asyncio.sleep(3)
            assert await addresses(first) == [{("127.0.0.1", 9093), ("127.0.0.1", 9094)}] * 3
            first.client.listener = EXTERNAL
            assert await addresses(first) == [{address, other_address}] * 3

    run(story())


def test_an_external_client_is_sent_only_to_external_brokers() -> None:
    """As while a fleet gets its second listener: partitions go to brokers that have it, and groups wait for such a
    broker."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1, Endpoint("a.example", 31000)) as first, broker(shared, 2):
            await asyncio.sleep(3)
            await create(first, "t", partitions=50)
            first.client.listener = EXTERNAL
            metadata = await first.ask(3, 12, topics=None, allow_auto_topic_creation=False)
            own = first.broker.membership.lease.node
            assert [(node.node_id, node.host) for node in metadata.brokers] == [(own, "a.example")]
            assert {partition.leader_id for partition in metadata.topics[0].partitions} == {own}
            groups = await first.ask(10, 4, key_type=0, coordinator_keys=[f"group-{number}" for number in range(50)])
            assert {(coordinator.host, coordinator.error_code) for coordinator in groups.coordinators} == {
                ("a.example", ErrorCode.none),
                ("", ErrorCode.coordinator_not_available),
            }

    run(story())


def test_objects_of_expired_records_are_deleted() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1) as asked:
            await create(asked, "t", retention_ms="1000", message_timestamp_type="LogAppendTime")
            await produce(asked, "t", 0, raw(5))
            await asyncio.sleep(40)
            answer = await fetch(asked, "t", 0, 0)
            assert (answer.error_code, answer.log_start_offset, answer.high_watermark) == (
                ErrorCode.offset_out_of_range,
                5,
                5,
            )
            assert len(shared.objects.objects) == 1
            await asyncio.sleep(800)
            assert shared.objects.objects == {}
            assert (await produce(asked, "t", 0, raw())).base_offset == 5

    run(story())


def test_a_seeded_story_always_runs_the_same_way() -> None:
    async def story() -> list[Any]:
        shared = Shared()
        seen: list[Any] = []
        async with broker(shared, 1) as first, broker(shared, 2) as other:
            await create(first, "t", 4)
            chance = Random(5)

            async def client(number: int) -> None:
                for _ in range(20):
                    await asyncio.sleep(chance.random())
                    answer = await produce(chance.choice((first, other)), "t", chance.randrange(4), raw(number + 1))
                    seen.append((asyncio.get_running_loop().time(), number, answer.base_offset))

            await asyncio.gather(*map(client, range(5)))
        return [seen, sorted(shared.objects.objects)]

    assert run(story()) == run(story())


def test_a_producer_may_return_to_a_broker_that_lost_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = Shared()

    async def fail(*_: object) -> None:
        raise UnavailableError("no store")

    async def send(asked: Asked, sequence: int) -> ErrorCode:
        code: ErrorCode = (await produce(asked, "t", 0, raw(1, producer=9, epoch=0, sequence=sequence))).error_code
        return code

    async def story() -> None:
        async with broker(shared) as first, broker(shared, seed=2) as second:
            await create(first, "t")
            await second.broker.topic_metadata.refresh()
            with monkeypatch.context() as patched:
                patched.setattr(shared.objects, "put", fail)
                assert await send(first, 0) is ErrorCode.kafka_storage_error
            assert await send(first, 1) is ErrorCode.kafka_storage_error, "the batch would overtake the first"
            assert [await send(second, sequence) for sequence in range(3)] == [ErrorCode.none] * 3
            # The number of requests that one client may have under way.
            assert ErrorCode.none in [await send(first, 3) for _ in range(5)]
            assert await send(first, 4) is ErrorCode.none

    run(story())
