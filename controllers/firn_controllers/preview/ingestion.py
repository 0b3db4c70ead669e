"""Effects of fields that change ingestion, deletion and the layout of the table."""

import re
from collections.abc import Callable, Mapping

from firn.model import names
from firn.model.jobs import QualityRule
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.preview.effects import Effect, EffectKind, changed
from firn_controllers.preview.fields import Difference

_RULE = re.compile(r"spec\.quality\.rules\[([^\]]*)\]")
Words = Callable[[str, ObservedTopic], str]
"""Returns the effect of a new value, which is empty if it is not set."""


def table_name(observed: ObservedTopic) -> str:
    """Return the full name of the table."""
    return getattr(observed.target, "identifier", "?")


def _start(value: str, observed: ObservedTopic) -> str:
    return (
        "no effect, because ingestion has begun" if "table" in observed.entry.status else f"ingestion begins at {value}"
    )


def _adoption(value: str, observed: ObservedTopic) -> str:
    if value:
        return "ingestion continues a table with records of the topic that adopt names"
    if "table" in observed.entry.status:
        return "no effect on records that landed"
    return f"ingestion begins at spec.ingestion.startFrom; with Earliest, it waits if a connector wrote table {table_name(observed)}"


def connector_start(observed: ObservedTopic) -> str:
    """Return where ingestion begins if the topic names a connector."""
    return f"ingestion continues table {table_name(observed)} where the connector ended, after it has stopped"


def _bad_records(value: str, observed: ObservedTopic) -> str:
    return {
        "DeadLetter": f"later records that do not fit go to table {table_name(observed)}{names.DEAD_LETTER_SUFFIX}",
        "Halt": "ingestion stops at the next record that does not fit",
        "Skip": "later records that do not fit are counted and dropped, so that no table has them",
    }.get(value, "")


def _suspend(value: str, observed: ObservedTopic) -> str:
    topic = observed.resource.topic_name
    if value == "true":
        return f"ingestion stops; records wait in Kafka topic {topic}, whose retention may delete them"
    return f"ingestion continues with the records that wait in Kafka topic {topic}"


def _delete_topic(value: str, observed: ObservedTopic) -> str:
    topic = observed.resource.topic_name
    if value == "Delete":
        return f"deleting this resource will delete Kafka topic {topic} with its records"
    return f"deleting this resource will keep Kafka topic {topic}"


def _delete_table(value: str, observed: ObservedTopic) -> str:
    table = table_name(observed)
    if value == "Delete":
        return f"deleting this resource will delete the table {table}, its dead letters and their files"
    return f"deleting this resource will keep the table {table} and its dead letters"


def _partitioning(value: str, observed: ObservedTopic) -> str:
    table = table_name(observed)
    if not value:
        return f"the operator removes the partitioning of table {table} that this spec set; existing files keep theirs"
    return f"new files of table {table} get this partitioning; existing files keep theirs"


def _order(value: str, observed: ObservedTopic) -> str:
    table = table_name(observed)
    if not value:
        return f"the operator removes the sort order of table {table} that this spec set; existing files keep theirs"
    return f"new files of table {table} get this sort order; existing files keep theirs"


def _rule_effect(difference: Difference, after: ObservedTopic) -> Effect:
    """Return the effect of a changed quality rule."""
    found = _RULE.match(difference.path)
    name = found[1] if found is not None else ""
    rule = next((rule for rule in after.resource.quality_rules if rule.name == name), None)
    if rule is not None:
        text = f"later records {_failing(rule, after)}"
    elif name:
        text = f"later records need not satisfy rule {name}"
    elif after.resource.quality_rules:
        text = "; ".join(f"later records {_failing(rule, after)}" for rule in after.resource.quality_rules)
    else:
        text = "later records need not satisfy any rule"
    return changed(difference.path, text, *difference.texts)


def _publishing(observed: ObservedTopic) -> str:
    """Return how rows reach the readers of the table."""
    publish, table = observed.resource.publish, table_name(observed)
    if publish is None:
        return f"rows land on main of table {table}, which gets all rows of the branch at once"
    action = "are held there if a check fails" if publish.on_fail == "Hold" else "are published even if a check fails"
    return f"rows land on branch {publish.branch} of table {table}, and {action}"


def _failing(rule: QualityRule, observed: ObservedTopic) -> str:
    effect = {
        "DeadLetter": f"go to table {table_name(observed)}{names.DEAD_LETTER_SUFFIX}",
        "Halt": "stop ingestion",
        "Count": "are counted, and land",
    }[rule.on_fail]
    return f"that fail rule {rule.name} {effect}"


_WORDS: Mapping[str, Words] = {
    "spec.ingestion.freshness": lambda value, _: f"records reach the table within {value}",
    "spec.ingestion.startFrom": _start,
    "spec.ingestion.onBadRecord": _bad_records,
    "spec.ingestion.adopt": _adoption,
    "spec.ingestion.adopt.connect": lambda value, observed: (
        connector_start(observed) if value else _adoption("", observed)
    ),
    "spec.schema.filter": lambda value, _: f"later records land only if {value}" if value else "all later records land",
    "spec.suspend": _suspend,
    "spec.deletionPolicy.topic": _delete_topic,
    "spec.deletionPolicy.table": _delete_table,
    "spec.table.partitionBy": _partitioning,
    "spec.table.sortBy": _order,
    "spec.storage.history": lambda value, observed: (
        f"the brokers delete batches of the log that table {table_name(observed)} gives back"
        if value == names.SINGLE
        else "the log keeps a copy of later records"
    ),
    "spec.table.formatVersion": lambda value, observed: (
        f"table {table_name(observed)} gets format version {value}, which cannot be undone; every reader must support it"
    ),
}


def field_effect(difference: Difference, after: ObservedTopic) -> Effect:
    """Return the effect of a changed field of the spec. A field without known words shows its values only."""
    old, new = difference.texts
    path = difference.path
    if path.startswith("spec.quality.publish"):
        return changed(path, _publishing(after), old, new)
    if path.startswith("spec.quality"):
        return _rule_effect(difference, after)
    if path.startswith("spec.table.properties."):
        verb = f"gets property {path.removeprefix('spec.table.properties.')}" if new else "loses this property"
        return changed(path, f"table {table_name(after)} {verb}", old, new)
    for prefix in ("spec.ingestion.adopt.connect", "spec.ingestion.adopt"):
        if path.startswith(prefix):
            path = prefix
            break
    words = _WORDS.get(path)
    return changed(difference.path, words(new, after) if words is not None else "", old, new)


def group_effect(before: str, after: str) -> Effect:
    """Return the effect that another ingestion group serves the topic."""
    text = f"ingestion moves to group {after}: its driver starts on the topic, and no pod restarts"
    return Effect(EffectKind.RESTARTED, "spec.ingestion.group", text, before, after)


def annotation_effect(key: str, before: str, after: str) -> Effect | None:
    """Return the effect of a new value of an annotation on a topic; None if it has none now."""
    field = f"metadata.annotations[{key}]"
    match key, after:
        case names.PAUSE, "true":
            return changed(field, "the operator stops to reconcile the resource; ingestion continues", before, after)
        case names.PAUSE, _ if before == "true":
            return changed(field, "the operator reconciles the resource again", before, after)
        case (names.PAUSE, _) | (_, ""):
            return None
        case names.RESUME, _:
            text = "the driver stores the record at which the topic halted as a dead letter, and continues"
            return Effect(EffectKind.RESTARTED, field, text, before, after)
        case names.RESTART, _:
            return Effect(EffectKind.RESTARTED, field, "the driver loads the topic again", before, after)
        case names.RUN_NOW, _:
            text = "maintenance runs of the topic's policies start now"
            return Effect(EffectKind.REWRITTEN, field, text, before, after)
        case ((names.ACKNOWLEDGE_LOSS | names.ACKNOWLEDGE_AUDIT), _):
            return changed(field, "Complete no longer reports what this value names", before, after)
        case names.APPROVE, _:
            return changed(field, "the table gets the proposed changes that this value names", before, after)
        case names.PUBLISH, _:
            return changed(field, "main gets the rows up to the snapshot that this value names", before, after)
        case names.FORCE_DELETION, "true":
            return changed(field, "a deletion does not wait for brokers and catalog", before, after)
    return None
