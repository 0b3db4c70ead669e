"""Which TopicUsers an event wakes: of a TopicUser itself, of a TopicGrant, or of an IcebergTopic."""

from firn_controllers.cache.topic_grants import GrantCache, grant_entry
from firn_controllers.cache.topic_users import UserCache, UserEntry, concerns_users, user_entry
from firn_controllers.cache.topics import Name, TopicEntry
from firn_controllers.ports import Manifest
from firn_controllers.queue import Lane, WorkQueue

USER = "user"
TOGETHER = 2.0
"""Seconds for which changes of topics and grants are collected before their users are reconciled."""


class UserEvents:
    """Keeps the caches of TopicUsers and TopicGrants, and wakes TopicUsers. Use it from one event loop."""

    def __init__(self, queue: WorkQueue) -> None:
        self.users = UserCache()
        self.grants = GrantCache()
        self._queue = queue

    def user_seen(self, manifest: Manifest) -> None:
        """Process a TopicUser as a list or a watch shows it."""
        new = user_entry(manifest)
        old = self.users.get(new.name)
        if old is not None and _older(new.resource_version, old.resource_version):
            return
        if self.users.put(new):
            edited = old is not None and old.uid == new.uid and not new.deleting
            self.wake(new.name, Lane.EDIT if edited else Lane.CHANGE)
            self._wake_same_account(new)

    def user_gone(self, manifest: Manifest) -> None:
        """Process the deletion of a TopicUser."""
        name = _name(manifest)
        old = self.users.get(name)
        if self.users.remove(name, manifest["metadata"]["uid"]) and old is not None:
            self.wake(name, Lane.CHANGE)
            self._wake_same_account(old)

    def grant_seen(self, manifest: Manifest) -> None:
        """Process a TopicGrant as a list or a watch shows it."""
        new = grant_entry(manifest)
        old = self.grants.get(new.name)
        if old is not None and _older(new.resource_version, old.resource_version):
            return
        self._wake_grantees(new.name[0], self.grants.put(new) or frozenset())

    def grant_gone(self, manifest: Manifest) -> None:
        """Process the deletion of a TopicGrant."""
        name = _name(manifest)
        self._wake_grantees(name[0], self.grants.remove(name, manifest["metadata"]["uid"]))

    def topic_changed(self, old: TopicEntry | None, new: TopicEntry | None) -> None:
        """Process a change of an IcebergTopic. ``old`` None: it is new. ``new`` None: it was deleted."""
        if old is not None and new is not None and concerns_users(old) == concerns_users(new):
            return
        if new is not None:
            self.users.topic_put(new)
        elif old is not None:
            self.users.topic_removed(old.name)
        for name in {name for topic in (old, new) if topic is not None for name in self.users.of_topic(topic)}:
            self._queue.add_after((USER, *name), TOGETHER, Lane.DEPENDENCY)

    def wake(self, name: Name, lane: Lane) -> None:
        """Put a user into a lane of the queue."""
        self._queue.add((USER, *name), lane)

    def _wake_same_account(self, changed: UserEntry) -> None:
        """Wake the other users of the same ServiceAccount: one of them may own the principal now."""
        if changed.service_account is None:
            return
        for other in self.users.of_account(changed.service_account):
            if other.name != changed.name:
                self.wake(other.name, Lane.DEPENDENCY)

    def _wake_grantees(self, namespace: str, concerned: frozenset[str]) -> None:
        for name in self.users.across(namespace):
            if name[0] in concerned:
                self._queue.add_after((USER, *name), TOGETHER, Lane.DEPENDENCY)


def _name(manifest: Manifest) -> Name:
    metadata = manifest["metadata"]
    return (metadata["namespace"], metadata["name"])


def _older(new: str, old: str) -> bool:
    """Return whether a resource version was read before another one. If they are no numbers, the newest message wins."""
    try:
        return int(new) < int(old)
    except ValueError:
        return False
