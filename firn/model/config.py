"""The operator's configuration: one YAML document that the chart renders (``values.yaml``) and the operator validates at start.

Keys are camelCase in YAML. The document has all cluster-wide settings: profiles, ingestion groups, catalogs, images, sizes. An
IcebergTopic names a profile, a group and a catalog. The document refers to Secrets by name and key and contains no secret values.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self
from urllib.parse import parse_qsl, urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel

from firn.model import durations, names, quantities
from firn.model.errors import InvalidSpecError

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]


def _checked_duration(text: str) -> str:
    durations.milliseconds(text)
    return text


def _checked_size(text: str) -> str:
    quantities.size(text)
    return text


def _checked_heap(text: str) -> str:
    quantities.heap(text)
    return text


_PRIVATE = "private"
"""Key of pydantic's context: the document is a file of a user, not a ConfigMap."""
_SECRET_ENDS = (
    "password", "passwd", "passphrase", "secret", "token", "credential", "authorization", "secretkey", "secretaccesskey", "privatekey",
    "accountkey", "apikey", "storagekey", "keystorekey",
)  # fmt: skip
"""Ends of keys, in lower case and without separators, whose values are secrets. A key such as ``..._TOKEN_FILE`` names a file."""
_SECRET_PARTS = re.compile(
    r"(sas[._-]?(fixed[._-]?)?token|account[._-]?key|client[._-]?secret|connection[._-]?string|jaas[._-]?config)(?![a-z])"
)
"""Parts of keys, in lower case. The name of an account or a listener may follow."""


def _names_secret(key: str) -> bool:
    letters = re.sub(r"[^a-z0-9]", "", key.lower())
    last_word = re.split(r"[._-]|(?<=[a-z0-9])(?=[A-Z])", key)[-1].lower()
    if letters.endswith(_SECRET_ENDS) or last_word in ("pass", "pwd"):
        return True
    return _SECRET_PARTS.search(key.lower()) is not None and last_word not in ("file", "path")


def _secrets_in(properties: dict[str, str], info: ValidationInfo) -> list[str]:
    if (info.context or {}).get(_PRIVATE):
        return []
    return sorted(key for key in properties if _names_secret(key))


def _without_secrets(properties: dict[str, str], info: ValidationInfo) -> dict[str, str]:
    found = _secrets_in(properties, info)
    if found:
        raise ValueError(
            f"{', '.join(found)} would be readable in ConfigMaps; put the value into a Secret, and name it in secretProperties of the"
            " catalog or object store"
        )
    return properties


PlainProperties = Annotated[dict[str, str], AfterValidator(_without_secrets)]
"""Keys and values that are no secrets."""


def _without_credentials(uri: str) -> str:
    parts = urlsplit(uri)
    if "@" in parts.netloc or any(_names_secret(key) for key, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise ValueError(
            "contains credentials; remove them, and name Secret keys: in secretProperties, in user and password of a coordinator, or in"
            " password or token of a registry"
        )
    return uri


BROKERS_OWN = frozenset(
    {
        "node.id", "broker.id", "process.roles", "listeners", "advertised.listeners", "listener.security.protocol.map", "log.dirs", "log.dir",
        "controller.quorum.voters", "controller.quorum.bootstrap.servers", "controller.listener.names", "inter.broker.listener.name",
        "metadata.log.dir",
    }
)  # fmt: skip
"""Keys that a profile's ``config`` must not set, because brokers would lose each other or their data."""


def _of_a_broker(properties: dict[str, str], info: ValidationInfo) -> dict[str, str]:
    found = _secrets_in(properties, info)
    if found:
        raise ValueError(f"{', '.join(found)} would be readable in a ConfigMap; remove these keys")
    refused = sorted(BROKERS_OWN & properties.keys())
    if refused:
        raise ValueError(f"the operator sets {', '.join(refused)} for each broker; remove these keys")
    return properties


ACCESS_OWN = frozenset(
    {
        "authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found", "principal.builder.class", "sasl.enabled.mechanisms",
        "sasl.mechanism.controller.protocol", "sasl.mechanism.inter.broker.protocol", "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer", "sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.token.endpoint.url", "sasl.server.callback.handler.class", "security.inter.broker.protocol",
        "ssl.allow.dn.changes", "ssl.allow.san.changes", "ssl.client.auth", "ssl.endpoint.identification.algorithm", "ssl.engine.factory.class",
        "ssl.keystore.location", "ssl.keystore.type", "ssl.principal.mapping.rules", "ssl.truststore.location", "ssl.truststore.type",
    }
)  # fmt: skip
"""Keys that a profile's ``config`` must not set beside ``access``, because they decide about encryption and rights."""

BROKER_SETTINGS_OWN = frozenset(
    {
        "coordinator", "objects", "listener", "external", "internal", "listeners", "nodeId", "zone", "metricsListen", "registries",
    }
)  # fmt: skip
"""Settings of a diskless broker that a profile's ``config`` must not set, for the same reason."""


def _without_place(settings: dict[str, Any]) -> dict[str, Any]:
    refused = sorted(BROKER_SETTINGS_OWN & settings.keys())
    if refused:
        raise ValueError(f"the operator sets {', '.join(refused)} for each broker; remove these keys")
    return settings


BrokerConfig = Annotated[
    dict[str, str],
    AfterValidator(_of_a_broker),
    Field(json_schema_extra={"properties": dict.fromkeys(sorted(BROKERS_OWN), False)}),
]
"""Keys of Kafka's ``server.properties``."""
BrokerSettings = Annotated[
    dict[str, Any],
    AfterValidator(_without_place),
    Field(json_schema_extra={"properties": dict.fromkeys(sorted(BROKER_SETTINGS_OWN), False)}),
]
"""Keys of a diskless broker's settings document (``firn_broker.settings``)."""
Duration = Annotated[str, AfterValidator(_checked_duration)]
Size = Annotated[str, AfterValidator(_checked_size)]
"""A Kubernetes quantity of bytes, such as ``512Mi``."""
Heap = Annotated[str, AfterValidator(_checked_heap)]
"""A size in the JVM's form, such as ``768m``."""


class Settings(BaseModel):
    """Base of every configuration model: camelCase keys, immutable. Unknown keys are errors."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


class SecretKey(Settings):
    """A key of a Secret in the operator's namespace."""

    secret: str = Field(min_length=1, max_length=253)
    """Name of the Secret."""
    key: str = Field(min_length=1, max_length=253)
    """Key in the Secret."""

    @property
    def path(self) -> str:
        """Return the file with the value in every pod that needs it."""
        return names.secret_file(self.secret, self.key)


ImageReference = Annotated[str, Field(pattern=r"^[^\s@]*(@sha256:[0-9a-f]{64})?$")]
"""Reference of an image. After ``@``, it has the digest of the image (``@sha256:...``)."""


class Authority(Settings):
    """CA certificates in PEM, in a key of a Secret or of a ConfigMap in the operator's namespace. Pods get this key only."""

    secret: str | None = Field(default=None, min_length=1, max_length=253)
    """Name of the Secret. Set either this or ``configMap``."""
    config_map: str | None = Field(default=None, min_length=1, max_length=253)
    """Name of the ConfigMap, such as one that trust-manager writes. Set either this or ``secret``."""
    key: str = Field(default="ca.crt", min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")
    """Key with the certificates."""

    @model_validator(mode="after")
    def _one_object(self) -> Self:
        if (self.secret is None) == (self.config_map is None):
            raise ValueError("set either secret or configMap")
        return self

    @property
    def path(self) -> str:
        """Return the file with the certificates in every pod that needs them."""
        if self.secret is not None:
            return names.trust_file("secret", self.secret, self.key)
        assert self.config_map is not None
        return names.trust_file("configmap", self.config_map, self.key)


class ClientCertificate(Settings):
    """A client certificate and its key, in a Secret of the operator's namespace, as cert-manager writes it."""

    secret: str = Field(min_length=1, max_length=253)
    """Name of the Secret with the keys ``tls.crt`` and ``tls.key``. The key is in PKCS #8 without a password."""

    @property
    def references(self) -> tuple[SecretKey, SecretKey]:
        """Return the keys with the certificate and with its private key."""
        return SecretKey(secret=self.secret, key="tls.crt"), SecretKey(secret=self.secret, key="tls.key")


class Tls(Settings):
    """Private trust of a server: clients accept a certificate of these CAs only, and only with the name of the server."""

    ca: Authority
    """The CA certificates of the server."""


class DatabaseTls(Tls):
    """Private trust of a server, and the certificate of its clients."""

    certificate: ClientCertificate | None = None
    """Client certificate for PostgreSQL. Without it, clients authenticate with user and password only."""


class Image(Settings):
    """A container image: its full reference, and when to pull it."""

    image: Annotated[ImageReference, Field(min_length=1)]
    """Full reference of the image: a tag, or a digest as ``NAME@sha256:...``."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the nodes pull the image."""


class Images(Settings):
    """The images of the pods that the operator creates, and how to pull them."""

    spark: Image
    kafka: Image
    broker: Image | None = None
    """Image of diskless brokers, for profiles that do not name one."""
    pull_secrets: list[str] = []


class Resources(Settings):
    """Resource requests and limits of a container, as in a pod."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Scheduling(Settings):
    """Scheduling fields that the operator copies into pod templates."""

    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, object]] = []
    affinity: dict[str, object] = {}
    topology_spread_constraints: list[dict[str, object]] = []
    priority_class_name: str | None = None


class TokenEndpoint(Settings):
    """The endpoint of an identity provider that issues access tokens for client credentials (RFC 6749, section 4.4)."""

    url: str = Field(pattern=r"^https?://[^/@\s]+(/\S*)?$")
    """URL of the token endpoint."""
    scope: str = ""
    """Scopes to request, separated by spaces."""
    extensions: dict[
        Annotated[str, Field(pattern="^[A-Za-z]+$")], Annotated[str, Field(pattern=r"^[\x20-\x2b\x2d-\x7e]*$")]
    ] = {}
    """SASL extensions for the brokers (RFC 7628), such as ``logicalCluster``."""
    ca: SecretKey | None = None
    """Secret key with the CA certificates of the endpoint. Without it, the endpoint needs a certificate of a public CA."""

    @model_validator(mode="after")
    def _extensions_are_no_token(self) -> Self:
        if "auth" in self.extensions:
            raise ValueError("extensions must not have the key auth, which is reserved for the token; remove it")
        return self


class Sasl(Settings):
    """SASL credentials of a client."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    """SASL mechanism of the brokers."""
    username: str
    """Name of the user. For OAUTHBEARER, the ID of the OAuth client."""
    password: SecretKey
    """Secret key with the password. For OAUTHBEARER, the secret of the OAuth client."""
    tokens: TokenEndpoint | None = None
    """Endpoint of the access tokens for OAUTHBEARER."""

    @model_validator(mode="after")
    def _only_oauth_has_tokens(self) -> Self:
        if (self.mechanism == "OAUTHBEARER") != (self.tokens is not None):
            raise ValueError(
                "mechanism OAUTHBEARER needs tokens, and no other mechanism has them; add or remove tokens"
            )
        return self


class KafkaSecurity(Settings):
    """Connection to an existing Kafka: TLS (CA, client certificate) and SASL, from Secrets."""

    tls: bool = False
    """Connect with TLS."""
    ca: SecretKey | None = None
    """Secret key with the CA certificates of the brokers."""
    certificate: SecretKey | None = None
    """Secret key with the client certificate, for mutual TLS."""
    certificate_key: SecretKey | None = None
    """Secret key with the private key of the client certificate, as PKCS #8 without a password."""
    verify_hostname: bool = True
    """Check that the brokers' certificates have the names of the brokers."""
    sasl: Sasl | None = None
    """Credentials for SASL. Without them, clients do not use SASL."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.certificate is None) != (self.certificate_key is None):
            raise ValueError("certificate and certificateKey must be set together")
        if not self.tls and (self.ca or self.certificate):
            raise ValueError("ca and certificate need tls: true")
        return self

    @property
    def protocol(self) -> str:
        """Return Kafka's ``security.protocol``."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")


class Credential(Settings):
    """The credential of drivers in an existing Kafka. ``tls``, ``ca`` and ``verifyHostname`` are those of ``security``."""

    certificate: SecretKey | None = None
    """Secret key with the client certificate, for mutual TLS."""
    certificate_key: SecretKey | None = None
    """Secret key with the private key of the client certificate, as PKCS #8 without a password."""
    sasl: Sasl | None = None
    """Credentials for SASL."""
    principal: Annotated[str, Field(pattern="^User:.")] | None = None
    """Principal of the drivers in ACLs, for ``manageAcls``. Default: ``User:`` and the name in ``sasl``. For OAUTHBEARER and certificates,
    the brokers make it from the token or the subject, so it has no default."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.certificate is None) != (self.certificate_key is None):
            raise ValueError("certificate and certificateKey must be set together")
        if self.certificate is None and self.sasl is None:
            raise ValueError("a credential needs sasl, or certificate and certificateKey; add one")
        return self

    @property
    def user(self) -> str | None:
        """Return the principal without ``User:``; None if only the brokers know it."""
        if self.principal is not None:
            return self.principal.removeprefix("User:")
        return self.sasl.username if self.sasl is not None and self.sasl.tokens is None else None


class Drivers(Settings):
    """Credentials of the pods that read records from an existing Kafka. Each pod mounts its own, and not that in ``security``."""

    groups: dict[Name, Credential]
    """Credential of the driver of each ingestion group whose topics may use the profile."""
    maintenance: Credential
    """Credential of maintenance runs. Audits read records."""
    manage_acls: bool = False
    """The operator creates and deletes the ACLs with which these users read the topics of their job contracts. Its own user then needs
    Alter and Describe on the cluster. Otherwise, an administrator creates ACLs with Read."""

    @property
    def credentials(self) -> dict[str, Credential]:
        """Return all credentials, by the key in the configuration."""
        return {"maintenance": self.maintenance} | {f"groups.{name}": each for name, each in self.groups.items()}


class Storage(Settings):
    """A persistent volume."""

    size: Size = "20Gi"
    """Size of the volume. It cannot change after the installation."""
    storage_class_name: str | None = None
    """StorageClass of the volume. Without it, the cluster's default."""


_HOST = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+"
HostName = Annotated[str, Field(pattern=f"^{_HOST}$", max_length=253)]
"""A DNS name with a dot. Clients send no other names in the TLS handshake."""


class ParentRef(Settings):
    """A Gateway of the Gateway API, as in ``parentRefs`` of a TLSRoute."""

    name: str = Field(min_length=1, max_length=253)
    """Name of the Gateway."""
    namespace: str = Field(default="", max_length=63)
    """Namespace of the Gateway. Empty: that of the operator."""
    section_name: str = Field(default="", max_length=253)
    """Name of the listener. Empty: all listeners of the Gateway that accept the routes."""


class TlsRoutes(Settings):
    """How a Gateway leads clients to the brokers: by the name in the TLS handshake, without decryption (``tls.mode: Passthrough``)."""

    parent_refs: list[ParentRef] = Field(min_length=1, max_length=32)
    """The Gateways."""
    bootstrap_hostname: HostName
    """Name of the bootstrap address."""
    broker_hostname: str = Field(max_length=253)
    """Name that each broker advertises. ``{broker}`` stands for the number of the broker, as in ``kafka-{broker}.example.com``."""
    port: int = Field(default=443, ge=1, le=65535)
    """Port of the Gateway's listener."""

    @model_validator(mode="after")
    def _each_broker_has_a_name(self) -> Self:
        if self.broker_hostname.count("{broker}") != 1 or not re.fullmatch(_HOST, self.host(0)):
            raise ValueError("brokerHostname must be a DNS name with one {broker}, such as kafka-{broker}.example.com")
        if self.bootstrap_hostname in {self.host(ordinal) for ordinal in range(100)}:
            raise ValueError("bootstrapHostname is the name of a broker, too; choose another one")
        return self

    def host(self, broker: int | str) -> str:
        """Return the name of a broker."""
        return self.broker_hostname.replace("{broker}", str(broker))


def network(text: str) -> str:
    """Return a range of addresses in CIDR notation. Raises ValueError."""
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ValueError(f"{error}; write a range of addresses such as 10.0.0.0/8") from None


Network = Annotated[str, AfterValidator(network)]
"""A range of IPv4 or IPv6 addresses, such as ``10.0.0.0/8``."""


class External(Settings):
    """A listener for clients outside the cluster: a Service for each broker and a bootstrap Service.

    With NodePort, broker N has the node port ``port`` + 1 + N. With LoadBalancer and TLSRoute, all Services have port 9094.
    """

    type: Literal["NodePort", "LoadBalancer", "TLSRoute"] = "NodePort"
    """Type of the Services. TLSRoute: the Services are of type ClusterIP, and TLSRoutes of the Gateway API lead to them."""
    host: str = ""
    """For NodePort: the name or address that all brokers advertise. Empty: each broker advertises the address of its node."""
    port: int = Field(default=32092, ge=1024, le=65000)
    """For NodePort: the node port of the bootstrap Service."""
    hosts: list[str] = []
    """For LoadBalancer: the name that each broker advertises, in the order of the brokers."""
    source_ranges: list[Network] = []
    """For LoadBalancer: the addresses that may connect, such as ``10.0.0.0/8`` (``loadBalancerSourceRanges`` of the Services). Empty: all.
    The cluster's load balancer has to support it."""
    annotations: dict[str, str] = {}
    """Annotations of the Services."""
    tls_route: TlsRoutes | None = None
    """For TLSRoute: the Gateways, and the names of the brokers. The profile needs ``access`` with ``plaintext: Close``."""

    @model_validator(mode="after")
    def _routes_have_a_gateway(self) -> Self:
        if (self.type == "TLSRoute") != (self.tls_route is not None):
            raise ValueError("type TLSRoute and tlsRoute need each other; set both, or remove both")
        return self

    @model_validator(mode="after")
    def _load_balancers_have_ranges(self) -> Self:
        if self.source_ranges and self.type != "LoadBalancer":
            raise ValueError(
                f"sourceRanges limits only Services of type LoadBalancer, and Kubernetes ignores it for {self.type}; remove it, and limit the"
                " addresses in a firewall or in the Gateway, or choose LoadBalancer"
            )
        return self

    @property
    def hostnames(self) -> list[str]:
        """Return the names that the user knows of the bootstrap address and of the brokers, without those of TLSRoutes."""
        return self.hosts if self.type == "LoadBalancer" else [self.host] * bool(self.host)


Pattern = Annotated[str, Field(min_length=1, max_length=255)]
"""A name in which ``*`` stands for any characters."""


def _checked_limit(text: str) -> str:
    limit(text)
    return text


def limit(text: str) -> int:
    """Return a number of bytes (``8Mi``), of milliseconds (``7d``), or a plain number. Raises ValueError."""
    for parse in (int, quantities.size, durations.milliseconds):
        try:
            return parse(text)
        except (ValueError, InvalidSpecError):
            continue
    raise ValueError(f"{text!r} is no limit; write a number, a size such as 8Mi, or a duration such as 7d")


class Allowance(Settings):
    """Names that a spec may set: those that match ``allow`` and do not match ``deny``."""

    allow: list[Pattern] = ["*"]
    """Patterns of the names that a spec may set."""
    deny: list[Pattern] = []
    """Patterns of the names that a spec must not set."""

    def permits(self, name: str) -> bool:
        """Return whether a spec may set ``name``."""
        return matches(name, self.allow) and not matches(name, self.deny)


def matches(name: str, patterns: list[str]) -> bool:
    """Return whether ``name`` matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class ConfigAllowance(Allowance):
    """Topic configs that a spec may set, and their highest values."""

    max: dict[str, Annotated[str, AfterValidator(_checked_limit)]] = {}
    """Highest value of a config: a number, a size such as ``8Mi``, or a duration such as ``7d``."""


AdoptionRule = Literal["Never", "Owned", "Any"]
"""The existing topics or tables that a new resource may adopt."""


class ProfileTenancy(Settings):
    """Limits for the topics of each Kubernetes namespace on these brokers."""

    adopt: AdoptionRule = "Owned"
    """Existing Kafka topics that a new IcebergTopic may adopt. ``Owned``: those that an IcebergTopic of its namespace created
    or adopted. ``Any``: all. ``Never``: none. With ``Any``, limit the profile with ``namespaces`` or ``topicNames``."""
    topic_names: list[Pattern] = []
    """Patterns of the topic names that a namespace may use. ``{namespace}`` stands for its name. Empty: all names."""
    config: ConfigAllowance = ConfigAllowance()
    """Topic configs that topics and RetentionPolicies may set."""
    partitions_per_namespace: int | None = Field(default=None, ge=1, le=1_000_000)
    """Highest number of partitions of all topics of a namespace together. Without it, there is no limit."""


class CatalogTenancy(Settings):
    """Limits for the tables of each Kubernetes namespace in this catalog."""

    adopt: AdoptionRule = "Owned"
    """Existing tables that a new IcebergTopic may adopt. ``Owned``: those that an IcebergTopic of its namespace created or
    adopted. ``Any``: all, except those of another Kubernetes cluster. ``Never``: none. Under every rule, the table property
    ``firn.adopt`` gives consent to one resource. With ``Any``, limit the catalog with ``namespaces``."""
    table_namespaces: list[Pattern] = []
    """Patterns of the table namespaces that a Kubernetes namespace may use. ``{namespace}`` stands for its name, with _ for -. Empty: all."""
    properties: Allowance = Allowance(deny=["write.*.path", "write.location-provider.*"])
    """Table properties that a spec may set. By default, files stay at the table's location."""


class Profile(Settings):
    """Brokers and defaults of topics: the keys that all kinds of profiles have."""

    namespaces: list[str] = []
    """Namespaces whose topics may use the profile. Empty: all."""
    tenancy: ProfileTenancy = ProfileTenancy()
    """Limits for the topics of each namespace."""
    default_partitions: int = Field(default=3, ge=1, le=10000)
    """Number of partitions of topics that do not set it."""
    replicas: int = Field(default=3, ge=1, le=99)
    """Number of brokers."""
    image: Image | None = None
    """Image of these brokers instead of the image in ``images``."""
    external: External | None = None
    """Listener for clients outside the cluster. Without it, only clients in the cluster reach the brokers."""
    scheduling: Scheduling = Scheduling()
    """Scheduling of the brokers' pods."""
    environment: PlainProperties = {}
    """Environment variables of brokers that the operator runs, such as ``KAFKA_JVM_PERFORMANCE_OPTS``. Variables that Firn sets itself take
    precedence."""

    @model_validator(mode="after")
    def _routes_need_tls(self) -> Self:
        access = access_of(self)
        routed = self.external is not None and self.external.type == "TLSRoute"
        if routed and (access is None or access.plaintext != "Close"):
            raise ValueError(
                "external: TLSRoute needs access with plaintext: Close, because a Gateway finds the broker by the name in the TLS handshake; add"
                " access, or choose NodePort or LoadBalancer"
            )
        return self

    @property
    def managed(self) -> bool:
        """Return True if the operator runs the brokers."""
        return True

    @property
    def outside_names(self) -> list[str]:
        """Return the names by which clients outside know the brokers."""
        if self.external is None:
            return []
        route = self.external.tls_route
        if route is None:
            return self.external.hostnames
        return [route.bootstrap_hostname, *(route.host(ordinal) for ordinal in range(self.replicas))]


class ProfileUsers(Settings):
    """TopicUsers of a profile. The brokers need an authorizer, and a listener with SCRAM-SHA-512 for users with a password."""

    namespaces: list[str] = []
    """Namespaces whose TopicUsers the profile may have. Empty: all that may use the profile."""
    bootstrap_servers: str | None = None
    """Addresses for the clients of users, as ``HOST:PORT``, separated by commas. Unset: those of the profile."""
    groups: list[Pattern] = ["{namespace}.*"]
    """Patterns of the consumer groups that TopicUsers of a namespace may use. ``{namespace}`` stands for its name."""
    transactional_ids: list[Pattern] = ["{namespace}.*"]
    """Patterns of the transactional ids that TopicUsers of a namespace may use. ``{namespace}`` stands for its name."""


def _without_ssl(uri: str, tls: Tls | None) -> None:
    """Raise ValueError if both ``tls`` and the query of ``uri`` decide about TLS."""
    keys = [key for key, _ in parse_qsl(urlsplit(uri).query, keep_blank_values=True) if key.lower().startswith("ssl")]
    if tls is not None and keys:
        raise ValueError(f"tls and {', '.join(keys)} in uri exclude each other; remove {', '.join(keys)} from uri")


class Coordinator(Settings):
    """PostgreSQL database for offsets, topics and groups of diskless brokers. Each profile has its own schema."""

    uri: Annotated[str, AfterValidator(_without_credentials), Field(pattern=r"^postgres(ql)?://")]
    """Address as ``postgresql://HOST:PORT/DATABASE``, without credentials."""
    user: Annotated[str, Field(min_length=1)] | SecretKey
    """User of the database, or a Secret key with the name of the user."""
    password: SecretKey | None = None
    """Secret key with the password of the user."""
    tls: DatabaseTls | None = None
    """Private trust of the database. The brokers then connect with TLS only (``verify-full``)."""

    @model_validator(mode="after")
    def _one_tls(self) -> Self:
        _without_ssl(self.uri, self.tls)
        return self

    def references(self) -> list[SecretKey]:
        """Return the Secret keys that a connection needs."""
        certificate = () if self.tls is None or self.tls.certificate is None else self.tls.certificate.references
        return [*(value for value in (self.user, self.password) if isinstance(value, SecretKey)), *certificate]


class ObjectStore(Settings):
    """Bucket for the records of diskless brokers."""

    url: Annotated[str, AfterValidator(_without_credentials), Field(pattern=r"^(s3|gs|az)://[^/]+")]
    """URL of the bucket: ``s3://BUCKET/PREFIX``, ``gs://...`` or ``az://...``. Each profile writes below its own name."""
    properties: PlainProperties = {}
    """Settings of the object store client, such as ``aws_endpoint`` and ``aws_region``. docs.rs/object_store lists them."""
    secret_properties: dict[str, SecretKey] = {}
    """Properties from Secret keys, such as ``aws_access_key_id`` and ``aws_secret_access_key``."""
    tls: Tls | None = None
    """Private trust of the object store, for brokers and for ingestion with ``directReads``."""

    def place(self, profile: str) -> str:
        """Return the URL below which the brokers of a profile store their objects."""
        return f"{self.url.rstrip('/')}/{profile}"


def certificate_name(text: str) -> str:
    """Return a DNS name or an IP address in the form that certificates have. Raises ValueError."""
    try:
        return str(ip_address(text))
    except ValueError:
        if (
            len(text) > 253
            or re.fullmatch(r"(\*\.)?([a-z0-9_]([-a-z0-9_]*[a-z0-9_])?\.?)+", text, re.IGNORECASE) is None
        ):
            raise ValueError(
                f"{text!r} is neither a DNS name nor an IP address; write a name such as kafka.example.com"
            ) from None
    return text


CertificateName = Annotated[str, AfterValidator(certificate_name)]
"""A DNS name, whose first label may be ``*``, or an IP address."""


class DirectReads(Settings):
    """Ingestion reads records from the bucket. It asks the brokers only where the records are, at an internal listener."""

    token: SecretKey | None = None
    """Secret key with the token of the internal listener. Default: the key `token` of the Secret `firn-direct-reads-PROFILE`. The chart
    creates this Secret once, with a random token. With ``access``, remove it: drivers send the tokens of their ServiceAccounts."""
    properties: PlainProperties = {}
    """Settings of the object store client in the drivers. They are added to the properties of `objectStore`, and take precedence."""
    secret_properties: dict[str, SecretKey] = {}
    """Properties from Secret keys: credentials that can read objects below `objectStore.url`. The drivers do not get the
    secret properties of `objectStore`. Without credentials here, drivers use the identity of their ServiceAccount."""


class SelfSigned(Settings):
    """A CA of the profile, which `firn-signer` creates and keeps. It signs certificates of brokers only."""

    authority_duration: Duration = "3650d"
    """Lifetime of the CA."""
    generation: int = Field(default=1, ge=1)
    """Number of the CA. To replace the CA, raise it by one with ``stage: Trust``."""
    stage: Literal["Trust", "Issue", "Finish"] = "Finish"
    """Stage of the replacement of the CA. Trust: clients get the next CA beside the present one. Issue: the next CA signs certificates, and
    clients trust both. Finish: clients trust the new CA only. Each stage waits until the stage before it is 15 minutes old."""


class CertManager(Settings):
    """An issuer of cert-manager."""

    # The Secret firn-broker-PROFILE-tls-NAME contains it, and names of Secrets have at most 253 characters.
    name: str = Field(min_length=1, max_length=150)
    """Name of the issuer. An ``Issuer`` is in the namespace of the operator."""
    kind: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]*$")] = "ClusterIssuer"
    """Kind of the issuer: ``ClusterIssuer`` or ``Issuer``, or the kind of an external issuer in ``group``."""
    group: str = "cert-manager.io"
    """API group of the issuer."""


class CertificateSource(Settings):
    """A source of the certificate of brokers. Exactly one of the keys is set."""

    secret: str | None = Field(default=None, min_length=1, max_length=253)
    """Name of a Secret of yours with the keys ``tls.crt``, ``tls.key`` and ``ca.crt``. The certificate must be valid for
    ``*.firn-broker-PROFILE.NAMESPACE.svc`` and ``firn-broker-PROFILE-bootstrap.NAMESPACE.svc``, and with ``external`` for the names
    that the brokers advertise outside. The brokers read changed files without a restart. Brokers of Apache Kafka need the key as
    PKCS #8 (``privateKey.encoding: PKCS8`` of cert-manager)."""
    self_signed: SelfSigned | None = None
    """Set it, for example to ``{}``, if Firn issues the certificate. A Deployment of its own, ``firn-signer``, writes the Secret
    ``firn-broker-PROFILE-tls``, and renews the certificate."""
    cert_manager: CertManager | None = None
    """The issuer of cert-manager that issues the certificate. The operator applies the Certificate ``firn-broker-PROFILE-tls-ISSUER``, and
    cert-manager writes the Secret of this name."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = [source for source in (self.secret, self.cert_manager, self.self_signed) if source is not None]
        if len(sources) != 1:
            raise ValueError(
                "certificate needs exactly one of secret, certManager and selfSigned; set one, and set the others to null"
            )
        return self

    def secret_name(self, profile: str) -> str:
        """Return the name of the Secret with the certificate. Sources that Firn uses at the same time have different Secrets."""
        if self.cert_manager is not None:
            return names.issued_certificate(profile, self.cert_manager.name)
        return self.secret or names.brokers_certificate(profile)


class Certificate(CertificateSource):
    """The certificate of brokers, in a Secret of the operator's namespace. Exactly one source of it is set."""

    duration: Duration = "90d"
    """Lifetime of a certificate that Firn requests or issues, at least an hour."""
    renew_before: Duration = "30d"
    """Time before its end at which such a certificate is replaced, at least five minutes."""
    names: list[CertificateName] = []
    """Further DNS names and IP addresses of such a certificate, such as those of load balancers or nodes. It always has the names of the
    Services and pods of the brokers, and the names in ``external``."""
    previous: CertificateSource | None = None
    """The source before, while the source changes. Brokers of Apache Kafka and Firn's clients then trust the CAs of both sources."""
    stage: Literal["Trust", "Issue"] = "Trust"
    """Stage of a change of the source, with ``previous``. Trust: brokers keep the certificate of ``previous``. Issue: they get the new one,
    15 minutes after all of them have the stage Trust. After that, remove ``previous``."""

    @model_validator(mode="after")
    def _terms_are_of_issued_certificates(self) -> Self:
        chosen = {"duration", "renew_before", "names"} & self.model_fields_set
        if all(source.secret is not None for source in self.sources) and chosen:
            keys = ", ".join(sorted(to_camel(key) for key in chosen))
            raise ValueError(f"Firn does not issue the certificate in a Secret of yours; remove {keys}")
        return self

    @model_validator(mode="after")
    def _renewal_leaves_time(self) -> Self:
        lifetime, rest = durations.parse(self.duration), durations.parse(self.renew_before)
        if lifetime < timedelta(hours=1) or rest < timedelta(minutes=5):
            raise ValueError("duration must be at least 1h, and renewBefore at least 5m")
        if 2 * rest > lifetime:
            raise ValueError(
                "renewBefore must be at most half of duration, so that a new certificate is in use for a while"
            )
        signed = [source.self_signed for source in self.sources if source.self_signed is not None]
        if any(durations.parse(each.authority_duration) < 2 * lifetime for each in signed):
            raise ValueError("selfSigned.authorityDuration must be at least twice the duration of certificates")
        return self

    @model_validator(mode="after")
    def _previous_is_another_source(self) -> Self:
        before = self.previous
        if before is None or before.secret_name("") != self.secret_name(""):
            return self
        if before.cert_manager != self.cert_manager:
            raise ValueError(
                "previous has the same Secret as the present source, because both issuers have the same name; create an issuer with another name"
            )
        raise ValueError(
            "previous has the same Secret as the present source; name the source before, or remove previous. To replace the CA of"
            " selfSigned, use generation"
        )

    @property
    def sources(self) -> list[Self]:
        """Return the present source, and then the previous one if there is one, each with the terms of issued certificates."""
        if self.previous is None:
            return [self]
        before = self.previous
        changes = {"secret": before.secret, "self_signed": before.self_signed, "cert_manager": before.cert_manager}
        return [self, self.model_copy(update={**changes, "previous": None})]

    def trusted(self, profile: str) -> list[str]:
        """Return the names of the Secrets whose CAs the brokers of the profile and their clients trust."""
        return [source.secret_name(profile) for source in self.sources]

    def presented(self, profile: str) -> str:
        """Return the name of the Secret whose certificate the brokers of the profile have at the present stage."""
        found = self.trusted(profile)
        return found[-1] if self.stage == "Trust" else found[0]


class Access(Settings):
    """A listener with TLS and authentication at port 9096, and ACLs that decide about each request. Requests that no ACL allows fail."""

    certificate: Certificate
    """The certificate of the brokers."""
    authentication: list[Literal["ScramSha512", "OAuth", "Certificate"]] = ["ScramSha512", "OAuth"]
    """How clients authenticate; one of these is enough. ``OAuth``: with a token of a Kubernetes ServiceAccount for the audience
    ``firn-broker``, as the operator and the drivers do. The principal is then ``User:system:serviceaccount:NAMESPACE:NAME``.
    ``Certificate``: with a certificate of ``clientCa``. Brokers of Apache Kafka have port 9097 for it."""
    client_ca: Authority | None = None
    """The CA of the certificates that clients present, for ``Certificate``. It decides which client has which name, so it must sign
    certificates of these clients only. In a Secret of cert-manager with a CA, this CA is ``tls.crt``. ``ca.crt`` there is the CA that
    signed it, and all its certificates would be accepted. Only the brokers mount the key. They read a changed file without a restart."""
    principal_rules: list[str] = ["DEFAULT"]
    """Rules that make the name of the principal from the subject of a certificate (``ssl.principal.mapping.rules``). Default: the whole
    subject. With ``RULE:^CN=([^,]+).*$/$1/``, it is the common name, as TopicUsers with a certificate need it. The CA must then issue
    no certificate with the name of another user."""
    super_users: list[Annotated[str, Field(pattern="^User:.")]] = []
    """Principals that may do everything, such as ``User:admin``. With Apache Kafka, the operator and the brokers may do so, too."""
    plaintext: Literal["Keep", "Close"] = "Close"
    """Keep: port 9092 stays open without encryption, and its clients may do everything, while they move to port 9096. Close: only ports with
    TLS and authentication are open, and the external listener has both."""
    issuer: str = ""
    """Issuer of the tokens of ServiceAccounts (``--service-account-issuer`` of the API server). Default: the issuer of the operator's own
    token."""

    @model_validator(mode="after")
    def _firn_authenticates(self) -> Self:
        if "OAuth" not in self.authentication:
            raise ValueError("authentication needs OAuth, with which the operator and the drivers authenticate; add it")
        return self

    @model_validator(mode="after")
    def _certificates_have_a_ca(self) -> Self:
        if "Certificate" in self.authentication and self.client_ca is None:
            raise ValueError(
                "authentication has Certificate, but no CA of clients is named; set clientCa to a CA that signs certificates of clients only, or"
                " remove Certificate"
            )
        if "Certificate" not in self.authentication and self.client_ca is not None:
            raise ValueError(
                "clientCa is for clients with a certificate, but authentication does not have Certificate; add Certificate, or remove clientCa"
            )
        return self


class KafkaProfile(Profile):
    """Apache Kafka. With ``bootstrapServers``: an existing Kafka. Without: brokers that the operator runs."""

    kind: Literal["Kafka"] = "Kafka"
    bootstrap_servers: str | None = None
    """Addresses of an existing Kafka, as ``HOST:PORT``, separated by commas."""
    security: KafkaSecurity = KafkaSecurity()
    """TLS and SASL of an existing Kafka. Without ``drivers``, the drivers use this credential, too."""
    drivers: Drivers | None = None
    """Credentials of the drivers in an existing Kafka, so that the operator and each ingestion group have their own."""
    access: Access | None = None
    """A listener with TLS and authentication, and ACLs, of brokers that the operator runs. Without it, every client that reaches the
    brokers may do everything. It cannot be removed later."""
    users: ProfileUsers | None = None
    """TopicUsers of the brokers. Those that the operator runs need ``access``. Unset: the profile has none."""
    metadata_version: str | None = None
    """Metadata version that the operator finalizes when all brokers run the same template, such as ``4.2``."""
    heap: Heap = "1g"
    """Heap of each broker's JVM."""
    resources: Resources = Resources()
    """Resources of each broker's pod."""
    storage: Storage = Storage()
    """Volume of each broker."""
    service_account: str = "firn-broker"
    """ServiceAccount of the brokers' pods. With ``access``, brokers authenticate to each other with its tokens, so no other pods may use
    it. Without ``access``, the pods use none."""
    config: BrokerConfig = {}
    """Broker configs, by Kafka's names."""

    @model_validator(mode="after")
    def _brokers_of_users_authenticate(self) -> Self:
        if self.users is not None and self.bootstrap_servers is None and self.access is None:
            raise ValueError(
                "users needs access or bootstrapServers, because brokers that the operator runs without access authenticate no client; add"
                " access, name an existing Kafka, or remove users"
            )
        return self

    @model_validator(mode="after")
    def _access_is_of_own_brokers(self) -> Self:
        if self.access is None:
            return self
        if self.bootstrap_servers is not None:
            raise ValueError("access is for brokers that the operator runs; for an existing Kafka, use security")
        refused = sorted(key for key in self.config if key in ACCESS_OWN or key.startswith("listener.name."))
        if refused:
            raise ValueError(
                f"config: with access, the operator sets {', '.join(refused)}; remove these keys, and use the keys of access"
            )
        return self

    @model_validator(mode="after")
    def _drivers_connect(self) -> Self:
        if self.drivers is None:
            return self
        if self.bootstrap_servers is None:
            raise ValueError(
                "drivers is for an existing Kafka; drivers of other brokers use their ServiceAccounts; remove it"
            )
        own = self.security.sasl
        for place, each in self.drivers.credentials.items():
            if (each.sasl is None) != (own is None):
                change = "remove sasl" if own is None else "set sasl"
                raise ValueError(
                    f"drivers.{place}: all clients of a listener use SASL, or none as in security; {change}"
                )
            if each.certificate is not None and not self.security.tls:
                raise ValueError(f"drivers.{place}: certificate needs security.tls: true")
            if each.sasl is not None and own is not None and each.sasl.username == own.username:
                raise ValueError(f"drivers.{place}: {own.username} is the user of the operator; name a user of its own")
            if self.drivers.manage_acls and each.user is None:
                raise ValueError(
                    f"drivers.{place}: manageAcls needs the principal that the brokers give this client; set principal"
                )
        return self

    @model_validator(mode="after")
    def _drivers_share_no_secret(self) -> Self:
        credentials = {} if self.drivers is None else self.drivers.credentials
        for place, each in credentials.items():
            mounted = {reference.secret for reference in security_references(self.security_with(each))}
            others = {other: self.security_with(found) for other, found in credentials.items() if found != each}
            for other, security in {"the operator": self.security, **others}.items():
                key, password = security.certificate_key, security.sasl.password if security.sasl else None
                shared = sorted(mounted & {reference.secret for reference in (key, password) if reference is not None})
                if shared:
                    raise ValueError(
                        f"drivers.{place}: Secret {', '.join(shared)} has the credential of {other}, too, and pods mount whole Secrets; use"
                        " another one"
                    )
        return self

    @property
    def managed(self) -> bool:
        """Return True if the operator runs the brokers."""
        return self.bootstrap_servers is None

    def security_with(self, credential: Credential | None) -> KafkaSecurity:
        """Return the connection of a client with this credential; None: the operator's."""
        if credential is None:
            return self.security
        keys = ("certificate", "certificate_key", "sasl")
        return self.security.model_copy(update={key: getattr(credential, key) for key in keys})


class TableHistory(Settings):
    """Topics may keep their history only in their tables: brokers rebuild records of the log from data files."""

    stores: Annotated[list[ObjectStore], Field(min_length=1)]
    """Stores with the data files of tables. The brokers read below their URLs, and need no right to write there."""
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes of each broker that rebuild records. Each needs up to 768 MiB of memory."""


class DisklessProfile(Profile):
    """Brokers without volumes: a bucket has the records, and a database has offsets, topics and groups."""

    kind: Literal["Diskless"]
    coordinator: Coordinator
    """The database."""
    object_store: ObjectStore
    """The bucket."""
    flush_interval: Duration = "250ms"
    """Longest time between the first record of an object and its upload. Producers wait for the upload."""
    flush_bytes: Size = "8Mi"
    """Size at which a broker uploads an object before ``flushInterval`` has passed."""
    topic_config: dict[str, str] = {}
    """Default topic configs, by Kafka's names. Configs of a topic take precedence."""
    resources: Resources = Resources(requests={"cpu": "100m", "memory": "512Mi"}, limits={"memory": "768Mi"})
    """Resources of each broker's pod."""
    service_account: str = "firn-broker"
    """ServiceAccount of the brokers' pods."""
    config: BrokerSettings = {}
    """Other settings of the brokers, such as ``writer`` and ``reader``. They take precedence over the settings that the operator makes."""
    registries: list[Name] = []
    """Schema registries of the configuration that the brokers ask, for topics with `schema.gate`. The brokers get their
    credentials. A change replaces the brokers one by one. Before you remove a registry, remove `schema.gate` of its topics:
    otherwise their producers wait until their requests time out."""
    direct_reads: DirectReads | None = None
    """Set it, for example to ``{}``, if ingestion reads the bucket itself. Without it, ingestion fetches records from the brokers."""
    history_brokers: Annotated[int, Field(ge=0, le=100)] = 0
    """Number of the replicas that serve only consumers of old records, from the first broker on. Producers, groups and consumers of new
    records use the others. It must be lower than ``replicas``."""
    history: TableHistory | None = None
    """Set it so that topics may have `storage.history: Single`. It needs `directReads`, at whose listener drivers name data files."""
    access: Access | None = None
    """A listener with TLS and authentication, and ACLs. Without it, every client that reaches the brokers may do everything."""
    users: ProfileUsers | None = None
    """TopicUsers of the brokers. They need ``access``. Unset: the profile has none."""

    @model_validator(mode="after")
    def _drivers_name_files(self) -> Self:
        if self.history is not None and self.direct_reads is None:
            raise ValueError(
                "history needs directReads, because drivers name data files at its listener; set directReads: {}, or remove history"
            )
        return self

    @model_validator(mode="after")
    def _brokers_lead(self) -> Self:
        if self.history_brokers >= self.replicas:
            raise ValueError(
                f"historyBrokers must be lower than replicas ({self.replicas}), because producers need other brokers; raise replicas"
            )
        return self

    @model_validator(mode="after")
    def _users_authenticate(self) -> Self:
        if self.users is not None and self.access is None:
            raise ValueError(
                "users needs access, because the brokers authenticate no client without it; add access, or remove users"
            )
        return self

    @model_validator(mode="after")
    def _rights(self) -> Self:
        rights = self.config.get("authorization") or {}
        refused = [f"authorization.{key}" for key in ("default", "operators", "superUsers", "type") if key in rights]
        refused += ["oauth"] if "oauth" in self.config else []
        if self.access is not None and refused:
            raise ValueError(f"config: with access, the operator sets {', '.join(refused)}; use the keys of access")
        return self

    @model_validator(mode="after")
    def _flushes(self) -> Self:
        if durations.milliseconds(self.flush_interval) > 60_000:
            raise ValueError("flushInterval must be at most 60s, because producers wait for the upload")
        if not 1024 <= quantities.size(self.flush_bytes) <= 256 * 2**20:
            raise ValueError("flushBytes must be from 1Ki to 256Mi")
        return self

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        if self.access is not None and self.direct_reads is not None and self.direct_reads.token is not None:
            raise ValueError(
                "directReads.token has no effect with access, because drivers send the tokens of their ServiceAccounts; remove it"
            )
        return self

    @property
    def authorities(self) -> list[Authority]:
        """Return the CA certificates that only its brokers need."""
        clients = None if self.access is None else self.access.client_ca
        tables = (store.tls for store in self._table_stores)
        servers = [tls.ca for tls in (self.coordinator.tls, self.object_store.tls, *tables) if tls is not None]
        return servers if clients is None else [*servers, clients]

    def secret_names(self) -> list[str]:
        """Return the names of the Secrets that only its brokers need, sorted, without that of their certificate."""
        stores = (self.object_store, *self._table_stores)
        references = [reference for store in stores for reference in store.secret_properties.values()]
        return sorted({reference.secret for reference in [*references, *self.coordinator.references()]})

    @property
    def _table_stores(self) -> Sequence[ObjectStore]:
        return () if self.history is None else self.history.stores

    def token(self, name: str) -> SecretKey | None:
        """Return the Secret key with the token of the internal listener of profile ``name``.

        None without direct reads, and with ``access``: drivers then send the tokens of their ServiceAccounts.
        """
        if self.direct_reads is None or self.access is not None:
            return None
        return self.direct_reads.token or SecretKey(secret=names.direct_reads(name), key="token")


class HasNamespaces(Protocol):
    """A member of the configuration that only some namespaces may use."""

    @property
    def namespaces(self) -> Sequence[str]:
        """Return the namespaces that may use it; all namespaces if empty."""
        ...


def allows(member: HasNamespaces, namespace: str) -> bool:
    """Return whether resources of the namespace may use this member of the configuration."""
    return not member.namespaces or namespace in member.namespaces


def share_namespaces(one: HasNamespaces, other: HasNamespaces) -> bool:
    """Return whether resources of a namespace may use both members of the configuration."""
    return not one.namespaces or not other.namespaces or not set(one.namespaces).isdisjoint(other.namespaces)


def access_of(profile: Profile) -> Access | None:
    """Return the secure listener of a profile; None if it has none."""
    return profile.access if isinstance(profile, KafkaProfile | DisklessProfile) else None


def _kind(profile: Any) -> Any:
    if isinstance(profile, dict):
        return profile.get("kind", "Kafka")
    return getattr(profile, "kind", None)


def _by_kind(schema: dict[str, Any]) -> None:
    """Select the schema by kind. Errors then name only the intended kind; with ``oneOf`` they would name all kinds."""
    kafka, diskless = schema.pop("oneOf")
    schema["if"] = {"properties": {"kind": {"const": "Diskless"}}, "required": ["kind"]}
    schema |= {"then": diskless, "else": kafka}


AnyProfile = Annotated[
    Annotated[KafkaProfile, Tag("Kafka")] | Annotated[DisklessProfile, Tag("Diskless")],
    Discriminator(_kind, custom_error_type="kind", custom_error_message="kind must be Kafka or Diskless"),
    Field(json_schema_extra=_by_kind),
]
"""A profile of any kind. The default kind is Kafka."""


class Registry(Settings):
    """A schema registry with Confluent's API, which Apicurio Registry and Karapace also have. Only Apicurio Registry is tested."""

    url: Annotated[str, AfterValidator(_without_credentials), Field(pattern=r"^https?://[^/\s?#]+(/[^\s?#]*)?$")]
    """Base URL of the API, such as ``https://registry:8081``, or ``http://apicurio:8080/apis/ccompat/v7`` for Apicurio. A context
    is a part of the URL: ``https://registry:8081/contexts/.sales``."""
    tls: Tls | None = None
    """Private trust of the registry. Without it, the registry needs a certificate of a public CA."""
    username: str = ""
    """Name of the user, for basic authentication."""
    password: SecretKey | None = None
    """Secret key with the password of the user."""
    token: SecretKey | None = None
    """Secret key with a token, for bearer authentication instead of name and password."""
    namespaces: list[str] = []
    """Kubernetes namespaces whose topics may use the registry. Empty: all."""

    @model_validator(mode="after")
    def _one_authentication(self) -> Self:
        if bool(self.username) != (self.password is not None):
            raise ValueError("username and password must be set together")
        if self.token is not None and self.password is not None:
            raise ValueError("a registry takes either a password or a token; remove one")
        if self.tls is not None and not self.url.startswith("https://"):
            raise ValueError("tls needs a url that begins with https://; correct url, or remove tls")
        return self

    @property
    def ca_path(self) -> str | None:
        """Return the file with the CA certificates; None for public CAs."""
        return None if self.tls is None else self.tls.ca.path

    @property
    def authorities(self) -> list[Authority]:
        """Return the CA certificates that its clients need."""
        return [] if self.tls is None else [self.tls.ca]

    def references(self) -> list[SecretKey]:
        """Return the Secret keys that a connection needs."""
        return [reference for reference in (self.password, self.token) if reference is not None]


class Salt(Settings):
    """A salt of digests. A reader of a table who does not have it cannot compute the digests of guessed values."""

    value: SecretKey
    """Secret key with the salt: at least 16 random bytes, such as those of ``openssl rand -hex 32``."""
    namespaces: list[str] = []
    """Kubernetes namespaces whose topics may use the salt. Empty: all."""


class CatalogStore(Settings):
    """The object store of the tables of a catalog."""

    tls: Tls | None = None
    """Private trust of the object store. It needs a store with Amazon's API (S3)."""


class Catalog(Settings):
    """An Iceberg catalog. ``properties`` are keys of Iceberg's Java implementation, such as ``s3.endpoint`` and ``client.region``."""

    type: Literal["sql", "rest"]
    """The catalog's API: ``sql`` (Iceberg's JdbcCatalog on PostgreSQL) or ``rest``."""
    uri: Annotated[str, AfterValidator(_without_credentials)]
    """For sql: ``postgresql://HOST:PORT/DATABASE``, without credentials. For rest: the base URI."""
    warehouse: str
    """For sql: the location of new tables, such as ``s3://BUCKET/PATH``. For rest: the warehouse that the catalog serves."""
    namespaces: list[str] = []
    """Kubernetes namespaces whose topics may use the catalog. Empty: all."""
    tenancy: CatalogTenancy = CatalogTenancy()
    """Limits for the tables of each Kubernetes namespace."""
    properties: PlainProperties = {}
    """Properties of the catalog and of its object store."""
    secret_properties: dict[str, SecretKey] = {}
    """Properties from Secret keys. For sql, ``user`` and ``password`` are those of the database."""
    tls: DatabaseTls | None = None
    """Private trust of the catalog. For sql: all clients, also the JVM, connect with ``verify-full``. Only sql has client certificates."""
    object_store: CatalogStore = CatalogStore()
    """The object store of the tables."""
    own_references: bool | None = None
    """True if the catalog itself keeps branches, tags, earlier versions or dropped tables, as Nessie does. Their files look unused to
    Firn, so Firn then removes no orphan file, snapshot or metadata file. It keeps the files of tables that it drops. Default: false for
    sql, true for rest."""

    @model_validator(mode="after")
    def _trust(self) -> Self:
        tls = self.tls
        if tls is None:
            return self
        if self.type == "rest":
            if tls.certificate is not None:
                raise ValueError("tls.certificate: only catalogs of type sql have client certificates; remove it")
            if not self.uri.startswith("https://"):
                raise ValueError("tls needs a uri that begins with https://; correct uri, or remove tls")
        elif not self.uri.startswith("postgres"):
            raise ValueError("tls needs a uri of PostgreSQL, or type rest; remove tls")
        _without_ssl(self.uri, tls)
        return self

    @property
    def authorities(self) -> list[Authority]:
        """Return the CA certificates that its clients need."""
        return [tls.ca for tls in (self.tls, self.object_store.tls) if tls is not None]

    def references(self) -> list[SecretKey]:
        """Return the Secret keys that its clients need."""
        certificate = () if self.tls is None or self.tls.certificate is None else self.tls.certificate.references
        return [*self.secret_properties.values(), *certificate]


class Executors(Settings):
    """Spark executors of an ingestion group or a maintenance run, as pods."""

    instances: int = Field(ge=1, le=100)
    """Number of executors."""
    cores: int = Field(default=1, ge=1, le=64)
    """Number of tasks that an executor runs at the same time."""
    cpu: str = "500m"
    """CPU request of each executor, such as ``500m``. Executors have no CPU limit."""
    memory: Heap = "2g"
    """Heap of each executor's JVM."""
    overhead: Heap = "1g"
    """Memory of each executor in addition to its heap, for Python workers and off-heap data."""


def _checked_request(request: str, limit: str) -> None:
    if quantities.size(request) > quantities.size(limit):
        raise ValueError(
            f"ephemeralStorageRequest {request} is more than ephemeralStorage {limit}; lower the request, or raise ephemeralStorage"
        )


class IngestionGroup(Settings):
    """An ingestion application: a driver pod that serves many topics."""

    namespaces: list[str] = []
    """Namespaces whose topics may use the group. Empty: all."""
    image: Image | None = None
    """Image of this group instead of ``images.spark``, for example to try a new version."""
    cores: int = Field(default=1, ge=1, le=64)
    """Number of topics, or parts of topics, that land at the same time. Without executors, this is N of Spark's local[N]."""
    memory: Size = "2Gi"
    """Memory request and limit of the driver pod."""
    heap: Heap = "768m"
    """Heap of the driver's JVM, such as ``768m``. Python uses the rest of ``memory``."""
    cpu: str = "500m"
    """CPU request of the driver pod, such as ``500m``."""
    ephemeral_storage: Size = "20Gi"
    """Limit for the disk space of the driver and of each executor: files in ``/tmp``, to which Spark spills, and logs. Kubernetes
    evicts a pod that uses more."""
    ephemeral_storage_request: Size = "512Mi"
    """Disk space that a node must have for each of these pods."""
    executors: Executors | None = None
    """Executors of the group. Without them, Spark's tasks run in the driver pod."""
    bytes_per_commit: Size = "128Mi"
    """A topic is due when so many bytes wait, even if its freshness does not require a commit yet."""
    spark_conf: PlainProperties = {}
    keep_snapshots: Duration = "1h"
    """Time for which ingestion keeps the snapshots of a table after newer ones replaced them. It removes older snapshots from the
    table's metadata, unless a RetentionPolicy with ``snapshots`` enforces its own age. Runs with a longer deadline prolong the time."""
    """Spark properties. They take precedence over the properties that Firn sets."""
    scheduling: Scheduling = Scheduling()
    """Scheduling of the pods."""
    environment: PlainProperties = {}
    """Environment variables of the driver."""
    service_account: str | None = None
    """ServiceAccount of the pods. Default: ``firn-ingest`` for ``defaultGroup``, and ``firn-ingest-NAME`` for each other group, with the
    annotations of ``serviceAccounts.ingest``. The account is the identity of the drivers at brokers with ``access``."""

    @model_validator(mode="after")
    def _request_fits(self) -> Self:
        _checked_request(self.ephemeral_storage_request, self.ephemeral_storage)
        return self


class RunSize(Settings):
    """Resources of a maintenance run of this size."""

    cores: int = Field(default=1, ge=1, le=64)
    """Number of tables that a run handles at the same time. Without executors, this is N of Spark's local[N]."""
    heap: Heap = "1g"
    """Heap of the driver's JVM, such as ``1g``. Python and off-heap data use the rest of ``memory``."""
    memory: Size = "2Gi"
    """Memory request and limit of the driver pod."""
    cpu: str = "500m"
    """CPU request of the driver pod, such as ``500m``."""
    ephemeral_storage: Size = "100Gi"
    """Limit for the disk space of the driver and of each executor: files in ``/tmp``, to which Spark spills, and logs. Kubernetes
    evicts a pod that uses more."""
    ephemeral_storage_request: Size = "1Gi"
    """Disk space that a node must have for each of these pods."""
    executors: Executors | None = None
    """Executors of the run. Without them, Spark's tasks run in the driver pod."""

    @model_validator(mode="after")
    def _request_fits(self) -> Self:
        _checked_request(self.ephemeral_storage_request, self.ephemeral_storage)
        return self


class Audit(Settings):
    """Audits: runs that compare the offsets of each topic's log with the rows of its tables, with or without a policy."""

    schedule: Annotated[
        str, Field(pattern=r"^(\s*[0-9A-Za-z*,/#-]+(\s+[0-9A-Za-z*,/#-]+){4}\s*)?$", max_length=100)
    ] = "0 1 * * *"
    """Times of the audits, as a cron expression with five fields. Empty: no audits."""
    time_zone: str = Field(default="Etc/UTC", pattern=r"^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$", max_length=64)
    """Time zone of ``schedule``: a name of the IANA database, such as Europe/Berlin."""
    spread: Duration = "4h"
    """Time over which the audits of one scheduled time are spread."""
    max_concurrent: int = Field(default=2, ge=1, le=100)
    """Highest number of audit runs at the same time. They count for ``maintenance.maxRuns``, too."""
    size: Name = "small"
    """Resources of a run: a name in ``sizes``."""
    deadline: Duration = "1h"
    """Longest time from the creation of a run to its end. Topics that it did not audit are due again."""


class Maintenance(Settings):
    """Runs of CompactionPolicies and RetentionPolicies, and audits."""

    sizes: dict[Name, RunSize] = {"small": RunSize()}
    """Sizes that a policy's ``run.size`` may name. If there is a size ``large``, large tables use it."""
    large_table: Size = "16Gi"
    """A table with at least so many bytes to rewrite has its own run. For retention of rows, the bytes of the whole table count."""
    max_runs: int = Field(default=4, ge=1, le=100)
    """Highest number of runs at the same time, of all policies and replays together. Each policy also has its own limit. Replays
    leave one of these runs to policies."""
    tables_per_run: int = Field(default=24, ge=1, le=24)
    """Highest number of small tables that share a run. Their reports must fit into the termination message of a pod."""
    debt_interval: Duration = "1m"
    """Interval between measurements of each table's debt. The operator does not read tables without new commits again."""
    lowest_orphan_age: Duration = "1d"
    """Lowest age for ``orphanFiles.minAge`` of policies. Younger files may belong to a commit in progress."""
    lowest_snapshot_age: Duration = "5m"
    """Lowest age for ``snapshots.maxAge`` of policies. Readers may still use younger snapshots."""
    audit: Audit = Audit()
    """Audits of all topics. They count as runs."""
    ttl: Duration = "1h"
    """Time for which Kubernetes keeps finished Jobs and their logs."""
    service_account: str = "firn-maintain"
    """ServiceAccount of the pods."""
    image: Image | None = None
    """Image of runs instead of ``images.spark``."""
    spark_conf: PlainProperties = {}
    """Spark properties. They take precedence over the properties that Firn sets."""
    scheduling: Scheduling = Scheduling()
    """Scheduling of the pods."""
    environment: PlainProperties = {}
    """Environment variables of the runs."""

    @model_validator(mode="after")
    def _has_a_size(self) -> Self:
        if "small" not in self.sizes:
            raise ValueError("sizes needs a size named small, which is the default of spec.run.size")
        if self.audit.size not in self.sizes:
            raise ValueError(f"audit.size: {self.audit.size!r} is not in sizes; choose from {sorted(self.sizes)}")
        return self


class Users(Settings):
    """TopicUsers and TopicGrants."""

    enabled: bool = False
    """Manage TopicUsers. The operator may then create and patch Secrets in the namespaces that it watches. An attacker with its token can
    read them, because the API server answers a patch with the Secret. The operator asks for the metadata only."""


class Config(Settings):
    """The whole configuration document. `load` reads and checks it."""

    namespace: str
    watch_namespaces: list[str] = []
    """Namespaces whose resources the operator manages. Empty: all."""
    former_clusters: list[str] = []
    """Uids of the namespace ``kube-system`` of earlier Kubernetes clusters. IcebergTopics may adopt the tables of these clusters."""
    images: Images
    default_profile: str
    profiles: dict[Name, AnyProfile]
    default_catalog: str
    catalogs: dict[Name, Catalog]
    registries: dict[Name, Registry] = {}
    """Schema registries that topics may name."""
    salts: dict[Name, Salt] = {}
    """Salts that columns with `Sha256` may name. Only ingestion drivers and replays of dead letters mount their Secrets."""
    default_group: str = "default"
    groups: dict[Name, IngestionGroup]
    maintenance: Maintenance = Maintenance()
    users: Users = Users()
    resync: Duration = "5m"
    """Longest time between two reconciles of a resource. It grows with the number of IcebergTopics above 3,000: the operator
    reconciles ten of them a second without an event."""
    progress_interval: Duration = "5s"
    """Longest interval between two reads of a group's /progress; it is shorter while the operator expects news."""
    workers: int = Field(default=32, ge=1, le=64)
    writes_per_second: int = Field(default=300, ge=1, le=1000)
    """Most writes to the Kubernetes API per second, on average. Events are not counted."""
    write_burst: int = Field(default=600, ge=1, le=10000)
    """Most writes to the Kubernetes API in a burst."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _defaults_exist(self) -> Self:
        for key, name, configured in (
            ("defaultProfile", self.default_profile, self.profiles),
            ("defaultCatalog", self.default_catalog, self.catalogs),
            ("defaultGroup", self.default_group, self.groups),
        ):
            if name not in configured:
                raise ValueError(
                    f"{key}: {name!r} is not in the configuration; choose from {sorted(configured)}, or add it"
                )
        return self

    def ingest_account(self, group: str) -> str:
        """Return the name of the ServiceAccount of a group's pods."""
        default = "firn-ingest" if group == self.default_group else names.ingestion(group)
        return self.groups[group].service_account or default

    def driver_credential(self, profile: str, group: str | None) -> Credential | None:
        """Return the credential of a group's driver in an existing Kafka; None for that in ``security``. No group: of maintenance runs."""
        found = self.profiles[profile]
        if not isinstance(found, KafkaProfile) or found.drivers is None:
            return None
        return found.drivers.maintenance if group is None else found.drivers.groups.get(group)

    def driver_user(self, profile: str, group: str | None) -> str | None:
        """Return the principal, without ``User:``, whose ACLs the operator manages for the driver of a group; None if there is none.

        No group: that of maintenance runs."""
        if profile in self.closed_profiles:
            account = self.maintenance.service_account if group is None else self.ingest_account(group)
            return names.service_account(self.namespace, account)
        credential = self.driver_credential(profile, group) if profile in self.profiles_with_acls else None
        return None if credential is None else credential.user

    @property
    def profiles_with_acls(self) -> list[str]:
        """Return the profiles in which the operator manages the ACLs of drivers."""
        existing = {
            name
            for name, profile in self.profiles.items()
            if isinstance(profile, KafkaProfile) and profile.drivers is not None and profile.drivers.manage_acls
        }
        return sorted(existing | self.closed_profiles.keys())

    def watches(self, namespace: str) -> bool:
        """Return whether the operator manages the resources of a namespace."""
        return not self.watch_namespaces or namespace in self.watch_namespaces

    @model_validator(mode="after")
    def _brokers_ask_configured_registries(self) -> Self:
        for name, profile in self.profiles.items():
            unknown = (
                [] if not isinstance(profile, DisklessProfile) else set(profile.registries) - self.registries.keys()
            )
            if unknown:
                raise ValueError(
                    f"profiles.{name}.registries: {', '.join(sorted(unknown))} is not in registries; add it there, or remove it"
                )
        return self

    @model_validator(mode="after")
    def _drivers_have_credentials(self) -> Self:
        for name, profile in self.profiles.items():
            if not isinstance(profile, KafkaProfile) or profile.drivers is None:
                continue
            place, known = f"profiles.{name}.drivers.groups", profile.drivers.groups.keys()
            missing = sorted(
                group for group, each in self.groups.items() if group not in known and share_namespaces(each, profile)
            )
            if missing:
                raise ValueError(
                    f"{place}: {', '.join(missing)} has no credential; add it, or limit the namespaces of the group or of the profile"
                )
            unknown = sorted(known - self.groups.keys())
            if unknown:
                raise ValueError(f"{place}: {', '.join(unknown)} is not in groups; add it there, or remove it")
        return self

    @model_validator(mode="after")
    def _brokers_have_an_image(self) -> Self:
        for name, profile in self.profiles.items():
            if isinstance(profile, DisklessProfile) and profile.image is None and self.images.broker is None:
                raise ValueError(
                    f"profiles.{name}: kind Diskless needs an image; set images.broker or profiles.{name}.image"
                )
        return self

    @model_validator(mode="after")
    def _clients_have_a_ca_of_their_own(self) -> Self:
        closed = self.closed_profiles
        presented = {secret for name, access in closed.items() for secret in access.certificate.trusted(name)}
        signers = {names.authority(name) for name in closed}
        for name, access in closed.items():
            ca = access.client_ca
            if ca is not None and (
                ca.secret in signers or (ca.secret in presented and ca.key in ("ca.crt", "tls.crt"))
            ):
                raise ValueError(
                    f"profiles.{name}.access.clientCa: {ca.key} of Secret {ca.secret} belongs to brokers; name a CA that signs certificates of"
                    " clients only"
                )
        return self

    def secret_names(self) -> list[str]:
        """Return the names of the Secrets that the operator needs, sorted."""
        return sorted({reference.secret for reference in self._references()})

    @property
    def closed_profiles(self) -> dict[str, Access]:
        """Return the access of the profiles that have one, by name of the profile."""
        return {name: profile.access for name, profile in self.profiles.items() if profile.access is not None}

    @property
    def openness(self) -> dict[str, bool]:
        """Return whether clients may connect without encryption, by profile whose brokers the operator runs."""
        managed = {name: access_of(profile) for name, profile in self.profiles.items() if profile.managed}
        return {name: access is None or access.plaintext == "Keep" for name, access in managed.items()}

    def trusting(self, profile: str, present: str, previous: str) -> Self:
        """Return the configuration in which clients of a profile trust the CAs in two other Secrets."""
        access, before = self.closed_profiles[profile], CertificateSource(secret=previous)
        sources = {"secret": present, "self_signed": None, "cert_manager": None, "previous": before}
        certificate = access.certificate.model_copy(update=sources)
        return self._with_access({profile: access.model_copy(update={"certificate": certificate})})

    def with_issuer(self, issuer: str) -> Self:
        """Return the configuration in which each profile with ``access`` names an issuer. ``issuer`` is the default."""
        named = {"issuer": issuer}
        unnamed = {name: access for name, access in self.closed_profiles.items() if not access.issuer}
        return self._with_access({name: access.model_copy(update=named) for name, access in unnamed.items()})

    def _with_access(self, changed: Mapping[str, Access]) -> Self:
        profiles = {name: self.profiles[name].model_copy(update={"access": access}) for name, access in changed.items()}
        return self.model_copy(update={"profiles": {**self.profiles, **profiles}})

    def authorities(self) -> list[Authority]:
        """Return the CA certificates that the operator needs."""
        members: tuple[Catalog | Registry, ...] = (*self.catalogs.values(), *self.registries.values())
        return [authority for member in members for authority in member.authorities]

    def _references(self) -> Iterator[SecretKey]:
        for profile in self.profiles.values():
            if isinstance(profile, KafkaProfile):
                yield from security_references(profile.security)
        for catalog in self.catalogs.values():
            yield from catalog.references()
        for registry in self.registries.values():
            yield from registry.references()


def security_references(security: KafkaSecurity) -> Iterator[SecretKey]:
    """Yield the Secret keys that a connection with ``security`` needs."""
    yield from (ref for ref in (security.ca, security.certificate, security.certificate_key) if ref is not None)
    if security.sasl is not None:
        yield security.sasl.password
        if security.sasl.tokens is not None and security.sasl.tokens.ca is not None:
            yield security.sasl.tokens.ca


def load(path: str | Path, *, private: bool = False) -> Config:
    """Read the configuration from the YAML file at ``path``. Raises InvalidSpecError that names file and key.

    Only a ``private`` file may have secrets in properties.
    """
    try:
        document = yaml.safe_load(Path(path).read_text())
    except FileNotFoundError as error:
        raise InvalidSpecError(
            f"configuration {path}: No such file; correct the path in --config or FIRN_CONFIG"
        ) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InvalidSpecError(f"configuration {path}: {error}") from error
    try:
        return Config.model_validate(document, context={_PRIVATE: private})
    except ValidationError as error:
        lines = [f"{_place(item['loc'])}: {item['msg'].removeprefix('Value error, ')}" for item in error.errors()]
        raise InvalidSpecError(f"configuration {path}: " + "; ".join(lines)) from error


def _place(location: tuple[int | str, ...]) -> str:
    """Return the place of an error in the document. Pydantic adds the kind of a profile to it."""
    parts = [str(part) for part in location]
    if parts[:1] == ["profiles"] and len(parts) > 2 and parts[2] in ("Kafka", "Diskless"):
        del parts[2]
    return ".".join(parts) or "(document)"
