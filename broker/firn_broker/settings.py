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
    """Longest time in seconds from the first batch of an object to its upload."""
    flush_bytes: int = Field(default=8 * MIB, ge=1024, le=256 * MIB)
    """Size of an object in bytes. The broker uploads an object before it grows larger."""
    puts_per_second: float | None = Field(default=None, ge=0)
    """Objects per second up to which the broker uploads batches at once, instead of at the end of `flushSeconds`. It does
    so while no other object is being uploaded or committed. A larger number shortens the time until an acknowledgement,
    and costs more requests to the object store. Default: 20 for a bucket, 200 for a directory."""
    early_bytes: int = Field(default=256 * 1024, ge=0)
    """Size in bytes from which the broker may upload an object at once, whatever `putsPerSecond` is. It does so if a
    producer has the maximum of requests in flight, and fewer than `earlyUploads` uploads are running. Default with
    `--data-dir`: 0."""
    early_uploads: int = Field(default=2, ge=1, le=64)
    """Largest number of concurrent uploads for producers with the maximum of requests in flight. Default with `--data-dir`:
    1."""
    uploads: int = Field(default=4, ge=1, le=64)
    """Largest number of concurrent uploads."""
    upload_seconds: float = Field(default=30, gt=0)
    """Seconds after which an upload fails and its producers have to retry."""


class ReaderSettings(Settings):
    """How the broker reads and caches batches for consumers."""

    tail_cache_bytes: int = Field(default=96 * MIB, ge=MIB)
    """Bytes of the cache for batches that this broker wrote, and for recent batches of other brokers."""
    history_cache_bytes: int = Field(default=32 * MIB, ge=MIB)
    """Bytes of the cache for batches that consumers read from older objects."""
    backfills: int = Field(default=4, ge=1)
    """Largest number of concurrent reads of older objects for consumers that are behind (backfills)."""
    read_ahead_bytes: int = Field(default=8 * MIB, ge=0)
    """Bytes that such a read loads beyond the consumer's request."""
    poll_seconds: float = Field(default=0.1, gt=0)
    """Seconds between two reads of the high watermarks of partitions for which consumers wait. Commits of other brokers
    move these high watermarks."""
    max_response_bytes: int = Field(default=4 * MIB, ge=MIB)
    """Largest size of a response in bytes, even if the consumer allows more. A response stays in memory until its client
    has read it, so large responses let few clients read at a time. At most an eighth of `answerBytes`, which is the share
    of one connection."""
    max_session_partitions: int = Field(default=60_000, ge=0)
    """Largest number of partitions in all incremental fetch sessions (KIP-227) together. Each takes about 300 bytes. A
    consumer that gets no session sends all its partitions in each request. The consumers of one address cannot fill the
    last eighth."""
    answer_bytes: int = Field(default=64 * MIB, ge=MIB)
    """Bytes of records in all unsent responses. Further responses wait. No connection and no address can fill the last
    eighth."""


class ConnectionSettings(Settings):
    """Limits for clients."""

    max_request_bytes: int = Field(default=100 * MIB, ge=MIB)
    """Largest size of a request in bytes. A larger request closes its connection (``socket.request.max.bytes``)."""
    read_ahead_requests: int = Field(default=5, ge=1)
    """Largest number of requests of one connection in progress."""
    read_ahead_bytes: int = Field(default=16 * MIB, ge=MIB)
    """Largest number of bytes of the requests of one connection in progress."""
    buffered_bytes: int = Field(default=64 * MIB, ge=MIB)
    """Bytes that requests of all connections may hold in memory. Produce requests, requests of 4 KiB or more, and
    requests that wait behind another one of their connection count. At the limit the broker stops reading sockets that send such requests.
    No connection and no address can fill the last eighth. Parsed requests may take as many bytes again. At that limit the
    broker stops parsing. Fetches of more than 10,000 partitions may take half as many."""
    arrival_seconds: float = Field(default=60, gt=0)
    """Seconds within which a request has to arrive completely. Otherwise the broker closes its connection."""
    min_bytes_per_second: int = Field(default=64 * 1024, ge=1)
    """Rate in bytes per second at which a client has to send its request or read its response, if other requests wait for
    memory. Otherwise the broker closes its connection."""
    idle_seconds: float = Field(default=600, gt=0)
    """Seconds without a request or a response after which the broker closes a connection
    (``connections.max.idle.ms``)."""
    drain_seconds: float = Field(default=10, gt=0)
    """Seconds over which the broker measures the rate at which a client reads its response (`minBytesPerSecond`), if other
    responses wait for memory (`reader.answerBytes`)."""
    max_connections: int = Field(default=10_000, ge=1)
    """Largest number of open connections. The broker closes further ones at once. One address cannot open the last eighth of
    them."""
    authentication_seconds: float = Field(default=10, gt=0)
    """Seconds after which the broker closes a connection whose client has not authenticated."""
    unauthenticated_bytes: int = Field(default=64 * 1024, ge=4096)
    """Largest size in bytes of a request before its client has authenticated."""
    max_unauthenticated: int = Field(default=1_000, ge=1)
    """Largest number of connections whose clients have not authenticated yet. For a further one, the broker closes the oldest
    of them."""
    max_unauthenticated_per_address: int = Field(default=100, ge=1)
    """Largest number of such connections from one address. The broker closes further ones at once."""
    session_seconds: float = Field(default=0, ge=0)
    """Seconds after which a client has to authenticate again (``connections.max.reauth.ms``, KIP-368). 0 sets no limit. A
    session also ends when its token expires."""
    failure_seconds: float = Field(default=0.1, ge=0)
    """Seconds by which the broker delays the answer to a failed authentication
    (``connection.failed.authentication.delay.ms``)."""


class TopicSettings(Settings):
    """Defaults and limits of topics."""

    auto_create: bool = True
    """If true, the broker creates topics that clients request by name (``auto.create.topics.enable``)."""
    partitions: int = Field(default=1, ge=1)
    """Number of partitions of a topic that is created without one (``num.partitions``)."""
    max_topics: int = Field(default=10_000, ge=1)
    """Largest number of topics of the cluster. The broker creates no more (POLICY_VIOLATION)."""
    max_partitions: int = Field(default=100_000, ge=1)
    """Largest number of partitions of all topics of the cluster. The broker creates no more (POLICY_VIOLATION)."""
    compacted_partitions: int = Field(default=100, ge=0)
    """Largest number of partitions of a compacted topic; 0 allows no compacted topics. Each may take
    `upkeep.compactedBytes` of memory."""
    configs: dict[str, str] = {}
    """Default topic configs, by Kafka's names."""


class GroupSettings(Settings):
    """Timeouts and limits of consumer groups, with the names of Kafka's broker configs."""

    shards: int = Field(default=32, ge=1)
    """Number of shards that distribute groups over brokers. Never change it in a cluster that has groups."""
    min_session_ms: int = 6_000
    """The shortest session timeout of a member, in milliseconds (``group.min.session.timeout.ms``)."""
    max_session_ms: int = 1_800_000
    """The longest session timeout of a member, in milliseconds (``group.max.session.timeout.ms``)."""
    initial_rebalance_ms: int = Field(default=3_000, ge=0)
    """Milliseconds that an empty group waits for more members before its first rebalance
    (``group.initial.rebalance.delay.ms``)."""
    max_members: int = 1_000
    """Largest number of members of a group (``group.max.size``)."""
    max_group_bytes: int = Field(default=8 * MIB, ge=64 * 1024)
    """Bytes of the subscriptions and assignments of one group's members. The broker accepts no member with which the group
    would have more (GROUP_MAX_SIZE_REACHED)."""
    max_bytes: int = Field(default=32 * MIB, ge=MIB)
    """Bytes of memory of all groups of a broker. At the limit the broker accepts no new member and no new group until
    others leave (COORDINATOR_NOT_AVAILABLE). The members of one address cannot fill the last eighth."""
    consumer_heartbeat_ms: int = Field(default=5_000, ge=1)
    """Milliseconds between heartbeats of members of KIP-848 groups (``group.consumer.heartbeat.interval.ms``)."""
    consumer_session_ms: int = Field(default=45_000, ge=1)
    """Milliseconds without a heartbeat after which a member of a KIP-848 group is removed
    (``group.consumer.session.timeout.ms``)."""
    offsets_seconds: float = Field(default=604_800, gt=0)
    """Seconds without members and commits after which a group is deleted with its offsets
    (``offsets.retention.minutes``)."""


class MaintenanceSettings(Settings):
    """Background work on stored batches, which one broker at a time does."""

    interval_seconds: float = Field(default=30, gt=0)
    """Seconds between two passes of maintenance."""
    grace_seconds: float = Field(default=600, gt=0)
    """Seconds after which an object without batches is deleted. The time must be longer than any fetch."""
    round_runs: int = Field(default=10_000, ge=1)
    """Largest number of batch ranges of one maintenance step. A commit waits for at most one step."""
    compacted_bytes: int = Field(default=32 * MIB, ge=MIB)
    """Bytes that the newest records of a compacted partition may take in memory. Each record takes about 280 bytes
    besides its own. A larger partition is not compacted. One pass of compaction reads at most about this many bytes of new records."""
    merge_seconds: float = Field(default=600, ge=0)
    """Seconds after its commit from which the batches of an object may be merged with those of others."""
    merged_bytes: int = Field(default=128 * MIB, ge=0, le=512 * MIB)
    """Bytes of a merged object. The process that merges takes about this much memory, besides 80 MiB. 0: objects are not merged."""
    producer_seconds: float = Field(default=86_400, gt=0)
    """Seconds without a batch after which the coordinator forgets a producer (``producer.id.expiration.ms``)."""
    abandon_seconds: float = Field(default=3_600, gt=0)
    """Seconds after which maintenance withdraws the reservations of stopped brokers, and deletes stored answers to
    commits."""
    uncommitted_seconds: float = Field(default=604_800, ge=0)
    """Seconds for which maintenance keeps a complete object without a commit after ``firn-broker fsck --accept``, or if
    idempotent producers have sent all its batches again. Before, it stays: if the coordinator lost the commit, the object
    is the only copy of its records."""


Authentication = Literal["ScramSha256", "ScramSha512", "Plain", "OAuth", "Certificate"]
"""Ways in which clients of a listener authenticate."""


class TlsSettings(Settings):
    """TLS of a listener. The broker reads changed files within seconds, for new connections."""

    cert_file: str
    """File with the certificate of the broker and its intermediate CAs (PEM)."""
    key_file: str
    """File with the private key (PEM)."""
    client_ca_file: str = ""
    """File with the CAs of the clients' certificates (PEM). Default: the broker asks for no certificate."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """The lowest version of TLS."""
    principal_rules: tuple[str, ...] = ("DEFAULT",)
    """Rules that make the name of the principal from the subject of a certificate (``ssl.principal.mapping.rules``)."""


class Listener(Settings):
    """A listener for clients. Clients connect to ``advertised``, which must lead to this broker."""

    name: str = "PLAINTEXT"
    """The name of the listener."""
    bind: str = "127.0.0.1:9092"
    """Address to bind, as HOST:PORT."""
    advertised: str = ""
    """Address that clients connect to, as HOST:PORT. Default: the bound address."""
    tls: TlsSettings | None = None
    """TLS of the listener. Default: not encrypted."""
    authentication: tuple[Authentication, ...] = ()
    """How clients have to authenticate; one of these is enough. Default: clients do not authenticate, and are ``User:ANONYMOUS``."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if "Plain" in self.authentication and self.tls is None:
            raise ValueError("authentication: Plain sends passwords in clear text; set tls, or remove Plain")
        if "OAuth" in self.authentication and self.tls is None:
            raise ValueError("authentication: OAuth sends tokens in clear text; set tls, or remove OAuth")
        if ("Certificate" in self.authentication) != bool(self.tls is not None and self.tls.client_ca_file):
            raise ValueError("set both tls.clientCaFile and Certificate in authentication, or neither of them")
        return self


class AuthorizationSettings(Settings):
    """The rights of clients."""

    type: Literal["Open", "Acl"] = "Open"
    """Open: every client may do everything. Acl: the ACLs of the cluster decide, as with Kafka's ``StandardAuthorizer``."""
    default: Literal["Allow", "Deny"] = "Deny"
    """With ``Acl``: whether clients may use a resource that no ACL matches (``allow.everyone.if.no.acl.found``)."""
    super_users: tuple[Annotated[str, Field(pattern=r"^User:.")], ...] = ()
    """With ``Acl``: principals that may do everything, such as ``User:admin`` (``super.users``). Without one, no client can
    create the first ACL."""
    operators: tuple[Annotated[str, Field(pattern=r"^User:.")], ...] = ()
    """With ``Acl``: principals that manage the cluster without its records. They may do everything except read and write topics, and
    use consumer groups as members, unless ACLs allow that."""
    max_acls: int = Field(default=1_000_000, ge=0)
    """Largest number of ACLs of the cluster. The broker creates no more (POLICY_VIOLATION). Each takes some 120 bytes of
    memory in every broker."""

    @model_validator(mode="after")
    def _in_effect(self) -> Self:
        if "type" not in self.model_fields_set and {"default", "operators", "super_users"} & self.model_fields_set:
            raise ValueError(
                "default, operators and superUsers have an effect only with type: Acl; set it, or remove them"
            )
        return self


class InternalSettings(Settings):
    """The internal listener, at which ingestion drivers ask where batches are stored. Their tasks then read the bucket."""

    bind: str
    """Address to bind, as HOST:PORT."""
    token_file: str = ""
    """File with the token that clients have to send. The broker reads it for each request, so a new token needs no restart.
    Default: clients send tokens of the issuer in ``oauth``, and need Read on each topic."""
    tls: TlsSettings | None = None
    """TLS of the listener. Default: no encryption."""


class RegistrySettings(Settings):
    """A schema registry with Confluent's API, for the gate of topics (``firn.schema.gate``)."""

    url: str = Field(pattern=r"^https?://")
    """Base URL of the API."""
    ca_file: str | None = None
    """File with the CA certificates of the registry. Default: public CAs."""
    username: str = ""
    """Name of the user, for basic authentication."""
    password_file: str | None = None
    """File with the password of the user."""
    token_file: str | None = None
    """File with a token, for bearer authentication."""


class OauthSettings(Settings):
    """The issuer of tokens with which clients authenticate (OAUTHBEARER). Set either `jwksUrl` or `jwksFile`."""

    issuer: str = Field(min_length=1)
    """The issuer that tokens must name (claim `iss`). For ServiceAccounts it is the value of the API server's
    ``--service-account-issuer``."""
    audience: str = Field(min_length=1)
    """The audience that tokens must name (claim `aud`), such as ``firn-broker``. Otherwise a service that gets a token of a
    client could use it at the broker."""
    jwks_url: str = Field(default="", pattern=r"^(https://.*)?$")
    """URL of the issuer's public keys (JSON Web Key Set), such as ``https://kubernetes.default.svc/openid/v1/jwks``."""
    jwks_file: str = ""
    """File with the issuer's public keys."""
    ca_file: str | None = None
    """File with the CA certificates of `jwksUrl`. Default: public CAs."""
    token_file: str | None = None
    """File with a token that the broker sends to `jwksUrl`. The API server of Kubernetes needs one."""
    jwks_seconds: float = Field(default=3_600, ge=60)
    """Seconds after which the broker reads the keys again. For a key that it does not know, it reads them at once. While the
    issuer does not answer, the broker keeps the keys that it has."""
    kubernetes: bool = False
    """If true, tokens are those of ServiceAccounts. The principal is ``User:NAMESPACE.NAME``, and the broker rejects other
    tokens."""
    principal_claim: str = Field(default="sub", min_length=1)
    """The claim with the name of the principal."""
    clock_skew_seconds: float = Field(default=30, ge=0, le=300)
    """Seconds by which the clocks of the issuer and the broker may differ (``sasl.oauthbearer.clock.skew.seconds``)."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.jwks_url) == bool(self.jwks_file):
            raise ValueError("set exactly one of jwksUrl and jwksFile")
        if self.kubernetes and self.principal_claim != "sub":
            raise ValueError("with kubernetes: true, the principal is in the claim sub; remove principalClaim")
        return self


class SqliteSettings(Settings):
    """The embedded coordinator of a single broker."""

    type: Literal["sqlite"] = "sqlite"
    """Kind of the coordinator."""
    path: str
    """Path of the database file."""


class PostgresSettings(Settings):
    """The coordinator of a fleet."""

    type: Literal["postgres"] = "postgres"
    """Kind of the coordinator."""
    uri: str
    """Address as ``postgresql://HOST:PORT/DATABASE``, without credentials."""
    user: str = ""
    """User of the database. Set either this or ``userFile``."""
    user_file: str = ""
    """File with the user. Set either this or ``user``."""
    password_file: str = ""
    """File with the password. Default: no password."""
    ca_file: str = ""
    """File with the CA certificates of PostgreSQL. If set, the broker connects with TLS only, and checks the certificate and its name.
    The broker reads the files again for each connection."""
    cert_file: str = ""
    """File with the client certificate for PostgreSQL. It needs ``caFile`` and ``keyFile``."""
    key_file: str = ""
    """File with the private key of the client certificate."""
    schema_name: str = "firn_broker"
    """Schema of the coordinator's tables. Each cluster needs its own."""
    connections: int = Field(default=10, ge=2)
    """Number of connections of one broker to PostgreSQL. One is for its lease, two are for commits, and two for groups. With fewer than 6, it
    still opens up to six."""
    timeout_seconds: float = Field(default=10, gt=0)
    """Seconds after which a call to PostgreSQL fails."""

    @model_validator(mode="after")
    def _one_user(self) -> Self:
        if bool(self.user) == bool(self.user_file):
            raise ValueError("set exactly one of user and userFile")
        return self

    @model_validator(mode="after")
    def _whole_certificate(self) -> Self:
        if bool(self.cert_file) != bool(self.key_file) or (self.cert_file and not self.ca_file):
            raise ValueError("a client certificate needs certFile, keyFile and caFile")
        return self


class DirectorySettings(Settings):
    """Objects in a local directory."""

    type: Literal["directory"] = "directory"
    """Kind of the object store."""
    path: str
    """Path of the directory."""
    flush: bool = True
    """If true, the broker flushes an object to the disk before it commits it."""


class BucketSettings(Settings):
    """Objects in a bucket."""

    type: Literal["bucket"] = "bucket"
    """Kind of the object store."""
    url: str
    """Place of the objects: ``s3://BUCKET/PREFIX``, ``gs://BUCKET/PREFIX`` or ``az://CONTAINER/PREFIX``."""
    config: dict[str, str] = {}
    """Options of the object store client (obstore), such as ``aws_endpoint``."""
    secret_config: dict[str, str] = {}
    """Options with secret values: the name of the option, and the file with its value."""
    ca_file: str = ""
    """File with the CA certificates of the object store. The broker reads the file again when it changes. Default: public CAs."""
    timeout_seconds: float = Field(default=10, gt=0)
    """Seconds after which a request to the object store fails."""


class HistorySettings(Settings):
    """Batches whose records lie in data files of tables."""

    stores: tuple[BucketSettings, ...] = ()
    """Stores of the data files of tables, each with the beginning of their paths as its URL."""
    workers: int = Field(default=1, ge=1, le=64)
    """Processes that rebuild batches for consumers. Each has a few row groups in memory, some 300 MiB."""


class BrokerSettings(Settings):
    """All settings of a broker."""

    coordinator: Annotated[SqliteSettings | PostgresSettings, Field(discriminator="type")]
    """The store of topics, offsets, leases and groups."""
    objects: Annotated[DirectorySettings | BucketSettings, Field(discriminator="type")]
    """The store of batches."""
    listener: Listener = Listener()
    """The listener for clients."""
    external: Listener | None = None
    """A second listener, for clients that reach the brokers at other addresses. Clients get the addresses of the listener
    that they use, for all brokers. Default: none."""
    listeners: dict[str, Listener] = {}
    """Further listeners by name, for example one with TLS beside one without while clients move. Clients get the addresses of the
    listener that they use."""
    authorization: AuthorizationSettings = AuthorizationSettings()
    """The rights of clients."""
    internal: InternalSettings | None = None
    """The internal listener for ingestion drivers. Objects have to be in a bucket. Default: none."""
    node_id: int | None = Field(default=None, ge=0)
    """Node id of the broker. Default: the lowest free id."""
    history_brokers: int = Field(default=0, ge=0)
    """Brokers that serve only consumers of old records: those with lower node ids. Set the same number for all brokers."""
    zone: str = ""
    """Zone of the broker. Consumers with this zone as their ``client.rack`` fetch from it. A client that states the zone in
    its client id, as ``client.id=reader,zone=a``, uses the brokers of that zone."""
    require_durable: bool = True
    """If true, the broker does not start on a PostgreSQL with ``fsync`` or ``full_page_writes`` off, and warns if no
    standby is synchronous. Set it to false only for storage that keeps every commit without them."""
    lease_seconds: float = Field(default=5, gt=0)
    """Seconds without a renewal after which a broker counts as dead."""
    metrics_listen: str = ""
    """Address of /metrics, /livez and /readyz, as HOST:PORT. Default: not served."""
    writer: WriterSettings = WriterSettings()
    """Collection of produced batches into objects."""
    reader: ReaderSettings = ReaderSettings()
    """Reads and caches for consumers."""
    connections: ConnectionSettings = ConnectionSettings()
    """Limits of connections and requests."""
    registries: dict[str, RegistrySettings] = {}
    """Schema registries that topics may name in ``firn.schema.registry``."""
    oauth: OauthSettings | None = None
    """The issuer of tokens. Default: clients cannot authenticate with OAUTHBEARER."""
    topics: TopicSettings = TopicSettings()
    """Creation of topics, and their default configs."""
    groups: GroupSettings = GroupSettings()
    """Timeouts and limits of consumer groups."""
    history: HistorySettings = HistorySettings()
    """Batches whose records lie in data files of tables."""
    upkeep: MaintenanceSettings = MaintenanceSettings()
    """Retention, compaction and deletion of stored batches."""

    @model_validator(mode="after")
    def _readable_elsewhere(self) -> Self:
        if self.internal is not None and isinstance(self.objects, DirectorySettings):
            raise ValueError(
                "internal: other processes cannot read objects in a directory; remove internal, or use a bucket"
            )
        if self.internal is not None and not self.internal.token_file and (self.oauth is None or not self.internal.tls):
            raise ValueError("internal: set tokenFile, or for tokens of an issuer both tls and oauth")
        return self

    @model_validator(mode="after")
    def _issuer(self) -> Self:
        for name, listener in self.named_listeners().items():
            if "OAuth" in listener.authentication and self.oauth is None:
                raise ValueError(f"listener {name or listener.name}: authentication has OAuth; set oauth to the issuer")
        return self

    @model_validator(mode="after")
    def _names_of_listeners(self) -> Self:
        for name in self.listeners:
            if name == "external" or not re.fullmatch("[a-z][a-z0-9]*", name):
                raise ValueError(f"listeners: {name!r} is not possible as a name; choose a-z and 0-9, and not external")
        return self

    def named_listeners(self) -> dict[str, Listener]:
        """Return all listeners for clients, by their names in `NodeAddress`."""
        external = {} if self.external is None else {"external": self.external}
        return {"": self.listener, **external, **self.listeners}


def embedded(directory: Path, environment: Mapping[str, str]) -> BrokerSettings:
    """Return the settings of a single broker that stores everything in ``directory``. Raises InvalidSpecError."""
    return _checked(
        {
            "coordinator": {"type": "sqlite", "path": str(directory / "coordinator.db")},
            "objects": {"type": "directory", "path": str(directory / "objects")},
            # The directory is locked, so no other process is this node.
            "nodeId": 0,
            # A write to a directory costs no request, but CPU time for each object. So an early upload waits for the one before,
            # and takes all batches that arrive meanwhile.
            "writer": {"earlyBytes": 0, "earlyUploads": 1},
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
