"""Applications that produce and consume without a pause, with the mounted Secret of a TopicUser.

They do what docs/how-to/users.md asks of an application: when the mounted file changes, they end the work of their client, close it, and
continue with a client of the new file."""

import itertools
import json
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.apiserver import ApiServer
from tests.integration.operator.mounts import secret_data

FILE = "librdkafka.json"
PAUSE = 0.02
"""Seconds between two records of a sender."""
REFUSALS = frozenset({
    KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
})  # fmt: skip
"""Errors after which a client does not continue by itself. After all others, such as those of a broker that starts again, it does."""
PATIENCE = 240
"""Seconds after which a record counts as not sent."""


class Application(ABC):
    """A thread with a client of Kafka. ``problems`` has each error that an application would report."""

    def __init__(self, secret: Path, topic: str) -> None:
        self.problems: list[str] = []
        self.clients: list[str] = []
        """The name of each client's user, the newest last."""
        self._file, self.topic = secret / FILE, topic
        self._text = ""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # The test reports it, whatever it is.
            self.problems.append(repr(error))

    @abstractmethod
    def _run(self) -> None:
        """Work until the end."""

    def _changed(self) -> bool:
        """Return whether the mounted file is not that of the client."""
        return self._file.read_text() != self._text

    def _settings(self) -> dict[str, Any]:
        """Return the settings in the mounted file."""
        self._text = self._file.read_text()
        settings: dict[str, Any] = json.loads(self._text)
        self.clients.append(settings["sasl.username"])
        return settings | {"error_cb": self._reported, "log_level": 0}

    def _reported(self, error: KafkaError) -> None:
        # A broker that stops may close a connection during its authentication. librdkafka connects again by itself.
        closed = error.code() == KafkaError._AUTHENTICATION and "Broker transport failure" in error.str()
        if (error.code() in REFUSALS and not closed) or error.fatal():
            self.problems.append(str(error))

    def uses(self, api: ApiServer, secret: str) -> bool:
        """Return whether the client has the present content of the Secret."""
        return self._text == secret_data(api, "demo", secret)[FILE]

    def stop(self) -> None:
        """End the thread, and check that it met no problem."""
        self._end.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        assert self.problems == []


class Sender(Application):
    """Produces numbers, in order."""

    def __init__(self, secret: Path, topic: str) -> None:
        self.sent = 0
        self.acknowledged = 0
        super().__init__(secret, topic)

    def _run(self) -> None:
        producer = self._connected()
        while not self._end.wait(PAUSE):
            if self._changed():
                self._flush(producer)
                producer = self._connected()
            producer.produce(self.topic, b"%d" % self.sent, on_delivery=self._delivered)
            self.sent += 1
            producer.poll(0)
        self._flush(producer)

    def _connected(self) -> Producer:
        return Producer(self._settings() | {"enable.idempotence": True, "message.timeout.ms": PATIENCE * 1000})

    def _flush(self, producer: Producer) -> None:
        if left := producer.flush(PATIENCE):
            self.problems.append(f"{left} records were not sent")

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.problems.append(f"a record failed: {error}")
        self.acknowledged += error is None


class Receiver(Application):
    """Consumes with a group. It keeps its position with its results, and commits it, too.

    A group may forget a member while its coordinator moves to another broker. Kafka then assigns the partitions again from the last commit, and
    the application continues at its own position."""

    def __init__(self, secret: Path, topic: str, group: str) -> None:
        self.received: dict[int, list[tuple[int, int]]] = {}
        """Partition -> offset and value of each record, in the order in which the application got them."""
        self.commits = 0
        self._group = group
        super().__init__(secret, topic)

    def _run(self) -> None:
        consumer = self._connected()
        while not self._end.is_set():
            if self._changed():
                consumer.close()
                consumer = self._connected()
            messages = consumer.consume(1000, 0.2)
            for message in messages:
                self._take(message)
            if messages:
                self._commit(consumer)
        consumer.close()

    def _connected(self) -> Consumer:
        settings = {"group.id": self._group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer(self._settings() | settings)
        consumer.subscribe([self.topic], on_assign=self._assigned)
        return consumer

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            records = self.received.get(each.partition)
            if records:
                each.offset = records[-1][0] + 1
        consumer.assign(partitions)

    def _take(self, message: Message) -> None:
        if (error := message.error()) is not None:
            self._reported(error)
            return
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        assert partition is not None
        assert offset is not None
        self.received.setdefault(partition, []).append((offset, int(value)))

    def _commit(self, consumer: Consumer) -> None:
        """Commit the position. The group may be without a coordinator for a while, or may have forgotten the member."""
        try:
            consumer.commit(asynchronous=False)
            self.commits += 1
        except KafkaException as error:
            self._reported(error.args[0])

    @property
    def count(self) -> int:
        return sum(map(len, self.received.values()))

    def values(self) -> list[int]:
        """Return all values. Checks that each partition came in order, and no record twice."""
        for records in self.received.values():
            assert all(one[0] < other[0] and one[1] < other[1] for one, other in itertools.pairwise(records))
        return sorted(value for records in self.received.values() for _, value in records)
