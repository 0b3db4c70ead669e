"""Deletes an IcebergTopic: stops ingestion, waits for its driver and its runs, deletes data if the spec says so,
releases the finalizer.

Data is deleted only by an explicit ``deletionPolicy``. A deletion that cannot delete its data waits, and the condition
DeletionBlocked names the cause. The annotation ``firn.dev/allow-forced-deletion`` ends the wait and leaves that data behind.
"""

from dataclasses import replace

from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn.model.errors import FirnError, InvalidSpecError
from firn.model.jobs import TableTarget
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.children import COMPONENT
from firn_controllers.conditions.annotations import misread
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.conditions.render import Verdict
from firn_controllers.conditions.stable_text import steady
from firn_controllers.iceberg_topic import checks, status, tenancy
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.iceberg_topic.status import TopicFindings
from firn_controllers.ingestion_group.health import released
from firn_controllers.ingestion_group.layout import INGESTION_LABELS, group_labels
from firn_controllers.policies.runs import COMPONENT_RUN, read_run
from firn_controllers.ports import Dropped, TopicState
from firn_controllers.queue import Lane, Outcome
from firn_controllers.reconcilers.context import Context
from firn_controllers.reconcilers.topic import restored
from firn_controllers.reconcilers.topic.contracts import JobContracts
from firn_controllers.reconcilers.topic.kept_topics import KeptTopics
from firn_controllers.reconcilers.topic.memory import TopicMemory
from firn_controllers.reconcilers.topic.reporting import TopicReports

POLL = 2.0
"""Seconds between two checks of a driver or run that still uses the data."""
CHECKS_PER_SECOND = 100.0
"""Largest number of checks a second for all deletions together. More checks would delay the drops of tables."""
LONGEST_POLL = 30.0
"""Largest time in seconds between two checks of one deletion, also if all of them then exceed `CHECKS_PER_SECOND`."""
GRACE = 3.0
"""Seconds after the removal of a contract, from which on a driver's report that it dropped the topic counts."""
BLOCKED_AFTER = 30.0
"""Seconds for which a deletion waits for the driver before its status reports the wait. Most deletions end earlier, and each
write of a status delays the other deletions."""


class TopicDeletion:
    """Advances deletions of topics, one reconcile at a time."""

    def __init__(self, context: Context, memory: TopicMemory, contracts: JobContracts, reports: TopicReports) -> None:
        self._context = context
        self._memory = memory
        self._contracts = contracts
        self._reports = reports
        self._kept = KeptTopics(context)
        self._contract_removed: dict[str, float] = {}  # by uid, in monotonic seconds
        self._groups: dict[str, set[str]] = {}
        """Uid -> the groups whose drivers may have the topic."""

    async def advance(self, observed: ObservedTopic) -> Outcome:
        """Advance the deletion of one topic as far as possible."""
        entry = observed.entry
        if entry.uid not in self._contract_removed:
            self._groups[entry.uid] = {entry.group} | await self._contract_groups(observed)
            await self._contracts.retire(entry.uid)
            self._contract_removed[entry.uid] = self._context.ports.clock.monotonic()
            self._memory.forget_visit(entry.name)
        finalizers = observed.resource.metadata.finalizers
        if names.FINALIZER not in finalizers:
            return await self._reports.report(entry, status.document(observed, TopicFindings()))
        done: list[Announcement] = []
        policy = observed.resource.spec.deletion_policy
        if "Delete" in (policy.topic, policy.table):
            waiting = await self._delete_data(observed, done)
            if waiting is not None:
                return waiting
        # After a conflict, the next reconcile finds no data to delete and does not announce it.
        await self._reports.announce(entry, done)
        others = tuple(finalizer for finalizer in finalizers if finalizer != names.FINALIZER)
        await self._reports.set_finalizers(entry, others)
        return Outcome()

    async def advance_unreadable(self, entry: TopicEntry, problem: InvalidSpecError) -> Outcome | None:
        """Stop ingestion, and release the finalizer if the deletion is forced. Returns None while it waits for that.

        A spec that cannot be read does not say what to delete, so all data stays.
        """
        await self._contracts.retire(entry.uid)
        finalizers = entry.metadata.finalizers
        if names.FINALIZER not in finalizers:
            return None
        if entry.metadata.annotations.get(names.FORCE_DELETION) != "true":
            blocked = _with_command(entry, _blocked(Reason.INVALID_SPEC, str(problem)))
            document = status.unreadable(
                entry.status, entry.generation, problem, self._context.ports.clock.now(), blocked
            )
            return await self._reports.report(entry, document)
        await self._reports.set_finalizers(entry, tuple(name for name in finalizers if name != names.FINALIZER))
        await self._reports.announce(entry, [_left_behind(str(problem))])
        return Outcome()

    def forget(self, uid: str) -> None:
        """Forget a deleted resource."""
        self._contract_removed.pop(uid, None)
        self._groups.pop(uid, None)

    async def _delete_data(self, observed: ObservedTopic, done: list[Announcement]) -> Outcome | None:
        """Delete the data that the spec names, after driver and runs have released it.

        Returns None if the finalizer may be removed, else the time of the next check.
        """
        forced = observed.annotations.get(names.FORCE_DELETION) == "true"
        waited = self._context.ports.clock.monotonic() - self._contract_removed[observed.entry.uid]
        if not await self._driver_released(observed) and not (forced and waited > GRACE):
            blocked = _blocked(Reason.RUNS_ACTIVE, "the ingestion driver still works on the topic")
            if waited > BLOCKED_AFTER:
                await self._report_blocked(observed, blocked)
            return Outcome(after=self._pause(), lane=Lane.CHANGE)
        deletes_table = observed.resource.spec.deletion_policy.table == "Delete"
        if deletes_table and not forced and await self._maintenance_runs(observed.entry.uid):
            blocked = _blocked(Reason.RUNS_ACTIVE, "a maintenance run still works on the table")
            await self._report_blocked(observed, blocked)
            return Outcome(after=self._pause(), lane=Lane.CHANGE)
        problem = await self._drop(observed, done)
        if problem is None:
            return None
        if not forced:
            await self._report_blocked(observed, problem, done)
            return Outcome(failed=True)
        done.append(_left_behind(problem.message))
        return None

    def _pause(self) -> float:
        """Return the seconds until the next check of a topic that waits."""
        return min(LONGEST_POLL, max(POLL, len(self._contract_removed) / CHECKS_PER_SECOND))

    async def _report_blocked(
        self, observed: ObservedTopic, blocked: Verdict, done: list[Announcement] | None = None
    ) -> None:
        """Report why the deletion waits."""
        blocked = _with_command(observed.entry, blocked)
        document = status.document(observed, TopicFindings(blocked=blocked))
        await self._reports.report(observed.entry, document, done or ())

    async def _driver_released(self, observed: ObservedTopic) -> bool:
        """Return whether no driver lands records of the topic any more."""
        context = self._context
        since = self._contract_removed[observed.entry.uid]
        uid = observed.entry.uid
        for group in self._groups[uid]:
            pods = await context.ports.cluster.pods(group_labels(group))
            # The driver of a group that is no longer configured is ending, so only the absence of its pod counts.
            configured = group in context.config.groups
            report = await context.ports.progress.read(group, context.report_age(group)) if configured else None
            if not released(uid, pods, report, since, GRACE):
                return False
        return True

    async def _contract_groups(self, observed: ObservedTopic) -> set[str]:
        """Return the group of the contract. Without a contract, an earlier process may have removed it: return all groups with a driver."""
        if observed.job is not None:
            return {observed.job.job.group}
        pods = await self._context.ports.cluster.pods(INGESTION_LABELS)
        return {pod.labels[names.LABEL_GROUP] for pod in pods if names.LABEL_GROUP in pod.labels}

    async def _maintenance_runs(self, uid: str) -> bool:
        """Return whether a run works on the table. No run starts any more, because the resource is being deleted."""
        jobs = await self._context.ports.cluster.jobs({COMPONENT: COMPONENT_RUN})
        runs = (read_run(job, ()) for job in jobs)
        return any(run is not None and run.active and uid in run.uids for run in runs)

    async def _drop(self, observed: ObservedTopic, done: list[Announcement]) -> Verdict | None:
        """Delete table and topic if the spec says so and they are this resource's. Returns why that failed, or None.

        Both are tried, so that a forced deletion leaves behind only what cannot be reached.
        """
        problems = [await self._drop_table(observed, done), await self._drop_topic(observed, done)]
        failed = [problem for problem in problems if problem is not None]
        if len(failed) < 2:
            return failed[0] if failed else None
        return replace(failed[0], message="; ".join(problem.message for problem in failed))

    async def _drop_table(self, observed: ObservedTopic, done: list[Announcement]) -> Verdict | None:
        target = observed.target
        if observed.resource.spec.deletion_policy.table != "Delete" or observed.table_rival is not None:
            return None
        if not isinstance(target, TableTarget):
            return None
        if target.catalog not in self._context.config.catalogs:
            if "table" not in observed.entry.status:
                return None  # no table was ever created
            gone = f"catalog {target.catalog} is no longer in the operator's configuration; add it again"
            return _blocked(Reason.CATALOG_UNREACHABLE, gone)
        if target.shared and (kept := self._kept_by_others(observed, target, done)) is not None:
            return kept[0]
        if observed.catalog.problem is not None:
            return _blocked(Reason.CATALOG_UNREACHABLE, observed.catalog.message)
        try:
            dropped = await self._drop_own(observed, target)
        except FirnError as error:
            return _blocked(Reason.CATALOG_UNREACHABLE, f"table {target.identifier}: {error}")
        if dropped is not None and dropped.files_kept:
            text = (
                f"dropped table {target.identifier} and its dead letters from the catalog, and left files behind: gc.enabled of a table is"
                " false or the catalog has ownReferences: true, so other tables, branches or earlier versions may need the files; if none does,"
                " delete them"
            )
            done.append(Announcement("Warning", EventReason.DATA_LEFT_BEHIND, text))
        elif dropped is not None and dropped.left:
            text = f"dropped table {target.identifier}, but could not delete {', '.join(dropped.left)}; delete this metadata file, which has no rows"
            done.append(Announcement("Warning", EventReason.DATA_LEFT_BEHIND, text))
        elif dropped is not None and not dropped.problems:
            done.append(Announcement("Normal", EventReason.DATA_DELETED, f"dropped table {target.identifier}"))
        if dropped is not None and dropped.problems:
            text = (
                f"dropped table {target.identifier}, and may have left files of earlier snapshots and failed commits behind:"
                f" {'; '.join(dropped.problems)}; delete the files that no other table needs"
            )
            done.append(Announcement("Warning", EventReason.DATA_LEFT_BEHIND, text))
        return None

    async def _drop_own(self, observed: ObservedTopic, target: TableTarget) -> Dropped | None:
        """Drop the table if it is the resource's. Return None if it is not. Raises FirnError.

        All shared tables have the same property ``firn.owner``. So the resource has to have had the table, and the table has to be one
        of its namespace in this Kubernetes cluster.
        """
        tables = self._context.ports.tables
        if not target.shared:
            return await tables.drop(target, observed.entry.uid)
        found = await tables.found(target) if restored.holds_table(observed) else None
        if found is None or not restored.claimant(observed, self._context).owns(found.ownership):
            return None
        return await tables.drop(target, names.SHARED)

    def _kept_by_others(
        self, observed: ObservedTopic, target: TableTarget, done: list[Announcement]
    ) -> tuple[Verdict | None] | None:
        """Return why a shared table is not dropped yet, or that it stays (None in the tuple). Return None if it is to be dropped.

        Of resources that are deleted together, the oldest drops the table, after the others are gone.
        """
        entry = observed.entry
        others = self._context.topics.sharers(entry)
        staying = [each for each in others if each.metadata.deletion_timestamp is None or each.age < entry.age]
        if staying:
            text = (
                f"table {target.identifier} and the dead letters of this topic in {target.dead_letters} stay, because IcebergTopic"
                f" {staying[0].name[1]} shares the table; no later deletion drops {target.dead_letters}: drop it with an engine if you do not need"
                " it"
            )
            done.append(Announcement("Warning", EventReason.DATA_LEFT_BEHIND, text))
            return (None,)
        if others:
            text = f"IcebergTopic {others[0].name[1]}, which shares table {target.identifier}, is still being deleted"
            return (_blocked(Reason.RUNS_ACTIVE, text),)
        return None

    async def _drop_topic(self, observed: ObservedTopic, done: list[Announcement]) -> Verdict | None:
        if observed.resource.spec.deletion_policy.topic != "Delete" or observed.topic_rival is not None:
            return None
        if observed.entry.parent is not None:
            return None
        profile, topic = observed.entry.profile, observed.resource.topic_name
        if profile not in self._context.config.profiles:
            if "topicId" not in observed.entry.status:
                return None  # no topic was ever created
            gone = f"profile {profile} is no longer in the operator's configuration; add it again"
            return _blocked(Reason.BROKER_UNREACHABLE, gone)
        if observed.fleet.problem is not None:
            return _blocked(Reason.BROKER_UNREACHABLE, observed.fleet.message)
        topics = self._context.ports.topics
        try:
            live = await topics.describe(profile, topic)
            if live is not None and await self._topic_is_ours(observed, live):
                await topics.delete(profile, topic)
                await self._kept.forget(profile, topic)
                done.append(Announcement("Normal", EventReason.DATA_DELETED, f"deleted Kafka topic {topic}"))
        except FirnError as error:
            return _blocked(Reason.BROKER_UNREACHABLE, f"Kafka topic {topic}: {error}")
        return None

    async def _topic_is_ours(self, observed: ObservedTopic, live: TopicState) -> bool:
        """Return whether status names this topic.

        Without a topic in status, an accepted spec would have created or adopted it.
        """
        remembered = observed.entry.status.get("topicId")
        if remembered:
            return bool(live.topic_id == remembered)
        verdict = status.as_before(observed, ConditionType.SPEC_VALID)
        refused = verdict is not None and verdict.reason == Reason.DEFAULT_CHANGED
        if refused or checks.first_failure(observed) is not None:
            return False
        kept = await self._kept.maker(observed.entry, live)
        return tenancy.topic_adoption_allowed(observed, kept) is None


def _blocked(reason: Reason, problem: str) -> Verdict:
    return Verdict("True", reason, steady(problem))


def _with_command(entry: TopicEntry, blocked: Verdict) -> Verdict:
    namespace, name = entry.name
    command = f"kubectl -n {namespace} annotate --overwrite itopic {name} {names.FORCE_DELETION}=true"
    message = f"{blocked.message}; to leave the data behind instead: {command}"
    if misread(entry.metadata.annotations, names.FORCE_DELETION):
        message += f"; annotation {names.FORCE_DELETION} has an invalid value"
    return replace(blocked, message=message)


def _left_behind(problem: str) -> Announcement:
    text = f"annotation {names.FORCE_DELETION} is true, so the operator leaves data behind: {problem}"
    return Announcement("Warning", EventReason.DATA_LEFT_BEHIND, text)
