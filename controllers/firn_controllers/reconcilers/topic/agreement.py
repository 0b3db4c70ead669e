"""Brings Kafka topic, table and job contract into agreement with the spec of an IcebergTopic, in this order.

A step that fails stops the steps that need it. `TopicFindings` records the results.
"""

from dataclasses import replace

from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn.model.errors import ConflictError, FirnError, InvalidSpecError, NotReadyError
from firn.model.jobs import RecordSchema, TableTarget
from firn_controllers.cache.topics import TopicEntry, topic_id_claim
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.iceberg_topic import checks, plan, status, tenancy
from firn_controllers.iceberg_topic.failure import Failure
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.iceberg_topic.plan import TopicStep
from firn_controllers.iceberg_topic.status import TopicFindings
from firn_controllers.ports import TableState, TopicState
from firn_controllers.reconcilers.context import Context
from firn_controllers.reconcilers.topic.contracts import JobContracts
from firn_controllers.reconcilers.topic.failures import DependencyFailures
from firn_controllers.reconcilers.topic.kept_topics import KeptTopic, KeptTopics
from firn_controllers.reconcilers.topic.memory import Recollection, TopicMemory
from firn_controllers.reconcilers.topic.restored import claimant, found_failure, has_records_of

VISIBLE_WITHIN = 10.0
"""Seconds for which a topic that was created may be unknown to the brokers before that counts as their failure."""


class TopicAgreement:
    """Executes the planned steps."""

    def __init__(
        self, context: Context, memory: TopicMemory, failures: DependencyFailures, contracts: JobContracts
    ) -> None:
        self._context = context
        self._memory = memory
        self._failures = failures
        self._contracts = contracts
        self._kept = KeptTopics(context)

    async def reach(self, observed: ObservedTopic, recalled: Recollection) -> TopicFindings | None:
        """Return the findings of all steps that could be made.

        None while the brokers do not describe a topic that was just created.
        """
        failure = checks.first_failure(observed)
        findings = TopicFindings(failure=failure, job=observed.job)
        unknown: FirnError | None = None
        if failure is None:
            try:
                failure = await found_failure(observed, self._context)
            except FirnError as error:
                unknown = error
            findings = replace(findings, failure=failure)
        if failure is None:
            with_topic = await self._agree_topic(observed, recalled, findings)
            if with_topic is None:
                return None
            findings = with_topic
            if unknown is not None:
                findings = replace(findings, table=unknown)
            elif findings.failure is None:
                findings = await self._agree_table(observed, recalled, findings)
        return await self._agree_contract(observed, findings)

    # Kafka topic

    async def _agree_topic(
        self, observed: ObservedTopic, recalled: Recollection, findings: TopicFindings
    ) -> TopicFindings | None:
        if observed.fleet.problem is not None:
            return findings
        origin = _origin(observed, ConditionType.TOPIC_READY)
        if recalled.topic is not None:
            return replace(findings, topic=recalled.topic, topic_origin=origin or Reason.ADOPTED)
        if observed.entry.parent is not None:
            return await self._follow_parent(observed, findings)
        try:
            live = await self._context.ports.topics.describe(observed.entry.profile, observed.resource.topic_name)
            rival = self._topic_rival(observed, live) if live is not None else None
            if live is not None and rival is not None:
                conflict = checks.conflict(f"Kafka topic {live.name}", rival, observed.entry.name[0])
                return replace(findings, failure=conflict)
            if live is not None and not await self._may_have(observed, live):
                return findings
            live, steps = await self._make_topic(observed, live)
        except InvalidSpecError as error:
            return replace(findings, failure=Failure(_refusal(error), str(error)))
        except FirnError as error:
            return replace(findings, topic=error)
        uid, topic = observed.entry.uid, observed.resource.topic_name
        if live is None:  # brokers learn of a new topic from their controller, a moment later
            if self._memory.invisible_seconds(uid) < VISIBLE_WITHIN:
                return None
            unknown = NotReadyError(
                f"Kafka topic {topic} was created, but the brokers do not describe it; see their logs"
            )
            return replace(findings, topic=unknown)
        self._memory.note_visible(uid)
        done: list[Announcement] = []
        if self._memory.has_created(uid):
            origin = Reason.CREATED
        elif origin is None:
            origin = Reason.ADOPTED
            done.append(Announcement("Normal", EventReason.ADOPTED, f"adopted the existing Kafka topic {topic}"))
        done += _step_announcements(topic, steps, repaired=recalled.settled)
        done += _dry_run_announcements(observed, live)
        return replace(findings, topic=live, topic_origin=origin, announcements=(*findings.announcements, *done))

    async def _follow_parent(self, observed: ObservedTopic, findings: TopicFindings) -> TopicFindings:
        """Find the Kafka topic of the resource with the routes. Only that resource creates and changes the topic."""
        parent, name = observed.parent, observed.resource.topic_name
        known = parent.status.get("topicId") if parent is not None else None
        origin = status.origin_before(parent, ConditionType.TOPIC_READY) if parent is not None else None
        try:
            live = await self._context.ports.topics.describe(observed.entry.profile, name)
        except FirnError as error:
            return replace(findings, topic=error)
        if live is None or live.topic_id != known or origin is None or observed.parent_schema is None:
            of = parent.name[1] if parent is not None else ""
            waits = NotReadyError(
                f"waiting for IcebergTopic {of}, which manages Kafka topic {name}; read its conditions"
            )
            return replace(findings, topic=waits)
        return replace(findings, topic=live, topic_origin=origin)

    async def _may_have(self, observed: ObservedTopic, live: TopicState) -> bool:
        """Return True if the resource may have a Kafka topic without a rival; False if only the catalog could show it.

        Raises InvalidSpecError if it may not.
        """
        entry, failure = observed.entry, None
        if not self._has_topic(observed):
            kept = await self._kept.maker(entry, live)
            failure = tenancy.topic_adoption_allowed(observed, kept)
            if failure is not None:
                try:
                    landed = await has_records_of(observed, live, self._context)
                except FirnError:
                    return False
                failure = tenancy.topic_adoption_allowed(observed, kept, landed=landed)
        if failure is not None:
            raise InvalidSpecError(failure.message, reason=failure.reason)
        return True

    async def _make_topic(
        self, observed: ObservedTopic, live: TopicState | None
    ) -> tuple[TopicState | None, tuple[TopicStep, ...]]:
        """Create or change the Kafka topic.

        Returns it, or None if the brokers do not describe it yet, and the steps made.
        """
        spec, topics = observed.resource.spec, self._context.ports.topics
        profile, topic = observed.entry.profile, observed.resource.topic_name
        default = self._context.config.profiles[profile].default_partitions
        steps = plan.topic(
            live,
            spec.partitions,
            default,
            observed.log_retention.over(observed.topic_configs),
            observed.owned_config,
        )
        if live is None and names.LABEL_TOPIC_SET in observed.resource.metadata.labels:
            raise NotReadyError(
                f"Kafka topic {topic} does not exist, and a TopicSet made this IcebergTopic for an existing topic; create the Kafka topic again,"
                f" delete this IcebergTopic, or remove its label {names.LABEL_TOPIC_SET} so that the operator creates the topic",
                reason=Reason.TOPIC_GONE,
            )
        for step in steps:
            match step:
                case plan.CreateTopic(partitions, configs):
                    if not self._has_topic(observed):
                        # After a crash, this distinguishes the topic from a topic that existed before.
                        await self._kept.put(KeptTopic(profile, topic, observed.entry.name[0], observed.entry.uid))
                    await topics.create(profile, topic, partitions, configs)
                    self._memory.note_created(observed.entry.uid)
                    live = await topics.describe(profile, topic)
                case plan.GrowTopic(partitions):
                    await topics.grow(profile, topic, partitions)
                case plan.AlterConfigs(put, remove):
                    await topics.alter_configs(profile, topic, put, remove)
        return (plan.after(steps, live) if live is not None else None), steps

    def _has_topic(self, observed: ObservedTopic) -> bool:
        """Return whether an earlier reconcile gave the resource its Kafka topic. An earlier release may have done so."""
        entry = observed.entry
        return observed.job is not None or "topicId" in entry.status or self._memory.has_created(entry.uid)

    def _topic_rival(self, observed: ObservedTopic, live: TopicState) -> TopicEntry | None:
        """Return the older resource that has the topic under another address of its brokers."""
        claim, entry = topic_id_claim(live.topic_id), observed.entry
        if claim is None:
            return None
        rival = self._context.topics.rival(entry, [claim])
        if rival is None and not self._has_topic(observed):
            # The first status of a resource, which has the id, is written after its contract.
            holder = self._context.topics.by_uid(self._contracts.holder(live.topic_id) or "")
            rival = holder if holder is not None and holder.age < entry.age else None
        return rival

    # Table

    async def _agree_table(
        self, observed: ObservedTopic, recalled: Recollection, findings: TopicFindings
    ) -> TopicFindings:
        trouble = observed.catalog.problem is not None
        if trouble and not (observed.catalog.recent and recalled.table is not None):
            return findings
        if recalled.table is not None:
            origin = _origin(observed, ConditionType.TABLE_READY)
            return replace(findings, table=recalled.table, table_origin=origin or Reason.ADOPTED)
        target, schema = observed.target, observed.schema
        if isinstance(schema, FirnError):
            return replace(findings, table=schema)
        if not isinstance(target, TableTarget):
            return findings
        try:
            with self._failures.turn(observed.entry.name, observed.catalog_dependency):
                live = await self._context.ports.tables.ensure(target, schema, claimant(observed, self._context))
        except (ConflictError, InvalidSpecError) as error:
            if error.reason == Reason.SCHEMA_INCOMPATIBLE:
                return replace(findings, table=error)
            return replace(findings, failure=Failure(_refusal(error), str(error)))
        except FirnError as error:
            return replace(findings, table=error)
        if live is None:
            return replace(findings, table_missing=True)
        return _with_table(observed, findings, target, live)

    # Job contract

    async def _agree_contract(self, observed: ObservedTopic, findings: TopicFindings) -> TopicFindings:
        if findings.failure is not None and findings.failure.reason is Reason.RESOURCE_CONFLICT:
            if observed.job is not None:
                await self._contracts.remove(observed.entry.uid)
            return replace(findings, job=None)
        agreed = findings.table_missing or (isinstance(findings.table, TableState) and findings.table.proposed is None)
        live = findings.topic if isinstance(findings.topic, TopicState) else None
        wanted = plan.contract(
            _with_present(observed, findings),
            live.topic_id if live is not None else None,
            table_agreed=findings.failure is None and agreed,
            topic_origin=findings.topic_origin,
            table_origin=findings.table_origin,
            table_uuid=findings.table.uuid if isinstance(findings.table, TableState) else None,
            configs=live.effective if live is not None else None,
        )
        if wanted is None:
            await self._remember_topic(observed, findings)
            return findings
        revoked = checks.revoked(observed, wanted.job)
        if revoked:
            # The contract stays, because it also has what the operator remembers of the topic.
            wanted = replace(wanted, job=wanted.job.model_copy(update={"suspended": True}))
        profile, topic = observed.entry.profile, observed.resource.topic_name
        named = observed.entry.status.get("topicId")
        # From here on, status or contract remember the topic. A process that ends in between repeats these calls.
        if observed.job is None and named:
            await self._kept.forget(profile, topic)
        if observed.job != wanted or self._contracts.edited(observed.entry.uid):
            try:
                await self._context.rights.grant(wanted.job)
            except FirnError as error:
                await self._remember_topic(observed, findings)
                return replace(findings, topic=error)
            try:
                await self._contracts.apply(wanted)
            finally:
                self._context.rights.settle(wanted.job)
            self._context.await_report(wanted.job.group, wanted.job.uid, wanted.job.generation)
        if not named:
            await self._kept.forget(profile, topic)
        return replace(findings, job=None if revoked else wanted)

    async def _remember_topic(self, observed: ObservedTopic, findings: TopicFindings) -> None:
        """Remember the maker of a new topic that has no contract. The resource may end before the first contract."""
        if isinstance(findings.topic, TopicState) and findings.topic_origin is Reason.CREATED:
            entry, live = observed.entry, findings.topic
            await self._kept.put(KeptTopic(entry.profile, live.name, entry.name[0], entry.uid, live.topic_id))


def _with_present(observed: ObservedTopic, findings: TopicFindings) -> ObservedTopic:
    """Return the topic without the dropped columns among those that its schema no longer has."""
    schema, table = observed.schema, findings.table
    if not isinstance(schema, RecordSchema) or not isinstance(table, TableState) or schema.gone == table.gone:
        return observed
    return replace(observed, schema=schema.model_copy(update={"gone": table.gone}))


def _origin(observed: ObservedTopic, kind: ConditionType) -> Reason | None:
    """Return whether the resource created or adopted its topic or table, if an earlier reconcile settled that."""
    job = observed.job
    kept = (job.topic_origin if kind is ConditionType.TOPIC_READY else job.table_origin) if job else None
    return Reason(kept) if kept in status.ORIGINS else status.origin_before(observed.entry, kind)


def _refusal(error: ConflictError | InvalidSpecError) -> Reason:
    """Return the error's reason if SpecValid has it. Any other is a config that the broker refused."""
    reason = next((member for member in Reason if str(member) == error.reason), Reason.BAD_TOPIC_CONFIG)
    return Reason.BAD_TOPIC_CONFIG if reason is Reason.INVALID_SPEC else reason


def _with_table(
    observed: ObservedTopic, findings: TopicFindings, target: TableTarget, live: TableState
) -> TopicFindings:
    """Return the findings with a table that agrees with the spec."""
    table = f"table {target.identifier}"
    origin = _origin(observed, ConditionType.TABLE_READY)
    done: list[Announcement] = []
    if live.created:
        origin = Reason.CREATED
        done.append(Announcement("Normal", EventReason.CREATED, f"created {table}"))
    elif origin is None and live.owner == observed.entry.uid:
        origin = Reason.CREATED
    elif origin is None:
        origin = Reason.ADOPTED
        done.append(Announcement("Normal", EventReason.ADOPTED, f"adopted the existing {table}"))
    if live.changed:
        done.append(Announcement("Normal", EventReason.CHANGED, f"{table}: {'; '.join(live.changed)}"))
    return replace(findings, table=live, table_origin=origin, announcements=(*findings.announcements, *done))


def _step_announcements(topic: str, steps: tuple[TopicStep, ...], *, repaired: bool) -> list[Announcement]:
    """Return the Events of the steps. ``repaired``: they undo a change by another client."""
    done = []
    for step in steps:
        match step:
            case plan.CreateTopic(partitions, _):
                text = f"created Kafka topic {topic} with {partitions} partitions"
                done.append(Announcement("Normal", EventReason.CREATED, text))
            case plan.GrowTopic(partitions):
                text = f"Kafka topic {topic} now has {partitions} partitions"
                done.append(Announcement("Normal", EventReason.CHANGED, text))
            case plan.AlterConfigs(put, remove) if repaired:
                keys = ", ".join(sorted({*put, *remove}))
                text = f"Kafka topic {topic}: restored configs {keys}, which another client had changed"
                done.append(Announcement("Warning", EventReason.DRIFT_REPAIRED, text))
            case plan.AlterConfigs(put, remove):
                keys = ", ".join(sorted({*put, *remove}))
                done.append(Announcement("Normal", EventReason.CHANGED, f"Kafka topic {topic}: changed configs {keys}"))
    return done


def _dry_run_announcements(observed: ObservedTopic, live: TopicState) -> list[Announcement]:
    """Return the Event of configs that a RetentionPolicy would set, unless the condition has shown them before."""
    proposal = observed.log_retention.proposal(observed.resource.topic_configs, live.configs)
    before = observed.entry.condition(ConditionType.POLICIES_RESOLVED)
    if not proposal or (before is not None and proposal in before["message"]):
        return []
    topic = observed.resource.topic_name
    return [
        Announcement(
            "Normal",
            EventReason.WOULD_DELETE,
            f"with mode Enforce, the RetentionPolicy would set {proposal} on Kafka topic {topic}",
        )
    ]
