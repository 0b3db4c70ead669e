"""Cache of all IcebergTopics, as the watch last showed them, and of the topics and tables that they claim.

Two resources may claim the same Kafka topic or the same table. The older one owns it, by creation time and then by uid.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from firn.api.model import ObjectMeta
from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn.model.config import Config
from firn.model.errors import FirnError, InvalidSpecError
from firn_controllers.cache.addresses import bootstrap_servers
from firn_controllers.conditions.annotations import ours
from firn_controllers.ports import Manifest

Name = tuple[str, str]
"""Namespace and name of a resource."""
Claim = tuple[str, ...]

EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """An IcebergTopic. ``resource`` is None if the object cannot be read as one, and ``problem`` says why."""

    name: Name
    uid: str
    metadata: ObjectMeta
    generation: int
    resource_version: str
    status: Mapping[str, Any]
    resource: IcebergTopic | None
    problem: InvalidSpecError | None
    profile: str
    group: str
    topic_claim: Claim | None
    table_claim: Claim | None
    trigger: tuple[object, ...]
    """The parts of the object, without its status, that a reconcile depends on."""
    shares: bool = False
    """True if the spec lets other resources of the namespace land in the table, too."""
    edited: bool = False
    """True from a change of the spec that this process saw until Kafka topic and table match it, or the operator refuses it."""

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The Kafka topic and the table that the resource claims. A spec that cannot be read claims those of its status."""
        return (*self.topic_claims, *self.table_claims)

    @property
    def topic_claims(self) -> tuple[Claim, ...]:
        """The claims of the Kafka topic: by address and name, and by the id in the status.

        Two profiles may name one Kafka by different addresses. A table of ``spec.routes`` leaves the topic to its parent.
        """
        if self.parent is not None:
            return ()
        return _present(self.topic_claim, topic_id_claim(self.status.get("topicId")))

    @property
    def parent(self) -> Name | None:
        """The IcebergTopic whose ``spec.routes`` has the table of this one; None if it serves a topic of its own."""
        route = self.resource.spec.route if self.resource is not None else None
        return (self.name[0], route.of) if route is not None else None

    @property
    def table_claims(self) -> tuple[Claim, ...]:
        """The claims of the table: by catalog and name, and by the uuid in the status.

        A resource that shares a table also claims the table whose dead letters would have the name of its own.
        """
        uuid = (self.status.get("table") or {}).get("uuid")
        return _present(self.table_claim, ("table-uuid", uuid) if uuid else None, self.letters_claim)

    @property
    def letters_claim(self) -> Claim | None:
        """The table whose dead letters would be in the dead-letter table of this resource; None if it does not share its table."""
        if not self.shares or self.table_claim is None:
            return None
        *place, table = self.table_claim
        return (*place, names.dead_letters(table, self.name[1]).removesuffix(names.DEAD_LETTER_SUFFIX))

    def shares_with(self, other: "TopicEntry") -> bool:
        """Return whether this resource and ``other`` may both land in the table that they claim."""
        both = self.shares and other.shares and self.name[0] == other.name[0]
        return both and self.table_claim is not None and self.table_claim == other.table_claim

    def condition(self, kind: ConditionType) -> Manifest | None:
        """Return the condition in the status; None without one."""
        return next((item for item in self.status.get("conditions") or () if item["type"] == kind), None)

    @property
    def spec_valid(self) -> str:
        """The reason of SpecValid in the status; empty without one."""
        found = self.condition(ConditionType.SPEC_VALID)
        return found["reason"] if found is not None else ""

    @property
    def in_conflict(self) -> bool:
        """True if the status says that the Kafka topic or the table belongs to another resource."""
        return self.spec_valid == Reason.RESOURCE_CONFLICT

    @property
    def age(self) -> tuple[datetime, str]:
        """Key that sorts older resources first."""
        return (self.metadata.creation_timestamp or EPOCH, self.uid)

    @property
    def live_partitions(self) -> int:
        """The partitions that the Kafka topic has, as status shows them; 0 before it exists."""
        return int(self.status.get("partitions") or 0)

    def partitions(self, default: int) -> int:
        """Return the number of partitions that the resource asks for or already has."""
        wanted = self.resource.spec.partitions if self.resource is not None else None
        return max(self.live_partitions, wanted if wanted is not None else 0 if self.live_partitions else default)

    @property
    def policy_trigger(self) -> tuple[object, ...]:
        """The parts of the object that policies depend on."""
        return (self.trigger, (self.status.get("table") or {}).get("uuid"), self.in_conflict)


def topic_claim(config: Config, profile: str, topic: str) -> Claim:
    """Return the claim of a Kafka topic by the address of its brokers and its name."""
    configured = config.profiles.get(profile)
    cluster = bootstrap_servers(profile, configured, config.namespace) if configured else profile
    return ("topic", cluster, topic)


def topic_id_claim(topic_id: str | None) -> Claim | None:
    """Return the claim of the Kafka topic with this id. Old brokers give all topics the id of zeros."""
    return ("topic-id", topic_id) if topic_id and topic_id.strip("A") else None


def _present(*claims: Claim | None) -> tuple[Claim, ...]:
    return tuple(claim for claim in claims if claim is not None)


def topic_entry(manifest: Manifest, config: Config, before: TopicEntry | None = None) -> TopicEntry:
    """Return the entry of a live object. ``before`` is an earlier entry of its name, whose spec is reused if it is the same."""
    metadata = manifest["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    trigger = (
        metadata.get("uid"),
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        tuple(metadata.get("finalizers") or ()),
        tuple(sorted(ours(metadata.get("annotations") or {}).items())),
        tuple(sorted((metadata.get("labels") or {}).items())),
    )
    resource, problem = None, None
    status = manifest.get("status") or {}
    try:
        resource = _resource(manifest, status, before)
    except InvalidSpecError as error:
        problem = error
    if resource is not None:
        profile = resource.profile_name(config.default_profile)
        group = resource.group_name(config.default_group)
        topic_name, table_claim = resource.topic_name, _table_claim(resource, config)
    else:
        # The contract of an earlier spec stays in force, so the names that it uses stay taken.
        profile = status.get("profile") or config.default_profile
        group = (status.get("ingestion") or {}).get("group") or config.default_group
        topic_name = status.get("topicName") or ""
        identifier = (status.get("table") or {}).get("identifier")
        table_claim = ("table", *identifier.split(".")) if identifier else None
    return TopicEntry(
        name=(namespace, name),
        uid=metadata.get("uid", ""),
        metadata=resource.metadata if resource is not None else ObjectMeta.model_validate(metadata),
        generation=metadata.get("generation", 0),
        resource_version=metadata.get("resourceVersion", ""),
        status=status,
        resource=resource,
        problem=problem,
        profile=profile,
        group=group,
        topic_claim=topic_claim(config, profile, topic_name) if topic_name else None,
        table_claim=table_claim,
        trigger=trigger,
        shares=((manifest.get("spec") or {}).get("table") or {}).get("shared") is True,
        edited=_edited(metadata, status, before),
    )


def _edited(metadata: Manifest, status: Mapping[str, Any], before: TopicEntry | None) -> bool:
    """Return whether a change of the spec, in ``before`` or since, still waits until Kafka topic and table match it.

    A change that the operator refuses does not wait.
    """
    if before is None or before.uid != metadata.get("uid") or "deletionTimestamp" in metadata:
        return False
    generation = metadata.get("generation")
    if not before.edited and before.generation == generation:
        return False
    conditions = status.get("conditions") or ()
    statuses = {item["type"]: item["status"] for item in conditions if item.get("observedGeneration") == generation}
    agreed = statuses.get(ConditionType.TOPIC_READY) == statuses.get(ConditionType.TABLE_READY) == "True"
    refused = statuses.get(ConditionType.SPEC_VALID) == "False" or statuses.get(ConditionType.STALLED) == "True"
    return not agreed and not refused


def _resource(manifest: Manifest, status: Mapping[str, Any], before: TopicEntry | None) -> IcebergTopic:
    """Return the object as a resource. Raises InvalidSpecError.

    A generation has one spec, so it is read once. Of the status, a resource only has the defaults that were chosen: the
    entry has the rest.
    """
    metadata = manifest["metadata"]
    chosen = {
        "profile": status.get("profile"),
        "table": {"identifier": (status.get("table") or {}).get("identifier")},
    }
    document = {**manifest, "status": chosen}
    generation = (metadata.get("uid"), metadata.get("generation"))
    if before is not None and before.resource is not None and (before.uid, before.generation) == generation:
        document["spec"] = before.resource.spec
    return IcebergTopic.parse(document)


def _table_claim(resource: IcebergTopic, config: Config) -> Claim | None:
    try:
        target = resource.table_target(config.default_catalog)
    except FirnError:
        return None
    return ("table", target.catalog, target.namespace, target.name)


class TopicCache:
    """IcebergTopics by name, uid, claim and namespace. Use it from one event loop."""

    def __init__(self) -> None:
        self._by_name: dict[Name, TopicEntry] = {}
        self._by_uid: dict[str, Name] = {}
        self._by_claim: defaultdict[Claim, set[Name]] = defaultdict(set)
        self._by_namespace: defaultdict[str, dict[str, TopicEntry]] = defaultdict(dict)
        self._gone: defaultdict[Name, set[str]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._by_name)

    def put(self, new: TopicEntry) -> set[Name]:
        """Store a resource as the watch shows it. Returns the resources to reconcile because of it."""
        old = self._by_name.get(new.name)
        if old is not None and old.uid != new.uid:
            self._gone[new.name].add(old.uid)
        affected = set() if old is not None and old.trigger == new.trigger else {new.name}
        if affected and new.shares:
            # The oldest resource of a shared table decides what the others may ask for.
            affected |= {each.name for each in self.sharers(new)}
        old_claims, new_claims = set(old.claims if old else ()), set(new.claims)
        for claim in old_claims - new_claims:
            affected |= self._leave(claim, new.name)
        for claim in new_claims - old_claims:
            affected |= self._by_claim[claim]
            self._by_claim[claim].add(new.name)
        if old is not None:
            self._by_uid.pop(old.uid, None)
        self._by_name[new.name] = new
        self._by_namespace[new.name[0]][new.name[1]] = new
        self._by_uid[new.uid] = new.name
        return affected

    def remove(self, name: Name, uid: str) -> set[Name]:
        """Remove a deleted resource. Returns the resources to reconcile because of it, itself included."""
        self._gone[name].add(uid)
        old = self._by_name.get(name)
        affected = {name}
        if old is None or old.uid != uid:
            return affected
        del self._by_name[name]
        del self._by_namespace[name[0]][name[1]]
        self._by_uid.pop(uid, None)
        for claim in old.claims:
            affected |= self._leave(claim, name)
        return affected

    def get(self, name: Name) -> TopicEntry | None:
        """Return the resource of this name."""
        return self._by_name.get(name)

    def by_uid(self, uid: str) -> TopicEntry | None:
        """Return the resource with this uid."""
        name = self._by_uid.get(uid)
        return self._by_name.get(name) if name else None

    def all(self) -> Iterable[TopicEntry]:
        """Return all resources."""
        return self._by_name.values()

    def in_namespace(self, namespace: str) -> Collection[TopicEntry]:
        """Return the resources of a namespace."""
        return self._by_namespace.get(namespace, {}).values()

    def other_partitions(self, entry: TopicEntry, default: int) -> int:
        """Return the partitions of the namespace's other topics in the profile of ``entry``.

        An older topic counts with the partitions that it asks for, a younger one with those that it has.
        """
        others = [other for other in self.in_namespace(entry.name[0]) if other.profile == entry.profile]
        return sum(
            other.partitions(default) if other.age < entry.age else other.live_partitions
            for other in others
            if other.uid != entry.uid and other.resource is not None and other.parent is None
        )

    def holder(self, claim: Claim) -> TopicEntry | None:
        """Return the oldest resource with this claim."""
        return min(self.holders(claim), key=lambda entry: entry.age, default=None)

    def holders(self, claim: Claim) -> Sequence[TopicEntry]:
        """Return all resources with this claim."""
        return [self._by_name[name] for name in self._by_claim.get(claim, ())]

    def rival(self, entry: TopicEntry, claims: Iterable[Claim]) -> TopicEntry | None:
        """Return the oldest resource that has one of the claims and is older than ``entry``."""
        return next(iter(self.older(entry, claims)), None)

    def older(self, entry: TopicEntry, claims: Iterable[Claim]) -> Sequence[TopicEntry]:
        """Return the resources that have one of the claims and are older than ``entry``, the oldest first."""
        found = {name for claim in claims for name in self._by_claim.get(claim, ())}
        holders = (self._by_name[name] for name in found)
        return sorted(
            (holder for holder in holders if holder.uid != entry.uid and holder.age < entry.age),
            key=lambda holder: holder.age,
        )

    def table_rival(self, entry: TopicEntry) -> TopicEntry | None:
        """Return the oldest resource that has the table of ``entry``, is older, and does not share the table with it."""
        older = self.older(entry, entry.table_claims)
        return next((each for each in older if not entry.shares_with(each)), None)

    def older_sharers(self, entry: TopicEntry) -> Sequence[TopicEntry]:
        """Return the older resources that share the table with ``entry``, the oldest first."""
        return [each for each in self.older(entry, entry.table_claims) if entry.shares_with(each)]

    def sharers(self, entry: TopicEntry) -> Sequence[TopicEntry]:
        """Return the other resources that share the table with ``entry``, the oldest first."""
        holders = self.holders(entry.table_claim) if entry.table_claim is not None else ()
        return sorted(
            (each for each in holders if each.uid != entry.uid and entry.shares_with(each)), key=lambda each: each.age
        )

    def deleted_uids(self, name: Name) -> frozenset[str]:
        """Return the uids of deleted resources of this name that still have to be cleaned up."""
        return frozenset(self._gone.get(name, ()))

    def clear_deleted(self, name: Name, uid: str) -> None:
        """Note that the deleted resource ``uid`` is cleaned up."""
        self._gone[name].discard(uid)
        if not self._gone[name]:
            del self._gone[name]

    def group_in_use(self, group: str) -> bool:
        """Return whether any resource, deleting ones included, names this ingestion group."""
        return any(entry.group == group and entry.resource is not None for entry in self._by_name.values())

    def _leave(self, claim: Claim, name: Name) -> set[Name]:
        holders = self._by_claim[claim]
        holders.discard(name)
        if not holders:
            del self._by_claim[claim]
        return set(holders)
