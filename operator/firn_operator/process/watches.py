"""Changes in the cluster from kopf's watches and from lists. This module feeds keys and caches and decides nothing.

kopf runs twice in this loop: for the resources of Firn in all (or the watched) namespaces, and for Firn's own
objects, which the operator may read in its own namespace only. A list at each ``resync`` finds
changes that a watch has missed, and detects a dead watch.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from firn.api.v1alpha1 import topic_grant, topic_set, topic_user
from firn.model import durations, names
from firn.model.config import Config
from firn.model.errors import AccessDeniedError, UnavailableError
from firn_controllers.cache.policies import KINDS, PolicyEntry
from firn_controllers.cache.replays import KIND as REPLAY
from firn_controllers.cache.replays import ReplayEntry
from firn_controllers.cache.topic_grants import GrantEntry
from firn_controllers.cache.topic_sets import SetEntry
from firn_controllers.cache.topic_users import UserEntry
from firn_controllers.children import COMPONENT
from firn_controllers.policies.runs import COMPONENT_RUN
from firn_controllers.reconcile import Controllers
from firn_operator.adapters.kube import lists
from firn_operator.adapters.kube.api_client import PLURALS, Api, ApiError
from firn_operator.adapters.kube.cluster import KubeCluster
from firn_operator.adapters.kube.workloads import Workloads
from firn_operator.process import telemetry

log = logging.getLogger(__name__)
UNREPORTED = "is missing from a list of the Kubernetes API, but the watch did not report its deletion; the operator treats it as deleted"
Manifest = dict[str, Any]
_Few = PolicyEntry | ReplayEntry | SetEntry | UserEntry | GrantEntry
"""Entries of the kinds that have few objects, compared with IcebergTopics."""

BEHIND_LIMIT = 150.0
"""Seconds after which a watch that has not delivered an object that a list shows counts as dead."""
LOOK_AGAIN = 30.0
"""Seconds after which lists are read again while a watch is behind: the missing object may have been deleted."""
_OURS = {names.LABEL_MANAGED_BY: names.MANAGED_BY}
_CHILD_KINDS = (("apps/v1", "StatefulSet"), ("batch/v1", "Job"), ("v1", "Pod"))
_CHILDREN = (("apps", "v1", "statefulsets"), ("batch", "v1", "jobs"), ("", "v1", "pods"))
_OBJECTS = (("", "v1", "services"), ("policy", "v1", "poddisruptionbudgets"), ("", "v1", "configmaps"))
"""Objects of brokers and drivers without a state of their own. The operator only restores them."""
_MANAGED = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
_OF_FLEETS_AND_GROUPS = f"{_MANAGED},!{names.LABEL_JOB},{COMPONENT}!={COMPONENT_RUN}"
"""ConfigMaps of brokers and drivers. Contracts are as many as topics, so only the lists at each ``resync`` show them."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Deliveries:
    """Detects watches that do not deliver: compares the newest versions that watches and lists have shown, by kind
    and namespace."""

    def __init__(self) -> None:
        self._delivered: dict[tuple[str, str], int] = {}
        self._owed: dict[tuple[str, str], tuple[int, float]] = {}

    def delivered(self, manifest: Mapping[str, Any]) -> None:
        """Record an object that a watch has delivered."""
        metadata = manifest["metadata"]
        key = (manifest["kind"], metadata["namespace"])
        self._delivered[key] = max(int(metadata["resourceVersion"]), self._delivered.get(key, 0))

    def listed(self, kind: str, namespace: str | None, newest: Mapping[str, int], version: int) -> None:
        """Record a whole list of ``namespace`` (None: of all) that was read at ``version``. ``newest`` is by namespace.

        Objects that an earlier list showed and this one does not show are no longer expected from the watch: a watch that
        was not connected while an object was deleted never delivers it. After an empty list, only later deliveries count.
        """
        now = time.monotonic()

        def within(key: tuple[str, str]) -> bool:
            return key[0] == kind and namespace in (None, key[1])

        before = {key: since for key, (owed, since) in self._owed.items() if owed > self._delivered.get(key, 0)}
        self._owed = {key: owed for key, owed in self._owed.items() if not within(key)}
        self._delivered = {
            key: shown
            for key, shown in self._delivered.items()
            if not within(key) or key[1] in newest or shown > version
        }
        for space, newest_version in newest.items():
            key = (kind, space)
            if newest_version > self._delivered.get(key, 0):
                self._owed[key] = (newest_version, before.get(key, now))

    def behind_seconds(self) -> float:
        """Return the longest time for which a watch has not delivered an object that a list shows; 0 if none is missing."""
        now = time.monotonic()
        owing = (since for key, (version, since) in self._owed.items() if version > self._delivered.get(key, 0))
        return max((now - since for since in owing), default=0.0)


def _newest(manifests: Iterable[Mapping[str, Any]], earlier: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the newest resource version by namespace, of ``manifests`` and ``earlier``."""
    newest = dict(earlier or {})
    for manifest in manifests:
        metadata = manifest["metadata"]
        newest[metadata["namespace"]] = max(int(metadata["resourceVersion"]), newest.get(metadata["namespace"], 0))
    return newest


class _NoDiffs(kopf.DiffBaseStorage):
    """Keep no earlier state of objects. kopf would copy each object of each event to compare it, for handlers that Firn
    does not have."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return an empty state."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        """Return no state."""

    def store(self, **_: Any) -> None:
        """Store nothing."""


class Watches:
    """Feeds ``controllers`` and ``workloads``."""

    def __init__(
        self,
        config: Config,
        api: Api,
        configuration: Configuration,
        controllers: Controllers,
        workloads: Workloads,
        cluster: KubeCluster,
    ) -> None:
        self._config = config
        self._api = api
        self._configuration = configuration
        self._controllers = controllers
        self._workloads = workloads
        self._cluster = cluster
        self._tally = telemetry.TopicTally()
        self._deleted: set[str] = set()
        """Uids of topics that a watch showed as deleted since the last list began."""
        self.deliveries = Deliveries()

    async def sync(self) -> None:
        """Read all objects once, then start the controllers."""
        await self._list_children()
        await self._list_policies()
        await self._list_sets()
        await self._list_users()
        await self._list_topics()
        self._controllers.synced()

    async def resync(self) -> None:
        """List all objects at an interval, and sooner while a watch is behind, until cancelled."""
        pause = durations.milliseconds(self._config.resync) / 1000
        listed = time.monotonic()
        while True:
            await asyncio.sleep(min(pause, LOOK_AGAIN))
            if time.monotonic() - listed < pause and self.deliveries.behind_seconds() < LOOK_AGAIN:
                continue
            listed = time.monotonic()
            try:
                await self._list_children()
                await self._list_policies()
                await self._list_sets()
                await self._list_users()
                await self._list_topics()
            except (ApiError, UnavailableError, AccessDeniedError) as error:
                log.warning("the resync failed and will be retried; the watches continue: %s", error)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Sequence["asyncio.Task[None]"]]:
        """Run kopf's watches inside the with block, and yield their tasks, which end only with an error."""
        stop = asyncio.Event()
        resources, children = kopf.OperatorRegistry(), kopf.OperatorRegistry()
        kopf.on.event(names.GROUP, names.VERSION, "icebergtopics", registry=resources)(self._topic_event)
        for kind in (*KINDS, REPLAY):
            plural = PLURALS[names.API_VERSION, kind]
            kopf.on.event(names.GROUP, names.VERSION, plural, registry=resources)(self._policy_event)
        sets = PLURALS[names.API_VERSION, topic_set.KIND]
        kopf.on.event(names.GROUP, names.VERSION, sets, registry=resources)(self._set_event)
        for plural in (topic_user.PLURAL, topic_grant.PLURAL):
            kopf.on.event(names.GROUP, names.VERSION, plural, registry=resources)(self._user_event)
        for child in _CHILDREN:
            kopf.on.event(*child, registry=children)(self._child_event)
        for child in _OBJECTS:
            kopf.on.event(*child, registry=children)(self._object_event)
        for registry in (resources, children):
            kopf.on.login(registry=registry, retries=3)(self._login)
        spaces = self._config.watch_namespaces
        ready = [asyncio.Event(), asyncio.Event()]
        tasks = [
            asyncio.create_task(
                kopf.operator(
                    registry=resources,
                    settings=self._settings(),
                    clusterwide=not spaces,
                    namespaces=spaces,
                    standalone=True,
                    stop_flag=stop,
                    ready_flag=ready[0],
                ),
                name="resources",
            ),
            asyncio.create_task(
                kopf.operator(
                    registry=children,
                    settings=self._settings(),
                    namespaces=[self._config.namespace],
                    standalone=True,
                    stop_flag=stop,
                    ready_flag=ready[1],
                ),
                name="children",
            ),
        ]
        try:
            for flag in ready:
                waiting = asyncio.create_task(flag.wait())
                await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
            yield tasks
        finally:
            stop.set()
            await asyncio.wait(tasks, timeout=10)

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.watching.server_timeout = 300
        settings.watching.client_timeout = 310
        settings.watching.connect_timeout = 30
        settings.watching.chunk_size = 200
        for group, _, plural in (*_CHILDREN, *_OBJECTS):
            labels = _OF_FLEETS_AND_GROUPS if plural == "configmaps" else _MANAGED
            settings.watching.label_selectors[group, plural] = labels
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 5
        settings.networking.enforce_retry_after = True
        # kopf never sets this finalizer, but removes it from objects that have it. So it must not be the name of ours.
        settings.persistence.finalizer = f"{names.GROUP}/kopf"
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
        settings.persistence.diffbase_storage = _NoDiffs()
        settings.process.ultimate_exiting_timeout = None
        return settings

    async def _login(self, **_: Any) -> kopf.ConnectionInfo:
        configuration = self._configuration
        bearer: dict[str, Any] = dict((await configuration.auth_settings()).get("BearerToken", {}))
        scheme, _space, secret = str(bearer.get("value", "")).partition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            scheme=scheme or None,
            token=secret or None,
        )

    # These handlers must not raise, because kopf would log the error and drop the event. They only queue keys.

    async def _topic_event(self, event: Mapping[str, Any], **_: Any) -> None:
        manifest = trimmed(event["object"])
        self.deliveries.delivered(manifest)
        self._feed_topic(manifest, gone=event["type"] == "DELETED")

    async def _policy_event(self, event: Mapping[str, Any], **_: Any) -> None:
        manifest = trimmed(event["object"])
        self.deliveries.delivered(manifest)
        self._feed_policy(manifest, gone=event["type"] == "DELETED")

    async def _set_event(self, event: Mapping[str, Any], **_: Any) -> None:
        manifest = trimmed(event["object"])
        self.deliveries.delivered(manifest)
        self._feed_set(manifest, gone=event["type"] == "DELETED")

    async def _user_event(self, event: Mapping[str, Any], **_: Any) -> None:
        manifest = trimmed(event["object"])
        self.deliveries.delivered(manifest)
        self._feed_user(manifest, gone=event["type"] == "DELETED")

    async def _child_event(self, event: Mapping[str, Any], **_: Any) -> None:
        manifest = trimmed(event["object"])
        self.deliveries.delivered(manifest)
        if event["type"] == "DELETED":
            self._workloads.gone(manifest)
        elif not self._workloads.seen(manifest):
            return
        self._controllers.child_seen(manifest["metadata"].get("labels", {}))

    async def _object_event(self, event: Mapping[str, Any], **_: Any) -> None:
        manifest = event["object"]
        if self._cluster.seen(manifest, gone=event["type"] == "DELETED"):
            self._controllers.child_seen(manifest["metadata"].get("labels", {}))

    def _feed_topic(self, manifest: Manifest, *, gone: bool) -> None:
        metadata = manifest["metadata"]
        if gone:
            self._deleted.add(metadata["uid"])
            self._controllers.topic_gone(manifest)
            if self._controllers.topics.get((metadata["namespace"], metadata["name"])) is None:
                self._tally.gone(manifest)
        elif self._controllers.topic_seen(manifest):
            # While the operator reads a long list, the watch delivers newer states. The older states of the list must not count.
            self._tally.seen(manifest)

    def _feed_policy(self, manifest: Manifest, *, gone: bool) -> None:
        match manifest["kind"] == REPLAY, gone:
            case True, True:
                self._controllers.replay_gone(manifest)
            case True, False:
                self._controllers.replay_seen(manifest)
            case _, True:
                self._controllers.policy_gone(manifest)
            case _:
                self._controllers.policy_seen(manifest)

    def _feed_set(self, manifest: Manifest, *, gone: bool) -> None:
        if gone:
            self._controllers.set_gone(manifest)
        else:
            self._controllers.set_seen(manifest)

    def _feed_user(self, manifest: Manifest, *, gone: bool) -> None:
        events = self._controllers.user_events
        match manifest["kind"] == topic_user.KIND, gone:
            case True, True:
                events.user_gone(manifest)
            case True, False:
                events.user_seen(manifest)
            case _, True:
                events.grant_gone(manifest)
            case _:
                events.grant_seen(manifest)

    async def _list_policies(self) -> None:
        for kind in KINDS:
            await self._list_few(kind, self._feed_policy, partial(_of_kind, self._controllers.policies.all, kind))
        await self._list_few(REPLAY, self._feed_policy, self._controllers.replays.all)

    async def _list_sets(self) -> None:
        await self._list_few(topic_set.KIND, self._feed_set, self._controllers.sets.all)

    async def _list_users(self) -> None:
        events = self._controllers.user_events
        await self._list_few(topic_grant.KIND, self._feed_user, events.grants.all)
        await self._list_few(topic_user.KIND, self._feed_user, events.users.all)

    async def _list_few(self, kind: str, feed: Callable[..., None], known: Callable[[], Iterable[_Few]]) -> None:
        """List a kind with few objects. ``known`` returns those that the caches have after the list."""
        spaces: list[str | None] = [*self._config.watch_namespaces]
        for namespace in spaces or [None]:
            manifests, version = await lists.list_all(self._api, names.API_VERSION, kind, namespace, {})
            self.deliveries.listed(kind, namespace, _newest(manifests), version)
            present = {(manifest["metadata"]["namespace"], manifest["metadata"]["name"]) for manifest in manifests}
            for manifest in manifests:
                feed(trimmed(manifest), gone=False)
            for entry in list(known()):
                listed = namespace in (None, entry.name[0])
                if listed and int(entry.resource_version) <= version and entry.name not in present:
                    log.warning("%s %s/%s %s", kind, *entry.name, UNREPORTED)
                    metadata = {"namespace": entry.name[0], "name": entry.name[1], "uid": entry.uid}
                    feed({"kind": kind, "metadata": metadata}, gone=True)

    async def _list_topics(self) -> None:
        spaces: list[str | None] = [*self._config.watch_namespaces]
        self._deleted.clear()
        for namespace in spaces or [None]:
            present: set[tuple[str, str]] = set()
            newest: dict[str, int] = {}
            version = 0
            # Page by page: a list of a thousand topics would be the largest object in memory.
            async for manifests, shown in lists.pages(self._api, names.API_VERSION, "IcebergTopic", namespace, {}):
                version = shown
                newest = _newest(manifests, newest)
                for manifest in manifests:
                    if manifest["metadata"]["uid"] in self._deleted:
                        continue  # All pages show the state of the first one.
                    present.add((manifest["metadata"]["namespace"], manifest["metadata"]["name"]))
                    self._feed_topic(trimmed(manifest), gone=False)
            self.deliveries.listed("IcebergTopic", namespace, newest, version)
            for topic in list(self._controllers.topics.all()):
                listed = namespace in (None, topic.name[0]) and int(topic.resource_version) <= version
                if listed and topic.name not in present:
                    log.warning("IcebergTopic %s/%s %s", *topic.name, UNREPORTED)
                    metadata = {"namespace": topic.name[0], "name": topic.name[1], "uid": topic.uid}
                    self._feed_topic({"metadata": metadata}, gone=True)

    async def _list_children(self) -> None:
        for api_version, kind in _CHILD_KINDS:
            manifests, version = await lists.list_all(self._api, api_version, kind, self._config.namespace, _OURS)
            self.deliveries.listed(kind, self._config.namespace, _newest(manifests), version)
            labels_to_wake = [manifest["metadata"].get("labels", {}) for manifest in manifests]
            if self._workloads.listed(kind, manifests, version):
                # The labels of a deleted object are unknown, so all profiles and groups are reconciled.
                labels_to_wake += [{names.LABEL_PROFILE: name} for name in self._config.profiles]
                labels_to_wake += [{names.LABEL_GROUP: name} for name in self._config.groups]
            for labels in labels_to_wake:
                self._controllers.child_seen(labels)


def _of_kind(policies: Callable[[], Iterable[PolicyEntry]], kind: str) -> Iterable[PolicyEntry]:
    return (policy for policy in policies() if policy.kind == kind)


def trimmed(manifest: Mapping[str, Any]) -> Manifest:
    """Return the object without the parts that Firn never reads: field managers and kubectl's copy of it."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "managedFields"}
    annotations = metadata.get("annotations")
    if annotations and _LAST_APPLIED in annotations:
        metadata["annotations"] = {key: value for key, value in annotations.items() if key != _LAST_APPLIED}
    return {**manifest, "metadata": metadata}
