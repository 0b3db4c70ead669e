"""The first difference between a log and the log of an earlier leader.

Offsets alone do not show it. The leader knows at which offset each epoch of leaders began (KIP-101, KIP-320), and librdkafka asks
it if a partition is assigned with an epoch: if the epoch ended before the assigned offset, the consumer continues at that end.
"""

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from firn_spark.kafka.clients import silent_logger

Place = tuple[str, int]
"""Topic and partition."""


def find_divergences(
    config: Mapping[str, Any], places: Mapping[Place, tuple[int, int]], seconds: float
) -> tuple[dict[Place, int], dict[Place, KafkaError]]:
    """Return the first offset that differs, where one does, and the errors of partitions without an answer.

    ``places`` has the end of the earlier log and the epoch of its leader.
    """
    consumer = Consumer(
        {
            **config,
            "group.id": "firn",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
            # For positions before the log's start, which show no difference.
            "auto.offset.reset": "latest",
            "fetch.wait.max.ms": 10,
            "fetch.error.backoff.ms": 100,
            "queued.min.messages": 1,
            "max.partition.fetch.bytes": 1,
        },
        logger=silent_logger(),
    )
    try:
        consumer.assign([TopicPartition(*place, end, leader_epoch=epoch) for place, (end, epoch) in places.items()])
        return _first_events(consumer, places, time.monotonic() + seconds)
    finally:
        consumer.close()


def _first_events(
    consumer: Consumer, places: Mapping[Place, tuple[int, int]], deadline: float
) -> tuple[dict[Place, int], dict[Place, KafkaError]]:
    """Compare the first record or end of each partition with the assigned offset."""
    waiting = dict(places)
    found: dict[Place, int] = {}
    failed: dict[Place, KafkaError] = {}
    while waiting and time.monotonic() < deadline:
        done = []
        for message in consumer.consume(len(waiting), timeout=0.2):
            place, offset, error = (message.topic() or "", message.partition() or 0), message.offset(), message.error()
            if place not in waiting:
                continue
            end, _ = waiting.pop(place)
            done.append(TopicPartition(*place))
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                failed[place] = error
            elif offset is not None and 0 <= offset < end:
                found[place] = offset
        if done and waiting:
            consumer.incremental_unassign(done)
    return found, {**failed, **dict.fromkeys(waiting, KafkaError(KafkaError._TIMED_OUT))}
