"""Clients wait for the answers to earlier batches before they send a batch again to another broker.

The order of a producer that the coordinator has forgotten depends on it (`firn_broker.metadata_store.idempotence`)."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer
from kio.schema.errors import ErrorCode

from firn.records import record_batch
from firn.records.record_batch import Batch
from firn_broker.apis import metadata
from firn_broker.log.writer import Append
from firn_broker.log_types import BatchOutcome, Partition
from firn_broker.network.server import Server
from firn_broker.settings import ConnectionSettings
from tests.servers.kafka import program
from tests.servers.process import free_port
from tests.unit.broker.whole import Asked, Shared, broker, create

VALUES = [b"%d" % number for number in range(40)]
REFRESH_MS = 200
QUIET_SECONDS = 1.5
"""Seconds in which a client that does not wait would send several times."""
AGAIN = BatchOutcome(ErrorCode.kafka_storage_error)


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[str, Asked, Asked]]:
    """Run two brokers that listen, and return the address of the first one with both."""
    shared, ports = Shared(), [free_port(), free_port()]
    brokers: list[Asked] = []
    async with AsyncExitStack() as stack:
        for port in ports:
            asked = await stack.enter_async_context(broker(shared, port - 9092))
            server = Server(ConnectionSettings(drain_seconds=0.05))
            await server.bind("127.0.0.1", port)
            await server.accept(asked.broker.router)
            stack.push_async_callback(server.stop, 1, asked.broker.wake)
            brokers.append(asked)
        yield f"127.0.0.1:{ports[0]}", brokers[0], brokers[1]


async def librdkafka(bootstrap: str) -> None:
    settings: dict[str, Any] = {
        "enable.idempotence": True,
        "batch.num.messages": 1,
        "topic.metadata.refresh.interval.ms": REFRESH_MS,
    }
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for value in VALUES:
        producer.produce("t", value)
    assert not await asyncio.to_thread(producer.flush, 60)


async def aiokafka(bootstrap: str) -> None:
    settings: dict[str, Any] = {"enable_idempotence": True, "max_batch_size": 1, "metadata_max_age_ms": REFRESH_MS}
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer:
        for future in [await producer.send("t", value) for value in VALUES]:
            await future


async def kafka_python(bootstrap: str) -> None:
    def send() -> None:
        settings: dict[str, Any] = {"enable_idempotence": True, "batch_size": 0, "metadata_max_age_ms": REFRESH_MS}
        with closing(KafkaProducer(bootstrap_servers=bootstrap, **settings)) as producer:
            for future in [producer.send("t", value) for value in VALUES]:
                future.get(60)

    await asyncio.to_thread(send)


async def java(bootstrap: str) -> None:
    command = program(
        "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", "t", "--batch-size", "1",
        "--command-property", f"metadata.max.age.ms={REFRESH_MS}", "--command-property", "linger.ms=0",
    )  # fmt: skip
    lines = b"\n".join(VALUES).decode()
    ended = await asyncio.to_thread(subprocess.run, command, input=lines, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    "client", [librdkafka, *(pytest.param(each, marks=pytest.mark.long) for each in (aiokafka, kafka_python, java))]
)
async def test_no_client_sends_a_batch_again_before_the_earlier_ones_have_an_answer(
    monkeypatch: pytest.MonkeyPatch, client: Callable[[str], Any]
) -> None:
    async with pair() as (bootstrap, former, new):
        # The clocks of these brokers are years behind those of the clients.
        topic = await create(former, "t", message_timestamp_after_max_ms=str((1 << 63) - 1))
        held: list[tuple[asyncio.Future[list[BatchOutcome]], int]] = []
        arrived: list[int] = []
        parse = record_batch.parse

        def hold(batches: Sequence[Append]) -> "asyncio.Future[list[BatchOutcome]]":
            held.append((asyncio.get_running_loop().create_future(), len(batches)))
            return held[-1][0]

        def reject(batches: Sequence[Append]) -> "asyncio.Future[list[BatchOutcome]]":
            rejected: asyncio.Future[list[BatchOutcome]] = asyncio.get_running_loop().create_future()
            rejected.set_result([AGAIN] * len(batches))
            return rejected

        def noted(data: memoryview) -> Batch:
            batch = parse(data)
            arrived.append(batch.base_sequence)
            return batch

        def lead(asked: Asked) -> None:
            leader = asked.broker.membership.lease.node
            monkeypatch.setattr(metadata, "leaders", lambda *_: (leader,))
            monkeypatch.setattr(metadata, "replicas", lambda *_: ((leader,),))

        lead(former)
        with monkeypatch.context() as patched:
            patched.setattr(former.broker.writer, "append", hold)
            patched.setattr(new.broker.writer, "append", reject)
            patched.setattr(record_batch, "parse", noted)
            sending = asyncio.create_task(client(bootstrap))
            async with asyncio.timeout(240):
                while not held and not sending.done():
                    await asyncio.sleep(0.01)
            lead(new)
            await asyncio.sleep(QUIET_SECONDS)
            assert sorted(arrived) == sorted(set(arrived))
        for future, count in held:
            future.set_result([AGAIN] * count)
        await sending
        (state,) = await new.broker.metadata_store.log.states([Partition(topic, 0)])
        assert state is not None
        assert state.high_watermark == len(VALUES)
