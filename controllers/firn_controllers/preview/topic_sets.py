"""The effects of a manifest of a TopicSet, as far as its spec decides them. Only the operator lists topics."""

from typing import Any

from firn.api.v1alpha1 import TopicSet
from firn.model.config import Config
from firn.model.errors import InvalidSpecError
from firn_controllers.preview.effects import Effect, changed, created, refused
from firn_controllers.preview.fields import differences
from firn_controllers.topic_sets.checks import ready_set

_EFFECTS = {
    "spec.match": "the set makes IcebergTopics for the topics that match now",
    "spec.exclude": "the set makes IcebergTopics for the topics that match now",
    "spec.limit": "the set makes IcebergTopics up to this number",
    "spec.removal": "it decides about IcebergTopics whose topics no longer match, and about all of them when the set is deleted",
}


def preview(before: TopicSet | None, after: TopicSet, config: Config, *, configured: bool) -> tuple[Effect, ...]:
    """Return the effects of applying a set. ``configured``: the configuration is known."""
    try:
        ready_set(after, config, configured=configured)
    except InvalidSpecError as error:
        return (refused("spec", str(error), str(error.reason)),)
    if before is None:
        name = after.metadata.name
        text = f"TopicSet {name}, which makes an IcebergTopic for each matched topic, at most {after.spec.limit}"
        return (created("spec", text),)
    found = differences(_spec(before), _spec(after), "spec")
    return tuple(changed(each.path, _effect(each.path), *each.texts) for each in found)


def _effect(path: str) -> str:
    if path.startswith("spec.template.metadata.name"):
        return "new IcebergTopics get this name; the others keep theirs"
    if path.startswith("spec.template."):
        return "the operator applies the template to the IcebergTopics of the set"
    return _EFFECTS.get(path, "")


def _spec(topic_set: TopicSet) -> dict[str, Any]:
    return topic_set.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
