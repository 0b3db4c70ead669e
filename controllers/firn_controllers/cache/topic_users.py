"""Cache of all TopicUsers, as the watch last showed them, and the topics that each one names or selects.

The index goes in both directions: a topic finds its users, and a selector its topics. So an event costs as much as it concerns, whatever
the numbers of users and topics are.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from firn.api.v1alpha1.policy import LabelSelector
from firn.api.v1alpha1.topic_user import TopicUser
from firn.model import names
from firn.model.errors import InvalidSpecError
from firn_controllers.cache.topics import EPOCH, Name, TopicEntry
from firn_controllers.conditions.annotations import ON_TOPIC_USERS, ours, remarks
from firn_controllers.ports import Manifest

Label = tuple[str, str, str]
"""Namespace, key and value of a label."""


@dataclass(frozen=True, slots=True)
class UserEntry:
    """A TopicUser. ``resource`` is None if the object cannot be read as one, and ``problem`` says why."""

    name: Name
    uid: str
    created: datetime
    generation: int
    resource_version: str
    status: Mapping[str, Any]
    finalizers: tuple[str, ...]
    deleting: bool
    paused: bool
    """True if an annotation pauses reconciliation."""
    forced: bool
    """True if an annotation allows a deletion that leaves rights in Kafka."""
    rotate: str
    """Value of the annotation that asks for a rotation; empty without it."""
    remarks: str
    """Remarks about annotations without effect, for the message of a condition."""
    resource: TopicUser | None
    problem: InvalidSpecError | None
    trigger: tuple[object, ...]
    """The parts of the object, without its status, that a reconcile depends on."""

    @property
    def age(self) -> tuple[datetime, str]:
        """Key that sorts older users first."""
        return (self.created, self.uid)

    @property
    def profile(self) -> str:
        """The profile of the user; empty if neither spec nor status has one."""
        return self.resource.spec.profile if self.resource is not None else str(self.status.get("profile") or "")

    @property
    def service_account(self) -> str | None:
        """The subject of the tokens of the user; None for other types of authentication."""
        account = self.resource.spec.authentication.service_account if self.resource is not None else None
        return names.service_account(self.name[0], account) if account is not None else None


def user_entry(manifest: Manifest) -> UserEntry:
    """Return the entry of a live object."""
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations") or {}
    resource, problem = None, None
    try:
        resource = TopicUser.model_validate({key: value for key, value in manifest.items() if key != "status"})
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_input=False)]
        problem = InvalidSpecError("; ".join(problems))
    created = metadata.get("creationTimestamp")
    return UserEntry(
        name=(metadata["namespace"], metadata["name"]),
        uid=metadata.get("uid", ""),
        created=datetime.fromisoformat(created) if created else EPOCH,
        generation=metadata.get("generation", 0),
        resource_version=metadata.get("resourceVersion", ""),
        status=manifest.get("status") or {},
        finalizers=tuple(metadata.get("finalizers") or ()),
        deleting="deletionTimestamp" in metadata,
        paused=annotations.get(names.PAUSE) == "true",
        forced=annotations.get(names.FORCE_DELETION) == "true",
        rotate=annotations.get(names.ROTATE, "")[:256],
        remarks=remarks(annotations, ON_TOPIC_USERS),
        resource=resource,
        problem=problem,
        trigger=(
            metadata.get("uid"),
            metadata.get("generation"),
            metadata.get("deletionTimestamp"),
            tuple(metadata.get("finalizers") or ()),
            tuple(sorted(ours(annotations).items())),
        ),
    )


def concerns_users(topic: TopicEntry) -> tuple[object, ...]:
    """Return the parts of a topic that the rights of users depend on."""
    status = topic.status
    return (
        topic.uid,
        topic.profile,
        topic.in_conflict,
        topic.metadata.deletion_timestamp is not None,
        status.get("topicName"),
        "topicId" in status,
        tuple(sorted(topic.metadata.labels.items())),
    )


class UserCache:
    """TopicUsers by name, and by the topics that they name or select. Use it from one event loop."""

    def __init__(self) -> None:
        self._users: dict[Name, UserEntry] = {}
        self._by_topic: defaultdict[Name, set[Name]] = defaultdict(set)
        self._by_label: defaultdict[Label, set[Name]] = defaultdict(set)
        """A label that a selector demands -> the users with such selectors."""
        self._selecting: defaultdict[str, set[Name]] = defaultdict(set)
        """Namespace -> its users with a selector that demands no label."""
        self._across: defaultdict[str, set[Name]] = defaultdict(set)
        """Namespace -> the users of other namespaces that name topics of it."""
        self._accounts: defaultdict[str, set[Name]] = defaultdict(set)
        self._labelled: defaultdict[Label, dict[Name, None]] = defaultdict(dict)
        """Label -> the topics that have it, in the order of their creation."""
        self._labels: dict[Name, tuple[Label, ...]] = {}

    # Users

    def put(self, new: UserEntry) -> bool:
        """Store a user as the watch shows it. Returns whether it differs in more than its status."""
        old = self._users.get(new.name)
        if old is not None and old.resource is not None:
            self._index(old, set.discard)
        self._users[new.name] = new
        if new.resource is not None:
            self._index(new, set.add)
        return old is None or old.trigger != new.trigger

    def remove(self, name: Name, uid: str) -> bool:
        """Remove a deleted user. Returns whether the cache had it."""
        old = self._users.get(name)
        if old is None or old.uid != uid:
            return False
        self._index(old, set.discard)
        del self._users[name]
        return True

    def get(self, name: Name) -> UserEntry | None:
        """Return the user of this name."""
        return self._users.get(name)

    def all(self) -> Iterable[UserEntry]:
        """Return all users."""
        return list(self._users.values())

    def of_account(self, subject: str) -> Collection[UserEntry]:
        """Return the users whose tokens have this subject, the oldest first."""
        return sorted((self._users[name] for name in self._accounts.get(subject, ())), key=lambda each: each.age)

    def of_topic(self, topic: TopicEntry) -> set[Name]:
        """Return the users that name the topic, or whose selectors may match it."""
        namespace = topic.name[0]
        found = set(self._by_topic.get(topic.name, ())) | self._selecting.get(namespace, set())
        for label in _labels(topic):
            found |= self._by_label.get(label, set())
        return found

    def across(self, namespace: str) -> Collection[Name]:
        """Return the users of other namespaces that name topics of this namespace."""
        return self._across.get(namespace, ())

    def _index(self, entry: UserEntry, change: Callable[[set[Name], Name], None]) -> None:
        if entry.resource is None:
            return
        namespace = entry.name[0]
        if entry.service_account is not None:
            change(self._accounts[entry.service_account], entry.name)
        for topics in (each for grant in entry.resource.spec.grants for each in grant.topics):
            if topics.selector is None:
                place = (topics.namespace or namespace, topics.name or "")
                change(self._by_topic[place], entry.name)
                if place[0] != namespace:
                    change(self._across[place[0]], entry.name)
            elif topics.selector.match_labels:
                key, value = min(topics.selector.match_labels.items())
                change(self._by_label[namespace, key, value], entry.name)
            else:
                change(self._selecting[namespace], entry.name)

    # Topics

    def topic_put(self, topic: TopicEntry) -> None:
        """Store the labels of a topic."""
        labels = _labels(topic)
        if self._labels.get(topic.name, ()) == labels:
            return
        self.topic_removed(topic.name)
        self._labels[topic.name] = labels
        for label in labels:
            self._labelled[label][topic.name] = None

    def topic_removed(self, name: Name) -> None:
        """Forget the labels of a topic."""
        for label in self._labels.pop(name, ()):
            self._labelled[label].pop(name, None)
            if not self._labelled[label]:
                del self._labelled[label]

    def labelled(self, namespace: str, selector: LabelSelector) -> Iterator[Name] | None:
        """Return the topics with one label that the selector demands; None if it demands no label."""
        if not selector.match_labels:
            return None
        counts = {label: len(self._labelled.get((namespace, *label), ())) for label in selector.match_labels.items()}
        return iter(self._labelled.get((namespace, *min(counts, key=counts.__getitem__)), {}))


def _labels(topic: TopicEntry) -> tuple[Label, ...]:
    return tuple((topic.name[0], key, value) for key, value in sorted(topic.metadata.labels.items()))
