"""The ACLs that the grants of a TopicUser give it, and the roles on topics that are refused."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from firn.api.v1alpha1.topic_user import Grant, GrantedTopics, Role, Why
from firn.model import names
from firn.model.config import Config, DisklessProfile, ProfileUsers
from firn_controllers.cache.topic_grants import GrantCache, GrantEntry
from firn_controllers.cache.topic_users import UserCache, UserEntry
from firn_controllers.cache.topics import Name, TopicCache, TopicEntry
from firn_controllers.ports import AclOperation, AclResource, AclRule
from firn_controllers.topic_users.checks import pattern_allowed, profile_users

OPERATIONS: dict[Role, tuple[AclOperation, ...]] = {
    "Produce": ("Write", "Describe"),
    "Consume": ("Read", "Describe"),
    "Alter": ("Alter", "AlterConfigs", "Describe", "DescribeConfigs"),
}
"""Role -> operations on the Kafka topic. Kafka lets every client that may write to a topic write idempotently."""
MAY_COME: frozenset[Why] = frozenset({"TopicNotFound", "TopicNotReady", "NoGrant"})
"""Causes that another resource removes, which may be applied together with the TopicUser."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A role on a topic, or on a group, that the user does not get."""

    topic: str
    why: Why
    message: str
    role: Role


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result of the grants of a user."""

    rules: frozenset[AclRule]
    topics: int
    """Number of topics on which the user has a role."""
    refused: tuple[Refusal, ...]

    @property
    def waits(self) -> bool:
        """True if each refusal may end without a change of the TopicUser."""
        return all(each.why in MAY_COME for each in self.refused)


@dataclass(slots=True)
class _Resolution:
    entry: UserEntry
    topics: TopicCache
    users: UserCache
    grants: GrantCache
    settings: ProfileUsers
    diskless: bool
    """True if the brokers of the profile have no transactions."""
    rules: set[AclRule] = field(default_factory=set)
    granted: set[Name] = field(default_factory=set)
    refused: dict[tuple[str, Role, Why], Refusal] = field(default_factory=dict)
    _reaching: dict[str, Sequence[GrantEntry]] = field(default_factory=dict)

    def add(self, grant: Grant) -> None:
        """Add the ACLs and the refusals of one grant."""
        groups, transactions = self._groups(grant), self._transactions(grant)
        consumes = produces = False
        for name in self._names(grant.topics):
            topic = self.topics.get(name)
            for role in grant.roles:
                refusal = self._refusal(name, topic, role)
                if refusal is not None:
                    self._refuse(refusal)
                elif topic is not None:
                    self._allow(topic, role)
                    consumes |= role == "Consume"
                    produces |= role == "Produce"
        if consumes:
            self.rules |= groups
        if produces:
            self.rules |= transactions

    def _names(self, topics: Iterable[GrantedTopics]) -> Iterator[Name]:
        namespace = self.entry.name[0]
        for each in topics:
            if each.selector is None:
                yield (each.namespace or namespace, each.name or "")
                continue
            labelled = self.users.labelled(namespace, each.selector)
            if labelled is None:
                labelled = (topic.name for topic in self.topics.in_namespace(namespace))
            for name in labelled:
                topic = self.topics.get(name)
                if topic is not None and each.selector.matches(topic.metadata.labels):
                    yield name

    def _refusal(self, name: Name, topic: TopicEntry | None, role: Role) -> Refusal | None:
        """Return why the user does not get a role on a topic, with the next step.

        Without a TopicGrant, the answer for a topic of another namespace is the same whether the topic exists or not.
        """
        namespace, place = self.entry.name[0], "/".join(name)
        if role not in OPERATIONS:
            return Refusal(
                place,
                "NotSupported",
                f"role {role} is a right in a catalog, which the operator does not manage; remove the role, and give the right in the catalog",
                role,
            )
        if name[0] != namespace and not any(each.offers(name[1], topic, role) for each in self._offers(name[0])):
            return Refusal(
                place,
                "NoGrant",
                f"no TopicGrant in namespace {name[0]} allows role {role} on IcebergTopic {name[1]} to TopicUser {namespace}/{self.entry.name[1]};"
                f" let the owner of namespace {name[0]} create one",
                role,
            )
        if topic is None or topic.metadata.deletion_timestamp is not None:
            text = f"IcebergTopic {place} does not exist; create it, or correct the name"
            return Refusal(place, "TopicNotFound", text, role)
        if topic.profile != self.entry.profile:
            return Refusal(
                place,
                "OtherProfile",
                f"IcebergTopic {place} is in profile {topic.profile}, and the user in profile {self.entry.profile}; remove the topic here,"
                f" and create a TopicUser of profile {topic.profile} for it",
                role,
            )
        if topic.in_conflict:
            return Refusal(
                place,
                "TopicConflict",
                f"the Kafka topic or the table of IcebergTopic {place} belongs to another resource; read the condition SpecValid of the"
                " IcebergTopic",
                role,
            )
        if not topic.status.get("topicId") or not topic.status.get("topicName"):
            return Refusal(
                place,
                "TopicNotReady",
                f"the Kafka topic of IcebergTopic {place} does not exist yet; wait, or read the conditions of the IcebergTopic",
                role,
            )
        return None

    def _offers(self, namespace: str) -> Sequence[GrantEntry]:
        if namespace not in self._reaching:
            self._reaching[namespace] = self.grants.reaching(namespace, self.entry.name)
        return self._reaching[namespace]

    def _allow(self, topic: TopicEntry, role: Role) -> None:
        self.granted.add(topic.name)
        for operation in OPERATIONS[role]:
            self.rules.add(AclRule("Topic", topic.status["topicName"], "Literal", operation))

    def _groups(self, grant: Grant) -> set[AclRule]:
        """Return the ACLs on the groups of a grant. Refuse groups that the namespace may not use."""
        if "Consume" not in grant.roles:
            return set()
        namespace, name = self.entry.name
        found = set()
        for pattern in grant.groups or (f"{names.user(namespace, name)}.*",):
            if grant.groups and not pattern_allowed(pattern, namespace, self.settings.groups):
                allowed = ", ".join(each.replace("{namespace}", namespace) for each in self.settings.groups) or "none"
                refusal = Refusal(
                    f"group {pattern}",
                    "GroupNotAllowed",
                    f"namespace {namespace} may not use consumer group {pattern}; its patterns are: {allowed}; choose a group that"
                    f" matches a pattern, or add a pattern to"
                    f" profiles.{self.entry.profile}.users.groups in the operator's configuration",
                    "Consume",
                )
                self._refuse(refusal)
                continue
            found.add(_rule("Group", pattern, "Read"))
        return found

    def _transactions(self, grant: Grant) -> set[AclRule]:
        """Return the ACLs on the transactional ids of a grant. Refuse ids that the namespace may not use."""
        namespace, found = self.entry.name[0], set[AclRule]()
        for pattern in grant.transactional_ids:
            place = f"transactional id {pattern}"
            if self.diskless:
                text = (
                    f"the brokers of profile {self.entry.profile} are diskless and have no transactions; remove transactionalIds from the grant,"
                    " and produce without transactions"
                )
                self._refuse(Refusal(place, "NotSupported", text, "Produce"))
            elif not pattern_allowed(pattern, namespace, self.settings.transactional_ids):
                patterns = [each.replace("{namespace}", namespace) for each in self.settings.transactional_ids]
                text = (
                    f"namespace {namespace} may not use transactional id {pattern}; its patterns are: {', '.join(patterns) or 'none'}; choose"
                    f" an id that matches a pattern, or add a pattern to profiles.{self.entry.profile}.users.transactionalIds in the operator's"
                    " configuration"
                )
                self._refuse(Refusal(place, "TransactionalIdNotAllowed", text, "Produce"))
            else:
                found |= {_rule("TransactionalId", pattern, operation) for operation in ("Write", "Describe")}
        return found

    def _refuse(self, refusal: Refusal) -> None:
        self.refused[refusal.topic, refusal.role, refusal.why] = refusal


def _rule(resource: AclResource, pattern: str, operation: AclOperation) -> AclRule:
    """Return the ACL on a name, or on all names with the prefix of a pattern that ends with ``*``."""
    if pattern.endswith("*") and len(pattern) > 1:
        return AclRule(resource, pattern[:-1], "Prefixed", operation)
    return AclRule(resource, pattern, "Literal", operation)


def resolve(entry: UserEntry, topics: TopicCache, users: UserCache, grants: GrantCache, config: Config) -> Resolved:
    """Return the ACLs of a user whose spec is valid, and its refused roles sorted by topic.

    Raises InvalidSpecError if the configuration does not allow the user.
    """
    assert entry.resource is not None
    diskless = isinstance(config.profiles.get(entry.profile), DisklessProfile)
    resolution = _Resolution(entry, topics, users, grants, profile_users(entry, config), diskless)
    for grant in entry.resource.spec.grants:
        resolution.add(grant)
    refused = sorted(resolution.refused.values(), key=lambda each: (each.topic, each.role))
    return Resolved(frozenset(resolution.rules), len(resolution.granted), tuple(refused))
