"""Cache of all TopicSets, as the watch last showed them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from firn.api.v1alpha1.topic_set import TopicSet
from firn.model import names
from firn.model.errors import InvalidSpecError
from firn_controllers.cache.topics import EPOCH, Name
from firn_controllers.conditions.annotations import ON_TOPIC_SETS, ours, remarks
from firn_controllers.ports import Manifest


@dataclass(frozen=True, slots=True)
class SetEntry:
    """A TopicSet. ``resource`` is None if the object cannot be read as one, and ``problem`` says why."""

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
    remarks: str
    """Remarks about annotations without effect, for the message of a condition."""
    resource: TopicSet | None
    problem: InvalidSpecError | None
    trigger: tuple[object, ...]
    """The parts of the object, without its status, that a reconcile depends on."""

    @property
    def age(self) -> tuple[datetime, str]:
        """Key that sorts older sets first."""
        return (self.created, self.uid)

    @property
    def profile(self) -> str | None:
        """The profile of the set; None if its spec cannot be read."""
        return self.resource.spec.profile if self.resource is not None else None

    @property
    def cluster_id(self) -> str:
        """Kafka's id of the cluster whose topics the set follows; empty before the first list."""
        return str(self.status.get("clusterId") or "")

    @property
    def deletes(self) -> bool:
        """True if the set deletes IcebergTopics whose topics no longer match."""
        return self.resource is not None and self.resource.spec.removal == "Delete"


def set_entry(manifest: Manifest) -> SetEntry:
    """Return the entry of a live object."""
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations") or {}
    resource, problem = None, None
    try:
        resource = TopicSet.parse({key: value for key, value in manifest.items() if key != "status"})
    except InvalidSpecError as error:
        problem = error
    created = metadata.get("creationTimestamp")
    return SetEntry(
        name=(metadata["namespace"], metadata["name"]),
        uid=metadata.get("uid", ""),
        created=datetime.fromisoformat(created) if created else EPOCH,
        generation=metadata.get("generation", 0),
        resource_version=metadata.get("resourceVersion", ""),
        status=manifest.get("status") or {},
        finalizers=tuple(metadata.get("finalizers") or ()),
        deleting="deletionTimestamp" in metadata,
        paused=annotations.get(names.PAUSE) == "true",
        remarks=remarks(annotations, ON_TOPIC_SETS),
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


class SetCache:
    """TopicSets by name. Use it from one event loop."""

    def __init__(self) -> None:
        self._sets: dict[Name, SetEntry] = {}

    def put(self, new: SetEntry) -> bool:
        """Store a set as the watch shows it. Returns whether it differs in more than its status."""
        old = self._sets.get(new.name)
        self._sets[new.name] = new
        return old is None or old.trigger != new.trigger

    def remove(self, name: Name, uid: str) -> bool:
        """Remove a deleted set. Returns whether the cache had it."""
        old = self._sets.get(name)
        if old is None or old.uid != uid:
            return False
        del self._sets[name]
        return True

    def get(self, name: Name) -> SetEntry | None:
        """Return the set of this name."""
        return self._sets.get(name)

    def all(self) -> Iterable[SetEntry]:
        """Return all sets."""
        return list(self._sets.values())

    def of_profile(self, profile: str) -> Sequence[SetEntry]:
        """Return the sets of a profile."""
        return [each for each in self._sets.values() if each.profile == profile]
