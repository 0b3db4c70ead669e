"""Types of the broker's access control: credentials, ACLs and quotas, with Kafka's codes and names.

A principal is written as Kafka writes it, for example ``User:shop.checkout``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a client that does not authenticate."""
ANY_USER = "User:*"
"""The principal of an ACL that applies to all users."""
ANY = "*"
"""In an ACL, any host, or as the name of a literal pattern any resource."""
CLUSTER_NAME = "kafka-cluster"
"""The only name of a resource of type `ResourceType.CLUSTER`."""


class ScramMechanism(IntEnum):
    """SCRAM mechanisms, with the codes of KIP-554."""

    SHA_256 = 1
    SHA_512 = 2


class ResourceType(IntEnum):
    """Types of resources, with the codes of Kafka's ACL APIs."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a pattern matches the name of a resource (KIP-290). Only filters have ANY and MATCH."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Operations on resources, with the codes of Kafka's ACL APIs."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class Permission(IntEnum):
    """The effect of an ACL, with the codes of Kafka's ACL APIs. Only filters have ANY."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class Caller(NamedTuple):
    """The client of a request, as ACLs see it."""

    principal: str
    host: str
    """The address without the port."""


class CredentialKey(NamedTuple):
    """The key of a SCRAM credential. A user has at most one for each mechanism."""

    user: str
    """The name without ``User:``."""
    mechanism: ScramMechanism


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """A SCRAM credential as the broker stores it (RFC 5802, section 3). The password cannot be computed from it faster
    than by trying passwords."""

    key: CredentialKey
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


class Acl(NamedTuple):
    """An ACL: a principal is allowed or denied an operation on the resources that a pattern matches."""

    principal: str
    host: str
    resource_type: ResourceType
    name: str
    pattern: PatternType
    operation: Operation
    permission: Permission


class AclFilter(NamedTuple):
    """A filter of ACLs, as in DescribeAcls and DeleteAcls. None and ANY match every value."""

    principal: str | None
    host: str | None
    resource_type: ResourceType
    name: str | None
    pattern: PatternType
    """With MATCH, the patterns that match a resource of this name, the wildcard included."""
    operation: Operation
    permission: Permission

    def matches(self, acl: Acl) -> bool:
        """Return whether the filter matches an ACL (``AclBindingFilter.java``)."""
        return (
            (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and (self.resource_type is ResourceType.ANY or self.resource_type is acl.resource_type)
            and (self.operation is Operation.ANY or self.operation is acl.operation)
            and (self.permission is Permission.ANY or self.permission is acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern is not PatternType.MATCH or self.name is None:
            return self.pattern in (PatternType.ANY, PatternType.MATCH, acl.pattern) and self.name in (None, acl.name)
        if acl.pattern is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in (self.name, ANY)


Entity = tuple[tuple[str, str | None], ...]
"""The entity of a quota (KIP-546): pairs of a type (``user``, ``client-id``, ``ip``) and a name, sorted by type. The name None
stands for all entities of the type that have no quota of their own."""


class AccessVersion(NamedTuple):
    """A version of credentials, ACLs and quotas. A coordinator that went back may give its number to another version, but
    not its mark."""

    number: int
    mark: str
    """Random text; empty for a version that no change made."""


@dataclass(frozen=True, slots=True)
class Access:
    """All credentials, ACLs and quotas at one version, or those that have changed since an earlier version.

    A key with an empty value has nothing any more."""

    version: AccessVersion
    credentials: Mapping[str, Sequence[ScramCredential]]
    """By user, without ``User:``."""
    acls: Mapping[str, Sequence[Acl]]
    """By principal."""
    quotas: Mapping[Entity, Mapping[str, float]]
    """By entity: the name of a quota, such as ``producer_byte_rate``, and its value."""
    whole: bool = True
    """True if these are all."""
