"""The status document of one IcebergTopic, computed whole from what was observed and found.

Every condition names the generation that it is about. ``lastTransitionTime`` moves only when ``status`` flips. Messages
contain no counts, times or ids of attempts. So a second reconcile of an unchanged world computes the same document,
which is not written again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from firn.api.v1alpha1.iceberg_topic import MOST_PROPOSED, MOST_PROPOSED_TEXT
from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn.model.errors import AccessDeniedError, FirnError, InvalidSpecError, NotReadyError
from firn.model.jobs import RecordSchema, TableTarget
from firn.model.progress import HaltedAt, Proposal, RecentRecords, SuspiciousTimes, TopicProgress
from firn.tables import rows
from firn_controllers.cache.addresses import client_servers
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.conditions.annotations import ON_TOPICS, misread, remarks
from firn_controllers.conditions.announcements import Announcement
from firn_controllers.conditions.pods import FAST_FAILURES
from firn_controllers.conditions.render import Verdict, paused_over, rendered, timestamp
from firn_controllers.conditions.stable_text import steady
from firn_controllers.iceberg_topic.failure import Failure
from firn_controllers.iceberg_topic.observed import LiveJob, ObservedTopic
from firn_controllers.iceberg_topic.plan import refused_decrease
from firn_controllers.iceberg_topic.reports import history, publishing
from firn_controllers.iceberg_topic.reports import lag as lags
from firn_controllers.iceberg_topic.reports.completeness import complete, near_retention, unacknowledged
from firn_controllers.iceberg_topic.routes import RoutedTable, routes_ready
from firn_controllers.policies.outcome import (
    audit_section,
    awaits_policy,
    maintenance_healthy,
    maintenance_section,
    policies_resolved,
    significant_section,
)
from firn_controllers.ports import Manifest, TableState, TopicState
from firn_controllers.specs.policy_fit import unreadable_column

ORIGINS = frozenset({Reason.CREATED, Reason.ADOPTED})
BACK_IN_TIME = 0.8
"""Share of its freshness below which a topic that fell behind is fresh again, so that the condition does not flap."""

_REPAIRS = {
    "MissingRequired": "set required: false of the field, which you cannot undo",
    "Tombstone": "set required: false of every field, which you cannot undo",
    "UnknownField": "add the field to the schema",
    "QualityRule": "correct the rule in spec.quality.rules",
    "OutOfRange": "give the field a wider type if it is int, float or decimal, or another epoch if its integers are times",
}
"""Changes of the spec, by the code of the record at which ingestion stopped. No change helps with other codes."""

DECISIVE = 100
"""Number of records after which the newest records alone say whether records are accepted."""
_GRAVITY = (Reason.ALL_ACCEPTED, Reason.SOME_REJECTED, Reason.SUSPICIOUS_TIMES, Reason.MOST_REJECTED)

MOST_SHOWN = 10
"""Most proposed changes in a message. The status has all of them."""
_FOR_AUTHORS = frozenset(
    {Reason.PARTITION_DECREASE_REFUSED, Reason.SCHEMA_INCOMPATIBLE, Reason.BAD_RECORD_HALT, Reason.PROPOSED}
)
"""Reasons that only the author of the resource can end."""

PREPARED = frozenset({"Running", "CaughtUp", "Halted"})
"""States in which a driver has checked the tables since it started or received a spec, and made them match."""


@dataclass(frozen=True, slots=True)
class TopicFindings:
    """The results of the steps of one reconcile. None: not tried, because an earlier step failed."""

    failure: Failure | None = None
    topic: TopicState | FirnError | None = None
    topic_origin: Reason | None = None
    table: TableState | FirnError | None = None
    table_origin: Reason | None = None
    table_missing: bool = False
    """True if the driver will create the table, because its format version is 3."""
    job: LiveJob | None = None
    blocked: Verdict | None = None
    """The reason why a deletion waits."""
    tables: tuple[RoutedTable, ...] = ()
    """The tables of ``spec.routes``. Empty before the Kafka topic is known."""
    announcements: tuple[Announcement, ...] = ()
    """Events of the steps that were made."""


def document(observed: ObservedTopic, findings: TopicFindings) -> Manifest:
    """Compute the whole status."""
    verdicts = conditions(observed, findings)
    previous = observed.entry.status
    generation = observed.entry.generation
    status: Manifest = {
        "observedGeneration": generation,
        "conditions": rendered(verdicts, previous, generation, observed.now),
    }
    status |= _topic(observed, findings, previous)
    table = _table(observed, findings, previous)
    if table:
        status["table"] = table
    proposal = _proposal(observed, findings) or _droppable(findings)
    if proposal is not None:
        status["schema"] = {"proposed": _proposed(proposal)}
    if observed.resource.spec.routes is not None:
        listed = [table.document() for table in findings.tables] or previous.get("tables")
        if listed:
            status["tables"] = listed
    status["ingestion"] = _ingestion(observed, findings, previous)
    maintenance = maintenance_section(observed.maintenance, previous.get("maintenance") or {})
    if maintenance:
        status["maintenance"] = maintenance
    audit = audit_section(observed.maintenance, previous.get("audit") or {}) | _excluded(observed)
    if audit:
        status["audit"] = audit
    quality = _quality(observed, previous)
    if quality:
        status["quality"] = quality
    publish = publishing.section(observed, previous)
    if publish:
        status["publish"] = publish
    losses = unacknowledged(observed)
    if losses:
        status["losses"] = losses
    return status


def conditions(observed: ObservedTopic, findings: TopicFindings) -> dict[ConditionType, Verdict]:
    """Compute each condition. Some exist only while they are True."""
    spec = _spec_valid(observed, findings)
    parts = {
        ConditionType.SPEC_VALID: spec,
        ConditionType.TOPIC_READY: _topic_ready(observed, findings),
        ConditionType.TABLE_READY: _table_ready(observed, findings),
        ConditionType.INGESTION_READY: _ingestion_ready(observed, findings),
    }
    if observed.resource.spec.routes is not None:
        parts[ConditionType.ROUTES_READY] = _routes_ready(observed, findings)
    stalled = _stalled(observed, findings, parts)
    governed = _governed(observed, findings)
    ready = _ready(observed, parts, stalled)
    verdicts = {
        ConditionType.READY: ready,
        **parts,
        ConditionType.FRESH: _fresh(observed, findings),
        ConditionType.RECORDS_ACCEPTED: _records_accepted(observed),
        ConditionType.COMPLETE: complete(observed),
        **_schema_compatible(observed, findings),
        **_published(observed, findings),
        **_history(observed, findings),
        **governed,
    }
    if stalled is not None:
        verdicts[ConditionType.STALLED] = stalled
    else:
        reconciling = _reconciling(observed, findings, ready, parts)
        if reconciling is not None:
            verdicts[ConditionType.RECONCILING] = reconciling
    if findings.blocked is not None:
        verdicts[ConditionType.DELETION_BLOCKED] = findings.blocked
    return verdicts


def paused(observed: ObservedTopic) -> Manifest:
    """Compute the status while reconciliation is paused: unchanged, with the condition Paused.

    ``observedGeneration`` is unchanged, too: the other conditions are about that generation. A client that waits for a
    newer spec (kstatus) must see that the operator has not followed it.
    """
    message = f"reconciliation is paused while annotation {names.PAUSE} is true; remove the annotation to continue"
    if observed.deleting:
        message += "; the deletion waits, too"
    return paused_over(observed.entry.status, observed.entry.generation, message, observed.now)


def unreadable(
    previous: Mapping[str, Any],
    generation: int,
    problem: InvalidSpecError,
    now: datetime,
    blocked: Verdict | None = None,
) -> Manifest:
    """Compute the status of an object that cannot be read as an IcebergTopic, stored under another version of the CRD."""
    message = steady(str(problem))
    verdicts = {
        ConditionType.READY: Verdict("False", Reason.BAD_SCHEMA, message),
        ConditionType.SPEC_VALID: Verdict("False", Reason.BAD_SCHEMA, message),
        ConditionType.STALLED: Verdict("True", Reason.INVALID_SPEC, message),
    }
    if blocked is not None:
        verdicts[ConditionType.DELETION_BLOCKED] = blocked
    return {
        **previous,
        "observedGeneration": generation,
        "conditions": rendered(verdicts, previous, generation, now),
    }


def is_on_its_way(observed: ObservedTopic, findings: TopicFindings) -> bool:
    """Return whether a topic that has no status yet is Ready as soon as a driver that works reports it."""
    if observed.resource.spec.routes is not None:
        return False  # the IcebergTopics of its tables wait for the first status
    if observed.entry.status.get("observedGeneration", -1) >= 0 or findings.failure is not None or findings.job is None:
        return False
    agreed = isinstance(findings.topic, TopicState) and (
        isinstance(findings.table, TableState) or findings.table_missing
    )
    healthy = observed.fleet.problem is None and observed.catalog.problem is None and observed.group.problem is None
    progress = observed.progress
    starting = progress is None or (progress.state == "Starting" and not progress.table_reason)
    return agreed and healthy and starting and not observed.resource.spec.suspend


def significant(status: Mapping[str, Any]) -> Manifest:
    """Return the parts of a status that are written as soon as they change: all but times, counts (also those in the
    message of RecordsAccepted), and Running against CaughtUp.
    """
    copy = dict(status)
    ingestion = dict(copy.get("ingestion") or {})
    ingestion.pop("lastCommitTime", None)
    ingestion.pop("deadLetters", None)
    ingestion.pop("filtered", None)
    ingestion.pop("lag", None)
    copy["ingestion"] = ingestion
    copy.pop("quality", None)
    copy["publish"] = publishing.significant(copy.get("publish") or {})
    coarse = ("lastCommitTime", "deadLetters")
    if "tables" in copy:
        copy["tables"] = [{key: value for key, value in each.items() if key not in coarse} for each in copy["tables"]]
    copy["maintenance"] = significant_section(copy.get("maintenance") or {})
    copy["audit"] = {key: value for key, value in (copy.get("audit") or {}).items() if key != "nextRunTime"}
    copy["conditions"] = [_coarse(item) for item in copy.get("conditions") or []]
    return copy


def driver_digest(
    progress: TopicProgress, freshness_ms: int, configs: Mapping[str, str] | None = None
) -> tuple[object, ...]:
    """Return the parts of a topic's progress that can change a condition.

    The topic is reconciled again only if they change. ``configs``: those of the Kafka topic, None if they are not known.
    """
    lag = progress.lag_seconds
    limit = freshness_ms / 1000
    return (
        progress.generation,
        "Running" if progress.state == "CaughtUp" else progress.state,
        progress.reason,
        steady(progress.message),
        progress.failures >= FAST_FAILURES,
        progress.topic_id,
        progress.table_uuid,
        progress.table_location,
        progress.table_ready,
        progress.table_reason,
        steady(progress.table_message),
        progress.dead_letter_table,
        progress.halted_at,
        _acceptance(progress.recent),
        _is_decisive(progress.recent),
        None if progress.losses is None else progress.losses.newest,
        progress.proposed,
        publishing.digest(progress.publish),
        history.digest(progress.history),
        progress.lag_records is None,
        _empty(progress),
        progress.backfilling,
        (lag or 0.0) > limit,
        (lag or 0.0) > limit * BACK_IN_TIME,
        near_retention(configs or {}, lag, progress.lag_bytes),
    )


def ready_table(entry: TopicEntry) -> Verdict | None:
    """Return the verdict of TableReady, if status says that the table matches the present spec."""
    before = entry.condition(ConditionType.TABLE_READY)
    if before is None or (before["status"], before["observedGeneration"]) != ("True", entry.generation):
        return None
    return Verdict("True", Reason(before["reason"]), before["message"])


# Conditions


def _spec_valid(observed: ObservedTopic, findings: TopicFindings) -> Verdict:
    if observed.deleting:
        return as_before(observed, ConditionType.SPEC_VALID) or _pending("the resource is being deleted")
    ignored = remarks(observed.annotations, ON_TOPICS)
    if findings.failure is not None:
        return Verdict("False", findings.failure.reason, steady(findings.failure.message) + ignored)
    return Verdict("True", Reason.VALID, "the spec is valid" + ignored)


def _topic_ready(observed: ObservedTopic, findings: TopicFindings) -> Verdict:
    if observed.entry.profile not in observed.config.profiles:
        return _pending("waiting for spec.profile to name a configured profile")
    if observed.fleet.problem is not None:
        return Verdict("False", observed.fleet.problem, steady(observed.fleet.message))
    match findings.topic:
        case TopicState() as live:
            refused = refused_decrease(live.name, live.partitions, observed.resource.spec.partitions)
            if refused:
                return Verdict("False", Reason.PARTITION_DECREASE_REFUSED, refused)
            return Verdict("True", findings.topic_origin or Reason.ADOPTED, f"Kafka topic {live.name} matches the spec")
        case AccessDeniedError() as error:
            return Verdict("False", Reason.ACCESS_DENIED, steady(str(error)))
        case NotReadyError() as error:
            gone = error.reason == Reason.TOPIC_GONE
            return Verdict("False", Reason.TOPIC_GONE if gone else Reason.BROKER_STARTING, steady(str(error)))
        case FirnError() as error if not isinstance(error, InvalidSpecError):
            return Verdict("False", Reason.BROKER_UNREACHABLE, steady(str(error)))
    return as_before(observed, ConditionType.TOPIC_READY) or _pending("waiting for a valid spec")


def _table_ready(observed: ObservedTopic, findings: TopicFindings) -> Verdict:
    target = observed.target
    if not isinstance(target, TableTarget) or target.catalog not in observed.config.catalogs:
        return _pending("waiting for a configured catalog and a valid table name")
    if observed.catalog.problem is not None:
        before = ready_table(observed.entry) if observed.catalog.recent else None
        return before or Verdict("False", observed.catalog.problem, steady(observed.catalog.message))
    match findings.table:
        case TableState(proposed=Proposal() as proposal):
            return Verdict("False", Reason.PROPOSED, _proposal_text(observed, target, proposal))
        case TableState() as live if max(live.format_version, target.format_version) > 2:
            return _table_of_driver(observed, findings, target)
        case TableState():
            return Verdict(
                "True", findings.table_origin or Reason.ADOPTED, f"table {target.identifier} matches the spec"
            )
        case InvalidSpecError() as error if error.reason == Reason.SCHEMA_INCOMPATIBLE:
            return Verdict("False", Reason.SCHEMA_INCOMPATIBLE, steady(str(error)))
        case AccessDeniedError() as error:
            return Verdict("False", Reason.ACCESS_DENIED, steady(str(error)))
        case NotReadyError() as error:
            missing = error.reason == Reason.SCHEMA_MISSING
            return Verdict("False", Reason.SCHEMA_MISSING if missing else Reason.PENDING, steady(str(error)))
        case FirnError() as error if error.reason == Reason.REGISTRY_UNREACHABLE:
            return Verdict("False", Reason.REGISTRY_UNREACHABLE, steady(str(error)))
        case FirnError() as error if not isinstance(error, InvalidSpecError):
            return Verdict("False", Reason.CATALOG_UNREACHABLE, steady(str(error)))
    if findings.table_missing:
        return _table_of_driver(observed, findings, target)
    return as_before(observed, ConditionType.TABLE_READY) or _pending("waiting for the Kafka topic and a valid spec")


def _table_of_driver(observed: ObservedTopic, findings: TopicFindings, target: TableTarget) -> Verdict:
    """Report a table that only the driver can write. It matches once a driver that has this spec reports so."""
    progress = observed.progress if observed.group.heard else None
    if progress is not None and progress.generation == observed.entry.generation:
        reasons = (
            Reason.CATALOG_UNREACHABLE,
            Reason.ACCESS_DENIED,
            Reason.SCHEMA_INCOMPATIBLE,
            Reason.FORMAT_UNSUPPORTED,
            Reason.PENDING,
        )
        if progress.table_reason in reasons:
            return Verdict("False", Reason(progress.table_reason), steady(progress.table_message))
        if progress.table_ready and progress.state in PREPARED:
            origin = findings.table_origin or Reason.CREATED
            return Verdict("True", origin, f"table {target.identifier} matches the spec")
    if (before := ready_table(observed.entry)) is not None:
        return before
    verb = "create" if findings.table_missing else "update"
    return Verdict(
        "False",
        Reason.WAITING_FOR_DRIVER,
        f"waiting for the ingestion driver to {verb} table {target.identifier} of format version 3",
    )


def _routes_ready(observed: ObservedTopic, findings: TopicFindings) -> Verdict:
    if observed.deleting or not findings.tables:
        return as_before(observed, ConditionType.ROUTES_READY) or _pending(
            "waiting for the Kafka topic and a valid spec"
        )
    return routes_ready(findings.tables)


def _schema_compatible(observed: ObservedTopic, findings: TopicFindings) -> dict[ConditionType, Verdict]:
    """Return the condition about changes of the schema, if the spec has a registry, a policy for them or renames, or if
    another client has dropped columns."""
    schema, target = observed.resource.spec.record_schema, observed.target
    dropped = findings.table.dropped if isinstance(findings.table, TableState) else ()
    concerned = schema is not None and (schema.registry or schema.evolution or schema.renames or dropped)
    if not concerned or not isinstance(target, TableTarget):
        return {}
    kind, proposal, failure = ConditionType.SCHEMA_COMPATIBLE, _proposal(observed, findings), findings.failure
    progress = observed.progress if observed.group.heard else None
    if proposal is not None:
        return {kind: Verdict("False", Reason.PROPOSED, _proposal_text(observed, target, proposal))}
    if failure is not None and failure.reason is Reason.INCOMPATIBLE_SCHEMA:
        return {kind: Verdict("False", Reason.INCOMPATIBLE_SCHEMA, steady(failure.message))}
    if progress is not None and progress.table_reason == Reason.INCOMPATIBLE_SCHEMA:
        return {kind: Verdict("False", Reason.INCOMPATIBLE_SCHEMA, steady(progress.table_message))}
    if progress is not None and (progress.state, progress.reason) == ("BackingOff", Reason.INCOMPATIBLE_SCHEMA):
        return {kind: Verdict("False", Reason.INCOMPATIBLE_SCHEMA, steady(progress.message))}
    if not isinstance(findings.table, TableState):
        return {kind: as_before(observed, kind) or _pending("waiting for the table")}
    if (droppable := _droppable(findings)) is not None:
        text = _proposal_text(observed, target, droppable).removesuffix("; or restore the schema")
        return {kind: Verdict("True", Reason.COMPATIBLE, text)}
    if dropped:
        return {kind: Verdict("True", Reason.COMPATIBLE, _dropped_text(target, dropped))}
    return {kind: Verdict("True", Reason.COMPATIBLE, f"table {target.identifier} has the columns of the schema")}


def _dropped_text(target: TableTarget, dropped: Sequence[str]) -> str:
    shown = ", ".join(dropped[:MOST_SHOWN])
    more = f" and {len(dropped) - MOST_SHOWN} more" if len(dropped) > MOST_SHOWN else ""
    return (
        f"table {target.identifier}: another client dropped column {shown}{more}, and later rows leave the field out; to have it again, add the"
        " column to the table with the same name"
    )


def _published(observed: ObservedTopic, findings: TopicFindings) -> dict[ConditionType, Verdict]:
    """Return the condition about publishing, if the spec has a branch for rows."""
    if observed.resource.publish is None:
        return {}
    verdict = publishing.published(observed) if findings.job is not None and not observed.deleting else None
    before = as_before(observed, ConditionType.PUBLISHED)
    return {ConditionType.PUBLISHED: verdict or before or _pending("waiting for the ingestion driver to report")}


def _history(observed: ObservedTopic, findings: TopicFindings) -> dict[ConditionType, Verdict]:
    """Return the conditions about the history of the log, if only the table has it."""
    if observed.resource.history != names.SINGLE:
        return {}
    known = findings.job is not None and not observed.deleting
    verdicts = {
        ConditionType.SINGLE_COPY: history.single_copy(observed) if known else None,
        ConditionType.HISTORY_READABLE: history.history_readable(observed) if known else None,
    }
    waiting = _pending("waiting for the ingestion driver to report")
    return {kind: verdict or as_before(observed, kind) or waiting for kind, verdict in verdicts.items()}


def _proposal(observed: ObservedTopic, findings: TopicFindings) -> Proposal | None:
    """Return the changes that wait for an approval: those of the spec or the latest schema, else those of records."""
    if isinstance(findings.table, TableState) and findings.table.proposed is not None:
        return findings.table.proposed
    progress = observed.progress
    return progress.proposed if progress is not None and observed.group.heard else None


def _droppable(findings: TopicFindings) -> Proposal | None:
    return findings.table.droppable if isinstance(findings.table, TableState) else None


def _proposal_text(observed: ObservedTopic, target: TableTarget, proposal: Proposal) -> str:
    namespace, name = observed.entry.name
    shown = ", ".join(proposal.changes[:MOST_SHOWN])
    more = f", and {len(proposal.changes) - MOST_SHOWN} more" if len(proposal.changes) > MOST_SHOWN else ""
    command = f"kubectl -n {namespace} annotate --overwrite itopic {name} {names.APPROVE}={proposal.approve}"
    return f"table {target.identifier} waits for the approval of changes: {shown}{more}; approve them: {command}; or restore the schema"


def _ingestion_ready(observed: ObservedTopic, findings: TopicFindings) -> Verdict:
    if observed.deleting:
        return _pending("ingestion stops because the resource is being deleted")
    if observed.resource.spec.suspend:
        return Verdict(
            "False", Reason.SUSPENDED, "spec.suspend is true: records wait in the Kafka topic until it is false"
        )
    if findings.job is None:
        if findings.failure is not None:
            return _pending("waiting for a valid spec")
        return Verdict("False", Reason.STARTING, "waiting for the Kafka topic and the table")
    if observed.group.problem is not None:
        return Verdict("False", observed.group.problem, steady(observed.group.message))
    progress = observed.progress
    if progress is None:
        return Verdict("False", Reason.STARTING, "waiting for the ingestion driver to start on the topic")
    match progress.state:
        case "Running" | "CaughtUp" as state:
            reason = Reason.RUNNING if state == "Running" else Reason.CAUGHT_UP
            return Verdict("True", reason, "records are landing in the table")
        case "Halted":
            return Verdict("False", Reason.BAD_RECORD_HALT, _halted(observed, progress, findings.job))
        case "Fenced":
            return Verdict(
                "False",
                Reason.FENCED,
                steady(progress.message)
                or "another ingestion driver with a newer epoch writes the table; make sure that only one installation of Firn"
                " serves this topic",
            )
        case "BackingOff":
            of_driver = (
                Reason.OUT_OF_MEMORY,
                Reason.WAITING_FOR_CONNECTOR,
                Reason.BRANCH_REFUSED,
                Reason.MAIN_MOVED,
            )
            reason = Reason(progress.reason) if progress.reason in of_driver else Reason.BACKING_OFF
            return Verdict(
                "False",
                reason,
                steady(progress.message)
                or "the ingestion driver could not land records and retries; see the driver's log",
            )
        case _:
            return Verdict("False", Reason.STARTING, "the ingestion driver is starting on the topic")


def _halted(observed: ObservedTopic, progress: TopicProgress, job: LiveJob) -> str:
    at = progress.halted_at
    if at is None:
        return "ingestion stopped at a record that does not fit the schema; correct the schema, or set onBadRecord to DeadLetter"
    namespace, name = observed.entry.name
    place = f"rule {at.rule}" if at.rule else f"column {at.column}"
    why = f"{at.code} in {place}" if at.code and (at.rule or at.column) else at.code
    command = (
        f"kubectl -n {namespace} annotate --overwrite itopic {name} {names.RESUME}=skip:{at.partition}:{at.offset}"
    )
    repair, remark = _REPAIRS.get(at.code), _unused_resume(observed, at, job.resume_halt)
    way_out = f"send the record to the dead letters: {command}"
    if repair is not None:
        way_out = f"{repair}, or send the record to the dead letters: {command}"
    if remark:
        way_out = f"{way_out}; {remark}"
    if why:
        return f"ingestion stopped at partition {at.partition}, offset {at.offset} ({why}); {way_out}"
    return f"ingestion stopped at partition {at.partition}, offset {at.offset}; {way_out}"


def _unused_resume(observed: ObservedTopic, at: HaltedAt, set_at: str | None) -> str:
    """Return a remark about an annotation that cannot end this halt. An annotation of an earlier halt needs none.

    ``set_at``: the record at which the topic was halted when the annotation got its value.
    """
    value = observed.annotations.get(names.RESUME)
    if value is None or value == "skip":
        return ""
    if misread(observed.annotations, names.RESUME):
        return f"annotation {names.RESUME} has an invalid value: write skip or skip:PARTITION:OFFSET"
    _, partition, offset = value.split(":")
    place, named = (at.partition, at.offset), (int(partition), int(offset))
    # A value for a later record of the partition cannot be of an earlier halt.
    if named != place and (set_at == f"{at.partition}:{at.offset}" or (named[0] == place[0] and named > place)):
        return f"annotation {names.RESUME} names another record than the one at which ingestion stopped"
    return ""


def _empty(progress: TopicProgress) -> bool:
    """Return True if no record was ever in the topic, as far as the driver knows."""
    return progress.last_commit is None and not progress.has_landed and not progress.lag_records


def _fresh(observed: ObservedTopic, findings: TopicFindings) -> Verdict:
    progress = observed.progress
    if progress is None or findings.job is None or not observed.group.heard:
        return Verdict("Unknown", Reason.UNKNOWN, "no progress report from the ingestion driver yet")
    configs = findings.topic.effective if isinstance(findings.topic, TopicState) else {}
    retention = near_retention(configs, progress.lag_seconds, progress.lag_bytes)
    if observed.resource.spec.suspend:
        if retention is None:
            return Verdict("Unknown", Reason.UNKNOWN, "ingestion is suspended")
        return Verdict(
            "False",
            Reason.RETENTION_NEAR,
            f"ingestion is suspended, and records have waited for more than half of the log's {retention}; set spec.suspend to false, or raise"
            " this config, before the log deletes these records",
        )
    if progress.lag_records is None:
        return Verdict(
            "Unknown", Reason.UNKNOWN, "the ingestion driver has not compared the Kafka topic with the table recently"
        )
    if _empty(progress):
        return Verdict("Unknown", Reason.NO_RECORDS, "no record has been produced yet")
    if retention is not None:
        return Verdict(
            "False",
            Reason.RETENTION_NEAR,
            f"records have waited for more than half of the log's {retention}; raise it before the log deletes these records",
        )
    freshness = observed.resource.spec.ingestion.freshness
    lag = progress.lag_seconds or 0.0
    limit = observed.resource.freshness_ms / 1000
    before = observed.entry.condition(ConditionType.FRESH)
    if before is not None and before["status"] == "False":
        limit *= BACK_IN_TIME
    if lag <= limit:
        return Verdict("True", Reason.WITHIN_TARGET, f"records reach the table within {freshness}")
    if progress.backfilling:
        return Verdict(
            "False", Reason.BACKFILLING, "the ingestion driver is landing records that are older than the table"
        )
    return Verdict("False", Reason.BEHIND, f"records wait longer than {freshness} before they reach the table")


def _is_decisive(recent: RecentRecords | None) -> bool:
    """Return whether recent records are enough for a better verdict than before.

    A driver that restarts knows no earlier records. Under another schema, earlier records say nothing.
    """
    # A driver that found the rejected records itself still counts them.
    return recent is not None and (recent.new_schema or recent.records >= DECISIVE or recent.rejected > 0)


def _acceptance(recent: RecentRecords | None) -> Reason:
    if recent is None:
        return Reason.NO_RECORDS
    if 2 * recent.rejected > recent.records:
        return Reason.MOST_REJECTED
    if recent.times is not None:
        return Reason.SUSPICIOUS_TIMES
    return Reason.SOME_REJECTED if recent.rejected else Reason.ALL_ACCEPTED


def _records_accepted(observed: ObservedTopic) -> Verdict:
    """Report rejected records. The counts of the message are written only when the reason changes, or with other counts."""
    progress = observed.progress
    if progress is None or progress.recent is None:
        before = as_before(observed, ConditionType.RECORDS_ACCEPTED)
        if before is not None:
            return before
        if progress is None:
            return Verdict("Unknown", Reason.UNKNOWN, "no progress report from the ingestion driver yet")
        return Verdict("Unknown", Reason.NO_RECORDS, "no record has landed since the ingestion driver started")
    recent, reason = progress.recent, _acceptance(progress.recent)
    before = as_before(observed, ConditionType.RECORDS_ACCEPTED)
    improves = before is not None and before.reason in _GRAVITY[_GRAVITY.index(reason) + 1 :]
    if before is not None and improves and not _is_decisive(recent):
        return before
    if reason == Reason.ALL_ACCEPTED:
        return Verdict("True", reason, "the newest records are in the table")
    suspicion = _suspicion(recent.times) if recent.times is not None else ""
    if reason == Reason.SUSPICIOUS_TIMES:
        return Verdict("True", reason, suspicion)
    dropped = observed.resource.spec.ingestion.on_bad_record == "Skip" or progress.dead_letter_table is None
    place = (
        "they are dropped, because onBadRecord is Skip"
        if dropped
        else f"table {progress.dead_letter_table} has them with the cause"
    )
    limits = "the schema or the quality rules" if observed.resource.quality_rules else "the schema"
    share = f"{recent.rejected} of the last {recent.records} records did not fit {limits}, the last one with {recent.code} at {recent.path}"
    if reason == Reason.SOME_REJECTED:
        return Verdict("True", reason, f"{share}; {place}")
    if suspicion:
        return Verdict("False", reason, f"{share}; {place}; {suspicion}")
    return Verdict("False", reason, f"{share}; {place}; correct the producer or the schema")


def _suspicion(times: SuspiciousTimes) -> str:
    return (
        f"column {times.column} has times such as {times.sample}, because its integers count in another unit; if they count in"
        f" {times.epoch}, set epoch: {times.epoch} of the field in spec.schema.fields, which applies to later records"
    )


def _governed(observed: ObservedTopic, findings: TopicFindings) -> dict[ConditionType, Verdict]:
    """Return the conditions about policies.

    MaintenanceHealthy exists only while a policy governs the topic, or should.
    """
    verdicts = {}
    resolved = policies_resolved(observed.maintenance)
    if resolved is not None:
        if isinstance(findings.topic, TopicState):
            proposal = observed.log_retention.proposal(observed.resource.topic_configs, findings.topic.configs)
            suffix = (
                f"; with mode Enforce, the RetentionPolicy would set {proposal} on the Kafka topic" if proposal else ""
            )
            resolved = replace(resolved, message=resolved.message + suffix)
        verdicts[ConditionType.POLICIES_RESOLVED] = resolved
    healthy = maintenance_healthy(observed.maintenance)
    if healthy is not None:
        verdicts[ConditionType.MAINTENANCE_HEALTHY] = healthy
    elif awaits_policy(observed.maintenance):
        before = as_before(observed, ConditionType.MAINTENANCE_HEALTHY)
        if before is not None:
            verdicts[ConditionType.MAINTENANCE_HEALTHY] = before
    return verdicts


def _ready(observed: ObservedTopic, parts: Mapping[ConditionType, Verdict], stalled: Verdict | None) -> Verdict:
    spec = parts[ConditionType.SPEC_VALID]
    if observed.deleting:
        return Verdict("False", Reason.DELETING, "the resource is being deleted")
    if spec.status == "False":
        return spec
    if observed.resource.spec.suspend:
        return Verdict("False", Reason.SUSPENDED, parts[ConditionType.INGESTION_READY].message)
    refusing = {kind: part for kind, part in parts.items() if part.status == "False"}
    if refusing:
        return _not_ready(refusing, stalled)
    for kind, part in parts.items():
        if part.status == "Unknown":
            return Verdict("Unknown", Reason.PENDING, f"{kind} is Unknown, {part.reason}: {part.message}")
    return Verdict("True", Reason.ALL_READY, "Kafka topic, table and ingestion are ready")


def _not_ready(refusing: Mapping[ConditionType, Verdict], stalled: Verdict | None) -> Verdict:
    """Return the first cause, after one that stalls the resource, with the other causes that need a change of the spec."""
    stalling = [kind for kind, part in refusing.items() if stalled is not None and part.message == stalled.message]
    first = (stalling or list(refusing))[0]
    part = refusing[first]
    message = part.message if stalling else f"{first} is False: {part.message}"
    for kind, other in refusing.items():
        if kind is not first and other.reason in _FOR_AUTHORS:
            message += f"; also, {kind} is False: {other.message}"
    return Verdict("False", part.reason, message)


def _stalled(
    observed: ObservedTopic, findings: TopicFindings, parts: Mapping[ConditionType, Verdict]
) -> Verdict | None:
    """Return why retries do not help and a user has to act, or None."""
    if observed.deleting:
        return None
    for kind in (ConditionType.SPEC_VALID, ConditionType.TOPIC_READY, ConditionType.TABLE_READY):
        part = parts[kind]
        if part.status == "False" and (kind is ConditionType.SPEC_VALID or part.reason in _FOR_AUTHORS):
            return Verdict("True", Reason.INVALID_SPEC, part.message)
    if observed.fleet.problem is not None and observed.fleet.stalled:
        return Verdict("True", Reason.FAST_FAILURES, steady(observed.fleet.message))
    if observed.resource.spec.suspend or findings.job is None:
        return None
    if observed.group.problem is not None:
        if observed.group.stalled:
            return Verdict("True", Reason.FAST_FAILURES, steady(observed.group.message))
        return None
    progress = observed.progress
    if progress is not None and progress.state == "BackingOff" and progress.failures >= FAST_FAILURES:
        return Verdict("True", Reason.FAST_FAILURES, parts[ConditionType.INGESTION_READY].message)
    return None


def _reconciling(
    observed: ObservedTopic, findings: TopicFindings, ready: Verdict, parts: Mapping[ConditionType, Verdict]
) -> Verdict | None:
    if observed.deleting or observed.resource.spec.suspend:
        return None
    if ready.status == "True":
        if observed.fleet.rolling and observed.fleet.degraded:
            return Verdict("True", Reason.ROLLING_OUT, steady(observed.fleet.degraded))
        progress = observed.progress
        if findings.job is not None and progress is not None and progress.generation != findings.job.job.generation:
            return Verdict("True", Reason.ROLLING_OUT, "the ingestion driver is switching to the new spec")
        return None
    ingestion = parts[ConditionType.INGESTION_READY]
    if ingestion.reason == Reason.BAD_RECORD_HALT and all(
        part.status == "True" for kind, part in parts.items() if kind is not ConditionType.INGESTION_READY
    ):
        return None
    if observed.fleet.rolling or observed.group.rolling:
        return Verdict("True", Reason.ROLLING_OUT, ready.message)
    return Verdict("True", Reason.WAITING_FOR_DEPENDENCY, ready.message)


def _pending(message: str) -> Verdict:
    return Verdict("Unknown", Reason.PENDING, message)


def as_before(observed: ObservedTopic, kind: ConditionType) -> Verdict | None:
    """Return the condition's earlier verdict, unless it was Unknown."""
    before = observed.entry.condition(kind)
    if before is None or before["status"] == "Unknown":
        return None
    return Verdict(before["status"], Reason(before["reason"]), before["message"])


def origin_before(entry: TopicEntry, kind: ConditionType) -> Reason | None:
    """Return ``Created`` or ``Adopted``, as the condition has it."""
    before = entry.condition(kind)
    return Reason(before["reason"]) if before and before["reason"] in ORIGINS else None


def _coarse(condition: Mapping[str, Any]) -> Manifest:
    copy = {key: value for key, value in condition.items() if key != "lastTransitionTime"}
    if copy["type"] == ConditionType.INGESTION_READY and copy["status"] == "True":
        copy["reason"] = str(Reason.RUNNING)
    if copy["type"] == ConditionType.RECORDS_ACCEPTED:
        del copy["message"]
    return copy


# The rest of the document. Values that are unknown now stay as they were.


def _topic(observed: ObservedTopic, findings: TopicFindings, previous: Mapping[str, Any]) -> Manifest:
    section: Manifest = {key: previous[key] for key in ("profile", "topicId", "partitions") if key in previous}
    if isinstance(findings.topic, TopicState):
        section["profile"] = observed.entry.profile
        section["topicId"] = findings.topic.topic_id
        section["partitions"] = findings.topic.partitions
    section["topicName"] = observed.resource.topic_name
    profile = observed.config.profiles.get(observed.entry.profile)
    if profile is not None:
        section["bootstrapServers"] = client_servers(observed.entry.profile, profile, observed.config.namespace)
    return section


def _table(observed: ObservedTopic, findings: TopicFindings, previous: Mapping[str, Any]) -> Manifest:
    section: Manifest = dict(previous.get("table") or {})
    target, progress = observed.target, observed.progress
    if not isinstance(target, TableTarget):
        return section
    if isinstance(findings.table, TableState):
        section |= {"identifier": target.identifier, "uuid": findings.table.uuid, "location": findings.table.location}
    elif findings.table_missing and progress is not None and progress.table_uuid is not None:
        section |= {"identifier": target.identifier, "uuid": progress.table_uuid}
        if progress.table_location is not None:
            section["location"] = progress.table_location
    if progress is not None and progress.dead_letter_table is not None:
        section["deadLetters"] = progress.dead_letter_table
    return section


def _quality(observed: ObservedTopic, previous: Mapping[str, Any]) -> list[Manifest]:
    """Return the rules of the spec with the driver's counts, or with the counts before if the driver does not report them."""
    before = {item["rule"]: item["failed"] for item in previous.get("quality") or []}
    counts = before if observed.progress is None else observed.progress.failed_rules
    return [{"rule": rule.name, "failed": counts.get(rule.name, 0)} for rule in observed.resource.quality_rules]


def _proposed(proposal: Proposal) -> list[Manifest]:
    return [
        {"change": text[:MOST_PROPOSED_TEXT], "approve": proposal.approve} for text in proposal.changes[:MOST_PROPOSED]
    ]


def _excluded(observed: ObservedTopic) -> Manifest:
    """Return why no run audits the topic, for ``status.audit``."""
    if observed.entry.parent is not None:
        return {
            "excluded": f"the audit of IcebergTopic {observed.entry.parent[1]} compares all tables of the Kafka topic"
        }
    schema = observed.schema
    found = unreadable_column(rows.schema_columns(schema)) if isinstance(schema, RecordSchema) else None
    if found is None:
        return {}
    column, kind = found
    namespace, name = observed.entry.name
    return {
        "excluded": f"column {column} has type {kind}, which Spark cannot read, so no run audits the topic; run firn audit {namespace}/{name}"
    }


def _ingestion(observed: ObservedTopic, findings: TopicFindings, previous: Mapping[str, Any]) -> Manifest:
    before = dict(previous.get("ingestion") or {})
    section: Manifest = {"group": findings.job.job.group if findings.job else observed.entry.group}
    for key in ("lastCommitTime", "deadLetters"):
        if key in before:
            section[key] = before[key]
    progress = observed.progress
    if progress is not None:
        if progress.last_commit is not None:
            section["lastCommitTime"] = timestamp(datetime.fromtimestamp(progress.last_commit, UTC))
        # A driver that has not checked the tables yet counts from 0.
        if progress.state in PREPARED or progress.dead_letters or "deadLetters" not in section:
            section["deadLetters"] = progress.dead_letters
    if observed.resource.filter:
        section["filtered"] = progress.filtered if progress is not None else before.get("filtered", 0)
    current = progress if observed.group.heard else None
    written = section.get("lastCommitTime") != before.get("lastCommitTime")
    lag = lags.section(current, before.get("lag") or {}, observed.now, written=written)
    if lag:
        section["lag"] = lag
    halted = observed.halted_at
    if halted is not None:
        section["haltedAt"] = {"partition": halted.partition, "offset": halted.offset}
    return section
