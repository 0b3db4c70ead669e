"""Decisions about what clients may do, from the ACLs of the cluster.

- A super user may do everything. An operator may do everything except use records, whatever the ACLs deny.
- An ACL that denies wins over all that allow. It denies only the operation that it names.
- To read, write, delete or alter a resource includes to describe it; to alter configs includes to describe them.
- If no ACL allows or denies the operation, it is denied. Only with ``default: Allow`` a resource that no ACL matches is
  open to all (``allow.everyone.if.no.acl.found``).

Source: ``StandardAuthorizerData``, KIP-11, KIP-290, KIP-679."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from firn_broker.access.audit import Audit
from firn_broker.access_types import ANY, ANY_USER, Acl, Caller, Operation, PatternType, Permission, ResourceType
from firn_broker.settings import AuthorizationSettings

CALLERS = 1_000
"""Callers whose decisions are kept. The caller that asked least recently is forgotten first."""
DECISIONS = 32_768
"""Decisions of all callers that are kept; each takes up to 500 bytes."""
LONGEST_NAME = 249
"""Characters of the longest name of a topic. Decisions on longer names are not kept."""
ANY_NAME = "hardcode"
"""The name that Kafka checks for "any resource of a type". Decisions on it are the same as Kafka's."""

NOTHING: frozenset[str] = frozenset()


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


_EVERY = _bits(*(operation for operation in Operation if operation > Operation.ALL))
_DENIED = {**{operation: _bits(operation) for operation in Operation}, Operation.ALL: _EVERY}
"""The operations that an ACL denies, by the operation that it names."""
_ALLOWED = {
    **_DENIED,
    **{
        operation: _bits(operation, Operation.DESCRIBE)
        for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
    },
    Operation.ALTER_CONFIGS: _bits(Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS),
}
"""The operations that an ACL allows, by the operation that it names."""
SUPPORTED = {
    ResourceType.TOPIC: _bits(
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE, Operation.DELETE, Operation.ALTER,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: _bits(
        Operation.READ, Operation.DESCRIBE, Operation.DELETE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
    ),
    ResourceType.CLUSTER: _bits(
        Operation.CREATE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE, Operation.ALTER, Operation.DESCRIBE,
    ),
}  # fmt: skip
"""The operations that exist for a type of resource, as bits (``AclEntry.supportedOperations``)."""


_OF_OPERATORS = {
    ResourceType.TOPIC: _EVERY & ~_bits(Operation.READ, Operation.WRITE),
    ResourceType.GROUP: _EVERY & ~_bits(Operation.READ),
}
"""The operations of operators, as bits. They have all operations on other types of resources."""


class Directory(Protocol):
    """The ACLs of the cluster."""

    @property
    def acls(self) -> Mapping[str, Sequence[Acl]]:
        """Return the ACLs by principal. A change of one principal replaces its sequence."""

    @property
    def version(self) -> int:
        """Return a number that each change increases."""


class Client(Protocol):
    """The client of a request."""

    @property
    def caller(self) -> Caller:
        """Return the client as ACLs see it."""


@dataclass(frozen=True, slots=True)
class Sight:
    """Which topics a member of a group may describe. Two are equal if they decide the same."""

    caller: Caller
    version: int
    """`Authorizer.version` when the member asked."""
    authorizer: "Authorizer" = field(compare=False, repr=False)

    def sees(self, topic: str) -> bool:
        """Return whether the member may describe a topic."""
        return self.authorizer.allows(self.caller, Operation.DESCRIBE, ResourceType.TOPIC, topic)


Hosts = dict[str, tuple[int, int]]
"""The operations that the ACLs of one pattern allow and deny, as bits, by host."""
Pattern = tuple[ResourceType, str]


class _Patterns:
    """ACLs by their patterns."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self.literal: dict[Pattern, Hosts] = {}
        self.prefixed: dict[Pattern, Hosts] = {}
        for acl in acls:
            patterns = self.prefixed if acl.pattern is PatternType.PREFIXED else self.literal
            hosts = patterns.setdefault((acl.resource_type, acl.name), {})
            allowed, denied = hosts.get(acl.host, (0, 0))
            if acl.permission is Permission.DENY:
                denied |= _DENIED[acl.operation]
            else:
                allowed |= _ALLOWED[acl.operation]
            hosts[acl.host] = allowed, denied
        self._lengths = {
            type: sorted({len(prefix) for of, prefix in self.prefixed if of is type}) for type in ResourceType
        }

    def matching(self, type: ResourceType, name: str) -> Iterator[Hosts]:
        """Yield the ACLs of each pattern that matches a resource."""
        for literal in (name, ANY):
            if (hosts := self.literal.get((type, literal))) is not None:
                yield hosts
        for length in self._lengths[type]:
            if length > len(name):
                return
            if (hosts := self.prefixed.get((type, name[:length]))) is not None:
                yield hosts

    def prefixes(self, type: ResourceType, name: str) -> Iterator[str]:
        """Yield the prefixes with ACLs that begin a name, shortest first."""
        for length in self._lengths[type]:
            if length <= len(name) and (type, name[:length]) in self.prefixed:
                yield name[:length]


_EMPTY = _Patterns(())


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The ACLs of one principal."""

    acls: Sequence[Acl]
    patterns: _Patterns


@dataclass(slots=True)
class _Known:
    """The decisions on one caller."""

    operations: dict[Pattern, int] = field(default_factory=dict)
    any: dict[tuple[ResourceType, Operation], bool] = field(default_factory=dict)


class Authorizer:
    """Decides what clients may do."""

    def __init__(self, directory: Directory, settings: AuthorizationSettings, audit: Audit) -> None:
        self.open = settings.type == "Open"
        """True if every client may do everything."""
        self._directory = directory
        self._audit = audit
        self._super_users = frozenset(settings.super_users)
        self._operators = frozenset(settings.operators)
        self._by_default = settings.default == "Allow"
        self._version = directory.version
        self._compiled: dict[str, _Compiled] = {}
        self._all: _Patterns | None = None
        """The ACLs of all principals."""
        self._callers: OrderedDict[Caller, _Known] = OrderedDict()
        self._kept = 0

    @property
    def version(self) -> int:
        """Return a number that increases when decisions may have changed."""
        return 0 if self.open else self._directory.version

    def forbids(
        self, client: Client, operation: Operation, type: ResourceType, name: str, *, audited: bool = True
    ) -> bool:
        """Return whether the ACLs deny the operation to the client. The audit log notes it, unless the client did not ask for that
        resource by its name (``audited``)."""
        if self.open:
            return False
        caller = client.caller
        if self.allows(caller, operation, type, name):
            return False
        if audited:
            self._audit.denied(caller, operation, type, name)
        return True

    def forbidden(
        self, client: Client, operation: Operation, type: ResourceType, names: Iterable[str], *, audited: bool = True
    ) -> frozenset[str]:
        """Return the names of resources for which `forbids` is true."""
        if self.open:
            return NOTHING
        caller = client.caller
        known = self._known(caller)
        denied = frozenset(
            name for name in set(names) if not self._kept_decision(known, caller, type, name) >> operation & 1
        )
        if audited:
            for name in denied:
                self._audit.denied(caller, operation, type, name)
        return denied

    def operations(self, client: Client, type: ResourceType, name: str) -> int:
        """Return the operations that the client may do, as bits (KIP-430)."""
        return SUPPORTED[type] if self.open else SUPPORTED[type] & self._operations(client.caller, type, name)

    def sight(self, client: Client) -> Sight | None:
        """Return which topics the client may describe; None for all."""
        return None if self.open else Sight(client.caller, self.version, self)

    def allows(self, caller: Caller, operation: Operation, type: ResourceType, name: str) -> bool:
        """Return whether the caller may do this."""
        return self.open or bool(self._operations(caller, type, name) >> operation & 1)

    def allows_any(self, caller: Caller, operation: Operation, type: ResourceType) -> bool:
        """Return whether the caller may do this with any resource of the type: whether an ACL allows it that no broader ACL
        denies (KIP-679)."""
        if self.allows(caller, operation, type, ANY_NAME):
            return True
        known = self._known(caller)
        if (decision := known.any.get((type, operation))) is None:
            decision = known.any[type, operation] = self._decide_any(caller, operation, type)
        return decision

    def _operations(self, caller: Caller, type: ResourceType, name: str) -> int:
        return self._kept_decision(self._known(caller), caller, type, name)

    def _kept_decision(self, known: _Known, caller: Caller, type: ResourceType, name: str) -> int:
        operations = known.operations.get((type, name))
        if operations is None:
            operations = self._decide(caller, type, name)
            if len(name) <= LONGEST_NAME:
                self._make_room()
                known.operations[type, name] = operations
                self._kept += 1
        return operations

    def _known(self, caller: Caller) -> _Known:
        if self._version != self._directory.version:
            self._forget()
        known = self._callers.get(caller)
        if known is None:
            if len(self._callers) >= CALLERS:
                self._kept -= len(self._callers.popitem(last=False)[1].operations)
            known = self._callers[caller] = _Known()
        else:
            self._callers.move_to_end(caller)
        return known

    def _forget(self) -> None:
        """Forget what depends on an earlier version of the ACLs."""
        acls = self._directory.acls
        self._version = self._directory.version
        self._compiled = {
            principal: compiled
            for principal, compiled in self._compiled.items()
            if acls.get(principal) is compiled.acls
        }
        self._all = None
        self._callers.clear()
        self._kept = 0

    def _make_room(self) -> None:
        """Forget decisions on the callers that asked least recently, and last of all on the one that asks."""
        while self._kept >= DECISIONS:
            oldest = next(iter(self._callers))
            self._kept -= len(self._callers[oldest].operations)
            if len(self._callers) > 1:
                del self._callers[oldest]
            else:
                self._callers[oldest].operations.clear()

    def _decide(self, caller: Caller, type: ResourceType, name: str) -> int:
        if caller.principal in self._super_users:
            return _EVERY
        granted = _OF_OPERATORS.get(type, _EVERY) if caller.principal in self._operators else 0
        allowed = denied = 0
        for patterns in self._patterns(caller):
            for hosts in patterns.matching(type, name):
                more_allowed, more_denied = _at(hosts, caller.host)
                allowed |= more_allowed
                denied |= more_denied
        if self._by_default and not self._mentioned(type, name):
            return _EVERY
        return granted | (allowed & ~denied)

    def _decide_any(self, caller: Caller, operation: Operation, type: ResourceType) -> bool:
        allowed: list[tuple[bool, str]] = []
        denied: set[tuple[bool, str]] = set()
        every = self._patterns(caller)
        for patterns in every:
            for prefixed, table in ((False, patterns.literal), (True, patterns.prefixed)):
                for (of, name), hosts in table.items():
                    bits = _at(hosts, caller.host) if of is type else (0, 0)
                    if bits[0] >> operation & 1:
                        allowed.append((prefixed, name))
                    if bits[1] >> operation & 1:
                        denied.add((prefixed, name))
        if (False, ANY) in denied:
            return False
        return any(
            (prefixed, name) == (False, ANY)
            or (
                (prefixed, name) not in denied
                and not any(
                    (True, prefix) in denied
                    for prefix in chain.from_iterable(patterns.prefixes(type, name) for patterns in every)
                )
            )
            for prefixed, name in allowed
        )

    def _patterns(self, caller: Caller) -> tuple[_Patterns, _Patterns]:
        return self._of(caller.principal), self._of(ANY_USER)

    def _of(self, principal: str) -> _Patterns:
        acls = self._directory.acls.get(principal)
        if acls is None:
            return _EMPTY
        compiled = self._compiled.get(principal)
        if compiled is None:
            compiled = self._compiled[principal] = _Compiled(acls, _Patterns(acls))
        return compiled.patterns

    def _mentioned(self, type: ResourceType, name: str) -> bool:
        """Return whether an ACL of any principal matches the resource."""
        if self._all is None:
            self._all = _Patterns(chain.from_iterable(self._directory.acls.values()))
        return any(True for _ in self._all.matching(type, name))


def _at(hosts: Hosts, host: str) -> tuple[int, int]:
    """Return the operations that are allowed and denied to callers at a host."""
    allowed, denied = hosts.get(ANY, (0, 0))
    if host in hosts:
        more_allowed, more_denied = hosts[host]
        return allowed | more_allowed, denied | more_denied
    return allowed, denied
