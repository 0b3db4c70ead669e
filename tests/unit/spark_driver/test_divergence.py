"""The first event of a partition shows where its log differs from an earlier log."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from firn.model.errors import AccessDeniedError, UnavailableError
from firn.model.jobs import KafkaConnection
from firn_spark.kafka import admin, divergence
from firn_spark.kafka.admin import Kafka, LogEnd


class Message:
    def __init__(self, partition: int, offset: int, error: int | None = None) -> None:
        self._partition, self._offset, self._error = partition, offset, error

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return KafkaError(self._error) if self._error is not None else None


class Consumer:
    """A consumer that gives these messages, one at a time."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = list(messages)
        self.assigned: list[tuple[int, int, int | None]] = []
        self.closed = False

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self.assigned = [(place.partition, place.offset, place.leader_epoch) for place in places]

    def consume(self, most: int, timeout: float) -> list[Message]:
        return [self.messages.pop(0)] if self.messages else []

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    monkeypatch.setattr(admin, "REQUEST_SECONDS", 0.01)
    return Kafka("classic", KafkaConnection(bootstrap_servers="127.0.0.1:1"))


def answers(kafka: Kafka, monkeypatch: pytest.MonkeyPatch, consumer: Consumer, ends: Mapping[int, LogEnd]) -> Any:
    monkeypatch.setattr(divergence, "Consumer", lambda config, logger: consumer)
    answer = kafka.divergences({"orders": ends})["orders"]
    assert consumer.closed
    return answer


END = KafkaError._PARTITION_EOF


@pytest.mark.parametrize(
    ("event", "found"),
    [
        pytest.param(Message(0, 7), {0: 7}, id="another record"),
        pytest.param(Message(0, 7, END), {0: 7}, id="the end of a log that is still short"),
        pytest.param(Message(0, 10), {}, id="the next record"),
        pytest.param(Message(0, 10, END), {}, id="the same end"),
        pytest.param(Message(0, 15), {}, id="a later record, because the log begins there or was compacted"),
    ],
)
def test_an_event_before_the_earlier_end_is_a_difference(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, event: Message, found: Mapping[int, int]
) -> None:
    consumer = Consumer([event, Message(0, 8)])
    assert answers(kafka, monkeypatch, consumer, {0: LogEnd(10, 3)}) == found
    assert consumer.assigned == [(0, 10, 3)]


def test_only_partitions_with_a_known_epoch_are_asked(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Consumer([Message(1, 4)])
    assert answers(kafka, monkeypatch, consumer, {0: LogEnd(10, None), 1: LogEnd(10, 0)}) == {1: 4}
    assert consumer.assigned == [(1, 10, 0)]


def test_a_leader_that_does_not_answer_is_no_difference(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = answers(kafka, monkeypatch, Consumer([Message(1, 4)]), {0: LogEnd(10, 3), 1: LogEnd(10, 3)})
    assert isinstance(answer, UnavailableError)
    assert "topic orders, partition 0" in str(answer)


def test_denied_access_is_reported(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = Message(0, -1001, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert isinstance(answers(kafka, monkeypatch, Consumer([denied]), {0: LogEnd(10, 3)}), AccessDeniedError)
