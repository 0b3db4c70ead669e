"""All IcebergTopics as the watch last showed them, and what they lay claim to.

Two resources may come out at one Kafka topic or one table: the older one has it (by creation time, then uid).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.model import names
from firn.model.config import Config
from firn.model.errors import FirnError, InvalidSpecError
from firn_controllers.cache.addresses import bootstrap_servers
from firn_controllers.ports import Manifest

Name = tuple[str, str]
"""Namespace and name of a resource."""
Claim = tuple[str, ...]

ANNOTATIONS = (names.PAUSE, names.FORCE_DELETION, names.RESUME, names.RESTART, names.RUN_NOW)
EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """One resource. ``resource`` is None where the object cannot be read as one (``problem`` says why)."""

    name: Name
    uid: str
    created: datetime
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
    """What of the object, beside its status, a reconcile looks at."""

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Topic and table, where they can be told."""
        return tuple(claim for claim in (self.topic_claim, self.table_claim) if claim is not None)

    @property
    def age(self) -> tuple[datetime, str]:
        """Sorts older resources first."""
        return (self.created, self.uid)

    @property
    def policy_trigger(self) -> tuple[object, ...]:
        """What of it policies look at."""
        return (self.trigger, (self.status.get("table") or {}).get("uuid"))


def topic_entry(manifest: Manifest, config: Config) -> TopicEntry:
    """The entry for a live object."""
    metadata = manifest["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    annotations = metadata.get("annotations") or {}
    trigger = (
        metadata.get("uid"),
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        tuple(metadata.get("finalizers") or ()),
        tuple(annotations.get(key) for key in ANNOTATIONS),
        tuple(sorted((metadata.get("labels") or {}).items())),
    )
    resource, problem = None, None
    profile, group = config.default_profile, config.default_group
    topic_claim: Claim | None = None
    table_claim: Claim | None = None
    try:
        resource = IcebergTopic.parse(manifest)
    except InvalidSpecError as error:
        problem = error
    if resource is not None:
        profile = resource.profile_name(config.default_profile)
        group = resource.group_name(config.default_group)
        profile_config = config.profiles.get(profile)
        cluster = bootstrap_servers(profile, profile_config, config.namespace) if profile_config else profile
        topic_claim = ("topic", cluster, resource.topic_name)
        try:
            target = resource.table_target(config.default_catalog)
            table_claim = ("table", target.catalog, target.namespace, target.name)
        except FirnError:
            table_claim = None
    return TopicEntry(
        name=(namespace, name),
        uid=metadata.get("uid", ""),
        created=(resource.metadata.creation_timestamp if resource else None) or EPOCH,
        generation=metadata.get("generation", 0),
        resource_version=metadata.get("resourceVersion", ""),
        status=manifest.get("status") or {},
        resource=resource,
        problem=problem,
        profile=profile,
        group=group,
        topic_claim=topic_claim,
        table_claim=table_claim,
        trigger=trigger,
    )


class TopicCache:
    """Entries by name, uid, claim, group and profile. Use from one event loop."""

    def __init__(self) -> None:
        self._by_name: dict[Name, TopicEntry] = {}
        self._by_uid: dict[str, Name] = {}
        self._by_claim: defaultdict[Claim, set[Name]] = defaultdict(set)
        self._by_namespace: defaultdict[str, dict[str, TopicEntry]] = defaultdict(dict)
        self._gone: defaultdict[Name, set[str]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._by_name)

    def put(self, new: TopicEntry) -> set[Name]:
        """Take in what the watch shows; the resources that have to be looked at for it."""
        old = self._by_name.get(new.name)
        if old is not None and old.uid != new.uid:
            self._gone[new.name].add(old.uid)
        affected = set() if old is not None and old.trigger == new.trigger else {new.name}
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
        """The resource is gone; the resources that have to be looked at for it, itself among them."""
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
        """The resource of this name."""
        return self._by_name.get(name)

    def by_uid(self, uid: str) -> TopicEntry | None:
        """The resource with this uid."""
        name = self._by_uid.get(uid)
        return self._by_name.get(name) if name else None

    def all(self) -> Iterable[TopicEntry]:
        """Every resource."""
        return self._by_name.values()

    def in_namespace(self, namespace: str) -> Iterable[TopicEntry]:
        """The resources of a namespace."""
        return self._by_namespace.get(namespace, {}).values()

    def holder(self, claim: Claim) -> TopicEntry | None:
        """The oldest resource that lays this claim."""
        entries = [self._by_name[name] for name in self._by_claim.get(claim, ())]
        return min(entries, key=lambda entry: entry.age, default=None)

    def deleted_uids(self, name: Name) -> frozenset[str]:
        """Uids of resources of this name that were deleted and not yet cleared up."""
        return frozenset(self._gone.get(name, ()))

    def clear_deleted(self, name: Name, uid: str) -> None:
        """Nothing is left of the deleted resource ``uid``."""
        self._gone[name].discard(uid)
        if not self._gone[name]:
            del self._gone[name]

    def group_in_use(self, group: str) -> bool:
        """Some resource, perhaps on its way out, names this ingestion group."""
        return any(entry.group == group and entry.resource is not None for entry in self._by_name.values())

    def _leave(self, claim: Claim, name: Name) -> set[Name]:
        holders = self._by_claim[claim]
        holders.discard(name)
        if not holders:
            del self._by_claim[claim]
        return set(holders)
