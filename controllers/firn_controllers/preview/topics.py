"""The effects of a manifest of an IcebergTopic: refused, or created, changed, rewritten and restarted."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from firn.api.v1alpha1 import RetentionPolicy
from firn.api.v1alpha1.iceberg_topic import ConnectSinkSpec
from firn.model.conditions import Reason
from firn.model.jobs import RecordSchema, TableTarget
from firn.model.names import OWN_CONFIG, SCHEMA_CONTRACT
from firn.schemas.changes import Change
from firn.tables import rows
from firn_controllers.cache.policies import KINDS, Kind, Resolution
from firn_controllers.conditions.annotations import ON_TOPICS, ours, remarks
from firn_controllers.iceberg_topic import checks, plan
from firn_controllers.iceberg_topic.failure import Check
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.iceberg_topic.routes import manifests
from firn_controllers.policies.outcome import PolicyBinding
from firn_controllers.ports import TopicState
from firn_controllers.preview.columns import SCHEMA, column_effects, schema_effect
from firn_controllers.preview.effects import Effect, EffectKind, changed, created, refused
from firn_controllers.preview.fields import Difference, differences, shown
from firn_controllers.preview.ingestion import annotation_effect, field_effect, group_effect, table_name

_FIELD = re.compile(r"spec(\.[A-Za-z]+)+")
_STEPS = ("spec.partitions", "spec.config", "spec.ingestion.group")
"""Fields whose effects are steps of `plan.topic`, or the choice of the group."""
_REFERENCES = {"CompactionPolicy": "spec.compactionPolicyRef", "RetentionPolicy": "spec.retentionPolicyRef"}
_LONGEST_LIST = 12
"""Most columns that the text of a new table names."""


def preview(
    before: ObservedTopic | None, after: ObservedTopic, *, without: frozenset[Check] = frozenset()
) -> tuple[Effect, ...]:
    """Return the effects of applying ``after`` where the cluster has ``before``; None: no resource of this name.

    A refused spec has no other effect than its refusal. Checks in ``without`` are left out.
    """
    refusal = _refusal(before, after, without)
    if refusal is not None:
        return (refusal,)
    found = _differences(before, after)
    effects = list(_rest(before, after, found))
    if before is None or found:  # an equal spec starts no reconcile
        effects = [*_topic(before, after, found, known=not without), *_table(before, after, found), *effects]
    return (*effects, *_delays(before, after)) if effects else ()


def _refusal(before: ObservedTopic | None, after: ObservedTopic, without: frozenset[Check]) -> Effect | None:
    namespace = after.entry.name[0]
    if not after.config.watches(namespace):
        text = f"the operator does not watch namespace {namespace}; add it to watchNamespaces in the chart's values"
        return refused("metadata.namespace", text, "NotWatched")
    failure = checks.first_failure(after, without=without)
    if failure is not None:
        # A person who may list the IcebergTopics of other namespaces may read their names.
        message = failure.owner or failure.message
        field = _FIELD.match(message)
        runs = before is not None and before.job is not None and "ngestion continues" not in message
        kept = "; ingestion continues under the spec in force" if runs else ""
        return refused(field.group() if field else "spec", message + kept, str(failure.reason))
    live = after.entry.live_partitions
    decrease = plan.refused_decrease(after.resource.topic_name, live, after.resource.spec.partitions)
    return refused("spec.partitions", decrease, str(Reason.PARTITION_DECREASE_REFUSED)) if decrease else None


def _delays(before: ObservedTopic | None, after: ObservedTopic) -> Iterator[Effect]:
    """Yield the reason why the operator does not follow a change at once."""
    if before is None:
        return
    if before.deleting:
        yield changed(
            "metadata.deletionTimestamp", "the resource is being deleted, so the operator ignores this change"
        )
    elif before.paused and after.paused:
        yield changed(
            "metadata.annotations", "reconciliation is paused, so the operator follows after the end of the pause"
        )


# Kafka topic


def _topic(
    before: ObservedTopic | None, after: ObservedTopic, found: Sequence[Difference], *, known: bool
) -> Iterator[Effect]:
    """Yield the steps of the reconciler to the Kafka topic. ``known``: the configuration is that of the operator."""
    spec, name = after.resource.spec, after.resource.topic_name
    profile = after.config.profiles.get(after.entry.profile)
    default = profile.default_partitions if profile is not None else 1
    live = _live(before)
    configs = after.log_retention.over(after.topic_configs)
    owned = before.owned_config | frozenset(before.resource.topic_configs) if before is not None else frozenset()
    steps = plan.topic(live, spec.partitions, default, configs, owned | after.owned_config)
    for step in steps:
        match step:
            case plan.CreateTopic(partitions, _):
                count = f"{partitions} partitions" if known or spec.partitions else "the profile's number of partitions"
                text = f"Kafka topic {name} in profile {after.entry.profile} with {count}"
                if _connector(after) is not None:
                    yield changed("spec.topicName", _adopted_topic(after))
                    continue
                # The schema for the brokers is compressed, and says nothing to a reader.
                shown = {key: value for key, value in configs.items() if key != SCHEMA_CONTRACT}
                given = ", ".join(f"{key}={value}" for key, value in sorted(shown.items()))
                yield created("spec.topicName", f"{text} and {given}" if given else text)
            case plan.GrowTopic(partitions):
                text = f"Kafka topic {name} grows; keys of later records may go to other partitions"
                yield changed("spec.partitions", text, str(live.partitions if live else ""), str(partitions))
            case plan.AlterConfigs(put, remove):
                old = live.configs if live is not None else {}
                # The effect of spec.schema.gate describes the configs of the gate.
                for key, value in sorted((key, value) for key, value in put.items() if not key.startswith(OWN_CONFIG)):
                    yield _config(after, key, old.get(key, ""), value)
                for key in (key for key in remove if not key.startswith(OWN_CONFIG)):
                    yield _config(after, key, old.get(key, ""), "")
    done = {effect for step in steps for effect in _fields(step)}
    for difference in found:
        if difference.path.startswith(_STEPS[:2]) and difference.path not in done:
            yield changed(difference.path, f"no effect: Kafka topic {name} has this already", *difference.texts)


def _connector(observed: ObservedTopic) -> ConnectSinkSpec | None:
    adopt = observed.resource.spec.ingestion.adopt
    return adopt.connect if adopt is not None else None


def _adopted_topic(observed: ObservedTopic) -> str:
    """Return what happens to the Kafka topic of a connector."""
    text = f"Kafka topic {observed.resource.topic_name} of the connector is adopted, and its partitions stay"
    profile = observed.config.profiles.get(observed.entry.profile)
    if profile is None or profile.tenancy.adopt == "Any":
        return text
    return f"{text}. Profile {observed.entry.profile} may refuse this: in the operator's configuration, set its tenancy.adopt to Any"


def _fields(step: plan.TopicStep) -> Iterator[str]:
    match step:
        case plan.GrowTopic():
            yield "spec.partitions"
        case plan.CreateTopic(_, configs):
            yield from ("spec.partitions", *(f"spec.config.{key}" for key in configs))
        case plan.AlterConfigs(put, remove):
            yield from (f"spec.config.{key}" for key in (*put, *remove))


def _config(after: ObservedTopic, key: str, before: str, value: str) -> Effect:
    by_policy = key in after.log_retention.configs and key not in after.resource.topic_configs
    change = f"{key} {before} -> {value}" if before and value else f"{key} is set to {value}"
    if not value:
        change = f"{key} {before} is removed, and the brokers' default applies"
    text = f"Kafka topic {after.resource.topic_name}: {change}{', by the RetentionPolicy' if by_policy else ''}"
    return changed(f"spec.config.{key}", text, before, value)


def _live(before: ObservedTopic | None) -> TopicState | None:
    """Return the Kafka topic as the resource shows it; None before it exists. Other configs of the topic are not known."""
    if before is None or "topicId" not in before.entry.status:
        return None
    configs = before.log_retention.over(before.resource.topic_configs)
    status = before.entry.status
    return TopicState(before.resource.topic_name, status["topicId"], before.entry.live_partitions, configs)


# Table


def _table(before: ObservedTopic | None, after: ObservedTopic, found: Sequence[Difference]) -> Iterator[Effect]:
    table = table_name(after)
    if before is None or not before.entry.status.get("table"):
        if _connector(after) is not None:
            yield changed("spec.table", f"table {table} of the connector is adopted{_columns(after)}")
        else:
            yield created("spec.table", f"table {table}{_columns(after)}")
        yield from _differing_table(after, found)
        return
    old = before.job.job.record_schema if before.job is not None else before.schema
    if isinstance(old, RecordSchema) and isinstance(after.schema, RecordSchema):
        target = before.job.job.table if before.job is not None else before.target
        layout: tuple[Change, ...] = ()
        if isinstance(target, TableTarget) and isinstance(after.target, TableTarget):
            layout = checks.changes_of_layout(target, after.target)
        yield from column_effects(old, after.schema, table, layout)
    yield from _differing_table(after, found)


def _differing_table(after: ObservedTopic, found: Sequence[Difference]) -> Iterator[Effect]:
    for difference in found:
        if difference.path.startswith(SCHEMA):
            effect = schema_effect(difference)
            if effect is not None:
                yield effect
        elif difference.path.startswith("spec.table"):
            yield field_effect(difference, after)


def _columns(after: ObservedTopic) -> str:
    if not isinstance(after.schema, RecordSchema):
        return " with the columns of the latest schema in the registry, or of the Protobuf message"
    columns = [
        f"{column.name} {column.type}"
        for column in (*rows.schema_columns(after.schema), *rows.key_columns(after.schema.key))
    ]
    more = [f"{len(columns) - _LONGEST_LIST} more"] if len(columns) > _LONGEST_LIST else []
    by = after.resource.spec.table.partition_by
    layout = f", partitioned by {', '.join(by)}" if by else ""
    return f" with columns {', '.join([*columns[:_LONGEST_LIST], *more])}, and Kafka's{layout}"


# Ingestion, policies, deletion and annotations


def _rest(before: ObservedTopic | None, after: ObservedTopic, found: Sequence[Difference]) -> Iterator[Effect]:
    if before is None:
        yield from _new(after)
    elif before.entry.group != after.entry.group:
        yield group_effect(before.entry.group, after.entry.group)
    yield from _routes(before, after)
    known = {kind for kind in KINDS if kind in after.maintenance.bindings}
    shown_elsewhere = (*_STEPS, SCHEMA, "spec.table", "spec.routes", *(_REFERENCES[kind] for kind in known))
    for difference in found:
        if not difference.path.startswith(shown_elsewhere):
            yield field_effect(difference, after)
    for kind in KINDS:
        if kind in known:
            yield from _policy(kind, _resolution(before, kind), _resolution(after, kind), table_name(after))
    yield from _annotations(before, after)


def _routes(before: ObservedTopic | None, after: ObservedTopic) -> Iterator[Effect]:
    """Yield the effects on the IcebergTopics of the tables of ``spec.routes``."""
    routes = after.resource.spec.routes
    if routes is None:
        return
    earlier = {each["metadata"]["name"]: each["spec"] for each in manifests(before)} if before is not None else {}
    for table, wanted in zip(routes.tables, manifests(after), strict=False):
        name, field = wanted["metadata"]["name"], f"spec.routes.tables[{table.name}]"
        if name not in earlier:
            place = ".".join(wanted["spec"]["table"][part] for part in ("catalog", "namespace", "name"))
            text = f"IcebergTopic {name} with table {place}, for records whose {routes.by} matches {table.match}"
            yield created(field, text)
        elif earlier[name] != wanted["spec"]:
            paths = ", ".join(each.path for each in differences(earlier[name], wanted["spec"], "spec"))
            yield changed(field, f"IcebergTopic {name} follows: {paths}")


def _new(after: ObservedTopic) -> Iterator[Effect]:
    spec = after.resource.spec
    start = "" if spec.suspend else f", from {shown(_spec(after)['ingestion']['startFrom'])}"
    state = "suspended ingestion" if spec.suspend else "ingestion"
    connector = _connector(after)
    if connector is not None:
        start = f"; it continues where the connector with group {connector.group} ended, after it has stopped"
    text = f"{state} in group {after.entry.group} within {spec.ingestion.freshness}{start}"
    yield created("spec.ingestion", text)
    rules = _spec(after).get("quality")
    if rules is not None and rules.get("rules"):
        yield field_effect(Difference("spec.quality.rules", None, rules["rules"]), after)
    if rules is not None and "publish" in rules:
        yield field_effect(Difference("spec.quality.publish", None, rules["publish"]), after)
    for field, value in (("topic", spec.deletion_policy.topic), ("table", spec.deletion_policy.table)):
        if value == "Delete":
            yield field_effect(Difference(f"spec.deletionPolicy.{field}", None, value), after)


def _policy(kind: Kind, before: Resolution, after: Resolution, table: str) -> Iterator[Effect]:
    """Yield the effect that another policy of a kind governs the topic."""
    old, new = (each.policy.name[1] if each.policy is not None else "" for each in (before, after))
    field = _REFERENCES[kind] if "NamedByTopic" in (before.because, after.because) else "metadata.labels"
    if after.reason is not None and after.message != before.message:
        yield changed(field, f"no {kind} is followed: {after.message}", old, new)
    elif old != new and not new:
        yield changed(field, f"no {kind} governs table {table} any more", old)
    elif old != new and kind == "CompactionPolicy":
        text = f"CompactionPolicy {new} governs table {table}: its runs rewrite data files"
        yield Effect(EffectKind.REWRITTEN, field, text, old, new)
    elif old != new:
        policy = after.policy.resource if after.policy is not None else None
        enforced = isinstance(policy, RetentionPolicy) and policy.enforced
        text = "deletes what it does not retain" if enforced else "deletes nothing in mode DryRun"
        yield changed(field, f"RetentionPolicy {new} governs topic and table {table}, and {text}", old, new)


def _resolution(observed: ObservedTopic | None, kind: Kind) -> Resolution:
    bindings = observed.maintenance.bindings if observed is not None else {}
    return bindings.get(kind, PolicyBinding()).resolution


def _annotations(before: ObservedTopic | None, after: ObservedTopic) -> Iterator[Effect]:
    old, new = ours(before.annotations) if before is not None else {}, ours(after.annotations)
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            effect = annotation_effect(key, old.get(key, ""), new.get(key, ""))
            if effect is not None:
                yield effect
    notes = remarks(new, ON_TOPICS).removeprefix("; ")
    if notes and old != new:
        yield changed("metadata.annotations", notes)


def _differences(before: ObservedTopic | None, after: ObservedTopic) -> list[Difference]:
    return [] if before is None else list(differences(_spec(before), _spec(after), "spec"))


def _spec(observed: ObservedTopic) -> dict[str, Any]:
    return observed.resource.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
