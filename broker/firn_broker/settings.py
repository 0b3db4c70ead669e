"""Configuration of a broker: one YAML document (``--config``), every key also by environment (``FIRN_BROKER_WRITER__FLUSH_SECONDS``).

An empty variable is one that is not set, and what Kubernetes says of Services (``FIRN_BROKER_DISKLESS_SERVICE_HOST``) is no setting.
Keys are camelCase in YAML, as in the operator's configuration. Secrets never stand here: they are read from files that are named here.
"""

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
"""What Kubernetes tells every container of a Service whose name begins with firn-broker. No key at the top is called so."""
MIB = 1 << 20


class Settings(BaseModel):
    """Base of all: camelCase keys, unknown keys refused, frozen."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


class WriterSettings(Settings):
    """How produced batches are gathered into objects."""

    flush_seconds: float = Field(default=0.25, gt=0, le=60)
    """An object is written this long after its first batch came."""
    flush_bytes: int = Field(default=8 * MIB, ge=1024, le=256 * MIB)
    """An object is written when it would grow past this."""
    early_bytes: int = Field(default=256 * 1024, ge=0)
    """An object of so many bytes is written before its time when a producer may send no more until it is, and no other is being written:
    waiting would only cost throughput. Each such write is one more request to the object store."""
    uploads: int = Field(default=4, ge=1, le=64)
    """Objects that are uploaded at a time."""
    upload_seconds: float = Field(default=30, gt=0)
    """After this an upload is given up and its producers are told to try again."""


class ReaderSettings(Settings):
    """How batches are found and kept for consumers."""

    tail_cache_bytes: int = Field(default=96 * MIB, ge=MIB)
    """Cache of what this broker wrote, and of what others wrote lately."""
    history_cache_bytes: int = Field(default=32 * MIB, ge=MIB)
    """Cache of what backfills read."""
    backfills: int = Field(default=4, ge=1)
    """Objects that are read at a time for consumers that are behind."""
    read_ahead_bytes: int = Field(default=8 * MIB, ge=0)
    """How much a backfill loads beyond what it was asked for."""
    poll_seconds: float = Field(default=0.1, gt=0)
    """How often high watermarks of watched partitions are asked for, which other brokers may have moved."""
    max_response_bytes: int = Field(default=50 * MIB, ge=MIB)
    """Bound of one answer, whatever the consumer allows."""
    answer_bytes: int = Field(default=64 * MIB, ge=MIB)
    """Bytes of records that all answers together hold until they are sent; then further ones wait."""


class ConnectionSettings(Settings):
    """Bounds of what clients may send."""

    max_request_bytes: int = Field(default=100 * MIB, ge=MIB)
    """A larger request closes its connection (``socket.request.max.bytes``)."""
    read_ahead_requests: int = Field(default=5, ge=1)
    """Requests of one connection that are worked on at a time."""
    read_ahead_bytes: int = Field(default=16 * MIB, ge=MIB)
    """Bytes of them."""
    buffered_bytes: int = Field(default=64 * MIB, ge=MIB)
    """Bytes of produce requests that all connections together hold in memory; then sockets are read no more. What is made of requests may take
    as much again; then they are not parsed."""
    arrival_seconds: float = Field(default=60, gt=0)
    """A request that takes longer to arrive closes its connection."""
    idle_seconds: float = Field(default=600, gt=0)
    """A connection on which neither a request begins nor an answer is sent for so long is closed (``connections.max.idle.ms``)."""
    drain_seconds: float = Field(default=10, gt=0)
    """A consumer that takes nothing of its answer for so long is closed, if others wait for that memory (`reader.answerBytes`)."""
    max_connections: int = Field(default=10_000, ge=1)
    """Further ones are closed at once."""


class TopicSettings(Settings):
    """What topics are like when nobody says otherwise."""

    auto_create: bool = True
    """Topics that clients ask for by name are made (``auto.create.topics.enable``)."""
    partitions: int = Field(default=1, ge=1)
    """``num.partitions``."""
    compacted_partitions: int = Field(default=100, ge=0)
    """A compacted topic may have so many, each of `upkeep.compactedBytes`; 0 for no compacted topics."""
    configs: dict[str, str] = {}
    """Defaults of topic configs, by their Kafka names."""


class GroupSettings(Settings):
    """Consumer groups."""

    shards: int = Field(default=32, ge=1)
    """Groups are spread over brokers in so many parts. Never change it for a cluster that has groups."""
    min_session_ms: int = 6_000
    max_session_ms: int = 1_800_000
    initial_rebalance_ms: int = Field(default=3_000, ge=0)
    """How long an empty group waits for more members before its first rebalance (``group.initial.rebalance.delay.ms``)."""
    max_members: int = 1_000
    consumer_heartbeat_ms: int = Field(default=5_000, ge=1)
    """How often members of consumer groups (KIP-848) are told to be heard of (``group.consumer.heartbeat.interval.ms``)."""
    consumer_session_ms: int = Field(default=45_000, ge=1)
    """When those that are not are out (``group.consumer.session.timeout.ms``)."""
    offsets_seconds: float = Field(default=604_800, gt=0)
    """A group that has no members and commits nothing for so long is deleted with its offsets (``offsets.retention.minutes``)."""


class UpkeepSettings(Settings):
    """Background work, done by one broker at a time."""

    interval_seconds: float = Field(default=30, gt=0)
    grace_seconds: float = Field(default=600, gt=0)
    """A dead object is deleted this much later: longer than any fetch holds its coordinates."""
    round_runs: int = Field(default=10_000, ge=1)
    """Runs that one step of a round looks at, and forgets, at most: commits wait for no more than one step."""
    compacted_bytes: int = Field(default=32 * MIB, ge=MIB)
    """What the newest records of a partition of a compacted topic may take in memory, each about 280 bytes beside its own; a partition that
    has outgrown this is not compacted. Also about how much of what came since is compacted at once."""
    producer_seconds: float = Field(default=86_400, gt=0)
    """Producers that were not heard of for so long are forgotten (``producer.id.expiration.ms``)."""
    abandon_seconds: float = Field(default=3_600, gt=0)
    """Reservations of brokers that are gone are withdrawn after this, and what was answered to older commits is forgotten."""


class Listener(Settings):
    """Where clients connect. Clients are told ``advertised``, which has to lead to this broker."""

    name: str = "PLAINTEXT"
    bind: str = "127.0.0.1:9092"
    advertised: str = ""
    """HOST:PORT; what was bound, if empty."""


class SqliteSettings(Settings):
    """The embedded coordinator."""

    type: Literal["sqlite"] = "sqlite"
    path: str


class PostgresSettings(Settings):
    """The coordinator of a fleet."""

    type: Literal["postgres"] = "postgres"
    uri: str
    """postgresql://HOST:PORT/DATABASE, without credentials."""
    user: str = ""
    user_file: str = ""
    """The file that has the user, instead of ``user``."""
    password_file: str = ""
    schema_name: str = "firn_broker"
    connections: int = Field(default=8, ge=2)
    timeout_seconds: float = Field(default=10, gt=0)

    @model_validator(mode="after")
    def _one_user(self) -> Self:
        if bool(self.user) == bool(self.user_file):
            raise ValueError("one of user and userFile has to be set")
        return self


class DirectorySettings(Settings):
    """Objects in a local directory."""

    type: Literal["directory"] = "directory"
    path: str
    flush: bool = True
    """Whether objects are flushed to the disk before they count as stored."""


class BucketSettings(Settings):
    """Objects in a bucket."""

    type: Literal["bucket"] = "bucket"
    url: str
    """s3://BUCKET/PREFIX, gs://... or az://..."""
    config: dict[str, str] = {}
    """Keys of the object store client (obstore), such as ``aws_endpoint``."""
    secret_config: dict[str, str] = {}
    """The same, by the file that has the value."""
    timeout_seconds: float = Field(default=10, gt=0)


class BrokerSettings(Settings):
    """Everything."""

    coordinator: Annotated[SqliteSettings | PostgresSettings, Field(discriminator="type")]
    objects: Annotated[DirectorySettings | BucketSettings, Field(discriminator="type")]
    listener: Listener = Listener()
    external: Listener | None = None
    """A second listener, for clients that reach brokers by other addresses; none, if not set. Clients that come through one are told the
    addresses of that one, of all brokers."""
    node_id: int | None = Field(default=None, ge=0)
    """The lowest free one, if not set."""
    zone: str = ""
    lease_seconds: float = Field(default=5, gt=0)
    """A broker that does not renew its lease for so long is taken for dead."""
    metrics_listen: str = ""
    """HOST:PORT of /metrics, /livez and /readyz; none if empty."""
    writer: WriterSettings = WriterSettings()
    reader: ReaderSettings = ReaderSettings()
    connections: ConnectionSettings = ConnectionSettings()
    topics: TopicSettings = TopicSettings()
    groups: GroupSettings = GroupSettings()
    upkeep: UpkeepSettings = UpkeepSettings()


def embedded(directory: Path, environment: Mapping[str, str]) -> BrokerSettings:
    """Settings of a broker on its own, with all it keeps in ``directory``. Raises InvalidSpecError."""
    return _checked(
        {
            "coordinator": {"type": "sqlite", "path": str(directory / "coordinator.db")},
            "objects": {"type": "directory", "path": str(directory / "objects")},
            # The only one: whoever was it before is gone, as the directory is locked.
            "nodeId": 0,
            # A write costs nothing here but time.
            "writer": {"earlyBytes": 0},
        },
        environment,
    )


def load(path: Path, environment: Mapping[str, str]) -> BrokerSettings:
    """Settings from a file. Raises InvalidSpecError, which names each wrong key."""
    try:
        document = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise InvalidSpecError(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict):
        raise InvalidSpecError(f"{path} holds no mapping")
    return _checked(document, environment)


def secret(key: str, path: str) -> str:
    """What is in the file that ``key`` of the settings names. Raises InvalidSpecError."""
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError) as error:
        raise InvalidSpecError(
            f"configuration of the broker: {key}: cannot read {path}: {error}; is the Secret mounted, and has it that key?"
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
            raise InvalidSpecError(f"configuration of the broker: {name} is no YAML: {error}") from error
    try:
        return BrokerSettings.model_validate(document)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, it['loc']))}: {it['msg']}" for it in error.errors())
        raise InvalidSpecError(f"configuration of the broker: {wrong}") from error
