"""Reconciles an ingestion group: applies the driver's objects, and puts its health and its progress on the board."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firn.model import names
from firn.model.conditions import Reason
from firn.model.config import DisklessProfile
from firn.model.progress import TopicProgress
from firn_controllers import children
from firn_controllers.board import PATIENCE
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.fleet.diskless.layout import is_secured
from firn_controllers.iceberg_topic import lag, status
from firn_controllers.ingestion_group import health, service, settings, stateful_set
from firn_controllers.ingestion_group.health import DriverReport, GroupHealth, ObservedGroup
from firn_controllers.ingestion_group.layout import group_labels
from firn_controllers.ports import PodState
from firn_controllers.queue import Lane, Outcome
from firn_controllers.reconcilers.context import Context

READ_SHARE = 0.8
"""Share of its interval for which a report is not read again, although an event wakes the group."""


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

    async def reconcile(self, group: str) -> Outcome:
        """Apply the objects of one group, and publish its health and progress."""
        cluster = self._ports.cluster
        labels = group_labels(group)
        live = await cluster.stateful_set(names.ingestion(group))
        in_use = self._topics.group_in_use(group) or await self._has_contracts(group)
        if not in_use and live is None:
            return Outcome()
        configured = self._config.groups[group]
        opening = await self._opening()
        driver_settings = settings.group_settings(self._config, group, self._context.cluster_uid, opening)
        wanted = stateful_set.build(self._config, driver_settings, self._owner, labels, in_use=in_use)
        await cluster.apply(settings.build(driver_settings, self._owner, labels))
        await cluster.apply(service.build(group, self._owner, labels))
        await cluster.apply(wanted)
        if not in_use:
            self._publish_progress(group, None)
            self._publish_health(group, health.UNSEEN)
            return Outcome()
        pods = await cluster.pods(labels)
        mates = names.EXECUTOR_ROLE | {names.LABEL_GROUP: group}
        executors = await cluster.pods(mates) if configured.executors is not None else None
        report = await self._ports.progress.read(group, READ_SHARE * self._interval(group))
        if report is None and group not in self._board.groups and self._first_reading_due(pods):
            return Outcome(after=1.0)
        template = children.template_hash(wanted)
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
        self._publish_health(group, health.group_health(observed))
        return Outcome(after=self._interval(group))

    async def _opening(self) -> frozenset[str]:
        """Return the profiles with ``access`` whose brokers do not all have the secure listener yet."""
        opening = set()
        for name, profile in self._config.profiles.items():
            if isinstance(profile, DisklessProfile) and profile.access is not None:
                live = await self._ports.cluster.stateful_set(names.fleet(name))
                opening |= set() if is_secured(profile, live) else {name}
        return frozenset(opening)

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
