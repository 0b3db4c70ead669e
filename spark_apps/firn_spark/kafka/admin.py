"""Requests to a profile's brokers for ids, partitions and offsets of topics. The driver makes them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from firn.client_renewal import Renewal, close
from firn.kafka_clients import NO_TOPIC, kafka_id
from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, FirnError, NotReadyError, UnavailableError
from firn.model.jobs import KafkaConnection
from firn_spark.kafka import control_topic
from firn_spark.kafka.clients import client_config, silent_logger
from firn_spark.kafka.divergence import find_divergences
from firn_spark.kafka.refusals import UNANSWERED, denied, refuses_connection
from firn_spark.worker.fetching.access import GRANT_HINT

log = structlog.get_logger()

REQUEST_SECONDS = 10.0
READ_SECONDS = 30.0
"""Seconds without a record after which a read of records fails."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as its brokers describe it."""

    topic_id: str
    partitions: tuple[int, ...]


class LogEnd(NamedTuple):
    """An end of a log: the leader of ``epoch`` had every record before ``offset``. The epoch is None if it is not
    known."""

    offset: int
    epoch: int | None


class Kafka:
    """The admin client of one profile's brokers. It may be used from several threads; each call takes at most
    `REQUEST_SECONDS`."""

    def __init__(self, profile: str, connection: KafkaConnection) -> None:
        self.profile = profile
        self.connection = connection
        self._denial: KafkaError | None = None
        self._admin = self._connect()
        self._renewal = Renewal()

    def close(self) -> None:
        """Close the client."""
        self._renewal.close()
        close(self._admin)

    def _connect(self) -> AdminClient:
        config: dict[str, Any] = {**client_config(self.connection), "error_cb": self._note}
        return AdminClient(config, logger=silent_logger())

    def _note(self, trouble: KafkaError) -> None:
        # Requests just time out if the brokers refuse the connection. Only this callback reports the refusal.
        if refuses_connection(trouble):
            self._denial = trouble

    def cluster_id(self) -> str:
        """Return the id of the Kafka cluster, empty if the brokers have none or deny it. Raises UnavailableError."""
        # A client of its own, because librdkafka repeats the request for `NO_TOPIC` until the client is closed.
        admin = self._connect()
        try:
            brokers = admin.list_topics(NO_TOPIC, timeout=REQUEST_SECONDS)
        except KafkaException as error:
            if denied(error.args[0]):
                return ""
            raise UnavailableError(
                f"profile {self.profile} ({self.connection.bootstrap_servers}), id of the cluster: {error.args[0].str()}",
                reason=Reason.BROKER_UNREACHABLE,
            ) from error
        finally:
            close(admin)
        return str(brokers.cluster_id or "")

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo | FirnError]:
        """Return id and partitions of each topic, or the error that describes it. Raises UnavailableError if no
        broker answers."""
        if not names:
            return {}
        futures = self._call(
            lambda: self._admin.describe_topics(TopicCollection(sorted(set(names))), request_timeout=REQUEST_SECONDS)
        )
        answers: dict[str, TopicInfo | FirnError] = {}
        for topic, future in futures.items():
            try:
                description = future.result()
            except KafkaException as error:
                answers[topic] = self.translate(error, f"topic {topic}")
                if isinstance(answers[topic], UnavailableError):
                    raise answers[topic] from error  # type: ignore[misc]
                continue
            leaderless = [str(part.id) for part in description.partitions if part.leader is None or part.leader.id < 0]
            if leaderless:
                answers[topic] = UnavailableError(
                    f"topic {topic}: partition {', '.join(leaderless)} has no leader; check that all brokers are running",
                    reason=Reason.BROKER_UNREACHABLE,
                )
            else:
                partitions = tuple(sorted(part.id for part in description.partitions))
                answers[topic] = TopicInfo(kafka_id(description.topic_id), partitions)
        return answers

    def ends(self, topics: Mapping[str, Sequence[int]]) -> dict[str, dict[int, int] | FirnError]:
        """Return the last stable offset of each partition: the end for readers of committed records."""
        return self._offsets(topics, OFFSET_END)

    def log_ends(self, topics: Mapping[str, Sequence[int]]) -> dict[str, dict[int, LogEnd] | FirnError]:
        """Return the last stable offset of each partition with the epoch of its leader."""
        return self._list(topics, OFFSET_END)

    def divergences(self, topics: Mapping[str, Mapping[int, LogEnd]]) -> dict[str, dict[int, int] | FirnError]:
        """Return where the present logs differ from earlier logs, which had the given ends with a known epoch.

        The answer has only the partitions whose log differs before that end, with the first offset that differs.
        """
        places = {
            (topic, part): (end.offset, end.epoch)
            for topic, ends in topics.items()
            for part, end in ends.items()
            if end.epoch is not None
        }
        if not places:
            return {topic: {} for topic in topics}
        found, failed = find_divergences(client_config(self.connection), places, REQUEST_SECONDS)
        answers: dict[str, dict[int, int] | FirnError] = {
            topic: {part: found[topic, part] for part in ends if (topic, part) in found}
            for topic, ends in topics.items()
        }
        for (topic, part), error in failed.items():
            answers[topic] = self.translate(KafkaException(error), f"topic {topic}, partition {part}")
        return answers

    def high_watermarks(self, topics: Mapping[str, Sequence[int]]) -> dict[str, dict[int, int] | FirnError]:
        """Return the end of each partition with the records of open transactions."""
        return self._offsets(topics, OFFSET_END, IsolationLevel.READ_UNCOMMITTED)

    def starts(self, topics: Mapping[str, Sequence[int]]) -> dict[str, dict[int, int] | FirnError]:
        """Return the log start of each partition."""
        return self._offsets(topics, OFFSET_BEGINNING)

    def since(self, topics: Mapping[str, Sequence[int]], timestamp_ms: int) -> dict[str, dict[int, int] | FirnError]:
        """Return each partition's first offset whose record is not older than ``timestamp_ms``; Kafka's -1 if there
        is none."""
        return self._offsets(topics, timestamp_ms)

    def group_members(self, group: str) -> int:
        """Return the number of members of a consumer group; 0 if it does not exist."""
        future = self._call(lambda: self._admin.describe_consumer_groups([group], request_timeout=REQUEST_SECONDS))[
            group
        ]
        try:
            return len(future.result().members)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return 0
            raise self.translate(error, f"consumer group {group}") from error

    def group_offsets(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the committed offsets of a consumer group. Partitions without one are left out.

        Raises UnavailableError if a transaction is about to change them, and the errors of `translate`.
        """
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, part) for part in partitions])
        future = self._call(
            lambda: self._admin.list_consumer_group_offsets(
                [wanted], require_stable=True, request_timeout=REQUEST_SECONDS
            )
        )[group]
        try:
            found = future.result().topic_partitions
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return {}
            raise self.translate(error, f"consumer group {group}") from error
        for each in found:
            if each.error is not None:
                raise self.translate(KafkaException(each.error), f"consumer group {group}, topic {topic}")
        return {each.partition: each.offset for each in found if each.offset >= 0}

    def committed(self, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]) -> Iterator[bytes]:
        """Yield the values of the records of committed transactions from ``starts`` to ``ends`` (`ends`), in any order.

        Raises the errors of `translate`.
        """
        try:
            yield from control_topic.values(client_config(self.connection), topic, starts, ends, READ_SECONDS)
        except KafkaException as error:
            raise self.translate(error, f"topic {topic}") from error

    def _offsets(
        self,
        topics: Mapping[str, Sequence[int]],
        wanted: int,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[str, dict[int, int] | FirnError]:
        return {
            topic: ends if isinstance(ends, FirnError) else {part: end.offset for part, end in ends.items()}
            for topic, ends in self._list(topics, wanted, isolation).items()
        }

    def _list(
        self,
        topics: Mapping[str, Sequence[int]],
        wanted: int,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[str, dict[int, LogEnd] | FirnError]:
        """List offsets: ``wanted`` is `OFFSET_BEGINNING`, `OFFSET_END`, or a timestamp in milliseconds."""
        request = [TopicPartition(topic, part, wanted) for topic, parts in topics.items() for part in parts]
        answers: dict[str, dict[int, LogEnd] | FirnError] = {topic: {} for topic in topics}
        if not request:
            return answers
        try:
            found = self._request_offsets(request, isolation)
        except KafkaException as error:
            return {topic: self.translate(error, f"topic {topic}") for topic in topics}
        if lacking := len(request) - len(found):
            raise UnavailableError(
                f"profile {self.profile} ({self.connection.bootstrap_servers}): "
                f"the brokers did not return the offsets of {lacking} of {len(request)} partitions; check that all brokers are running",
                reason=Reason.BROKER_UNREACHABLE,
            )
        for partition, end in found.items():
            ends = answers[partition.topic]
            if isinstance(ends, FirnError):
                continue
            if isinstance(end, KafkaError):
                subject = f"topic {partition.topic}, partition {partition.partition}"
                answers[partition.topic] = self.translate(KafkaException(end), subject)
            elif end.offset < 0 and wanted in (OFFSET_BEGINNING, OFFSET_END):
                # The client has it for an answer that it could not read. As an end, it would mean that the log lost all records.
                answers[partition.topic] = UnavailableError(
                    f"topic {partition.topic}, partition {partition.partition}: the brokers returned no offset; check that they are running",
                    reason=Reason.BROKER_UNREACHABLE,
                )
            else:
                epoch = end.leader_epoch
                ends[partition.partition] = LogEnd(end.offset, epoch if epoch is not None and epoch >= 0 else None)
        return answers

    def _request_offsets(self, request: list[TopicPartition], isolation: IsolationLevel) -> dict[TopicPartition, Any]:
        """Return the offset or the KafkaError of each partition. Raises KafkaException if the whole request fails."""
        future: Future[dict[TopicPartition, Any]] = Future()
        # AdminClient's own method makes a future for each partition, which takes most of the time of a request.
        self._call(
            lambda: super(AdminClient, self._admin).list_offsets(
                request,
                future,
                isolation_level_value=isolation.value,
                request_timeout=REQUEST_SECONDS,
            )
        )
        return future.result()

    def _call(self, request: Callable[[], _T]) -> _T:
        if self._renewal.due():
            log.warning("the brokers did not answer; a new client asks them", profile=self.profile)
            before, self._admin = self._admin, self._connect()
            self._renewal.replace(before)
        self._admin.poll(0)
        self._denial = None
        try:
            return request()
        except KafkaException as error:
            raise self.translate(error, "request of the Kafka client") from error

    def translate(self, error: KafkaException, subject: str) -> FirnError:
        """Translate a client's exception into an error that shows which party has to act."""
        cause = error.args[0]
        if cause.code() in UNANSWERED:
            self._renewal.unanswered()
            self._admin.poll(0)
            cause = self._denial or cause
        what = f"profile {self.profile} ({self.connection.bootstrap_servers}), {subject}: {cause.str()}"
        if denied(cause):
            return AccessDeniedError(f"{what}; {GRANT_HINT}")
        if cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return NotReadyError(f"{what}; the operator has not created the topic yet, or the topic was deleted")
        return UnavailableError(what, reason=Reason.BROKER_UNREACHABLE)


def offsets_of(answer: Mapping[int, _T] | FirnError) -> dict[int, _T]:
    """Return the offsets of a broker's answer, or raise its error."""
    if isinstance(answer, FirnError):
        raise answer
    return dict(answer)
