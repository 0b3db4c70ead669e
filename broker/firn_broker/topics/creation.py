"""The creation of topics, by CreateTopics and on demand."""

import re
from collections.abc import Collection, Mapping

from kio.schema.errors import ErrorCode

from firn.model.names import COPY, HISTORY, SCHEMA_CONTRACT, SCHEMA_GATE, SCHEMA_REGISTRY, SINGLE
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.log_types import Topic
from firn_broker.ports import TopicStore
from firn_broker.settings import TopicSettings
from firn_broker.topics import configs
from firn_broker.topics.topic_metadata import TopicMetadata

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
MAX_PARTITIONS = 10_000


class TopicError(Exception):
    """A topic that cannot be created or changed, with Kafka's error code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_name(name: str) -> None:
    """Check the name of a new topic. Raises TopicError."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise TopicError(
            ErrorCode.invalid_topic_exception,
            f"topic name {name!r} must have 1 to 249 letters, digits, '.', '_' and '-', and must not be '.' or '..'",
        )


class TopicCreator:
    """Creates topics."""

    def __init__(
        self,
        topic_store: TopicStore,
        topic_metadata: TopicMetadata,
        identifiers: Identifiers,
        settings: TopicSettings,
        partition_bytes: int,
        registries: Collection[str],
    ) -> None:
        self._topic_store = topic_store
        self._topic_metadata = topic_metadata
        self._identifiers = identifiers
        self.settings = settings
        self._partition_bytes = partition_bytes
        self._registries = registries

    async def create(
        self, name: str, partitions: int, own: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Topic:
        """Create a topic, or only validate it; -1 partitions for the default number. Raises TopicError."""
        check_name(name)
        if partitions == -1:
            partitions = self.settings.partitions
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise TopicError(
                ErrorCode.invalid_partitions, f"{partitions} partitions: a topic must have 1 to {MAX_PARTITIONS}"
            )
        try:
            checked = configs.check(own)
        except configs.InvalidConfigError as error:
            raise TopicError(ErrorCode.invalid_config, str(error)) from error
        self.check_compacted(partitions, own)
        self.check_gate(own)
        topic = Topic(self._identifiers.uuid4(), name, partitions, checked)
        taken = TopicError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        if validate_only:
            if await self._topic_metadata.find(name) is not None:
                raise taken
            return topic
        self.check_room(1, partitions)
        if not await self._topic_store.create_topic(topic):
            raise taken
        self._topic_metadata.add(topic)
        return topic

    def check_room(self, topics: int, partitions: int) -> None:
        """Raise TopicError if the cluster has no room for new topics and partitions.

        Brokers that create topics in the same second may exceed the limits a little.
        """
        known, settings = self._topic_metadata, self.settings
        for what, key, count, limit in (
            ("topics", "topics.maxTopics", len(known.by_id) + topics, settings.max_topics),
            ("partitions", "topics.maxPartitions", known.partitions + partitions, settings.max_partitions),
        ):
            if count > limit:
                raise TopicError(
                    ErrorCode.policy_violation,
                    f"the cluster would have {count} {what}, more than {limit}; delete some, or raise {key}",
                )

    def check_compacted(self, partitions: int, own: Mapping[str, str | None]) -> None:
        """Raise TopicError for a compacted topic whose configs allow more than maintenance can compact."""
        policy, retained = (
            own.get(name) or self.settings.configs.get(name) or ""
            for name in (configs.CLEANUP_POLICY, configs.RETENTION_BYTES)
        )
        if "compact" not in policy:
            return
        history = own.get(HISTORY) or self.settings.configs.get(HISTORY)
        if history == SINGLE:
            raise TopicError(
                ErrorCode.invalid_config,
                f"cleanup.policy={policy} with {HISTORY}={history}: the log of a compacted topic keeps its records; set"
                f" {HISTORY}={COPY}, or cleanup.policy=delete",
            )
        most, size = self.settings.compacted_partitions, self._partition_bytes
        if partitions > most:
            raise TopicError(
                ErrorCode.invalid_config,
                f"cleanup.policy={policy} with {partitions} partitions: a compacted topic can have at most {most} partitions;"
                " create fewer, or raise topics.compactedPartitions",
            )
        if "delete" in policy and int(retained or -1) > size:
            raise TopicError(
                ErrorCode.invalid_config,
                f"cleanup.policy={policy} with retention.bytes={retained}: a partition of a compacted topic can have at most"
                f" {size} bytes; lower retention.bytes, or raise upkeep.compactedBytes",
            )

    def check_gate(self, own: Mapping[str, str | None]) -> None:
        """Raise TopicError for a gate whose schema registry this broker does not have, or without a schema."""
        gate, registry, contract = (
            own.get(name) or self.settings.configs.get(name) or ""
            for name in (SCHEMA_GATE, SCHEMA_REGISTRY, SCHEMA_CONTRACT)
        )
        if gate in ("", configs.NO_GATE) or registry in self._registries:
            return
        if gate == configs.GATE_DECODE and contract and not registry:
            return
        choice = ", ".join(sorted(self._registries)) or "none"
        raise TopicError(
            ErrorCode.invalid_config,
            f"{SCHEMA_GATE}={gate} with {SCHEMA_REGISTRY}={registry}: it has to be one of the broker's registries, which"
            f" are: {choice}; name one of them, or add it to registries in the broker's settings",
        )

    async def on_demand(self, name: str) -> Topic | None:
        """Return the topic; create it first if topics are created on demand. Raises TopicError."""
        if not self.settings.auto_create:
            return await self._topic_metadata.find(name)
        if (known := self._topic_metadata.by_name.get(name)) is not None:
            return known
        try:
            return await self.create(name, -1, {})
        except TopicError as error:
            # Another broker may have created it.
            topic = await self._topic_metadata.find(name)
            if topic is None and error.code is not ErrorCode.topic_already_exists:
                raise
            return topic
