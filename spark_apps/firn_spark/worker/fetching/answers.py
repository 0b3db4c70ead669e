"""The answers of brokers, with the fields that `firn_spark.worker.fetching` reads."""

from dataclasses import dataclass, field
from datetime import timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The versions of an API."""

    api_key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class Versions:
    """ApiVersions."""

    error_code: ErrorCode
    api_keys: tuple[VersionRange, ...]


@dataclass(frozen=True, slots=True)
class Handshake:
    """SaslHandshake."""

    error_code: ErrorCode
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Authentication:
    """SaslAuthenticate."""

    error_code: ErrorCode
    error_message: str | None
    auth_bytes: bytes
    session_lifetime: timedelta = timedelta()
    """Zero if the session does not end."""


@dataclass(frozen=True, slots=True)
class MetadataBroker:
    """A broker's address."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class MetadataPartition:
    """The leader of a partition, -1 while there is none."""

    error_code: ErrorCode
    partition_index: int
    leader_id: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class MetadataTopic:
    """The partitions of a topic."""

    error_code: ErrorCode
    name: str | None
    partitions: tuple[MetadataPartition, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """Metadata."""

    brokers: tuple[MetadataBroker, ...]
    topics: tuple[MetadataTopic, ...]


@dataclass(frozen=True, slots=True)
class Aborted:
    """An aborted transaction: its producer and the first offset."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """The records of a partition, from the requested offset on."""

    partition_index: int
    error_code: ErrorCode
    high_watermark: int
    last_stable_offset: int
    aborted_transactions: tuple[Aborted, ...] | None
    records: memoryview | None


@dataclass(frozen=True, slots=True)
class FetchedTopic:
    """The partitions of a topic."""

    topic: str
    partitions: tuple[FetchedPartition, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch."""

    throttle_time: timedelta
    responses: tuple[FetchedTopic, ...]
    error_code: ErrorCode = field(default=ErrorCode.none)
