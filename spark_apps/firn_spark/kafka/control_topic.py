"""Read the committed records of a topic between given offsets, such as the control topic of a sink."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from firn_spark.kafka.clients import silent_logger

BATCH = 500


def values(
    config: Mapping[str, Any], topic: str, starts: Mapping[int, int], ends: Mapping[int, int], seconds: float
) -> Iterator[bytes]:
    """Yield the values of the records of committed transactions from ``starts`` to ``ends``, which are last stable offsets.

    Raises KafkaException if a partition has an error, or if no record arrives for so many seconds.
    """
    waiting = {part: end for part, end in ends.items() if starts[part] < end}
    consumer = Consumer(
        {
            **config,
            # A member without a subscription joins no group, and commits nothing.
            "group.id": "firn",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
        },
        logger=silent_logger(),
    )
    try:
        consumer.assign([TopicPartition(topic, part, starts[part]) for part in waiting])
        deadline = time.monotonic() + seconds
        while waiting:
            messages = consumer.consume(BATCH, timeout=0.5)
            if messages:
                deadline = time.monotonic() + seconds
            elif time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            for message in messages:
                part, offset, error = message.partition() or 0, message.offset() or 0, message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if part in waiting and offset >= waiting[part]:
                    del waiting[part]
                elif error is None and part in waiting:
                    yield message.value() or b""
    finally:
        consumer.close()
