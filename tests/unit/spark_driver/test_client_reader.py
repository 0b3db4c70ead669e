"""Tasks read with librdkafka: when brokers count as silent."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from firn.model.errors import UnavailableError
from firn_spark.kafka import client_reader
from firn_spark.kafka.client_reader import Slice, client_records
from firn_spark.kafka.clients import STALL_SECONDS


class Message:
    """A record of partition 0."""

    def __init__(self, offset: int, value: bytes = b"x") -> None:
        self._offset, self._value = offset, value

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def error(self) -> None:
        return None

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return self._value

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (1, 1_700_000_000_000)


class Brokers:
    """Brokers that answer each ``consume`` with the next messages after ``seconds``, then with none."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.seconds = 0.0
        self.answers: list[list[Message]] = []

    def monotonic(self) -> float:
        return self.now

    def consume(self, most: int, timeout: float) -> list[Message]:
        if self.answers:
            self.now += self.seconds
            return self.answers.pop(0)
        self.now += timeout
        return []

    def assign(self, partitions: object) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(client_reader, "KafkaConsumer", lambda *_, **__: made)
    monkeypatch.setattr(client_reader, "time", SimpleNamespace(monotonic=made.monotonic))
    monkeypatch.setattr(client_reader, "BATCH_RECORDS", 2)
    return made


def landed_slowly(brokers: Brokers, batches: Iterator[Any]) -> list[int]:
    """Return the offsets in ``batches``. The landing of each takes longer than brokers may be silent."""
    offsets: list[int] = []
    for batch in batches:
        offsets += batch.column("offset").to_pylist()
        brokers.now += 2 * STALL_SECONDS
    return offsets


def test_silent_brokers_are_reported(brokers: Brokers) -> None:
    brokers.answers = [[Message(0)]]
    with pytest.raises(UnavailableError, match="orders, partition 0: no record and no end"):
        list(client_records({}, [Slice("orders", 0, 0, 2)]))
    assert brokers.now == pytest.approx(1000 + STALL_SECONDS, abs=1)


def test_a_slow_landing_is_no_silence_of_the_brokers(brokers: Brokers) -> None:
    brokers.answers = [[Message(0), Message(1)], [Message(2), Message(3)], [Message(4), Message(5)]]
    assert landed_slowly(brokers, client_records({}, [Slice("orders", 0, 0, 6)])) == list(range(6))


def test_a_slow_batch_restarts_the_wait_for_brokers(brokers: Brokers) -> None:
    brokers.answers = [[Message(0), Message(1)], [], [Message(2), Message(3)], [], [Message(4)]]
    assert landed_slowly(brokers, client_records({}, [Slice("orders", 0, 0, 5)])) == list(range(5))


def test_large_records_come_in_batches_of_their_size(brokers: Brokers) -> None:
    large = b"x" * (16 * 1024 * 1024)
    brokers.answers = [[Message(0, large), Message(1, large)], [], [Message(2)]]
    assert landed_slowly(brokers, client_records({}, [Slice("orders", 0, 0, 3)])) == list(range(3))


def test_records_that_arrived_in_time_count_after_a_late_poll(brokers: Brokers) -> None:
    brokers.answers = [[Message(0)], [Message(1)], [Message(2)]]
    brokers.seconds = 2 * STALL_SECONDS
    read = client_records({}, [Slice("orders", 0, 0, 3)])
    assert [offset for batch in read for offset in batch.column("offset").to_pylist()] == [0, 1, 2]
