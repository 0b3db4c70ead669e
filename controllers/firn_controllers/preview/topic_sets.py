"""The effects of a manifest of a TopicSet, as far as its spec decides them. Only the operator lists topics."""

import re
from collections.abc import Collection
from itertools import islice
from typing import Any

from firn.api.v1alpha1 import TopicSet
from firn.model.config import Config
from firn.model.errors import InvalidSpecError
from firn_controllers.preview.effects import Effect, changed, created, refused
from firn_controllers.preview.fields import differences
from firn_controllers.topic_sets.checks import ReadySet, ready_set
from firn_controllers.topic_sets.template import Refusal, Rendered

_EFFECTS = {
    "spec.match": "the set makes IcebergTopics for the topics that match now",
    "spec.exclude": "the set makes IcebergTopics for the topics that match now",
    "spec.limit": "the set makes IcebergTopics up to this number",
    "spec.removal": "it decides about IcebergTopics whose topics no longer match, and about all of them when the set is deleted",
}
_IMMUTABLE = re.compile(
    r"spec\.template\.spec\.(table\.(catalog|namespace|name|shared|metadataColumns)|routes(\.(by|otherwise|tables(\[[^\]]*\](\.match)?)?))?)"
)
"""Fields of a template that an IcebergTopic cannot change later."""
_EXAMPLES = 20
"""Most known topics with which the plan tries the template."""


def preview(
    before: TopicSet | None, after: TopicSet, config: Config, *, configured: bool, topics: Collection[str] = ()
) -> tuple[Effect, ...]:
    """Return the effects of applying a set. ``configured``: the configuration is known. ``topics``: known Kafka topics."""
    try:
        ready = ready_set(after, config, configured=configured)
    except InvalidSpecError as error:
        return (refused("spec", str(error), str(error.reason)),)
    refusal = _refusal(ready, topics)
    if refusal is not None:
        example = (
            f", for example for Kafka topic {refusal.topic}"
            if refusal.topic in topics
            else f'. The plan knows no Kafka topic that matches, and tried the template with the example name "{refusal.topic}"'
        )
        text = f"spec.template gives no valid IcebergTopic{example}: {refusal.message}"
        return (refused("spec.template", text, refusal.why),)
    if before is None:
        name = after.metadata.name
        text = f"TopicSet {name}, which makes an IcebergTopic for each matched topic, at most {after.spec.limit}"
        return (created("spec", text),)
    found = differences(_spec(before), _spec(after), "spec")
    return tuple(changed(each.path, _effect(each.path), *each.texts) for each in found)


def _refusal(ready: ReadySet, topics: Collection[str]) -> Refusal | None:
    """Return why the template gives no valid IcebergTopic, or None.

    Without a known topic that matches, the plan invents two values for the groups. An invented value may be wrong, so a refusal
    counts only if both values have the same cause.
    """
    matched = ((topic, values) for topic in sorted(topics) if (values := ready.values(topic)) is not None)
    examples = [ready.render_one(topic, values) for topic, values in islice(matched, _EXAMPLES)]
    if not examples:
        examples = [ready.render_one(text, dict.fromkeys(ready.pattern.groups, text)) for text in ("x", "y")]
        if len({_cause(each) for each in examples}) > 1:
            return None
    return examples[0].refusal if all(each.refusal is not None for each in examples) else None


def _cause(rendered: Rendered) -> str:
    """Return the cause of a refusal without the name of the IcebergTopic."""
    refusal = rendered.refusal
    if refusal is None or refusal.why == "InvalidName":
        return "" if refusal is None else refusal.why
    return refusal.message.replace(f"IcebergTopic {rendered.name}: ", "")


def _effect(path: str) -> str:
    if _IMMUTABLE.fullmatch(path):
        return "IcebergTopics cannot change this field: existing ones keep their value, and the set refuses their topics as InvalidSpec"
    if path.startswith("spec.template.metadata.name"):
        return "new IcebergTopics get this name; the others keep theirs"
    if path.startswith("spec.template."):
        return "the operator applies the template to the IcebergTopics of the set"
    return _EFFECTS.get(path, "")


def _spec(topic_set: TopicSet) -> dict[str, Any]:
    return topic_set.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
