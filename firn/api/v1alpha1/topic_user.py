"""TopicUser: a user of Kafka, the IcebergTopics that it may use, its quotas, and its credential in a Secret."""

from datetime import datetime
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from firn.api.model import ApiModel, Condition, Duration, Int64, ObjectMeta, Rule
from firn.api.v1alpha1.policy import NAME_RULE, ByteSize, ConfiguredName, LabelSelector

KIND = "TopicUser"
PLURAL = "topicusers"
SHORT_NAME = "tuser"
MOST_REFUSED = 20
"""Most refused grants that a status lists."""

Role = Literal["Produce", "Consume", "Alter", "ReadTable", "ReadDeadLetters"]
Slot = Literal["a", "b"]
SLOTS: tuple[Slot, ...] = get_args(Slot)
"""The two principals of a user with a password, by the last part of their names."""
Roles = Annotated[tuple[Role, ...], Field(min_length=1, max_length=5)]
Why = Literal[
    "TopicNotFound",
    "TopicNotReady",
    "NoGrant",
    "OtherProfile",
    "GroupNotAllowed",
    "TransactionalIdNotAllowed",
    "NotSupported",
    "TopicConflict",
]

ResourceName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
NamespaceName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
GroupPattern = Annotated[str, Field(pattern=r"^([^*]+\*?|\*)$", max_length=249)]


def _unchanged(field: str) -> str:
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"


class Rotation(ApiModel):
    """Times of a rotation of the password."""

    every: Duration | None = Field(
        default=None,
        description="Age at which the operator replaces the credential, such as 90d. Unset: only on request, by an annotation.",
    )
    overlap: Duration = Field(
        default="1d",
        description="Time for which the previous credential still works after a rotation, such as 1d. It must be shorter than every. Clients must"
        " read the Secret again within this time.",
    )
    idle: Duration = Field(
        default="1h",
        description="Time without any use of the previous credential after which it stops working before the end of the overlap, at least 5m."
        " Diskless brokers report uses, and open connections count. Apache Kafka does not, so overlap alone counts there.",
    )


class Authentication(ApiModel):
    """The identity of the user."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self.type == oldSelf.type", "authentication.type is immutable; create another TopicUser"),
        Rule(_unchanged("secretName"), "authentication.secretName is immutable; create another TopicUser"),
        Rule(_unchanged("serviceAccount"), "authentication.serviceAccount is immutable; create another TopicUser"),
        Rule(
            "has(self.serviceAccount) == (self.type == 'OAuth')",
            "type OAuth needs serviceAccount, and no other type has it; add or remove serviceAccount",
        ),
        Rule(
            "self.type == 'ScramSha512' || (!has(self.secretName) && !has(self.rotation))",
            "only type ScramSha512 has secretName and rotation, because the operator makes no credential for other types; remove them",
        ),
    )

    type: Literal["ScramSha512", "Certificate", "OAuth"] = Field(
        default="ScramSha512",
        description="ScramSha512: the operator makes a password, and writes it into a Secret. Certificate: the user is NAMESPACE.NAME, the common"
        " name of a client certificate that you issue. OAuth: the user is the subject of the tokens of a ServiceAccount. Immutable.",
    )
    secret_name: ResourceName | None = Field(
        default=None,
        description="Name of the Secret in the namespace of the TopicUser, which the operator creates. Unset: NAME-kafka. Immutable.",
    )
    rotation: Rotation | None = Field(
        default=None,
        description="Times of a rotation. Unset: the operator rotates only on request, with an overlap of 1d.",
    )
    service_account: ResourceName | None = Field(
        default=None,
        description="Name of a ServiceAccount in the namespace of the TopicUser. The user is system:serviceaccount:NAMESPACE:NAME. Immutable.",
    )


class GrantedTopics(ApiModel):
    """IcebergTopics by name, or by labels."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.name) != has(self.selector)", "write either name or selector"),
        Rule(
            "!has(self.__namespace__) || has(self.name)", "only name can have a namespace; remove namespace or selector"
        ),
    )

    name: ResourceName | None = Field(default=None, description="Name of an IcebergTopic.")
    namespace: NamespaceName | None = Field(
        default=None,
        description="Namespace of the IcebergTopic. Unset: that of the TopicUser. Another namespace needs a TopicGrant there.",
    )
    selector: LabelSelector | None = Field(
        default=None,
        description="Labels of IcebergTopics in the namespace of the TopicUser. New topics follow. An empty selector matches all of them.",
    )


class Grant(ApiModel):
    """Roles of the user on some IcebergTopics."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.transactionalIds) || self.transactionalIds.size() == 0 || 'Produce' in self.roles",
            "only role Produce has transactional ids; add Produce to roles, or remove transactionalIds",
        ),
    )

    topics: Annotated[tuple[GrantedTopics, ...], Field(min_length=1, max_length=64)] = Field(
        description="The IcebergTopics.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    roles: Roles = Field(
        description="Produce: write records. Consume: read records, with the groups of the grant. Alter: change partitions and configs of the"
        " Kafka topic. ReadTable and ReadDeadLetters are refused, because the operator does not manage rights in catalogs.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    groups: Annotated[tuple[GroupPattern, ...], Field(max_length=16)] = Field(
        default=(),
        description="Consumer groups of the role Consume: names, or prefixes that end with *. Empty: NAMESPACE.NAME.*, with namespace and name of"
        " the TopicUser.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    transactional_ids: Annotated[tuple[GroupPattern, ...], Field(max_length=16)] = Field(
        default=(),
        description="Transactional ids of the role Produce: ids, or prefixes that end with *. Empty: no transactions. Diskless brokers have no"
        " transactions, so the operator refuses these ids there.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )


class Quotas(ApiModel):
    """Quotas of the user, as Kafka enforces them on each broker."""

    producer_bytes_per_second: ByteSize | None = Field(
        default=None, description="Bytes that the user may write each second, such as 10Mi. Sets producer_byte_rate."
    )
    consumer_bytes_per_second: ByteSize | None = Field(
        default=None, description="Bytes that the user may read each second, such as 50Mi. Sets consumer_byte_rate."
    )
    request_percent: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None,
        description="Share of the time of a broker's threads, in percent of one thread. Sets request_percentage.",
    )


class TopicUserSpec(ApiModel):
    """Desired user."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.profile == oldSelf.profile",
            "profile is immutable: create another TopicUser for another profile",
        ),
    )

    profile: ConfiguredName = Field(
        description="A profile of the operator's configuration with users, which the namespace may use. Immutable."
    )
    authentication: Authentication = Field(default=Authentication(), description="The identity of the user.")
    grants: Annotated[tuple[Grant, ...], Field(max_length=64)] = Field(
        default=(),
        description="Roles of the user on IcebergTopics of its profile. Empty: the user may log in, and use no topic.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    quotas: Quotas = Field(
        default=Quotas(),
        description="Quotas of the user. Unset quota: the default of the brokers applies. During an overlap, each of the two principals has half.",
    )


class CredentialStatus(ApiModel):
    """The credential of a user with a password."""

    secret: str = Field(max_length=253, description="Name of the Secret.")
    secret_uid: str | None = Field(default=None, max_length=64, description="Uid of the Secret.")
    current: Slot | None = Field(default=None, description="The principal whose password the Secret has: a or b.")
    revision: str | None = Field(
        default=None,
        max_length=32,
        description="Number of the credential in the Secret, which the Secret has as an annotation.",
    )
    connection: str | None = Field(
        default=None,
        max_length=32,
        description="Digest of addresses, protocol and certificates in the Secret. If they change, the operator rotates the credential.",
    )
    issued: datetime | None = Field(default=None, description="Time from which the Secret has this credential.")
    expires: datetime | None = Field(default=None, description="Time of the next rotation.")
    previous_until: datetime | None = Field(
        default=None,
        description="Time at which the previous credential stops working, at the latest. Absent: only the current one works.",
    )
    previous_last_used: datetime | None = Field(
        default=None,
        description="Last use of the previous credential since the rotation, as diskless brokers report it once a minute. Absent: no use, or the"
        " brokers do not report uses, as Apache Kafka.",
    )
    next: Slot | None = Field(
        default=None, description="The principal for which the operator makes a credential now: a or b."
    )
    next_revision: str | None = Field(
        default=None, max_length=32, description="Number of the credential that the operator makes now."
    )
    request: str | None = Field(
        default=None,
        max_length=256,
        description="Last value of the annotation firn.dev/rotate for which the operator has begun a rotation.",
    )


class RefusedGrant(ApiModel):
    """A role on a topic that the user does not get."""

    topic: str = Field(max_length=320, description="Namespace and name of the IcebergTopic.")
    role: str = Field(max_length=20, description="The role.")
    why: Why = Field(
        description="TopicNotFound: no IcebergTopic has the name. TopicNotReady: its Kafka topic does not exist yet. TopicConflict: another"
        " IcebergTopic has the Kafka topic. NoGrant: no TopicGrant of the other namespace allows it. OtherProfile: the topic is in another profile."
        " GroupNotAllowed: the namespace may not use the consumer group. TransactionalIdNotAllowed: the namespace may not use the transactional id."
        " NotSupported: the operator cannot give the role, or the brokers have no transactions."
    )
    message: str = Field(default="", max_length=1024, description="Cause and next step.")


class TopicUserStatus(ApiModel):
    """Observed state."""

    observed_generation: Int64 | None = Field(
        default=None, description="Generation of the spec that this status describes."
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Conditions. Ready: the user has its credential, all its grants and its quotas.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    profile: str | None = Field(default=None, max_length=40, description="Profile of the brokers that have the user.")
    principals: Annotated[tuple[str, ...], Field(max_length=2)] = Field(
        default=(),
        description="Principals of the user in Kafka that may have rights, such as User:shop.checkout.a.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    credentials: CredentialStatus | None = Field(
        default=None, description="The credential. Absent for types without a password."
    )
    topics: int | None = Field(default=None, description="Number of IcebergTopics on which the user has a role.")
    grants_refused: int | None = Field(default=None, description="Number of refused roles on topics.")
    refused: Annotated[tuple[RefusedGrant, ...], Field(max_length=MOST_REFUSED)] = Field(
        default=(),
        description="The first twenty refused roles, by topic.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class TopicUser(ApiModel):
    """A user of Kafka: its credential in a Secret, the IcebergTopics that it may use, and its quotas."""

    rules: ClassVar[tuple[Rule, ...]] = (
        NAME_RULE,
        Rule("!self.metadata.name.contains('.')", "metadata.name must have no dot, because the names of principals do"),
    )

    metadata: ObjectMeta
    spec: TopicUserSpec
    status: TopicUserStatus = Field(default_factory=TopicUserStatus)
