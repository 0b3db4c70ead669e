"""The configuration of a broker: one YAML document (``--config``); the environment can set each key
(``FIRN_BROKER_WRITER__FLUSH_SECONDS``).

The broker ignores empty variables, and those that Kubernetes sets for Services (``FIRN_BROKER_DISKLESS_SERVICE_HOST``).
Keys are camelCase in YAML, as in the operator's configuration. The configuration contains no secrets, only the names of
files that contain them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from firn.model.errors import InvalidSpecError

ENVIRONMENT = "FIRN_BROKER_"
_SERVICE_LINK = re.compile(r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
"""Variables that Kubernetes sets in every container for a Service whose name starts with firn-broker. No top-level key
has such a name."""
MIB = 1 << 20


class Settings(BaseModel):
    """Base of all settings: camelCase keys, unknown keys rejected, frozen."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


class WriterSettings(Settings):
    """How the broker collects produced batches into objects."""

    flush_seconds: float = Field(default=0.25, gt=0, le=60)
    """Seconds from the first batch of an object to its upload."""
    flush_bytes: int = Field(default=8 * MIB, ge=1024, le=256 * MIB)
    """The broker uploads an object before it grows past so many bytes."""
    early_bytes: int = Field(default=256 * 1024, ge=0)
    """The broker uploads an object of so many bytes early if a producer has the maximum of requests in flight and no
    other upload is running. This raises throughput, and costs one more request to the object store each time."""
    uploads: int = Field(default=4, ge=1, le=64)
    """Concurrent uploads."""
    upload_seconds: float = Field(default=30, gt=0)
    """Seconds after which an upload fails and its producers have to retry."""


class ReaderSettings(Settings):
    """How the broker reads and caches batches for consumers."""

    tail_cache_bytes: int = Field(default=96 * MIB, ge=MIB)
    """Bytes of the cache for batches that this broker wrote, and for recent batches of other brokers."""
    history_cache_bytes: int = Field(default=32 * MIB, ge=MIB)
    """Bytes of the cache for batches that backfills read."""
    backfills: int = Field(default=4, ge=1)
    """Concurrent reads of objects for consumers that are behind."""
    read_ahead_bytes: int = Field(default=8 * MIB, ge=0)
    """Bytes that a backfill reads ahead of the request."""
    poll_seconds: float = Field(default=0.1, gt=0)
    """Seconds between two polls of the high watermarks of partitions with waiting consumers, which other brokers may
    have moved."""
    max_response_bytes: int = Field(default=50 * MIB, ge=MIB)
    """Bytes of one answer, even if the consumer allows more."""
    answer_bytes: int = Field(default=64 * MIB, ge=MIB)
    """Bytes of records that all unsent answers may hold. Further answers wait."""


class ConnectionSettings(Settings):
    """Limits for clients."""

    max_request_bytes: int = Field(default=100 * MIB, ge=MIB)
    """Bytes of the largest request. A larger one closes its connection (``socket.request.max.bytes``)."""
    read_ahead_requests: int = Field(default=5, ge=1)
    """Requests of one connection that may be in progress."""
    read_ahead_bytes: int = Field(default=16 * MIB, ge=MIB)
    """Bytes of the requests of one connection that may be in progress."""
    buffered_bytes: int = Field(default=64 * MIB, ge=MIB)
    """Bytes of produce requests that all connections may hold in memory. At the limit the broker stops reading sockets.
    Parsed requests may take as many bytes again. At that limit the broker stops parsing."""
    arrival_seconds: float = Field(default=60, gt=0)
    """Seconds within which a request has to arrive completely. Otherwise the broker closes its connection."""
    idle_seconds: float = Field(default=600, gt=0)
    """Seconds without a request or an answer after which the broker closes a connection
    (``connections.max.idle.ms``)."""
    drain_seconds: float = Field(default=10, gt=0)
    """Seconds after which the broker closes a connection that reads nothing of its answer, if other answers wait for
    memory (`reader.answerBytes`)."""
    max_connections: int = Field(default=10_000, ge=1)
    """Connections that may be open. The broker closes further ones at once."""


class TopicSettings(Settings):
    """Defaults and limits of topics."""

    auto_create: bool = True
    """If true, the broker creates topics that clients request by name (``auto.create.topics.enable``)."""
    partitions: int = Field(default=1, ge=1)
    """Partitions of a topic that is created without a number (``num.partitions``)."""
    compacted_partitions: int = Field(default=100, ge=0)
    """Partitions that a compacted topic may have, each of `upkeep.compactedBytes`; 0 allows no compacted topics."""
    configs: dict[str, str] = {}
    """Defaults of topic configs by their Kafka names."""


class GroupSettings(Settings):
    """Consumer groups."""

    shards: int = Field(default=32, ge=1)
    """Shards in which groups are distributed over brokers. Never change the number in a cluster that has groups."""
    min_session_ms: int = 6_000
    """The shortest session timeout of a member, in milliseconds (``group.min.session.timeout.ms``)."""
    max_session_ms: int = 1_800_000
    """The longest session timeout of a member, in milliseconds (``group.max.session.timeout.ms``)."""
    initial_rebalance_ms: int = Field(default=3_000, ge=0)
    """Milliseconds that an empty group waits for more members before its first rebalance
    (``group.initial.rebalance.delay.ms``)."""
    max_members: int = 1_000
    """Members of one group (``group.max.size``)."""
    consumer_heartbeat_ms: int = Field(default=5_000, ge=1)
    """Milliseconds between heartbeats of members of KIP-848 groups (``group.consumer.heartbeat.interval.ms``)."""
    consumer_session_ms: int = Field(default=45_000, ge=1)
    """Milliseconds without a heartbeat after which a member of a KIP-848 group is removed
    (``group.consumer.session.timeout.ms``)."""
    offsets_seconds: float = Field(default=604_800, gt=0)
    """Seconds without members and commits after which a group is deleted with its offsets
    (``offsets.retention.minutes``)."""


class UpkeepSettings(Settings):
    """Background work on stored batches, which one broker at a time does."""

    interval_seconds: float = Field(default=30, gt=0)
    """Seconds between two rounds."""
    grace_seconds: float = Field(default=600, gt=0)
    """Seconds from the death of an object to its deletion. It must be longer than any fetch."""
    round_runs: int = Field(default=10_000, ge=1)
    """Batch ranges that one step of a round may process. Commits wait for one step at most."""
    compacted_bytes: int = Field(default=32 * MIB, ge=MIB)
    """Bytes that the newest records of a compacted partition may take in memory; each record takes about 280 bytes
    besides its own. A larger partition is not compacted. Also about the bytes of new records that one pass compacts."""
    producer_seconds: float = Field(default=86_400, gt=0)
    """Seconds without a batch after which the coordinator forgets a producer (``producer.id.expiration.ms``)."""
    abandon_seconds: float = Field(default=3_600, gt=0)
    """Seconds after which the reservations of stopped brokers are withdrawn, and stored replies to commits are
    deleted."""


class Listener(Settings):
    """A listener for clients. Clients connect to ``advertised``, which must lead to this broker."""

    name: str = "PLAINTEXT"
    """The name of the listener."""
    bind: str = "127.0.0.1:9092"
    """HOST:PORT to bind."""
    advertised: str = ""
    """HOST:PORT; the bound address if empty."""


class SqliteSettings(Settings):
    """The embedded coordinator of a single broker."""

    type: Literal["sqlite"] = "sqlite"
    path: str
    """The database file."""


class PostgresSettings(Settings):
    """The coordinator of a fleet."""

    type: Literal["postgres"] = "postgres"
    uri: str
    """postgresql://HOST:PORT/DATABASE, without credentials."""
    user: str = ""
    """The user, instead of ``userFile``."""
    user_file: str = ""
    """A file that contains the user, instead of ``user``."""
    password_file: str = ""
    """A file that contains the password."""
    schema_name: str = "firn_broker"
    """The schema of the tables. Each cluster needs its own."""
    connections: int = Field(default=8, ge=2)
    """Connections of one broker to PostgreSQL."""
    timeout_seconds: float = Field(default=10, gt=0)
    """Seconds after which a call to PostgreSQL fails."""

    @model_validator(mode="after")
    def _one_user(self) -> Self:
        if bool(self.user) == bool(self.user_file):
            raise ValueError("set either user or userFile")
        return self


class DirectorySettings(Settings):
    """Objects in a local directory."""

    type: Literal["directory"] = "directory"
    path: str
    """The directory."""
    flush: bool = True
    """If true, the broker flushes an object to the disk before it commits it."""


class BucketSettings(Settings):
    """Objects in a bucket."""

    type: Literal["bucket"] = "bucket"
    url: str
    """s3://BUCKET/PREFIX, gs://... or az://..."""
    config: dict[str, str] = {}
    """Options of the object store client (obstore), such as ``aws_endpoint``."""
    secret_config: dict[str, str] = {}
    """Options whose values are secret, each with the file that contains the value."""
    timeout_seconds: float = Field(default=10, gt=0)
    """Seconds after which a request to the object store fails."""


class BrokerSettings(Settings):
    """All settings of a broker."""

    coordinator: Annotated[SqliteSettings | PostgresSettings, Field(discriminator="type")]
    """The store of topics, offsets, leases and groups."""
    objects: Annotated[DirectorySettings | BucketSettings, Field(discriminator="type")]
    """The store of batches."""
    listener: Listener = Listener()
    """The listener for clients."""
    external: Listener | None = None
    """A second listener, for clients that reach the brokers at other addresses; none if not set. Clients get the
    addresses of the listener that they use, for all brokers."""
    node_id: int | None = Field(default=None, ge=0)
    """The node id; the lowest free one if not set."""
    zone: str = ""
    """The zone of the broker. Clients that name a zone use the brokers of that zone."""
    lease_seconds: float = Field(default=5, gt=0)
    """Seconds without a renewal after which a broker counts as dead."""
    metrics_listen: str = ""
    """HOST:PORT of /metrics, /livez and /readyz; not served if empty."""
    writer: WriterSettings = WriterSettings()
    """Produced batches."""
    reader: ReaderSettings = ReaderSettings()
    """Batches for consumers."""
    connections: ConnectionSettings = ConnectionSettings()
    """Limits for clients."""
    topics: TopicSettings = TopicSettings()
    """Defaults and limits of topics."""
    groups: GroupSettings = GroupSettings()
    """Consumer groups."""
    upkeep: UpkeepSettings = UpkeepSettings()
    """Background work on stored batches."""


def embedded(directory: Path, environment: Mapping[str, str]) -> BrokerSettings:
    """Return the settings of a single broker that stores everything in ``directory``. Raises InvalidSpecError."""
    return _checked(
        {
            "coordinator": {"type": "sqlite", "path": str(directory / "coordinator.db")},
            "objects": {"type": "directory", "path": str(directory / "objects")},
            # The directory is locked, so no other process is this node.
            "nodeId": 0,
            # A write to a directory costs no request.
            "writer": {"earlyBytes": 0},
        },
        environment,
    )


def load(path: Path, environment: Mapping[str, str]) -> BrokerSettings:
    """Load the settings from a file. Raises InvalidSpecError, which names each invalid key."""
    try:
        document = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise InvalidSpecError(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict):
        raise InvalidSpecError(f"{path} contains no YAML mapping")
    return _checked(document, environment)


def secret(key: str, path: str) -> str:
    """Read the secret in the file that ``key`` of the settings names. Raises InvalidSpecError."""
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError) as error:
        raise InvalidSpecError(
            f"configuration of the broker: {key}: cannot read {path}: {error}. Check that the Secret is mounted and has that key."
        ) from error


def _checked(document: dict[str, Any], environment: Mapping[str, str]) -> BrokerSettings:
    for name, value in sorted(environment.items()):
        rest = name.removeprefix(ENVIRONMENT)
        if rest == name or not value or ("__" not in rest and _SERVICE_LINK.fullmatch(rest)):
            continue
        place: Any = document
        *above, last = [to_camel(part.lower()) for part in rest.split("__")]
        for part in above:
            if place.get(part) is None:
                place[part] = {}
            place = place[part]
            if not isinstance(place, dict):
                raise InvalidSpecError(f"configuration of the broker: {name}: {part} has no keys")
        try:
            place[last] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InvalidSpecError(f"configuration of the broker: {name} is not YAML: {error}") from error
    try:
        return BrokerSettings.model_validate(document)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors())
        raise InvalidSpecError(f"configuration of the broker: {wrong}") from error
