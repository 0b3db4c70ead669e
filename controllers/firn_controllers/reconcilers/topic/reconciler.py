"""The reconcile of one IcebergTopic: observe -> check -> agree -> report, from the top each time.

Every step may fail or be the last one that this process makes. The next reconcile, in this or another process, finds
its result.
"""

from dataclasses import replace

from firn.model import names
from firn.model.config import KafkaProfile
from firn.model.errors import FirnError, InvalidSpecError, NotReadyError
from firn.model.jobs import RecordSchema, SchemaFormat, TableTarget
from firn_controllers.cache.policies import KINDS
from firn_controllers.cache.topics import Name, TopicEntry
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.iceberg_topic import plan, status
from firn_controllers.iceberg_topic.observed import ObservedTopic, schema_of, target_of
from firn_controllers.iceberg_topic.status import TopicFindings
from firn_controllers.ingestion_group.health import GroupHealth
from firn_controllers.policies.outcome import PolicyBinding, TopicMaintenance
from firn_controllers.ports import TableState, TopicState
from firn_controllers.queue import Lane, Outcome
from firn_controllers.reconcilers.context import Context
from firn_controllers.reconcilers.routes import RoutedTables
from firn_controllers.reconcilers.topic.agreement import TopicAgreement
from firn_controllers.reconcilers.topic.contracts import JobContracts
from firn_controllers.reconcilers.topic.deletion import TopicDeletion
from firn_controllers.reconcilers.topic.failures import DependencyFailures
from firn_controllers.reconcilers.topic.memory import TopicMemory
from firn_controllers.reconcilers.topic.reporting import TopicReports
from firn_controllers.reconcilers.topic.schemas import TopicSchemas

VISIBLE_SOON = 0.5
"""Seconds until the next reconcile of a topic that was created and that the brokers do not describe yet."""


class TopicReconciler:
    """Reconciles IcebergTopics."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._memory = TopicMemory(context.ports.clock, lambda: context.resync_interval)
        self._failures = DependencyFailures(lambda name: context.wake_topic(name, Lane.DEPENDENCY))
        self._contracts = JobContracts(context)
        self._schemas = TopicSchemas(context)
        self._reports = TopicReports(context)
        self._agreement = TopicAgreement(context, self._memory, self._failures, self._contracts)
        self._routed = RoutedTables(context)
        self._deletion = TopicDeletion(context, self._memory, self._contracts, self._reports)

    async def reconcile(self, name: Name) -> Outcome:
        """Bring Kafka topic, table and ingestion closer to the spec, and update the status."""
        for uid in self._context.topics.deleted_uids(name):
            await self._contracts.retire(uid)
            self._forget(name, uid)
            self._context.topics.clear_deleted(name, uid)
        entry = self._context.topics.get(name)
        if entry is None:
            return Outcome()
        if entry.resource is None:
            return await self._reconcile_unreadable(entry)
        if not self._dependencies_known(entry):
            return Outcome()
        observed = await self._observe(entry)
        if observed.paused:
            self._failures.forget(name)
            return await self._reports.report(entry, status.paused(observed))
        if observed.deleting:
            self._failures.forget(name)
            return await self._deletion.advance(observed)
        return await self._converge(observed)

    async def leave(self, name: Name) -> Outcome:
        """Stop ingestion by this release, and change nothing else: another release manages the resource."""
        entry = self._context.topics.get(name)
        if entry is None:
            return await self.reconcile(name)
        if await self._contracts.read(entry.uid, cached=False) is not None:
            await self._contracts.remove(entry.uid)
        return self._context.resync()

    async def _reconcile_unreadable(self, entry: TopicEntry) -> Outcome:
        """Report why the object cannot be read, and delete it if a user asks for that."""
        problem = entry.problem or InvalidSpecError(f"IcebergTopic {entry.name[1]} cannot be read")
        if not self._context.board.contracts.knows([entry.uid]):
            await self._contracts.read(entry.uid, cached=True)
        if entry.metadata.deletion_timestamp is not None:
            outcome = await self._deletion.advance_unreadable(entry, problem)
            if outcome is not None:
                return outcome
        now = self._context.ports.clock.now()
        return await self._reports.report(entry, status.unreadable(entry.status, entry.generation, problem, now))

    async def _converge(self, observed: ObservedTopic) -> Outcome:
        """Bring all parts into agreement with the spec, as far as possible, and report the result."""
        followed = await self._agree_finalizers(observed)
        if followed is None:
            return Outcome()
        recalled = self._memory.recall(followed)
        findings = await self._agreement.reach(followed, recalled)
        if findings is None:
            return Outcome(after=VISIBLE_SOON, lane=Lane.NEWS)
        self._memory.remember(followed, recalled, findings)
        if followed.resource.spec.routes is not None:
            findings = replace(findings, tables=await self._routed.agree(followed, findings))
        if isinstance(findings.topic, TopicState):
            self._context.board.configs[followed.entry.uid] = findings.topic.effective
        document = status.document(followed, findings)
        soon = status.is_on_its_way(followed, findings)
        self._reports.log_owner(followed.entry, findings.failure)
        outcome = await self._reports.report(followed.entry, document, findings.announcements, soon=soon)
        failed = self._failures.settle(followed.entry.name, _results(followed, findings))
        if failed is None:
            return outcome
        return replace(failed, lane=Lane.EDIT) if followed.entry.edited else failed

    async def _agree_finalizers(self, observed: ObservedTopic) -> ObservedTopic | None:
        """Set or remove our finalizer before anything is created. Returns None if the resource was deleted."""
        wanted = plan.finalizers(observed)
        if wanted == observed.resource.metadata.finalizers:
            return observed
        live = await self._reports.set_finalizers(observed.entry, wanted)
        if live is None or live.resource is None:
            return None
        return replace(observed, entry=live, resource=live.resource)

    # Observe

    def _dependencies_known(self, entry: TopicEntry) -> bool:
        """Return whether configured fleet and group have been reconciled once.

        The board wakes the topic when they are.
        """
        config, board = self._context.config, self._context.board
        fleet_known = entry.profile not in config.profiles or entry.profile in board.fleets
        group_known = entry.group not in config.groups or entry.group in board.groups
        return fleet_known and group_known

    async def _observe(self, entry: TopicEntry) -> ObservedTopic:
        context, board, resource = self._context, self._context.board, entry.resource
        assert resource is not None
        target = target_of(resource, context.config.default_catalog)
        recent, new = self._memory.is_recent(entry), entry.status.get("observedGeneration", -1) < 0
        job = await self._contracts.read(entry.uid, cached=recent, new=new)
        ending = (
            resource.metadata.deletion_timestamp is not None or resource.metadata.annotations.get(names.PAUSE) == "true"
        )
        parent = context.topics.get(entry.parent) if entry.parent is not None else None
        of_parent = self._schema_of_parent(parent)
        of_routes = of_parent if isinstance(of_parent, RecordSchema) else None
        schema = schema_of(resource) if ending else await self._schemas.find(entry.uid, resource, job, of_routes)
        if isinstance(schema, RecordSchema):
            if _has_found_all(schema):
                board.schemas[entry.uid] = schema
            else:
                board.schemas.pop(entry.uid, None)
        return ObservedTopic(
            config=context.config,
            entry=entry,
            resource=resource,
            schema=schema,
            target=target,
            topic_rival=await self._topic_rival(entry),
            table_rival=context.topics.table_rival(entry),
            older_sharers=context.topics.older_sharers(entry),
            fleet=board.fleet(entry.profile),
            catalog=board.catalog(target.catalog) if isinstance(target, TableTarget) else DependencyHealth(),
            group=board.group(entry.group) if entry.group in context.config.groups else GroupHealth(),
            progress=board.topic_progress(entry.group, entry.uid),
            job=job,
            now=context.ports.clock.now(),
            other_partitions=self._other_partitions(entry),
            parent=parent,
            parent_schema=of_parent,
            maintenance=self._maintenance(entry),
            table_maintenance=self._table_maintenance(entry),
        )

    def _schema_of_parent(self, parent: TopicEntry | None) -> RecordSchema | FirnError | None:
        """Return the schema by which the route of a table reads records.

        It is None while the columns of a Protobuf text, or the Protobuf message of a subject, are not known.
        """
        if parent is None or parent.resource is None:
            return None
        found = self._context.board.schemas.get(parent.uid)
        if found is not None:
            return found
        schema = schema_of(parent.resource)
        if not isinstance(schema, RecordSchema):
            return schema
        compiled = schema.has_found_columns and schema.subject is None
        return None if compiled or any(map(_finds_message, _parts_to_find(schema))) else schema

    async def _topic_rival(self, entry: TopicEntry) -> TopicEntry | None:
        """Return the older resource that owns the Kafka topic, or None.

        A profile of another release may have other brokers than our profile of that name. So resources of that release own
        only topics with the same id, and those at the configured address of brokers that no release runs.
        """
        profile = self._context.config.profiles.get(entry.profile)
        external = isinstance(profile, KafkaProfile) and profile.bootstrap_servers is not None
        known = {claim for claim in entry.topic_claims if external or claim != entry.topic_claim}
        for older in self._context.topics.older(entry, entry.topic_claims):
            if known & set(older.topic_claims) or await self._context.ports.cluster.rival(older.name[0]) is None:
                return older
        return None

    def _other_partitions(self, entry: TopicEntry) -> int:
        profile = self._context.config.profiles.get(entry.profile)
        if profile is None or profile.tenancy.partitions_per_namespace is None:
            return 0
        return self._context.topics.other_partitions(entry, profile.default_partitions)

    def _maintenance(self, entry: TopicEntry) -> TopicMaintenance:
        context = self._context
        bindings = {
            kind: PolicyBinding(context.policies.resolve(kind, entry), context.board.outcomes.get((entry.uid, kind)))
            for kind in KINDS
        }
        audit = context.board.outcomes.get((entry.uid, "Audit"))
        replay_ms = context.replays.longest_ms(entry.name)
        return TopicMaintenance(bindings, context.board.debts.get(entry.uid), audit, replay_ms)

    def _table_maintenance(self, entry: TopicEntry) -> TopicMaintenance | None:
        """Return what works on a table that ``entry`` shares: the policies of the oldest resource, and the replays of all."""
        topics, replays = self._context.topics, self._context.replays
        sharers = topics.sharers(entry)
        if not sharers:
            return None
        longest = max(replays.longest_ms(each.name) for each in (entry, *sharers))
        return replace(self._maintenance(next(iter(topics.older_sharers(entry)), entry)), replay_ms=longest)

    def _forget(self, name: Name, uid: str) -> None:
        self._context.board.configs.pop(uid, None)
        self._context.board.schemas.pop(uid, None)
        self._schemas.forget(uid)
        self._memory.forget(name, uid)
        self._failures.forget(name)
        self._reports.forget(uid)
        self._deletion.forget(uid)
        self._contracts.forget(uid)


def _parts_to_find(schema: RecordSchema) -> list[RecordSchema]:
    """Return the schemas of values and keys whose columns the operator has to find."""
    of_key = [schema.key.record_schema] if schema.key is not None and schema.key.decoding is not None else []
    return [part for part in (schema, *of_key) if part.has_found_columns]


def _has_found_all(schema: RecordSchema) -> bool:
    """Return whether the operator has to find columns of a schema, and has found all of them."""
    parts = _parts_to_find(schema)
    return bool(parts) and all(part.fields for part in parts)


def _finds_message(schema: RecordSchema) -> bool:
    """Return whether the first text of a topic decides about the Protobuf message."""
    return schema.format is SchemaFormat.PROTOBUF and not schema.message


def _results(observed: ObservedTopic, findings: TopicFindings) -> dict[str, object]:
    """Return the result of each dependency, by its name. A subject without a schema is a dependency of its own."""
    results: dict[str, object] = {observed.profile_dependency: findings.topic}
    if not isinstance(observed.schema, FirnError):
        results[observed.catalog_dependency] = findings.table
        if observed.registry_dependency and isinstance(findings.table, TableState):
            results[observed.registry_dependency] = findings.table
    elif isinstance(observed.schema, NotReadyError):
        results[f"subject of {observed.entry.uid}"] = findings.table
    else:
        results[observed.registry_dependency] = findings.table
    return results
