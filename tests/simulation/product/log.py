"""The log of a topic: records with serial numbers, as clients wrote them, and the driver's client for it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from firn.model.conditions import Reason
from firn.model.errors import FirnError, NotReadyError, UnavailableError
from firn.model.jobs import KafkaConnection
from firn_spark.kafka.admin import LogEnd, TopicInfo
from tests.fakes.lake.java import Gateway
from tests.fakes.topics import FakeTopics
from tests.gen import NOW

PROFILE = "classic"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """A record. ``bad`` records do not fit the schema."""

    serial: int
    at: float
    bad: bool = False


@dataclass
class Partition:
    """A partition: offsets from ``start`` to ``end``, some of which have no record."""

    start: int = 0
    end: int = 0
    records: dict[int, Record] = field(default_factory=dict)
    """Records that readers get."""
    ever: dict[int, Record] = field(default_factory=dict)
    """The records that have to be in the table when their offsets have landed."""
    cut_from: int = 0
    """Highest end from which the log was cut back. Another record below it lands, or a later commit records it as lost:
    that depends on when the driver looks at the log."""
    epochs: list[int] = field(default_factory=lambda: [0])
    """First offset of each leader epoch. Every cut elects a new leader."""

    def first_since(self, at: float) -> int:
        """Return the first offset whose record was written at ``at`` or later; -1 if there is none."""
        return min((offset for offset, record in self.records.items() if record.at >= at), default=-1)

    def diverges(self, end: LogEnd) -> int | None:
        """Return the first offset before ``end`` at which the log differs from that of the epoch of ``end``."""
        if end.epoch is None:
            return None
        first = min(self.epochs[end.epoch + 1 :], default=end.offset)
        return first if first < end.offset else None


class SimulatedLog:
    """The records of all topics that ever existed, by topic id. `FakeTopics` knows which topics exist."""

    def __init__(self) -> None:
        self.topics = FakeTopics()
        self.partitions: dict[str, list[Partition]] = {}
        self.places: dict[int, tuple[str, int, int]] = {}
        """Serial number -> topic id, partition and offset."""

    def exists(self, topic_id: str) -> bool:
        """Return whether a topic has this id now."""
        return any(state.topic_id == topic_id for state in self.topics.topics.values())

    def of(self, topic: str) -> tuple[str, list[Partition]] | None:
        """Return id and partitions of a topic that exists."""
        state = self.topics.topics.get((PROFILE, topic))
        if state is None:
            return None
        partitions = self.partitions.setdefault(state.topic_id, [])
        while len(partitions) < state.partitions:
            partitions.append(Partition())
        return state.topic_id, partitions

    def append(self, topic: str, partition: int, now: float, *, bad: bool = False, hole: bool = False) -> None:
        """Append a record, or an offset without a record, as a transaction's marker is."""
        found = self.of(topic)
        if found is None:
            return
        topic_id, partitions = found
        number = partition % len(partitions)
        part = partitions[number]
        if not hole:
            record = Record(len(self.places) + 1, now, bad)
            self.places[record.serial] = (topic_id, number, part.end)
            part.records[part.end] = record
            if part.end >= part.cut_from:
                part.ever[part.end] = record
        part.end += 1

    def delete_before(self, topic: str, partition: int, share: float) -> None:
        """Apply retention: delete a share of the partition's records, the oldest."""
        found = self.of(topic)
        if found is None:
            return
        part = found[1][partition % len(found[1])]
        part.start += int((part.end - part.start) * share)
        for offset in [offset for offset in part.records if offset < part.start]:
            del part.records[offset]

    def cut_back(self, topic: str, partition: int, count: int) -> None:
        """Lose the newest records, as brokers do that elect an unclean leader."""
        found = self.of(topic)
        if found is None:
            return
        part = found[1][partition % len(found[1])]
        part.cut_from = max(part.cut_from, part.end)
        part.end = max(part.start, part.end - count)
        part.epochs.append(part.end)
        for offset in [offset for offset in part.records if offset >= part.end]:
            del part.records[offset]
            # A record that the brokers lost before it landed is not the driver's.
            part.ever.pop(offset, None)


class LogClient:
    """`firn_spark.kafka.admin.Kafka` on a simulated log."""

    def __init__(self, log: SimulatedLog, gateway: Gateway) -> None:
        self._log = log
        self._gateway = gateway
        self.connection = KafkaConnection(bootstrap_servers="kafka:9092")

    def cluster_id(self) -> str:
        """Return the id of the cluster."""
        return self._gateway.request("kafka.cluster", lambda: "cluster-1")

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo | FirnError]:
        """Describe topics."""
        return self._gateway.request("kafka.topics", lambda: {name: self._describe(name) for name in names})

    def _describe(self, name: str) -> TopicInfo | FirnError:
        found = self._log.of(name)
        if found is None:
            return NotReadyError(f"profile {PROFILE} (kafka:9092), topic {name}: Unknown topic")
        return TopicInfo(found[0], tuple(range(len(found[1]))))

    def ends(self, topics: Mapping[str, Sequence[int]]) -> dict[str, dict[int, int] | FirnError]:
        """Return the ends of partitions."""
        return self._offsets("kafka.ends", topics, lambda part: part.end)

    def starts(self, topics: Mapping[str, Sequence[int]]) -> dict[str, dict[int, int] | FirnError]:
        """Return the log starts of partitions."""
        return self._offsets("kafka.starts", topics, lambda part: part.start)

    def since(self, topics: Mapping[str, Sequence[int]], timestamp_ms: int) -> dict[str, dict[int, int] | FirnError]:
        """Return the first offsets of partitions with a record that is not older than ``timestamp_ms``."""
        at = timestamp_ms / 1000 - NOW.timestamp()
        return self._offsets("kafka.ends", topics, lambda part: part.first_since(at))

    def log_ends(self, topics: Mapping[str, Sequence[int]]) -> dict[str, dict[int, LogEnd] | FirnError]:
        """Return the ends of partitions with the epochs of their leaders."""
        return self._offsets("kafka.ends", topics, lambda part: LogEnd(part.end, len(part.epochs) - 1))

    def divergences(self, topics: Mapping[str, Mapping[int, LogEnd]]) -> dict[str, dict[int, int] | FirnError]:
        """Return the first offsets at which logs differ from those of earlier leaders, where they do."""

        def answer(name: str, ends: Mapping[int, LogEnd]) -> dict[int, int] | FirnError:
            found = self._log.of(name)
            if found is None or any(number >= len(found[1]) for number in ends):
                return _unknown(name)
            offsets = {number: found[1][number].diverges(end) for number, end in ends.items()}
            return {number: offset for number, offset in offsets.items() if offset is not None}

        def answers() -> dict[str, dict[int, int] | FirnError]:
            return {name: answer(name, ends) for name, ends in topics.items()}

        return self._gateway.request("kafka.divergences", answers) if any(topics.values()) else answers()

    def _offsets(
        self, call: str, topics: Mapping[str, Sequence[int]], offset: Callable[[Partition], T]
    ) -> dict[str, dict[int, T] | FirnError]:
        def answer(name: str, wanted: Sequence[int]) -> dict[int, T] | FirnError:
            found = self._log.of(name)
            if found is None or any(number >= len(found[1]) for number in wanted):
                return _unknown(name)
            return {number: offset(found[1][number]) for number in wanted}

        return self._gateway.request(call, lambda: {name: answer(name, parts) for name, parts in topics.items()})


def _unknown(topic: str) -> FirnError:
    return NotReadyError(f"profile {PROFILE} (kafka:9092), topic {topic}: Unknown topic or partition")


def read(log: SimulatedLog, topic: str, partition: int, start: int, end: int) -> dict[int, Record]:
    """Return the records of a range by offset, as a consumer of a task reads them. Raises FirnError."""
    found = log.of(topic)
    if found is None or partition >= len(found[1]):
        raise UnavailableError(f"topic {topic}, partition {partition}: unknown", reason=Reason.BROKER_UNREACHABLE)
    part = found[1][partition]
    if start < part.start:
        raise NotReadyError(f"topic {topic}, partition {partition}: the log no longer has offset {start}")
    if end > part.end:
        raise UnavailableError(f"topic {topic}, partition {partition}: no record within 60 s")
    return {offset: part.records[offset] for offset in range(start, end) if offset in part.records}
