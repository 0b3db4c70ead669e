"""Plans the steps for one IcebergTopic from what was observed.

Pure: `firn_controllers.reconcilers.topic` makes the steps.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation

from firn.model import names
from firn.model.conditions import Reason
from firn.model.jobs import RESUME, IngestJob, RecordSchema, TableTarget
from firn_controllers import children
from firn_controllers.iceberg_topic.observed import (
    OWNED_CONFIG,
    POLICY_CONFIG,
    RESUME_HALT,
    SEEN_RESUME,
    TABLE_ORIGIN,
    TOPIC_ORIGIN,
    LiveJob,
    ObservedTopic,
)
from firn_controllers.iceberg_topic.reports.completeness import retention_bytes, retention_ms
from firn_controllers.iceberg_topic.routes import awaits_route, contract_route
from firn_controllers.ingestion_group.settings import catalog_connection
from firn_controllers.policies.snapshot_age import keep_snapshots_ms
from firn_controllers.ports import Manifest, TopicState

_SKIP_AT = re.compile(RESUME)


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create the Kafka topic."""

    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GrowTopic:
    """Add partitions. A topic with more partitions than the spec asks for stays as it is, and its status reports it."""

    partitions: int


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """Set configs that differ from the spec, and unset configs that the spec no longer has."""

    put: Mapping[str, str]
    remove: tuple[str, ...]


TopicStep = CreateTopic | GrowTopic | AlterConfigs


def topic(
    live: TopicState | None,
    partitions: int | None,
    default_partitions: int,
    configs: Mapping[str, str],
    owned: frozenset[str],
) -> tuple[TopicStep, ...]:
    """Return the steps that make the live topic match the spec.

    Configs that the spec neither has nor had (``owned``) are left alone.
    """
    if live is None:
        return (CreateTopic(partitions or default_partitions, configs),)
    steps: list[TopicStep] = []
    if partitions is not None and partitions > live.partitions:
        steps.append(GrowTopic(partitions))
    put = {key: value for key, value in configs.items() if not _same(live.configs.get(key), value)}
    remove = tuple(sorted(key for key in owned - configs.keys() if key in live.configs))
    if put or remove:
        steps.append(AlterConfigs(put, remove))
    return tuple(steps)


def refused_decrease(name: str, live: int, wanted: int | None) -> str:
    """Return why a Kafka topic with ``live`` partitions cannot have the ``wanted`` number; empty if it can."""
    if wanted is None or wanted >= live:
        return ""
    return (
        f"Kafka topic {name} has {live} partitions, and Kafka cannot reduce them to {wanted}; set spec.partitions to {live} or more, or"
        " remove it"
    )


def _same(live: str | None, wanted: str) -> bool:
    """Compare two values as Kafka parses them: lists without blanks, numbers and booleans in one form."""
    return live is not None and _canonical(live) == _canonical(wanted)


def _canonical(text: str) -> tuple[object, ...]:
    return tuple(_canonical_part(part.strip()) for part in text.split(","))


def _canonical_part(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        return Decimal(text)
    except InvalidOperation:
        return text


def after(steps: tuple[TopicStep, ...], live: TopicState) -> TopicState:
    """Return the topic after the steps. Brokers may describe its old state for a moment longer."""
    for step in steps:
        match step:
            case CreateTopic():
                pass
            case GrowTopic(partitions):
                live = replace(live, partitions=partitions)
            case AlterConfigs(put, remove):
                kept = {key: value for key, value in live.configs.items() if key not in remove}
                live = replace(live, configs=kept | dict(put))
    return live


def finalizers(observed: ObservedTopic) -> tuple[str, ...]:
    """Return the wanted finalizers. Ours is among them exactly if deleting the resource deletes data."""
    others = tuple(name for name in observed.resource.metadata.finalizers if name != names.FINALIZER)
    policy = observed.resource.spec.deletion_policy
    deletes = "Delete" in (policy.topic, policy.table)
    return (*others, names.FINALIZER) if deletes else others


def resume(observed: ObservedTopic) -> tuple[str | None, str | None]:
    """Return the contract's ``resume``, and the annotation that has been acted upon.

    An annotation acts once, when it changes, on the record at which the topic is halted at that time. It does nothing
    while the topic is not halted. To skip the next record, a user sets ``skip:PARTITION:OFFSET``, as the message of the
    condition says.
    """
    wanted = observed.annotations.get(names.RESUME)
    if wanted is None:
        return None, None
    if observed.job is not None and wanted == observed.job.seen_resume:
        return observed.job.job.resume, wanted
    if _SKIP_AT.fullmatch(wanted):
        return wanted, wanted
    halted = observed.halted_at
    if wanted == "skip" and halted is not None:
        return f"skip:{halted.partition}:{halted.offset}", wanted
    return None, wanted


def resume_halt(observed: ObservedTopic) -> str | None:
    """Return the record at which the topic was halted when the annotation got its value, as ``PARTITION:OFFSET``.

    None if there is no annotation, or the topic was not halted.
    """
    wanted, halted = observed.annotations.get(names.RESUME), observed.halted_at
    if wanted is None:
        return None
    if observed.job is not None and wanted == observed.job.seen_resume:
        return observed.job.resume_halt
    return f"{halted.partition}:{halted.offset}" if halted is not None else None


def contract(
    observed: ObservedTopic,
    topic_id: str | None,
    *,
    table_agreed: bool,
    topic_origin: str | None,
    table_origin: str | None,
    table_uuid: str | None = None,
    configs: Mapping[str, str] | None = None,
) -> LiveJob | None:
    """Return the job contract to put into force, or None if there can be none yet.

    The contract follows the spec only if topic and table do (``topic_id``, ``table_agreed``). Otherwise ingestion continues under the
    contract in force, but obeys suspend, resume and restart. ``configs`` of the topic include the brokers' defaults.
    """
    live, resource = observed.job, observed.resource
    marked, seen = resume(observed)
    restart = observed.annotations.get(names.RESTART) or (live.job.restart if live else None)
    schema, target = observed.schema, observed.target
    agreed = topic_id is not None and table_agreed and not awaits_route(observed)
    if not agreed or not isinstance(schema, RecordSchema) or not isinstance(target, TableTarget):
        return _unchanged(observed, live, marked, seen, restart) if live is not None else None
    if live is not None and seen == live.seen_resume and live.job.topic_id not in (None, topic_id):
        marked = None  # the annotation named a record of the earlier topic
    job = IngestJob(
        version=2 if target.shared else 1,
        uid=observed.entry.uid,
        namespace=observed.entry.name[0],
        name=observed.entry.name[1],
        generation=observed.entry.generation,
        group=observed.entry.group,
        profile=observed.entry.profile,
        topic=resource.topic_name,
        topic_id=topic_id,
        record_schema=schema,
        route=contract_route(observed),
        table=target,
        freshness_ms=resource.freshness_ms,
        retention_ms=retention_ms(configs or {}),
        retention_bytes=retention_bytes(configs or {}),
        start_from=resource.start_from,
        adopt=resource.adoption,
        on_bad_record=resource.spec.ingestion.on_bad_record,
        quality_rules=resource.quality_rules,
        publish=resource.publish,
        filter=resource.filter,
        suspended=resource.spec.suspend,
        resume=marked,
        keep_snapshots_ms=_keep_snapshots_ms(observed),
        restart=restart,
        first_table=(live.job.first_table if live else None) or _table_before(observed) or table_uuid,
        topic_created=topic_origin == Reason.CREATED,
    )
    job = job.model_copy(update={"version": job.needed_version})
    of_policy = observed.log_retention.owned(resource.topic_configs, live.policy_config if live else frozenset())
    return LiveJob(
        job, frozenset(resource.topic_configs), seen, topic_origin, table_origin, of_policy, resume_halt(observed)
    )


def _unchanged(
    observed: ObservedTopic, live: LiveJob, marked: str | None, seen: str | None, restart: str | None
) -> LiveJob:
    """Return the contract in force, with the fields that it follows in any case."""
    job = live.job.model_copy(update=_obeyed(observed, live.job) | {"resume": marked, "restart": restart})
    return replace(live, job=job, seen_resume=seen, resume_halt=resume_halt(observed))


def _obeyed(observed: ObservedTopic, job: IngestJob) -> dict[str, object]:
    """Return the fields of the spec that a contract follows although topic or table do not follow the spec."""
    fields: dict[str, object] = {"suspended": observed.resource.spec.suspend}
    publish = observed.resource.publish
    if job.publish is not None and publish is not None:
        fields["publish"] = job.publish.model_copy(update={"approved": publish.approved})
    if isinstance(observed.schema, RecordSchema) and job.record_schema.subject is not None:
        # The driver proposes changes too. Records may wait for an approval while the latest schema does.
        update = {"approved": observed.schema.evolution.approved}
        policy = job.record_schema.evolution.model_copy(update=update)
        fields["record_schema"] = job.record_schema.model_copy(update={"evolution": policy})
    return fields


def _table_before(observed: ObservedTopic) -> str | None:
    """Return the UUID of the table that the resource had at its last reconcile."""
    found = (observed.entry.status.get("table") or {}).get("uuid")
    return str(found) if found else None


def _keep_snapshots_ms(observed: ObservedTopic) -> int | None:
    """Return the time for which ingestion keeps snapshots; None if it removes none."""
    target = observed.target
    catalog = observed.config.catalogs.get(target.catalog) if isinstance(target, TableTarget) else None
    group = observed.config.groups.get(observed.entry.group)
    if catalog is None or group is None or catalog_connection(catalog).has_own_references:
        return None
    return keep_snapshots_ms(observed.table_maintenance or observed.maintenance, group.keep_snapshots)


def config_map(live: LiveJob, owner: children.Owner) -> Manifest:
    """Build the ConfigMap ``firn-job-<uid>`` that carries the contract."""
    job = live.job
    labels = {
        names.LABEL_JOB: job.uid,
        names.LABEL_GROUP: job.group,
        names.LABEL_TOPIC: job.name,
        names.LABEL_TOPIC_NAMESPACE: job.namespace,
    }
    marks = {
        OWNED_CONFIG: json.dumps(sorted(live.owned_config)),
        SEEN_RESUME: live.seen_resume,
        RESUME_HALT: live.resume_halt,
        TOPIC_ORIGIN: live.topic_origin,
        TABLE_ORIGIN: live.table_origin,
        POLICY_CONFIG: json.dumps(sorted(live.policy_config)) if live.policy_config else None,
    }
    annotations = {key: value for key, value in marks.items() if value is not None}
    # A driver of an earlier version cannot read null in every field that has no value.
    data = {"job.json": job.model_dump_json(exclude_none=True)}
    return children.child_object(
        "v1", "ConfigMap", names.job(job.uid), owner, labels, annotations=annotations, data=data
    )
