"""Carries out the reconcile of one IcebergTopic: gather -> checks -> plan -> apply -> status, in this order, from the top each time.

Every step may fail or be the last one this process does; the next reconcile, here or in another process, finds what it left.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from firn.model import durations, names
from firn.model.conditions import ConditionType, Reason
from firn.model.config import Config
from firn.model.errors import FirnError, InvalidSpecError, NotReadyError
from firn.model.jobs import RecordSchema, TableTarget
from firn_controllers.board import Board
from firn_controllers.cache.policies import KINDS, PolicyCache
from firn_controllers.cache.topics import Name, TopicCache, TopicEntry, topic_entry
from firn_controllers.children import COMPONENT, Owner
from firn_controllers.conditions import announcements
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.conditions.render import Verdict
from firn_controllers.conditions.stable_text import steady
from firn_controllers.iceberg_topic import checks, plan, status
from firn_controllers.iceberg_topic.checks import Failure
from firn_controllers.iceberg_topic.observed import LiveJob, ObservedTopic
from firn_controllers.iceberg_topic.status import TopicFindings
from firn_controllers.ingestion_group import health as group_health
from firn_controllers.ingestion_group.health import GroupHealth
from firn_controllers.ingestion_group.layout import group_labels
from firn_controllers.policies import runs
from firn_controllers.policies.log_retention import LogRetention
from firn_controllers.policies.outcome import PolicyBinding, TopicMaintenance
from firn_controllers.policies.runs import COMPONENT_RUN
from firn_controllers.ports import Manifest, Ports, TableState, TopicState
from firn_controllers.queue import Outcome

REFRESH = 60.0
REFRESHES_PER_SECOND = 10
"""Status writes a second, of all topics together, in which only times and counts differ."""
VISIBLE_SOON = 0.5
VISIBLE_WITHIN = 10.0
"""Seconds for which a topic that was created may be unknown to the brokers before that counts as their failure."""
LONGEST_RETRY = 15.0
"""Seconds after which a topic or table that a dependency failed is tried again at the latest, so that Ready follows soon when it is back."""
RETRIES_PER_SECOND = 20
"""Of all topics together, where so many have failed that it would be more within `LONGEST_RETRY`."""
DELETION_POLL = 2.0
DELETION_GRACE = timedelta(seconds=3)
"""A driver's word that it has dropped a topic counts from so long after its contract was gone."""
BLOCKED_AFTER = timedelta(seconds=30)
"""A deletion that waits longer for the driver says so in a condition."""
SETTLED = frozenset({"Starting", "Running", "CaughtUp", "Suspended"})


class _NotVisibleYet(NotReadyError):
    """A topic was created, and the brokers do not describe it yet."""


@dataclass(slots=True)
class Visit:
    """What the last complete look at a topic found: good until the next resync, as long as nothing says otherwise. A cache."""

    uid: str
    generation: int
    log_retention: LogRetention
    at: float
    topic: TopicState
    table: TableState | None


class TopicReconciler:
    """Reconciles IcebergTopics; ``wake`` is told others that are worth a look now."""

    def __init__(
        self,
        config: Config,
        owner: Owner,
        ports: Ports,
        index: TopicCache,
        policies: PolicyCache,
        board: Board,
        jitter: Callable[[], float],
        wake: Callable[[Name], None],
    ) -> None:
        self._config = config
        self._owner = owner
        self._ports = ports
        self._index = index
        self._policies = policies
        self._board = board
        self._jitter = jitter
        self._wake = wake
        self._resync = durations.milliseconds(config.resync) / 1000
        self._visits: dict[Name, Visit] = {}
        self._jobs: dict[str, LiveJob] = {}  # by uid, as last applied
        self._refreshed: dict[str, float] = {}  # by uid, when times and counts were last written
        self._created: set[str] = set()  # uids whose Kafka topic this process created
        self._invisible: dict[str, float] = {}  # by uid, since when a created topic is not described
        self._contract_gone: dict[str, datetime] = {}  # by uid, of deletions that wait
        self._failing: dict[Name, dict[str, FirnError]] = {}
        """What dependencies failed with at the last look, by topic and dependency."""
        self._retrying: set[str] = set()  # dependencies that a topic which they failed before is trying right now

    @property
    def refresh_interval(self) -> float:
        """Seconds at least between two writes of a status in which only times and counts differ."""
        return max(REFRESH, len(self._index) / REFRESHES_PER_SECOND)

    async def reconcile(self, name: Name) -> Outcome:
        """Bring the world closer to the resource ``name``, and its status to the world."""
        for uid in self._index.deleted_uids(name):
            await self._remove_contract(uid)
            self._forget(name, uid)
            self._index.clear_deleted(name, uid)
        found = self._index.get(name)
        if found is None:
            return Outcome()
        if found.resource is None:
            problem = found.problem or InvalidSpecError("cannot be read")
            document = status.unreadable(found.status, found.generation, problem, self._ports.clock.now())
            return await self._report(found, document)
        if not self._judgeable(found):
            return Outcome()
        observed = await self._gather(found)
        if observed.paused or observed.deleting:
            self._failing.pop(name, None)
        if observed.paused:
            return await self._report(found, status.paused(observed))
        if observed.deleting:
            return await self._delete(observed)
        return await self._converge(observed)

    def _judgeable(self, found: TopicEntry) -> bool:
        """Fleet and group, where the configuration has them, have been looked at; the board wakes the topic when they are."""
        fleet_known = found.profile not in self._config.profiles or found.profile in self._board.fleets
        group_known = found.group not in self._config.groups or found.group in self._board.groups
        return fleet_known and group_known

    # Gather

    async def _gather(self, found: TopicEntry) -> ObservedTopic:
        resource = found.resource
        assert resource is not None
        schema: RecordSchema | InvalidSpecError
        target: TableTarget | InvalidSpecError
        try:
            schema = resource.record_schema()
        except InvalidSpecError as error:
            schema = error
        try:
            target = resource.table_target(self._config.default_catalog)
        except InvalidSpecError as error:
            target = error
        return ObservedTopic(
            config=self._config,
            entry=found,
            resource=resource,
            schema=schema,
            target=target,
            topic_rival=self._rival(found, found.topic_claim),
            table_rival=self._rival(found, found.table_claim),
            fleet=self._board.fleet(found.profile),
            catalog=self._board.catalog(target.catalog) if isinstance(target, TableTarget) else DependencyHealth(),
            group=self._board.group(found.group) if found.group in self._config.groups else GroupHealth(),
            progress=self._board.topic_progress(found.group, found.uid),
            job=await self._live_job(found),
            now=self._ports.clock.now(),
            maintenance=self._maintenance(found),
        )

    def _maintenance(self, found: TopicEntry) -> TopicMaintenance:
        bindings = {
            kind: PolicyBinding(self._policies.resolve(kind, found), self._board.outcomes.get((found.uid, kind)))
            for kind in KINDS
        }
        return TopicMaintenance(bindings, self._board.debts.get(found.uid))

    def _rival(self, found: TopicEntry, claim: tuple[str, ...] | None) -> TopicEntry | None:
        holder = self._index.holder(claim) if claim is not None else None
        return holder if holder is not None and holder.uid != found.uid else None

    async def _live_job(self, found: TopicEntry) -> LiveJob | None:
        visit = self._visits.get(found.name)
        if visit is not None and visit.uid == found.uid and found.uid in self._jobs and self._recent(visit):
            return self._jobs[found.uid]
        live = await self._ports.cluster.get("v1", "ConfigMap", self._owner.namespace, names.job(found.uid))
        job = LiveJob.read(live)
        if job is not None:
            self._jobs[found.uid] = job
        return job

    # Converge

    async def _converge(self, observed: ObservedTopic) -> Outcome:
        observed, gone = await self._agree_finalizers(observed)
        if gone:
            return Outcome()
        failure = checks.first_failure(observed)
        findings = TopicFindings(failure=failure, job=observed.job)
        done: list[Announcement] = []
        if failure is None:
            try:
                findings = await self._agree_topic(observed, findings, done)
            except _NotVisibleYet as error:
                now = self._ports.clock.monotonic()
                if now - self._invisible.setdefault(observed.entry.uid, now) < VISIBLE_WITHIN:
                    return Outcome(after=VISIBLE_SOON)
                findings = replace(findings, topic=error)
            if findings.failure is None:
                findings = await self._agree_table(observed, findings, done)
        findings = await self._agree_contract(observed, findings)
        self._remember(observed, findings)
        document = status.document(observed, findings)
        outcome = await self._report(observed.entry, document, done)
        return self._retry(observed, findings) or outcome

    def _retry(self, observed: ObservedTopic, findings: TopicFindings) -> Outcome | None:
        """Somebody else's fault may pass at any time: back off, but not for long. The author's passes only with a new spec, an event.

        What the board says of fleets and catalogs is not all: a catalog answers while its object store does not, and grants may lack
        for one topic. The first one that succeeds again wakes all that failed for the same reason, so few have to keep trying.
        """
        name = observed.entry.name
        before = self._failing.pop(name, {})
        profile, catalog = _profile(observed), _catalog(observed)
        found = {profile: findings.topic, catalog: findings.table}
        troubles = {
            dependency: result
            for dependency, result in found.items()
            if isinstance(result, FirnError) and not isinstance(result, InvalidSpecError)
        }
        recovered = {it for it in before if isinstance(found.get(it), TopicState | TableState)}
        for other, failed in [(it, failed) for it, failed in self._failing.items() if recovered & failed.keys()]:
            # What else failed them is known still: a store that swallows requests is tried by one of them at a time.
            left = {dependency: error for dependency, error in failed.items() if dependency not in recovered}
            if left:
                self._failing[other] = left
            else:
                del self._failing[other]
            self._wake(other)
        if not troubles:
            return None
        self._failing[name] = troubles
        return Outcome(failed=True, longest=max(LONGEST_RETRY, len(self._failing) / RETRIES_PER_SECOND))

    async def _agree_finalizers(self, observed: ObservedTopic) -> tuple[ObservedTopic, bool]:
        """Put our finalizer on or take it off, before anything is created; True if the resource is gone."""
        wanted = plan.finalizers(observed)
        if wanted == observed.resource.metadata.finalizers:
            return observed, False
        live = await self._set_finalizers(observed.entry, wanted)
        if live is None or live.resource is None:
            return observed, True
        return replace(observed, entry=live, resource=live.resource), False

    async def _agree_topic(
        self, observed: ObservedTopic, findings: TopicFindings, done: list[Announcement]
    ) -> TopicFindings:
        known = self._verified(observed)
        if observed.fleet.problem is not None:
            return findings
        origin = self._origin(observed, ConditionType.TOPIC_READY)
        if known is not None:
            return replace(findings, topic=known.topic, topic_origin=origin or Reason.ADOPTED)
        spec = observed.resource.spec
        profile, topic = observed.entry.profile, observed.resource.topic_name
        default = self._config.profiles[profile].default_partitions
        config = observed.log_retention.over(spec.config)
        topics = self._ports.topics
        try:
            live = await topics.describe(profile, topic)
            steps = plan.topic(live, spec.partitions, default, config, observed.owned_config)
            for step in steps:
                match step:
                    case plan.CreateTopic(partitions, configs):
                        await topics.create(profile, topic, partitions, configs)
                        self._created.add(observed.entry.uid)
                        live = await topics.describe(profile, topic)
                    case plan.GrowTopic(partitions):
                        await topics.grow(profile, topic, partitions)
                    case plan.AlterConfigs(put, remove):
                        await topics.alter_configs(profile, topic, put, remove)
        except InvalidSpecError as error:
            return replace(findings, failure=Failure(_reason(error), str(error)))
        except FirnError as error:
            return replace(findings, topic=error)
        if live is None:  # brokers hear of a new topic from their controller, a moment later
            raise _NotVisibleYet(f"topic {topic} was created, and the brokers do not know it; see their logs")
        self._invisible.pop(observed.entry.uid, None)
        live = plan.after(steps, live)
        if observed.entry.uid in self._created:
            origin = Reason.CREATED
        elif origin is None:
            origin = Reason.ADOPTED
            done.append(Announcement("Normal", EventReason.ADOPTED, f"took over Kafka topic {topic}, which was there"))
        done += _topic_announcements(topic, steps, self._settled(observed))
        proposal = observed.log_retention.proposal(spec.config, live.configs)
        # The condition has it from one look to the next: it is news once.
        if proposal and proposal not in _message(observed.entry, ConditionType.POLICIES_RESOLVED):
            done.append(Announcement("Normal", EventReason.WOULD_DELETE, f"Kafka topic {topic}: DryRun {proposal}"))
        return replace(findings, topic=live, topic_origin=origin)

    async def _agree_table(
        self, observed: ObservedTopic, findings: TopicFindings, done: list[Announcement]
    ) -> TopicFindings:
        if observed.catalog.problem is not None:
            return findings
        origin = self._origin(observed, ConditionType.TABLE_READY)
        known = self._verified(observed)
        if known is not None and known.table is not None:
            return replace(findings, table=known.table, table_origin=origin or Reason.ADOPTED)
        target, schema = observed.target, observed.schema
        if not isinstance(target, TableTarget) or not isinstance(schema, RecordSchema):
            return findings
        before = self._failing.get(observed.entry.name, {}).get(_catalog(observed))
        if before is not None and _catalog(observed) in self._retrying:
            return replace(findings, table=before)  # a store that swallows requests must not hold up every worker
        if before is not None:
            self._retrying.add(_catalog(observed))
        try:
            live = await self._ports.tables.ensure(target, schema, observed.entry.uid)
        except InvalidSpecError as error:
            if error.reason == Reason.SCHEMA_INCOMPATIBLE:
                return replace(findings, table=error)
            return replace(findings, failure=Failure(_reason(error), str(error)))
        except FirnError as error:
            return replace(findings, table=error)
        finally:
            if before is not None:
                self._retrying.discard(_catalog(observed))
        if live is None:
            return replace(findings, table_missing=True)
        if live.created:
            origin = Reason.CREATED
            done.append(Announcement("Normal", EventReason.CREATED, f"created table {target.identifier}"))
        elif origin is None and live.owner == observed.entry.uid:
            origin = Reason.CREATED
        elif origin is None:
            origin = Reason.ADOPTED
            done.append(
                Announcement("Normal", EventReason.ADOPTED, f"took over table {target.identifier}, which was there")
            )
        if live.changed:
            what = f"table {target.identifier}: {'; '.join(live.changed)}"
            done.append(Announcement("Normal", EventReason.CHANGED, what))
        return replace(findings, table=live, table_origin=origin)

    async def _agree_contract(self, observed: ObservedTopic, findings: TopicFindings) -> TopicFindings:
        if findings.failure is not None and findings.failure.reason is Reason.RESOURCE_CONFLICT:
            if observed.job is not None:
                await self._remove_contract(observed.entry.uid)
            return replace(findings, job=None)
        topic_id = findings.topic.topic_id if isinstance(findings.topic, TopicState) else None
        agreed = findings.failure is None and (isinstance(findings.table, TableState) or findings.table_missing)
        wanted = plan.contract(
            observed,
            topic_id,
            table_agreed=agreed,
            topic_origin=findings.topic_origin,
            table_origin=findings.table_origin,
        )
        if wanted is None:
            return findings
        if observed.job != wanted:
            await self._ports.cluster.apply(plan.config_map(wanted, self._owner))
            self._jobs[observed.entry.uid] = wanted
        return replace(findings, job=wanted)

    def _origin(self, observed: ObservedTopic, kind: ConditionType) -> Reason | None:
        """How topic or table was come by, if that was settled before."""
        job = observed.job
        kept = (job.topic_origin if kind is ConditionType.TOPIC_READY else job.table_origin) if job else None
        return Reason(kept) if kept in status.ORIGINS else status.origin_before(observed.entry.status, kind)

    # What the last visit knew

    def _recent(self, visit: Visit) -> bool:
        return self._ports.clock.monotonic() - visit.at < self._resync * 0.75

    def _verified(self, observed: ObservedTopic) -> Visit | None:
        """The last visit, where looking at topic and table again would be a waste: same spec, not long ago, driver content."""
        visit = self._visits.get(observed.entry.name)
        if visit is None or visit.uid != observed.entry.uid or visit.generation != observed.entry.generation:
            return None
        if visit.log_retention != observed.log_retention:
            return None
        content = observed.progress is None or observed.progress.state in SETTLED
        return visit if content and self._recent(visit) else None

    def _settled(self, observed: ObservedTopic) -> bool:
        """Spec and policy were followed before as they are now: what differs was changed from outside."""
        if observed.job is None or observed.job.job.generation != observed.entry.generation:
            return False
        visit = self._visits.get(observed.entry.name)
        return visit is None or visit.uid != observed.entry.uid or visit.log_retention == observed.log_retention

    def _remember(self, observed: ObservedTopic, findings: TopicFindings) -> None:
        name = observed.entry.name
        complete = findings.failure is None and isinstance(findings.topic, TopicState)
        agreed = isinstance(findings.table, TableState) or findings.table_missing
        if not complete or not agreed:
            self._visits.pop(name, None)
        elif self._verified(observed) is None:
            assert isinstance(findings.topic, TopicState)
            table = findings.table if isinstance(findings.table, TableState) else None
            settled = replace(table, created=False, changed=()) if table else None
            self._visits[name] = Visit(
                observed.entry.uid,
                observed.entry.generation,
                observed.log_retention,
                self._ports.clock.monotonic(),
                findings.topic,
                settled,
            )

    def _forget(self, name: Name, uid: str) -> None:
        visit = self._visits.get(name)
        if visit is not None and visit.uid == uid:
            del self._visits[name]
        self._failing.pop(name, None)
        self._jobs.pop(uid, None)
        self._refreshed.pop(uid, None)
        self._contract_gone.pop(uid, None)
        self._invisible.pop(uid, None)
        self._created.discard(uid)

    # Delete

    async def _delete(self, observed: ObservedTopic) -> Outcome:
        """Stop ingestion, wait until the driver has let go, drop what the policy says, take the finalizer off."""
        uid = observed.entry.uid
        if uid not in self._contract_gone:
            await self._remove_contract(uid)
            self._contract_gone[uid] = observed.now
            self._visits.pop(observed.entry.name, None)
        findings = TopicFindings()
        if names.FINALIZER not in observed.resource.metadata.finalizers:
            return await self._report(observed.entry, status.document(observed, findings))
        policy = observed.resource.spec.deletion_policy
        forced = observed.annotations.get(names.FORCE_DELETION) == "true"
        done: list[Announcement] = []
        if "Delete" in (policy.topic, policy.table):
            waited = observed.now - self._contract_gone[uid]
            if not await self._driver_released(observed) and not (forced and waited > DELETION_GRACE):
                blocked = self._blocked(observed, Reason.RUNS_ACTIVE, "the ingestion driver still has the topic")
                before = status.as_before(observed, ConditionType.DELETION_BLOCKED)
                findings = replace(findings, blocked=blocked if waited > BLOCKED_AFTER else before)
                await self._report(observed.entry, status.document(observed, findings))
                return Outcome(after=DELETION_POLL)
            if policy.table == "Delete" and not forced and await self._maintenance_runs(uid):
                blocked = self._blocked(observed, Reason.RUNS_ACTIVE, "a maintenance run still has the table")
                await self._report(observed.entry, status.document(observed, replace(findings, blocked=blocked)))
                return Outcome(after=DELETION_POLL)
            problem = await self._drop(observed, done)
            if problem is not None and not forced:
                findings = replace(findings, blocked=problem)
                await self._report(observed.entry, status.document(observed, findings), done)
                return Outcome(failed=True)
            if problem is not None:
                done.append(
                    Announcement(
                        "Warning", EventReason.DATA_LEFT_BEHIND, f"{names.FORCE_DELETION} is set: {problem.message}"
                    )
                )
        live = observed.resource.metadata.finalizers
        await self._set_finalizers(observed.entry, tuple(it for it in live if it != names.FINALIZER))
        await self._announce(observed.entry, done)
        return Outcome()

    async def _driver_released(self, observed: ObservedTopic) -> bool:
        since = self._contract_gone[observed.entry.uid]
        groups = {observed.entry.group} | ({observed.job.job.group} if observed.job else set())
        for group in groups:
            pods = await self._ports.cluster.pods(group_labels(group))
            # The driver of a group that was taken out of the configuration is ending: no pod is the word that counts.
            said = await self._ports.progress.read(group) if group in self._config.groups else None
            if not group_health.released(observed.entry.uid, pods, said, since, DELETION_GRACE):
                return False
        return True

    async def _maintenance_runs(self, uid: str) -> bool:
        """A run works on the table. None begins any more: the resource is being deleted."""
        jobs = await self._ports.cluster.jobs({COMPONENT: COMPONENT_RUN})
        found = (runs.read_run(job, ()) for job in jobs)
        return any(run is not None and run.active and uid in run.uids for run in found)

    async def _drop(self, observed: ObservedTopic, done: list[Announcement]) -> Verdict | None:
        """Drop table and topic as the policy says, where they are this resource's; why it cannot be done, or None.

        Both are tried: a forced deletion leaves behind no more than what cannot be reached.
        """
        problems = [it for it in (await self._drop_table(observed, done), await self._drop_topic(observed, done)) if it]
        if len(problems) < 2:
            return problems[0] if problems else None
        return replace(problems[0], message="; ".join(it.message for it in problems))

    async def _drop_table(self, observed: ObservedTopic, done: list[Announcement]) -> Verdict | None:
        target = observed.target
        ours = observed.table_rival is None and isinstance(target, TableTarget)
        if observed.resource.spec.deletion_policy.table != "Delete" or not ours:
            return None
        assert isinstance(target, TableTarget)
        if target.catalog not in self._config.catalogs:
            if "table" not in observed.entry.status:
                return None  # nothing was ever made
            gone = f"catalog {target.catalog} is not in the configuration any more"
            return self._blocked(observed, Reason.CATALOG_UNREACHABLE, gone)
        if observed.catalog.problem is not None:
            return self._blocked(observed, Reason.CATALOG_UNREACHABLE, observed.catalog.message)
        try:
            dropped = await self._ports.tables.drop(target, observed.entry.uid)
        except FirnError as error:
            return self._blocked(observed, Reason.CATALOG_UNREACHABLE, f"table {target.identifier}: {error}")
        if dropped:
            done.append(Announcement("Normal", EventReason.DATA_DELETED, f"dropped table {target.identifier}"))
        return None

    async def _drop_topic(self, observed: ObservedTopic, done: list[Announcement]) -> Verdict | None:
        if observed.resource.spec.deletion_policy.topic != "Delete" or observed.topic_rival is not None:
            return None
        profile, topic = observed.entry.profile, observed.resource.topic_name
        if profile not in self._config.profiles:
            if "topicId" not in observed.entry.status:
                return None  # nothing was ever made
            gone = f"profile {profile} is not in the configuration any more"
            return self._blocked(observed, Reason.BROKER_UNREACHABLE, gone)
        if observed.fleet.problem is not None:
            return self._blocked(observed, Reason.BROKER_UNREACHABLE, observed.fleet.message)
        try:
            live = await self._ports.topics.describe(profile, topic)
            if live is not None and self._topic_is_ours(observed, live):
                await self._ports.topics.delete(profile, topic)
                done.append(Announcement("Normal", EventReason.DATA_DELETED, f"deleted Kafka topic {topic}"))
        except FirnError as error:
            return self._blocked(observed, Reason.BROKER_UNREACHABLE, f"topic {topic}: {error}")
        return None

    def _topic_is_ours(self, observed: ObservedTopic, live: TopicState) -> bool:
        """The topic is the one that status names; where it names none yet, the one a followed spec would have made or taken."""
        remembered = observed.entry.status.get("topicId")
        return live.topic_id == remembered if remembered else checks.first_failure(observed) is None

    def _blocked(self, observed: ObservedTopic, reason: Reason, problem: str) -> Verdict:
        namespace, name = observed.entry.name
        return Verdict(
            "True",
            reason,
            f"{steady(problem)}; to give up the data instead: kubectl -n {namespace} annotate itopic {name} {names.FORCE_DELETION}=true",
        )

    async def _remove_contract(self, uid: str) -> None:
        await self._ports.cluster.delete("v1", "ConfigMap", self._owner.namespace, names.job(uid))
        self._jobs.pop(uid, None)

    # Write back

    async def _set_finalizers(self, found: TopicEntry, finalizers: tuple[str, ...]) -> TopicEntry | None:
        namespace, name = found.name
        live = await self._ports.cluster.set_finalizers(namespace, name, finalizers, found.resource_version)
        return self._take_in(live)

    async def _report(self, found: TopicEntry, document: Manifest, done: list[Announcement] | None = None) -> Outcome:
        """Write the status if it says something new, at most so often if only times and counts differ. Announce what came of it."""
        now = self._ports.clock.monotonic()
        resync = Outcome(after=self._resync * (0.8 + 0.2 * self._jitter()))
        done = list(done or ())
        if document == found.status:
            await self._announce(found, done)
            return resync
        if status.significant(document) == status.significant(found.status):
            wait = self._refreshed.setdefault(found.uid, now) + self.refresh_interval - now
            if wait > 0:
                await self._announce(found, done)
                return Outcome(after=min(wait, resync.after or wait))
        namespace, name = found.name
        live = await self._ports.cluster.patch_status(namespace, name, document, found.resource_version)
        self._refreshed[found.uid] = now
        self._take_in(live)
        await self._announce(found, done + announcements.transitions(found.status, document))
        return resync

    def _take_in(self, live: Manifest | None) -> TopicEntry | None:
        if live is None:
            return None
        found = topic_entry(live, self._config)
        self._index.put(found)
        return found

    async def _announce(self, found: TopicEntry, done: list[Announcement]) -> None:
        namespace, name = found.name
        for item in _merged(done):
            await self._ports.cluster.event(
                namespace, name, found.uid, "IcebergTopic", item.type, str(item.reason), item.message
            )


def _message(topic: TopicEntry, kind: ConditionType) -> str:
    """What a condition says now; empty where it is not there."""
    said: list[str] = [it["message"] for it in topic.status.get("conditions") or [] if it["type"] == kind]
    return said[0] if said else ""


def _profile(observed: ObservedTopic) -> str:
    return f"profile {observed.entry.profile}"


def _catalog(observed: ObservedTopic) -> str:
    return f"catalog {observed.target.catalog}" if isinstance(observed.target, TableTarget) else ""


def _reason(error: InvalidSpecError) -> Reason:
    """The error's reason where SpecValid has it; else the broker refused a config."""
    known: dict[str, Any] = {str(reason): reason for reason in Reason}
    found: Reason = known.get(error.reason, Reason.BAD_TOPIC_CONFIG)
    return Reason.BAD_TOPIC_CONFIG if found is Reason.INVALID_SPEC else found


def _topic_announcements(topic: str, steps: tuple[plan.TopicStep, ...], repaired: bool) -> list[Announcement]:
    found = []
    for step in steps:
        match step:
            case plan.CreateTopic(partitions, _):
                found.append(
                    Announcement(
                        "Normal", EventReason.CREATED, f"created Kafka topic {topic} with {partitions} partitions"
                    )
                )
            case plan.GrowTopic(partitions):
                found.append(
                    Announcement("Normal", EventReason.CHANGED, f"Kafka topic {topic} has {partitions} partitions now")
                )
            case plan.AlterConfigs(put, remove):
                keys = ", ".join(sorted({*put, *remove}))
                if repaired:
                    found.append(
                        Announcement(
                            "Warning",
                            EventReason.DRIFT_REPAIRED,
                            f"Kafka topic {topic}: {keys} had been changed from outside and is as the spec says again",
                        )
                    )
                else:
                    found.append(Announcement("Normal", EventReason.CHANGED, f"Kafka topic {topic}: {keys} set"))
    return found


def _merged(items: list[Announcement]) -> list[Announcement]:
    """One announcement a reason: what happened together is told together."""
    found: dict[EventReason, Announcement] = {}
    for item in items:
        before = found.get(item.reason)
        found[item.reason] = replace(item, message=f"{before.message}; {item.message}") if before else item
    return list(found.values())
