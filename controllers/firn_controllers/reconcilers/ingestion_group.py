"""Reconciles an ingestion group: applies the driver's objects, and puts its health and its progress on the board.

A driver gets only the profiles, catalogs, registries and salts that topics of its group use. New ones restart it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firn.model import names
from firn.model.conditions import Reason
from firn.model.config import Config, access_of
from firn.model.jobs import GroupSettings
from firn.model.progress import TopicProgress
from firn_controllers import children
from firn_controllers.board import PATIENCE
from firn_controllers.cache.contracts import Need
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.fleet.access import is_secured, sources_of
from firn_controllers.iceberg_topic import checks, status
from firn_controllers.iceberg_topic.reports import lag
from firn_controllers.ingestion_group import health, needs, service, settings, stateful_set
from firn_controllers.ingestion_group.health import DriverReport, GroupHealth, ObservedGroup
from firn_controllers.ingestion_group.layout import group_labels
from firn_controllers.ingestion_group.restarts import Members, Turn
from firn_controllers.ports import PodState, StatefulSetState
from firn_controllers.queue import Lane, Outcome
from firn_controllers.reconcilers.context import Context

READ_SHARE = 0.8
"""Share of its interval for which a report is not read again, although an event wakes the group."""

RELEASE_GRACE = 2.0
"""Seconds from the end of a contract until a report without its topic shows that the driver has released it."""
RELEASE_SECONDS = 60.0
"""Seconds after which a driver follows a contract with other rights for a topic that it had before."""


@dataclass(frozen=True, slots=True)
class _Digested:
    """The digest of a topic's report, and the arguments of `driver_digest` that it was computed from."""

    facts: tuple[TopicProgress, int, Mapping[str, str] | None]
    digest: tuple[object, ...]


class GroupReconciler:
    """Reconciles groups: keeps their health and their driver's report on the board, and wakes the topics that either
    concerns.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = context.config
        self._owner = context.owner
        self._ports = context.ports
        self._board = context.board
        self._topics = context.topics
        self._stale_after = max(15.0, 3 * context.report_interval)
        self._started = context.ports.clock.monotonic()
        self._starting: dict[str, float] = {}
        """Since when drivers start, in monotonic seconds."""
        self._digested: dict[str, dict[str, _Digested]] = {}
        self._reported: dict[str, list[TopicProgress]] = {}
        """Group -> the topics of the last report that was published."""
        self._members: dict[str, Members] = {}
        self._named: dict[str, tuple[int, frozenset[Need]]] = {}
        """Uid of a topic -> a generation of its spec, and the members of the configuration that this spec names."""
        self._turn = Turn()

    async def reconcile(self, group: str) -> Outcome:
        """Apply the objects of one group, and publish its health and progress."""
        cluster = self._ports.cluster
        labels = group_labels(group)
        live = await cluster.stateful_set(names.ingestion(group))
        in_use = self._topics.group_in_use(group) or await self._has_contracts(group)
        if not in_use and live is None:
            return Outcome()
        configured = self._config.groups[group]
        # A driver that moves to the secure listener needs its rights before.
        await self._context.rights.sync(self._config.profiles_with_acls)
        pods = await cluster.pods(labels)
        template = await self._apply(group, live, in_use=in_use, ready=any(pod.ready for pod in pods))
        if not in_use:
            leaving = self._board.contracts.leaving(group)
            self._release(group, pods, None)
            self._turn.end(group)
            self._publish_progress(group, None)
            self._publish_health(group, health.UNSEEN)
            # The next reconcile removes the rights of released topics. Without it, they stay until another topic uses the group.
            return Outcome(after=self._context.report_interval) if leaving else Outcome()
        mates = names.EXECUTOR_ROLE | {names.LABEL_GROUP: group}
        executors = await cluster.pods(mates) if configured.executors is not None else None
        report = await self._ports.progress.read(group, READ_SHARE * self._interval(group))
        if report is None and group not in self._board.groups and self._first_reading_due(pods):
            return Outcome(after=1.0)
        self._release(group, pods, report)
        rolling = live is not None and any(pod.template_hash != template or pod.deleting for pod in pods)
        self._publish_progress(group, report)
        observed = ObservedGroup(
            name=group,
            namespace=self._owner.namespace,
            image=(configured.image or self._config.images.spark).image,
            pods=pods,
            report=report,
            now=self._ports.clock.monotonic(),
            stale_after=self._stale_after,
            rolling=rolling,
            executors=executors,
            memory_hint=settings.memory_hint(configured),
        )
        found = health.group_health(observed)
        if found.problem is None and any(pod.ready and pod.template_hash == template for pod in pods):
            self._turn.end(group)
        self._publish_health(group, found)
        return Outcome(after=self._interval(group))

    async def _apply(self, group: str, live: StatefulSetState | None, *, in_use: bool, ready: bool) -> str | None:
        """Apply the objects of a group, unless its driver waits for its turn to restart. Return the hash of the pod template."""
        cluster, labels = self._ports.cluster, group_labels(group)
        members = await self._members_of(group)
        runs = live is not None and live.replicas > 0 and in_use
        chosen = members.choose(
            self._needed(group), self._ports.clock.monotonic(), runs=runs, complete=self._contracts_known(group)
        )
        opening, config = await self._opening()
        wanted = settings.group_settings(config, group, self._context.cluster_uid, opening, chosen)
        driver = stateful_set.build(config, wanted, self._owner, labels, in_use=in_use)
        template = children.template_hash(driver)
        await cluster.apply(service.build(group, self._owner, labels))
        restarts = live is not None and runs and ready and live.template_hash != template
        if live is not None and restarts and not self._may_restart(group, wanted):
            return live.template_hash
        await cluster.apply(settings.build(wanted, self._owner, labels, self._context.rights.users(group)))
        await cluster.apply(driver)
        members.settings = wanted
        return template

    def _release(self, group: str, pods: Sequence[PodState], report: DriverReport | None) -> None:
        """Let the rights for earlier contracts end that the driver no longer follows."""
        contracts, now = self._board.contracts, self._ports.clock.monotonic()
        gone = [
            uid
            for uid, since in contracts.leaving(group).items()
            if (contracts.has(uid, group) and now - since > RELEASE_SECONDS)
            or health.released(uid, pods, report, since, RELEASE_GRACE)
        ]
        if gone:
            self._context.rights.released(group, gone)

    def _may_restart(self, group: str, wanted: GroupSettings) -> bool:
        """Return whether the driver may get another template now. A driver that works waits while that of another group restarts."""
        known = self._board.groups.get(group)
        if (known is not None and known.problem is not None) or self._members[group].reconnects(wanted):
            return True
        return self._turn.take(group, self._ports.clock.monotonic())

    async def _members_of(self, group: str) -> Members:
        """Return the members of the group's driver. After a start of the operator, its ConfigMap has them."""
        if group not in self._members:
            place = names.ingestion(group)
            live = await self._ports.cluster.get("v1", "ConfigMap", self._owner.namespace, place)
            self._members[group] = Members(settings.read(live))
        return self._members[group]

    def _needed(self, group: str) -> frozenset[Need]:
        """Return the members of the configuration that topics of the group use, and that their namespaces may use."""
        if len(self._named) > 2 * len(self._topics):
            self._named = {uid: named for uid, named in self._named.items() if self._topics.by_uid(uid) is not None}
        wanted: defaultdict[str, set[Need]] = defaultdict(set)
        for namespace, need in self._board.contracts.needs(group):
            wanted[namespace].add(need)
        for entry in self._topics.all():
            if entry.group == group:
                wanted[entry.name[0]] |= self._named_by(entry)
        found = (needs.allowed_to(self._config, group, namespace, each) for namespace, each in wanted.items())
        return frozenset().union(*found)

    def _named_by(self, entry: TopicEntry) -> frozenset[Need]:
        """Return the members that the spec of a topic names. Its job contract follows soon."""
        known = self._named.get(entry.uid)
        if entry.resource is None:
            return frozenset()
        if known is None or known[0] != entry.generation:
            known = self._named[entry.uid] = (entry.generation, checks.members(entry.resource, entry, self._config))
        return known[1]

    def _contracts_known(self, group: str) -> bool:
        """Return whether this process knows the job contracts of all topics of the group."""
        return self._board.contracts.knows(entry.uid for entry in self._topics.all() if entry.group == group)

    async def _opening(self) -> tuple[frozenset[str], Config]:
        """Return the profiles with ``access`` whose brokers do not all have the secure listener yet, and the configuration for drivers.

        If the configuration does not name the CA of a certificate that brokers have, drivers trust the CAs of these certificates.
        Otherwise they would stop before the user corrects the configuration.
        """
        opening, config = set(), self._config
        for name, profile in self._config.profiles.items():
            access = access_of(profile)
            if access is not None:
                live = await self._ports.cluster.stateful_set(names.fleet(name))
                opening |= set() if is_secured(access, live) else {name}
                sources = sources_of(name, access, live)
                presented = sorted({held.presents for held in sources.alive}) if sources is not None else []
                trusted = access.certificate.trusted(name)
                if not set(presented) <= set(trusted):
                    present, previous, *_ = dict.fromkeys([*presented, *trusted])
                    config = config.trusting(name, present, previous)
        return frozenset(opening), config

    def _interval(self, group: str) -> float:
        """Return the seconds until the next read of the group's report: few while topics or the driver itself start."""
        now = self._ports.clock.monotonic()
        if self._board.group(group).problem is Reason.STARTING:
            starts = now - self._starting.setdefault(group, now) < PATIENCE
        else:
            starts = False
            self._starting.pop(group, None)
        expected = starts or group in self._board.awaited
        return self._context.report_age(group) if expected else self._context.report_interval

    async def _has_contracts(self, group: str) -> bool:
        """Return whether the driver has a job contract, although no spec names its group.

        Such a topic has an invalid spec, and ingestion continues under the earlier spec.
        """
        named = await self._ports.cluster.list_names("v1", "ConfigMap", {names.LABEL_GROUP: group})
        return any(name.startswith(names.job("")) for name in named)

    def _first_reading_due(self, pods: Sequence[PodState]) -> bool:
        """Return whether this process started a moment ago and waits for the first report of a running driver."""
        young = self._ports.clock.monotonic() - self._started < self._stale_after
        return young and any(pod.ready for pod in pods)

    def _publish_progress(self, group: str, report: DriverReport | None) -> None:
        """Store the driver's report, and wake the topics about which it says something new."""
        reported = report[0].topics if report else []
        unchanged = reported == self._reported.get(group)
        topics = self._board.progress.get(group, {}) if unchanged else {item.uid: item for item in reported}
        earlier, self._board.progress[group] = self._board.progress.get(group, {}), topics
        self._board.settle_reports(group, self._ports.clock.monotonic())
        if unchanged:
            return
        self._reported[group] = reported
        before = self._digested.get(group, {})
        digested: dict[str, _Digested] = {}
        for uid, progress in topics.items():
            entry = self._topics.by_uid(uid)
            if entry is None or entry.resource is None:
                continue
            known, configs = before.get(uid), self._board.configs.get(uid)
            facts = (progress, entry.resource.freshness_ms, configs)
            # Most topics have no news, and this comparison takes a tenth of the time of a digest.
            if known is not None and known.facts == facts:
                digested[uid] = known
                continue
            new = digested[uid] = _Digested(facts, status.driver_digest(*facts))
            if known is None or new.digest != known.digest:
                self._context.wake_topic(entry.name, Lane.NEWS)
            elif uid in earlier and _counts(progress) != _counts(earlier[uid]):
                self._context.refresh_topic(entry.name)
        for uid in before.keys() - digested.keys():
            entry = self._topics.by_uid(uid)
            if entry is not None:
                self._context.wake_topic(entry.name, Lane.DEPENDENCY)
        self._digested[group] = digested

    def _publish_health(self, group: str, group_health: GroupHealth) -> None:
        before = self._board.groups.get(group)
        if group_health == before:
            return
        self._board.groups[group] = group_health
        self._context.wake_topics(lambda entry: entry.group == group)
        what = f"ingestion group {group}"
        if group_health.problem is None and (before is None or before.problem is not None):
            self._context.announce(Announcement("Normal", EventReason.AVAILABLE, f"{what}: the driver answers"))
        elif group_health.problem not in (None, Reason.STARTING) and (
            before is None or before.problem != group_health.problem
        ):
            self._context.announce(Announcement("Warning", EventReason.UNAVAILABLE, group_health.message))
        if group_health.rolling and not (before is not None and before.rolling):
            self._context.announce(
                Announcement("Normal", EventReason.ROLLING_OUT, f"{what}: the driver is being replaced")
            )


def _counts(progress: TopicProgress) -> tuple[object, ...]:
    return (progress.last_commit, progress.dead_letters, progress.state, lag.magnitude(progress))
