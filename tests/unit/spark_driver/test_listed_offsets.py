"""Offsets of partitions as the driver's Kafka client returns them, with errors by topic."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from firn.model.errors import NotReadyError, UnavailableError
from firn.model.jobs import KafkaConnection
from firn_spark.kafka.admin import Kafka, LogEnd

ASKED = {"orders": (0, 1), "payments": (0,)}


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    client = Kafka("classic", KafkaConnection(bootstrap_servers="127.0.0.1:1"))
    yield client
    client.close()


def answer(kafka: Kafka, monkeypatch: pytest.MonkeyPatch, found: dict[tuple[str, int], Any]) -> None:
    """Let the brokers answer the next requests with ``found``: an offset and an epoch, or an error."""

    def result(value: Any) -> Any:
        return value if isinstance(value, KafkaError) else SimpleNamespace(offset=value[0], leader_epoch=value[1])

    answers = {TopicPartition(*place): result(value) for place, value in found.items()}
    monkeypatch.setattr(kafka, "_request_offsets", lambda *_: answers)


def test_each_partition_has_its_offset_and_epoch(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(kafka, monkeypatch, {("orders", 0): (5, 1), ("orders", 1): (7, -1), ("payments", 0): (0, None)})
    assert kafka.log_ends(ASKED) == {
        "orders": {0: LogEnd(5, 1), 1: LogEnd(7, None)},
        "payments": {0: LogEnd(0, None)},
    }
    assert kafka.ends(ASKED) == {"orders": {0: 5, 1: 7}, "payments": {0: 0}}


def test_an_error_of_a_partition_is_that_of_its_topic_only(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    answer(kafka, monkeypatch, {("orders", 0): (5, 1), ("orders", 1): missing, ("payments", 0): (3, 1)})
    found = kafka.ends(ASKED)
    assert isinstance(found["orders"], NotReadyError)
    assert found["payments"] == {0: 3}


def test_an_offset_below_zero_is_no_end_of_a_log(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(kafka, monkeypatch, {("orders", 0): (-1001, None), ("orders", 1): (7, 1), ("payments", 0): (3, 1)})
    for found in (kafka.ends(ASKED), kafka.log_ends(ASKED)):
        problem = found["orders"]
        assert isinstance(problem, UnavailableError)
        assert "topic orders, partition 0: the brokers returned no offset" in str(problem)


def test_an_error_of_the_request_is_that_of_each_topic(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(kafka, "_request_offsets", refuse)
    found = kafka.ends(ASKED)
    assert found.keys() == ASKED.keys()
    assert all(isinstance(error, UnavailableError) for error in found.values())


def test_an_answer_without_a_partition_is_no_answer(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(kafka, monkeypatch, {("orders", 0): (5, 1), ("payments", 0): (3, 1)})
    with pytest.raises(UnavailableError, match="1 of 3 partitions"):
        kafka.ends(ASKED)


def test_a_request_for_no_partition_asks_nothing(kafka: Kafka) -> None:
    assert kafka.ends({"orders": ()}) == {"orders": {}}
