"""Clients go on without an error after the coordinator has forgotten their producer."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Message, Producer
from kafka import KafkaProducer

from tests.servers.firn_broker import FirnBroker, embedded
from tests.servers.process import await_true


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[FirnBroker]:
    with embedded(
        tmp_path / "data", FIRN_BROKER_UPKEEP__PRODUCER_SECONDS="0.5", FIRN_BROKER_UPKEEP__INTERVAL_SECONDS="0.2"
    ) as server:
        yield server


class Sender:
    """An idempotent producer. It sends a window of records and returns their offsets."""

    def __init__(self, producer: Any) -> None:
        self.producer = producer

    async def send(self, count: int) -> list[int]:
        raise NotImplementedError


class Librdkafka(Sender):
    async def send(self, count: int) -> list[int]:
        offsets: list[int] = []

        def delivered(error: object, message: Message) -> None:
            assert error is None, error
            offset = message.offset()
            assert offset is not None
            offsets.append(offset)

        for _ in range(count):
            self.producer.produce("t", b"v", on_delivery=delivered)
        assert not self.producer.flush(60)
        return offsets


class Aiokafka(Sender):
    async def send(self, count: int) -> list[int]:
        return [(await future).offset for future in [await self.producer.send("t", b"v") for _ in range(count)]]


class KafkaPython(Sender):
    async def send(self, count: int) -> list[int]:
        return [future.get(60).offset for future in [self.producer.send("t", b"v") for _ in range(count)]]


@asynccontextmanager
async def sender(client: str, bootstrap: str) -> AsyncIterator[Sender]:
    if client == "librdkafka":
        yield Librdkafka(
            Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "batch.num.messages": 1})
        )
    elif client == "aiokafka":
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
            yield Aiokafka(producer)
    else:
        with closing(KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, batch_size=0)) as producer:
            yield KafkaPython(producer)


@pytest.mark.parametrize("client", ["librdkafka", "aiokafka", "kafka-python"])
async def test_a_silent_producer_goes_on(forgetful: FirnBroker, tmp_path: Path, client: str) -> None:
    async with sender(client, forgetful.bootstrap) as silent:
        assert await silent.send(3) == [0, 1, 2]
        with closing(sqlite3.connect(tmp_path / "data" / "coordinator.db")) as db:
            await_true("the producer forgotten", lambda: db.execute("SELECT count(*) FROM producer").fetchone() == (0,))
        assert await silent.send(3) == [3, 4, 5]
