"""The brokers of a profile: connections that are kept, and the leaders of partitions."""

import time
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, UnavailableError
from firn_spark.worker.fetching import answers
from firn_spark.worker.fetching.access import GRANT_HINT, Access
from firn_spark.worker.fetching.buffers import Buffers
from firn_spark.worker.fetching.connection import METADATA, Connection

TRUST_SECONDS = 1.0
"""Seconds between two changes of the broker that names leaders, because each one opens a connection."""
Partition = tuple[str, int]
"""Topic and number."""
Leader = tuple[int, int]
"""Node and leader epoch, which is -1 if the broker does not say it."""


class Cluster:
    """Connections to brokers, by node. Not thread-safe."""

    def __init__(self, access: Access, seconds: float) -> None:
        """Use ``access``. Answers of brokers may take ``seconds``."""
        self._access = access
        self._seconds = seconds
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, Connection] = {}
        self._any: Connection | None = None
        self._turn = 0
        """Number of changes of the broker that is asked for leaders first."""
        self._trusted_until = 0.0
        self._epochs: dict[Partition, int] = {}
        """The newest leader epoch of each partition. A broker that is cut off from the others names an earlier leader."""
        self._buffers = Buffers()
        """For the answers of all brokers, because a reader receives them one after the other."""

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._any is not None:
            self._any.close()
            self._any = None

    def connection(self, node: int) -> Connection:
        """Return the connection to a node that `leaders` named. Raises OSError and AccessDeniedError."""
        if node not in self._connections:
            self._connections[node] = self._connect(*self._addresses[node])
        return self._connections[node]

    def _connect(self, host: str, port: int) -> Connection:
        return Connection(host, port, self._access, self._seconds, self._buffers)

    def drop(self, node: int) -> None:
        """Close the connection to a node, because it broke."""
        connection = self._connections.pop(node, None)
        if connection is not None:
            connection.close()

    def doubt(self) -> None:
        """Ask another broker for leaders the next time, unless the last change of this broker is less than `TRUST_SECONDS` old."""
        if time.monotonic() < self._trusted_until:
            return
        self._trusted_until = time.monotonic() + TRUST_SECONDS
        self._turn += 1
        if self._any is not None:
            self._any.close()
            self._any = None

    def leaders(self, partitions: Iterable[Partition]) -> dict[Partition, Leader]:
        """Ask a broker for the leaders of partitions. Those without one are left out.

        Raises UnavailableError if no broker answers, and AccessDeniedError if the brokers refuse the client or a topic.
        """
        wanted = set(partitions)
        metadata = self._metadata(sorted({topic for topic, _ in wanted}))
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers}
        leaders: dict[Partition, Leader] = {}
        for topic in metadata.topics:
            if topic.error_code is ErrorCode.topic_authorization_failed:
                raise AccessDeniedError(f"topic {topic.name}: the brokers deny its metadata; {GRANT_HINT}")
            for part in topic.partitions:
                place = (topic.name or "", part.partition_index)
                known = self._epochs.get(place, -1)
                if place not in wanted or 0 <= part.leader_epoch < known:
                    continue
                self._epochs[place] = max(known, part.leader_epoch)
                if part.leader_id in self._addresses:
                    leaders[place] = (part.leader_id, part.leader_epoch)
        return leaders

    def _to_ask(self) -> list[tuple[str, int]]:
        """Return the configured addresses and those in the last answer about leaders, in the order in which they are asked."""
        known = list(dict.fromkeys((*self._access.addresses, *self._addresses.values())))
        first = self._turn % len(known) if known else 0
        return known[first:] + known[:first]

    def _metadata(self, topics: list[str]) -> answers.Metadata:
        problem: Exception | None = None
        for address in (None, *self._to_ask()):
            try:
                if self._any is None:
                    if address is None:
                        continue
                    self._any = self._connect(*address)
                self._any.send(
                    METADATA,
                    {
                        "topics": [{"topic_id": None, "name": topic} for topic in topics],
                        "allow_auto_topic_creation": False,
                        "include_cluster_authorized_operations": False,
                        "include_topic_authorized_operations": False,
                    },
                )
                metadata, _ = self._any.receive(answers.Metadata)
            except (OSError, UnavailableError) as error:
                problem = error
                if self._any is not None:
                    self._any.close()
                    self._any = None
            else:
                return metadata
        raise UnavailableError(
            f"brokers {self._access.bootstrap_servers}: no broker answers: {problem}; check that they run and are reachable",
            reason=Reason.BROKER_UNREACHABLE,
        ) from None
