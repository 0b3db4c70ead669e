"""The loop: events wake keys, and each key has its reconciler.

Keys: ``("topic", namespace, name)``, ``("policy", kind, namespace, name)``, ``("topic-set", namespace, name)``, ``("replay",
namespace, name)``, ``("user", namespace, name)``, ``("fleet", profile)``, ``("listing", profile)``, ``("catalog", name)``,
``("group", name)``, ``("audits",)``, ``("orphans",)``. The wiring reports what the watches show (`topic_seen`, `policy_seen`,
`child_seen` and so on) and calls `run`. No key is reconciled before `synced`: with an incomplete list of resources, the wrong
resource could win a conflict, a group could look unused, or a user could lose its rights.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from firn.model import names
from firn.model.config import Config
from firn_controllers.board import Board
from firn_controllers.cache import policies as policy_index
from firn_controllers.cache.policies import KINDS, Kind, PolicyCache, PolicyEntry
from firn_controllers.cache.replays import KIND as REPLAY_KIND
from firn_controllers.cache.replays import ReplayCache, ReplayEntry, replay_entry
from firn_controllers.cache.topic_sets import SetCache, SetEntry, set_entry
from firn_controllers.cache.topics import Name, TopicCache, TopicEntry, topic_entry
from firn_controllers.children import COMPONENT, Owner
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.policies.runs import COMPONENT_RUN
from firn_controllers.ports import Manifest, Ports, RunMeter
from firn_controllers.queue import Key, Lane, Outcome, ReconcileMeter, WorkQueue
from firn_controllers.reconcilers.audits import AuditReconciler
from firn_controllers.reconcilers.catalog import CatalogReconciler
from firn_controllers.reconcilers.context import Context
from firn_controllers.reconcilers.driver_rights import DriverRights
from firn_controllers.reconcilers.fleet.reconciler import FleetReconciler
from firn_controllers.reconcilers.ingestion_group import GroupReconciler
from firn_controllers.reconcilers.orphans import OrphanReconciler
from firn_controllers.reconcilers.policy.reconciler import PolicyReconciler
from firn_controllers.reconcilers.replays import ReplayReconciler
from firn_controllers.reconcilers.topic.reconciler import TopicReconciler
from firn_controllers.reconcilers.topic_set.listings import ListingReconciler
from firn_controllers.reconcilers.topic_set.reconciler import TopicSetReconciler
from firn_controllers.reconcilers.topic_user.reconciler import TopicUserReconciler
from firn_controllers.user_events import USER, UserEvents

log = logging.getLogger(__name__)
_Entry = TopicEntry | PolicyEntry | ReplayEntry | SetEntry

TOPIC, POLICY, FLEET, CATALOG, GROUP = "topic", "policy", "fleet", "catalog", "group"
AUDITS, ORPHANS, REPLAY = "audits", "orphans", "replay"
TOPIC_SET, LISTING = "topic-set", "listing"
TOGETHER = 2.0
"""Seconds for which changes of debt are collected before their policy is reconciled, and changes of topics before their TopicSet is."""


class Controllers:
    """All reconcilers of one operator process. Use them from one event loop."""

    def __init__(
        self,
        config: Config,
        owner_uid: str,
        ports: Ports,
        jitter: Callable[[], float],
        meter: ReconcileMeter | None = None,
        run_meter: RunMeter | None = None,
        cluster_uid: str = "",
    ) -> None:
        self.queue = WorkQueue(ports.clock, jitter, meter, shared=frozenset((FLEET, CATALOG, GROUP, LISTING)))
        self.topics = TopicCache()
        self.board = Board()
        self.policies = PolicyCache(self.board.schemas)
        self.replays = ReplayCache()
        self.sets = SetCache()
        self.user_events = UserEvents(self.queue)
        self._config = config
        self._synced = asyncio.Event()
        self._stopped = False
        self._announcements: list[Announcement] = []
        self._taken_namespaces: set[str] = set()
        """Namespaces whose resources another release manages."""
        self._context = context = Context(
            config=config,
            owner=Owner(config.namespace, owner_uid),
            cluster_uid=cluster_uid,
            ports=ports,
            topics=self.topics,
            policies=self.policies,
            sets=self.sets,
            replays=self.replays,
            users=self.user_events.users,
            grants=self.user_events.grants,
            board=self.board,
            rights=DriverRights(config, ports, self.board, self.topics),
            wake_topic=self._wake,
            topic_written=self.topic_written,
            topic_applied=self.topic_seen,
            wake_set=lambda name, lane: self.queue.add((TOPIC_SET, *name), lane),
            wake_user=self.user_events.wake,
            wake_topic_after=lambda name, seconds: self.queue.add_after((TOPIC, *name), seconds),
            wake_group_after=lambda group, seconds: self.queue.add_after((GROUP, group), seconds),
            announce=self._announcements.append,
            jitter=jitter,
        )
        self._topic_reconciler = TopicReconciler(context)
        self._policy_reconciler = PolicyReconciler(context, run_meter)
        self._fleet_reconciler = FleetReconciler(context)
        self._catalog_reconciler = CatalogReconciler(context)
        self._group_reconciler = GroupReconciler(context)
        self._orphan_reconciler = OrphanReconciler(context, self._policy_reconciler.runs)
        self._set_reconciler = TopicSetReconciler(context)
        self._user_reconciler = TopicUserReconciler(context)
        self._listing_reconciler = ListingReconciler(context)
        self._audit_reconciler = AuditReconciler(context, self._policy_reconciler.runs, run_meter)
        self._replay_reconciler = ReplayReconciler(context, self._policy_reconciler.runs, run_meter)

    # What the watches show

    def topic_seen(self, manifest: Manifest) -> bool:
        """Process an IcebergTopic as a list or a watch shows it. Return False if a later state of it is known."""
        metadata = manifest["metadata"]
        old = self.topics.get((metadata["namespace"], metadata["name"]))
        edition = (metadata.get("uid", ""), metadata.get("resourceVersion", ""))
        if old is not None and edition == (old.uid, old.resource_version):
            return True  # the answer to a write of this process has shown it
        new = topic_entry(manifest, self._config, old)
        if old is not None and _older(new, old):
            return False
        affected = self.topics.put(new)
        self.user_events.topic_changed(old, new)
        # After a start, all topics are new to this process. Only some of them were changed in the meantime.
        known = old is None and new.status.get("observedGeneration") == new.generation
        lane = Lane.DEPENDENCY if known else Lane.CHANGE
        edited = old is not None and old.uid == new.uid and new.metadata.deletion_timestamp is None
        for name in affected:
            self._wake(name, Lane.EDIT if edited and name == new.name else lane)
        if old is None or old.policy_trigger != new.policy_trigger:
            self._wake_policies(new.name[0])
        if new.name in affected:
            for group in {new.group, old.group if old else new.group} & self._config.groups.keys():
                self.queue.add((GROUP, group))
            self._wake_sets_of(new)
        self._wake_family(old, new)
        return True

    def topic_written(self, new: TopicEntry) -> None:
        """Process an IcebergTopic as the API server answered to a write of this process, before a watch shows it."""
        old = self.topics.get(new.name)
        if new.uid in self.topics.deleted_uids(new.name) or (old is not None and _older(new, old)):
            return  # a watch has shown a later state already
        self.topics.put(new)
        self.user_events.topic_changed(old, new)
        if old is None or old.policy_trigger != new.policy_trigger:
            self._wake_policies(new.name[0])
        self._wake_family(old, new)

    def topic_gone(self, manifest: Manifest) -> None:
        """Process the deletion of an IcebergTopic."""
        metadata = manifest["metadata"]
        name = (metadata["namespace"], metadata["name"])
        old = self.topics.get(name)
        for affected in self.topics.remove(name, metadata["uid"]):
            self._wake(affected, Lane.CHANGE)
        self.user_events.topic_changed(old, self.topics.get(name))
        self._wake_policies(name[0])
        if old is not None and old.parent is not None:
            self._wake(old.parent, Lane.CHANGE)
        self._wake_routed(name)
        if old is not None and old.group in self._config.groups:
            self.queue.add((GROUP, old.group))
        for each in self.sets.all():
            # The topic, its name or its table may be what a set waits for.
            self.queue.add_after((TOPIC_SET, *each.name), TOGETHER, Lane.DEPENDENCY)

    def set_seen(self, manifest: Manifest) -> None:
        """Process a TopicSet as a list or a watch shows it."""
        new = set_entry(manifest)
        old = self.sets.get(new.name)
        if old is not None and _older(new, old):
            return
        if self.sets.put(new):
            edited = old is not None and old.uid == new.uid and not new.deleting
            self.queue.add((TOPIC_SET, *new.name), Lane.EDIT if edited else Lane.CHANGE)
            self._wake_younger_sets(new)
            if new.profile in self._config.profiles:
                self.queue.add((LISTING, str(new.profile)))

    def set_gone(self, manifest: Manifest) -> None:
        """Process the deletion of a TopicSet."""
        metadata = manifest["metadata"]
        name = (metadata["namespace"], metadata["name"])
        old = self.sets.get(name)
        if self.sets.remove(name, metadata["uid"]) and old is not None:
            self.queue.add((TOPIC_SET, *name))
            self._wake_younger_sets(old)

    def policy_seen(self, manifest: Manifest) -> None:
        """Process a policy as a list or a watch shows it."""
        new = policy_index.policy_entry(manifest, self._config)
        old = self.policies.get(new.kind, new.name)
        if old is not None and _older(new, old):
            return
        if self.policies.put(new):
            self._policy_changed(new.kind, new.name)

    def policy_gone(self, manifest: Manifest) -> None:
        """Process the deletion of a policy."""
        metadata = manifest["metadata"]
        name = (metadata["namespace"], metadata["name"])
        self.policies.remove(manifest["kind"], name, metadata["uid"])
        self._policy_changed(manifest["kind"], name)

    def replay_seen(self, manifest: Manifest) -> None:
        """Process a DeadLetterReplay as a list or a watch shows it."""
        new = replay_entry(manifest, self._config)
        old = self.replays.get(new.name)
        if old is not None and _older(new, old):
            return
        self.replays.put(new)
        # The status does not matter, except that of a replay that is new to this process.
        if old is None or (old.uid, old.generation, old.paused) != (new.uid, new.generation, new.paused):
            self.queue.add((REPLAY, *new.name))
            self._wake_topic_of(new)

    def replay_gone(self, manifest: Manifest) -> None:
        """Process the deletion of a DeadLetterReplay."""
        metadata = manifest["metadata"]
        name = (metadata["namespace"], metadata["name"])
        gone = self.replays.get(name)
        self.replays.remove(name, metadata["uid"])
        self.queue.add((REPLAY, *name))
        if gone is not None:
            self._wake_topic_of(gone)

    def _wake_topic_of(self, replay: ReplayEntry) -> None:
        """Reconcile the topic of a replay: it keeps its snapshots for the time that the replay needs."""
        if replay.topic is not None and self.topics.get(replay.topic) is not None:
            self._wake(replay.topic, Lane.DEPENDENCY)

    def debt_changed(self, name: Name) -> None:
        """Wake the topic, and the policies that govern it, after the debt of its table changed."""
        entry = self.topics.get(name)
        if entry is None:
            return
        self._context.refresh_topic(name)
        for kind in KINDS:
            policy = self.policies.resolve(kind, entry).policy
            if policy is not None:
                self.queue.add_after((POLICY, kind, *policy.name), TOGETHER)

    def child_seen(self, labels: Mapping[str, str]) -> None:
        """Wake the owner of a StatefulSet, Job, pod or other child that changed. Its labels name the owner."""
        profile, group = labels.get(names.LABEL_PROFILE), labels.get(names.LABEL_GROUP)
        uid = labels.get(names.LABEL_JOB)
        if uid is not None:
            return  # only the operator changes contracts; the next resync finds a lost one
        if labels.get(COMPONENT) == COMPONENT_RUN:
            policy = (names.LABEL_POLICY_KIND, names.LABEL_POLICY_NAMESPACE, names.LABEL_POLICY)
            if labels.get(names.LABEL_POLICY_KIND) == "Audit":
                self.queue.add((AUDITS,), Lane.DEPENDENCY)
            elif labels.get(names.LABEL_POLICY_KIND) == REPLAY_KIND:
                self.queue.add((REPLAY, *(labels.get(key, "") for key in policy[1:])), Lane.DEPENDENCY)
            elif labels.keys() >= set(policy):
                self.queue.add((POLICY, *(labels[key] for key in policy)), Lane.DEPENDENCY)
            return
        if profile in self._config.profiles:
            self.queue.add((FLEET, str(profile)))
        if group in self._config.groups:
            self.queue.add((GROUP, str(group)))

    def synced(self) -> None:
        """Note that every existing IcebergTopic has been seen once."""
        self._synced.set()

    # The loop

    async def run(self) -> None:
        """Reconcile until `stop`."""
        await self._synced.wait()
        if not self._stopped:
            self.begin()
            await self.queue.run(self.reconcile, self._config.workers, retry_lane=self._retry_lane)

    def begin(self) -> None:
        """Add the keys that no watch adds."""
        for kind, configured in (
            (FLEET, self._config.profiles),
            (CATALOG, self._config.catalogs),
            (GROUP, self._config.groups),
        ):
            for name in configured:
                self.queue.add((kind, name))
        self.queue.add((AUDITS,), Lane.ROUTINE)
        self.queue.add((ORPHANS,), Lane.ROUTINE)

    def stop(self) -> None:
        """Finish the active reconciles, and return from `run`."""
        self._stopped = True
        self._synced.set()
        self.queue.stop()

    async def reconcile(self, key: Key) -> Outcome:
        """Reconcile one key."""
        match key:
            case (kind, namespace, name) if kind == TOPIC:
                if await self._taken(namespace):
                    outcome = await self._topic_reconciler.leave((namespace, name))
                else:
                    outcome = await self._topic_reconciler.reconcile((namespace, name))
            case (_, *_, namespace, name) if key[0] in (POLICY, REPLAY, TOPIC_SET, USER):
                if await self._taken(namespace):
                    outcome = self._context.resync()
                else:
                    outcome = await self._reconcile_resource(key, (namespace, name))
            case _:
                outcome = await self._reconcile_shared(key)
        await self._announce()
        return outcome

    async def _reconcile_resource(self, key: Key, name: Name) -> Outcome:
        """Reconcile a resource other than an IcebergTopic."""
        match key:
            case (_, policy_kind, _, _) if policy_kind in KINDS:
                return await self._policy_reconciler.reconcile(policy_kind, name)
            case (kind, _, _) if kind == REPLAY:
                return await self._replay_reconciler.reconcile(name)
            case (kind, _, _) if kind == USER:
                return await self._user_reconciler.reconcile(name)
            case _:
                return await self._set_reconciler.reconcile(name)

    async def _reconcile_shared(self, key: Key) -> Outcome:
        """Reconcile what many resources share."""
        match key:
            case (kind, name) if kind == LISTING:
                return await self._listing_reconciler.reconcile(name)
            case (kind, name) if kind == FLEET:
                return await self._fleet_reconciler.reconcile(name)
            case (kind, name) if kind == CATALOG:
                return await self._catalog_reconciler.reconcile(name)
            case (kind, name) if kind == GROUP:
                return await self._group_reconciler.reconcile(name)
            case (kind,) if kind == AUDITS:
                return await self._audit_reconciler.reconcile()
            case _:
                return await self._orphan_reconciler.reconcile()

    async def _taken(self, namespace: str) -> bool:
        """Return whether another release manages the resources of the namespace. Record an Event the first time."""
        rival = await self._context.ports.cluster.rival(namespace)
        if rival is None:
            self._taken_namespaces.discard(namespace)
        elif namespace not in self._taken_namespaces:
            self._taken_namespaces.add(namespace)
            text = (
                f"the release in namespace {rival} manages the resources of namespace {namespace}, so this operator leaves them alone;"
                " remove the namespace from watchNamespaces of one of the two releases, or delete its Lease firn-operator if that release is"
                " uninstalled"
            )
            self._context.announce(Announcement("Warning", EventReason.NAMESPACE_TAKEN, text))
        return rival is not None

    async def _announce(self) -> None:
        """Record the Events of fleets and groups on the object that owns their children."""
        while self._announcements:
            item = self._announcements.pop(0)
            await self._context.ports.cluster.event(
                self._context.owner.namespace,
                names.CONFIG_OBJECT,
                self._context.owner.uid,
                "ConfigMap",
                item.type,
                str(item.reason),
                item.message,
            )

    # Wake-ups

    def _wake(self, name: Name, lane: Lane) -> None:
        self.queue.add((TOPIC, *name), min(lane, self._retry_lane((TOPIC, *name))))

    def _retry_lane(self, key: Key) -> Lane:
        """Return the lane of a retry. An edit that an outage failed precedes all other topics that it failed."""
        match key:
            case (kind, namespace, name) if kind == TOPIC:
                entry = self.topics.get((namespace, name))
                return Lane.EDIT if entry is not None and entry.edited else Lane.ROUTINE
        return Lane.ROUTINE

    def _wake_sets_of(self, topic: TopicEntry) -> None:
        """Wake the TopicSet that made a topic, soon after the last of many changes."""
        owner = topic.metadata.labels.get(names.LABEL_TOPIC_SET)
        if owner is not None and self.sets.get((topic.name[0], owner)) is not None:
            self.queue.add_after((TOPIC_SET, topic.name[0], owner), TOGETHER, Lane.DEPENDENCY)

    def _wake_family(self, old: TopicEntry | None, new: TopicEntry) -> None:
        """Wake the parent of a routed table whose status changed, and the routed tables of a topic whose topic or spec changed."""
        changed = old is None or old.status != new.status
        if new.parent is not None:
            if changed:
                self.queue.add_after((TOPIC, *new.parent), TOGETHER, Lane.DEPENDENCY)
            return
        if new.resource is None or new.resource.spec.routes is None:
            return
        known = old is not None and (old.status.get("topicId"), old.generation) == (
            new.status.get("topicId"),
            new.generation,
        )
        if not known:
            self._wake_routed(new.name)

    def _wake_routed(self, parent: Name) -> None:
        """Wake the IcebergTopics of the tables of ``spec.routes``."""
        for each in self.topics.in_namespace(parent[0]):
            if each.parent == parent:
                self._wake(each.name, Lane.CHANGE)

    def _wake_younger_sets(self, changed: SetEntry) -> None:
        """Wake the sets that ``changed`` precedes: it may match other topics now."""
        for each in self.sets.all():
            if each.age > changed.age:
                self.queue.add_after((TOPIC_SET, *each.name), TOGETHER, Lane.DEPENDENCY)

    def _wake_policies(self, namespace: str) -> None:
        """Wake the policies of a namespace, because the topics that they govern may have changed."""
        for kind in KINDS:
            for policy in self.policies.in_namespace(kind, namespace):
                key = (POLICY, kind, *policy.name)
                pause = self._policy_reconciler.pause(kind, policy.name)
                if pause:
                    self.queue.add_after(key, pause, Lane.DEPENDENCY)
                else:
                    self.queue.add(key, Lane.DEPENDENCY)

    def _policy_changed(self, kind: Kind, name: Name) -> None:
        """Wake the topics and policies that a created, changed or deleted policy may affect."""
        self.queue.add((POLICY, kind, *name))
        for other in self.policies.in_namespace(kind, name[0]):
            self.queue.add((POLICY, kind, *other.name), Lane.DEPENDENCY)
        for topic in self.topics.in_namespace(name[0]):
            self._wake(topic.name, Lane.DEPENDENCY)


def _older(new: _Entry, old: _Entry) -> bool:
    """Return whether ``new`` was read before ``old``.

    Resource versions are numbers in practice. If they are not, the newest message wins.
    """
    try:
        return int(new.resource_version) < int(old.resource_version)
    except ValueError:
        return False
