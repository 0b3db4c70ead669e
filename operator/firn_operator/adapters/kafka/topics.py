"""Topics of Kafka (port `Topics`) with confluent-kafka: one admin client per profile, many reconciles per request."""

import asyncio
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from firn.kafka_clients import NO_TOPIC, kafka_id
from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, FirnError, InvalidSpecError, NotReadyError
from firn.model.jobs import KafkaConnection
from firn_controllers.ports import DELETION_CONFIGS, FleetState, TopicNames, TopicState
from firn_operator.adapters.batches import Batch
from firn_operator.adapters.kafka import certificates
from firn_operator.adapters.kafka.admin import DENIALS, REQUEST_TIMEOUT, ProfileAdmin

_BATCH = 200
_TOPIC_CONFIGS = (
    "cleanup.policy", "compression.gzip.level", "compression.lz4.level", "compression.type", "compression.zstd.level", "delete.retention.ms",
    "file.delete.delay.ms", "flush.messages", "flush.ms", "follower.replication.throttled.replicas", "index.interval.bytes",
    "leader.replication.throttled.replicas", "local.retention.bytes", "local.retention.ms", "max.compaction.lag.ms", "max.message.bytes",
    "message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.type", "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms", "min.insync.replicas", "preallocate", "remote.storage.enable", "retention.bytes", "retention.ms",
    "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms", "unclean.leader.election.enable",
)  # fmt: skip
"""Names of Kafka 4's topic configs (org.apache.kafka.common.config.TopicConfig), to suggest one for a name with a typing error."""
_SPEC = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_REQUEST,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
        KafkaError._INVALID_ARG,
    }
)
_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})


_RELOADS = "listener.name.secure.ssl.keystore.type"
"""A config of each broker. It belongs to the secure listener, so it means nothing after this listener is gone."""
CERTIFICATE_SECONDS = 5.0
"""Time limit for a TLS handshake that reads a certificate."""
LAGGING_SHOWN = 3
"""Number of under-replicated topics that a message names."""


@dataclass(frozen=True, slots=True)
class Brokers:
    """A profile's brokers. ``replication_factor`` is that of new topics; -1 is the brokers' default."""

    connection: KafkaConnection | Callable[[], KafkaConnection]
    replication_factor: int = -1


class KafkaTopics:
    """Port `Topics` over real brokers. Made and used on one event loop."""

    def __init__(self, profiles: Mapping[str, Brokers]) -> None:
        self._profiles = {name: ProfileClients(name, brokers) for name, brokers in profiles.items()}

    async def describe(self, profile: str, topic: str) -> TopicState | None:
        """Describe a topic; return None if it does not exist."""
        return await self._profiles[profile].describes.submit(topic)

    async def list_names(self, profile: str) -> TopicNames:
        """Return the names of all topics."""
        return await self._profiles[profile].listings.submit(None)

    async def create(self, profile: str, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic."""
        await self._profiles[profile].creates.submit((topic, partitions, dict(configs)))

    async def grow(self, profile: str, topic: str, partitions: int) -> None:
        """Raise the number of partitions."""
        await self._profiles[profile].grows.submit((topic, partitions))

    async def alter_configs(self, profile: str, topic: str, put: Mapping[str, str], remove: Sequence[str]) -> None:
        """Set and remove configs of a topic."""
        if put or remove:
            await self._profiles[profile].alters.submit((topic, dict(put), tuple(remove)))

    async def delete(self, profile: str, topic: str) -> None:
        """Delete a topic."""
        await self._profiles[profile].deletes.submit(topic)

    async def fleet(self, profile: str, *, replicas: bool = False) -> FleetState:
        """Describe the brokers of a profile, and with ``replicas`` the partitions with too few in-sync replicas."""
        return await self._profiles[profile].fleets.submit(replicas)

    async def reload_certificates(self, profile: str) -> None:
        """Let each broker read the changed files of its certificate."""
        await self._profiles[profile].reload_certificates()

    async def certificate_end(self, host: str, port: int) -> datetime:
        """Return the end of the certificate that a broker presents. Raises UnavailableError."""
        return await asyncio.to_thread(certificates.end, host, port, CERTIFICATE_SECONDS)

    def close(self) -> None:
        """Close the clients of all profiles."""
        for clients in self._profiles.values():
            clients.close()


class ProfileClients(ProfileAdmin):
    """The admin client of a profile and its batched requests about topics."""

    def __init__(self, name: str, brokers: Brokers) -> None:
        super().__init__(name, brokers.connection)
        self._replication_factor = brokers.replication_factor
        self.describes: Batch[str, TopicState | None] = Batch(self._describe, _BATCH)
        self.creates: Batch[tuple[str, int, dict[str, str]], None] = Batch(self._create, _BATCH)
        self.grows: Batch[tuple[str, int], None] = Batch(self._grow, _BATCH)
        self.alters: Batch[tuple[str, dict[str, str], tuple[str, ...]], None] = Batch(self._alter, _BATCH)
        self.deletes: Batch[str, None] = Batch(self._delete, _BATCH)
        self.fleets: Batch[bool, FleetState] = Batch(self._fleet, _BATCH)
        self.listings: Batch[None, TopicNames] = Batch(self._list, _BATCH)

    def kind(self, code: int, text: str) -> FirnError:
        """Return the error for one of Kafka's codes, with ``text`` as its first part."""
        if code in DENIALS:
            return AccessDeniedError(
                f"{text}; grant the operator's user Describe, Create, Alter, AlterConfigs, DescribeConfigs and Delete on the topic, or correct"
                " the profile's credentials"
            )
        if code in _SPEC:
            return InvalidSpecError(f"{text}{_suggestion(text)}", reason=Reason.BAD_TOPIC_CONFIG)
        if code == KafkaError.INVALID_REPLICATION_FACTOR:
            return NotReadyError(f"{text}; waiting for more brokers", reason=Reason.BROKER_STARTING)
        return super().kind(code, text)

    async def reload_certificates(self) -> None:
        """Set a config of each broker to its present value: Kafka reads the files of a broker again with each change of its configs."""
        listed = await self._answer(
            "list brokers", asyncio.to_thread(self.admin().list_topics, topic=NO_TOPIC, timeout=REQUEST_TIMEOUT)
        )
        if isinstance(listed, BaseException):
            raise listed
        failed: FirnError | None = None
        for broker in listed.brokers:
            entry = ConfigEntry(_RELOADS, "PEM", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
            futures = self.admin().incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT)
            try:
                await self._all(f"reload the certificate of broker {broker}", futures.values())
            except FirnError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def _describe(self, topics: Sequence[str]) -> Sequence[TopicState | BaseException | None]:
        names = sorted(set(topics))
        admin = self.admin()
        described = admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_TIMEOUT)
        resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}
        configured = admin.describe_configs(list(resources.values()), request_timeout=REQUEST_TIMEOUT)
        answers = await asyncio.gather(
            *(
                self._answer(f"describe topic {name}", self._state(name, described[name], configured[resources[name]]))
                for name in names
            )
        )
        states: dict[str, TopicState | BaseException | None] = dict(zip(names, answers, strict=True))
        return [states[topic] for topic in topics]

    @staticmethod
    async def _state(name: str, described: "Future[Any]", configured: "Future[Any]") -> TopicState | None:
        try:
            description = await asyncio.wrap_future(described)
            configs = await asyncio.wrap_future(configured)
        except KafkaException as error:
            if error.args[0].code() in _MISSING:
                return None
            raise
        return TopicState(
            name=name,
            topic_id=kafka_id(description.topic_id),
            partitions=len(description.partitions),
            configs={
                key: entry.value
                for key, entry in configs.items()
                if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value and entry.value is not None
            },
            defaults={
                key: configs[key].value
                for key in DELETION_CONFIGS
                if key in configs and configs[key].source != ConfigSource.DYNAMIC_TOPIC_CONFIG.value
            },
        )

    async def _create(self, topics: Sequence[tuple[str, int, dict[str, str]]]) -> Sequence[BaseException | None]:
        new_topics = [
            NewTopic(
                name,
                num_partitions=partitions,
                replication_factor=self._replication_factor,
                config=configs,
            )
            for name, partitions, configs in topics
        ]
        futures = self.admin().create_topics(
            new_topics, request_timeout=REQUEST_TIMEOUT, operation_timeout=REQUEST_TIMEOUT
        )
        return await self._each(
            "create topic", [name for name, _, _ in topics], futures, KafkaError.TOPIC_ALREADY_EXISTS
        )

    async def _grow(self, topics: Sequence[tuple[str, int]]) -> Sequence[BaseException | None]:
        new_partitions = [NewPartitions(name, partitions) for name, partitions in topics]
        futures = self.admin().create_partitions(
            new_partitions, request_timeout=REQUEST_TIMEOUT, operation_timeout=REQUEST_TIMEOUT
        )
        results = list(await self._each("add partitions to topic", [name for name, _ in topics], futures, None))
        for index, (name, partitions) in enumerate(topics):
            if f"already has {partitions} partition(s)" in str(results[index]):
                results[index] = None  # the controller knows the number before the broker that describes topics
            elif isinstance(results[index], InvalidSpecError):
                (state,) = await self._describe([name])
                if isinstance(state, TopicState) and state.partitions == partitions:
                    results[index] = None
        return results

    async def _alter(
        self, topics: Sequence[tuple[str, dict[str, str], tuple[str, ...]]]
    ) -> Sequence[BaseException | None]:
        resources = [
            ConfigResource(
                ResourceType.TOPIC,
                name,
                incremental_configs=[
                    *(
                        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
                        for key, value in put.items()
                    ),
                    *(ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in remove),
                ],
            )
            for name, put, remove in topics
        ]
        answers = self.admin().incremental_alter_configs(resources, request_timeout=REQUEST_TIMEOUT)
        futures = {resource.name: future for resource, future in answers.items()}
        return await self._each("configure topic", [name for name, _, _ in topics], futures, None)

    async def _delete(self, topics: Sequence[str]) -> Sequence[BaseException | None]:
        futures = self.admin().delete_topics(
            sorted(set(topics)), request_timeout=REQUEST_TIMEOUT, operation_timeout=REQUEST_TIMEOUT
        )
        return await self._each("delete topic", topics, futures, KafkaError.UNKNOWN_TOPIC_OR_PART)

    async def _fleet(self, calls: Sequence[bool]) -> Sequence[FleetState | BaseException]:
        # The metadata of 10,000 topics takes half a second of CPU time.
        names = {} if any(calls) else {"topic": NO_TOPIC}
        listed = asyncio.to_thread(self.admin().list_topics, **names, timeout=REQUEST_TIMEOUT)
        answer = await self._answer("list brokers", listed)
        if isinstance(answer, BaseException):
            return [answer] * len(calls)
        short = [
            name
            for name, topic in answer.topics.items()
            for partition in topic.partitions.values()
            if len(partition.isrs) < len(partition.replicas) or partition.leader < 0
        ]
        lagging = tuple(sorted(set(short))[:LAGGING_SHOWN])
        return [FleetState(len(answer.brokers), len(short), lagging)] * len(calls)

    async def _list(self, calls: Sequence[None]) -> Sequence[TopicNames | BaseException]:
        listed = asyncio.to_thread(self.admin().list_topics, timeout=REQUEST_TIMEOUT)
        answer = await self._answer("list topics", listed)
        if isinstance(answer, BaseException):
            return [answer] * len(calls)
        return [TopicNames(frozenset(answer.topics), answer.cluster_id or "")] * len(calls)

    async def _each(
        self, action: str, topics: Sequence[str], futures: Mapping[str, "Future[Any]"], fine: int | None
    ) -> Sequence[BaseException | None]:
        answers = await asyncio.gather(
            *(self._answer(f"{action} {name}", asyncio.wrap_future(futures[name]), fine) for name in topics)
        )
        return [answer if isinstance(answer, BaseException) else None for answer in answers]


def _suggestion(text: str) -> str:
    """Return a question about the config that the brokers do not know, if one has a similar name."""
    unknown = re.search(r"Unknown topic config name: ([a-z0-9.]+)", text)
    similar = difflib.get_close_matches(unknown[1], _TOPIC_CONFIGS, n=1) if unknown else []
    return f"; did you mean {similar[0]}?" if similar else ""
