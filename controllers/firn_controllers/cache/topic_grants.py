"""Cache of all TopicGrants: which users of other namespaces may use the topics of a namespace."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from firn.api.v1alpha1.topic_grant import TopicGrant
from firn.model.config import matches
from firn_controllers.cache.topics import Name, TopicEntry
from firn_controllers.ports import Manifest


@dataclass(frozen=True, slots=True)
class GrantEntry:
    """A TopicGrant. One that cannot be read (``resource`` None) or is being deleted allows nothing."""

    name: Name
    uid: str
    resource_version: str
    resource: TopicGrant | None
    trigger: tuple[Any, ...]
    """The parts of the object that users depend on."""

    @property
    def namespaces(self) -> frozenset[str]:
        """The namespaces of the users that it concerns."""
        return frozenset(each.namespace for each in self.resource.spec.to) if self.resource is not None else frozenset()

    def reaches(self, user: Name) -> bool:
        """Return whether the grant is for this user."""
        if self.resource is None:
            return False
        return any(each.namespace == user[0] and matches(user[1], list(each.users)) for each in self.resource.spec.to)

    def offers(self, name: str, topic: TopicEntry | None, role: str) -> bool:
        """Return whether the grant is for a topic of its namespace and a role. ``topic`` None: no such topic exists."""
        if self.resource is None or role not in self.resource.spec.roles:
            return False
        labels = topic.metadata.labels if topic is not None else None
        return any(
            each.name == name or (each.selector is not None and labels is not None and each.selector.matches(labels))
            for each in self.resource.spec.topics
        )


def grant_entry(manifest: Manifest) -> GrantEntry:
    """Return the entry of a live object."""
    metadata = manifest["metadata"]
    deleting = "deletionTimestamp" in metadata
    try:
        resource = None if deleting else TopicGrant.model_validate(manifest)
    except ValidationError:
        resource = None
    return GrantEntry(
        name=(metadata["namespace"], metadata["name"]),
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        resource=resource,
        trigger=(metadata.get("uid"), metadata.get("generation"), deleting),
    )


class GrantCache:
    """TopicGrants by namespace and name. Use it from one event loop."""

    def __init__(self) -> None:
        self._grants: defaultdict[str, dict[str, GrantEntry]] = defaultdict(dict)

    def put(self, new: GrantEntry) -> frozenset[str] | None:
        """Store a grant. Returns the namespaces of the users that it concerned or concerns; None if it did not change."""
        old = self.get(new.name)
        self._grants[new.name[0]][new.name[1]] = new
        if old is not None and old.trigger == new.trigger:
            return None
        return new.namespaces | (old.namespaces if old is not None else frozenset())

    def remove(self, name: Name, uid: str) -> frozenset[str]:
        """Remove a deleted grant. Returns the namespaces of the users that it concerned."""
        old = self.get(name)
        if old is None or old.uid != uid:
            return frozenset()
        del self._grants[name[0]][name[1]]
        return old.namespaces

    def get(self, name: Name) -> GrantEntry | None:
        """Return the grant of this name."""
        return self._grants.get(name[0], {}).get(name[1])

    def all(self) -> Sequence[GrantEntry]:
        """Return all grants."""
        return [each for grants in self._grants.values() for each in grants.values()]

    def reaching(self, namespace: str, user: Name) -> Sequence[GrantEntry]:
        """Return the grants of a namespace that are for this user."""
        return [each for each in self._grants.get(namespace, {}).values() if each.reaches(user)]
