"""Brokers on loopback that answer with what a test prepared. They check each request by Kafka's message definitions."""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from firn.records.message_reader import decode
from firn.records.message_writer import encode
from tests.servers.process import free_port

CLIENT = b"firn"
"""The port may have belonged to a server that ended. Its clients still connect, and would get answers for others."""
FETCH, METADATA, API_VERSIONS = 1, 3, 18
VERSIONS = {FETCH: (4, 17), METADATA: (0, 13), API_VERSIONS: (0, 4)}


@dataclass(frozen=True)
class WantedPartition:
    """A partition of a Fetch request."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int


@dataclass(frozen=True)
class WantedTopic:
    """A topic of a Fetch request."""

    topic: str
    partitions: tuple[WantedPartition, ...]


@dataclass(frozen=True)
class Wanted:
    """A Fetch request."""

    isolation_level: int
    topics: tuple[WantedTopic, ...]


Answer = Callable[["Broker", WantedPartition], Mapping[str, Any] | None]
"""Makes the part of an answer for a partition; None drops the connection."""


def records(data: bytes, aborted: tuple[tuple[int, int], ...] = ()) -> Answer:
    """Answer with these bytes of the log."""
    return lambda _, part: _partition(part, records=data, aborted=aborted)


def error(code: int) -> Answer:
    """Answer with an error."""
    return lambda _, part: _partition(part, code=code)


def disconnect(*_: object) -> None:
    """Drop the connection."""


def _partition(
    part: WantedPartition, code: int = 0, records: bytes = b"", aborted: tuple[tuple[int, int], ...] = ()
) -> dict[str, Any]:
    return {
        "partition_index": part.partition,
        "error_code": code,
        "high_watermark": 1_000,
        "last_stable_offset": 1_000,
        "log_start_offset": 0,
        "aborted_transactions": [{"producer_id": producer, "first_offset": first} for producer, first in aborted],
        "preferred_read_replica": -1,
        "records": records,
    }


class Broker(AbstractContextManager["Broker"]):
    """Node ``node`` of a cluster. ``script`` has the next answers of each partition; with none left, it has no records."""

    def __init__(self, node: int, cluster: "list[Broker]") -> None:
        self.node = node
        self.port = free_port()
        self.script: dict[int, deque[Answer]] = {}
        self.leaders: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.wanted: list[WantedPartition] = []
        self.versions: dict[int, tuple[int, int]] = dict(VERSIONS)
        self.throttle = timedelta(0)
        self.silent = threading.Event()
        self.drip = 0.0
        """Seconds between two bytes of an answer to Fetch; 0 for an answer at once."""
        self._cluster = cluster
        cluster.append(self)
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # close alone lets a waiting accept() take one more connection
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as requests:
            while size := requests.read(4):
                frame = requests.read(int.from_bytes(size, "big"))
                api, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
                body = 10 + int.from_bytes(frame[8:10], "big")
                if frame[10:body] != CLIENT:
                    return
                flexible = (api, version) >= (METADATA, 9) or (api == FETCH and version >= 12)
                answer = self._answer(api, version, memoryview(frame), body + flexible)
                if answer is None:
                    return
                if self.silent.is_set():
                    continue
                head = frame[4:8] + (b"\0" if flexible and api != API_VERSIONS else b"")
                whole = (len(head) + len(answer)).to_bytes(4, "big") + head + answer
                if self.drip and api == FETCH:
                    for place in range(len(whole)):
                        connection.sendall(whole[place : place + 1])
                        time.sleep(self.drip)
                    continue
                connection.sendall(whole)

    def _answer(self, api: int, version: int, frame: memoryview, place: int) -> bytes | None:
        if api == API_VERSIONS:
            keys = [
                {"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in self.versions.items()
            ]
            return encode(api, version, {"error_code": 0, "api_keys": keys})
        if api == METADATA:
            return encode(api, version, self._metadata())
        request = decode(Wanted, api, version, frame, place)
        assert request.isolation_level == 1
        topics = []
        for topic in request.topics:
            parts = [self._part(part) for part in topic.partitions]
            if any(part is None for part in parts):
                return None
            topics.append({"topic": topic.topic, "partitions": parts})
        throttled, self.throttle = self.throttle, timedelta(0)
        responses = [] if throttled else topics
        return encode(
            api, version, {"throttle_time": throttled, "error_code": 0, "session_id": 0, "responses": responses}
        )

    def _part(self, part: WantedPartition) -> Mapping[str, Any] | None:
        self.wanted.append(part)
        script = self.script.get(part.partition)
        if self.throttle or not script:
            return _partition(part)
        return script.popleft()(self, part)

    def _metadata(self) -> dict[str, Any]:
        brokers = [{"node_id": one.node, "host": "127.0.0.1", "port": one.port, "rack": None} for one in self._cluster]
        partitions = [
            {
                "error_code": 0, "partition_index": part, "leader_id": leader, "leader_epoch": self.epochs.get(part, 0),
                "replica_nodes": [], "isr_nodes": [], "offline_replicas": [],
            }
            for part, leader in self.leaders.items()
        ]  # fmt: skip
        topic = {
            "error_code": 0, "name": "orders", "topic_id": None, "is_internal": False, "partitions": partitions,
            "topic_authorized_operations": 0,
        }  # fmt: skip
        return {"brokers": brokers, "cluster_id": "c", "controller_id": 1, "topics": [topic]}
