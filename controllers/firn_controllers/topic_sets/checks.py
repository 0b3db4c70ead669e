"""Checks of a TopicSet: its expressions, its template, and what the configuration allows to its namespace."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from firn.api.v1alpha1.topic_set import TopicSet
from firn.model.conditions import Reason
from firn.model.config import Config, allows, matches
from firn.model.errors import InvalidSpecError
from firn_controllers.topic_sets.judge import Judge
from firn_controllers.topic_sets.pattern import TopicPattern
from firn_controllers.topic_sets.template import Rendered, TopicTemplate


@dataclass(frozen=True, slots=True)
class ReadySet:
    """A TopicSet whose spec is valid."""

    pattern: TopicPattern
    template: TopicTemplate
    judge: Judge
    allowed: tuple[str, ...]
    """Patterns of the names that the namespace may use; empty: all. Other topics do not match: a set must not show their names."""

    def values(self, topic: str) -> Mapping[str, str] | None:
        """Return the values of the groups, or None if the topic does not match."""
        if self.allowed and not matches(topic, list(self.allowed)):
            return None
        return self.pattern.values(topic)

    def render(self, topics: Iterable[str], known: Mapping[str, Rendered]) -> dict[str, Rendered]:
        """Return the IcebergTopic of each topic that matches. ``known`` has those of an earlier call."""
        found = {}
        for topic in topics:
            values = self.values(topic)
            if values is not None:
                found[topic] = known.get(topic) or self.render_one(topic, values)
        return found

    def render_one(self, topic: str, values: Mapping[str, str]) -> Rendered:
        """Return the IcebergTopic of a topic whose groups have these values, with the refusal of the checks."""
        return self.judge.judged(self.template.render(topic, values))


def ready_set(topic_set: TopicSet, config: Config, *, configured: bool = True) -> ReadySet:
    """Return a set whose spec is valid. Raises InvalidSpecError that names the field.

    ``configured``: check what the configuration allows, too.
    """
    namespace = topic_set.metadata.namespace
    if configured:
        _check_profile(topic_set.spec.profile, namespace, config)
    pattern = TopicPattern(topic_set.spec.match, topic_set.spec.exclude)
    template = TopicTemplate(topic_set, pattern.groups, config.default_catalog)
    profile = config.profiles.get(topic_set.spec.profile)
    allowed = profile.tenancy.topic_names if profile is not None else []
    judge = Judge(config, configured=configured)
    return ReadySet(pattern, template, judge, tuple(each.replace("{namespace}", namespace) for each in allowed))


def _check_profile(name: str, namespace: str, config: Config) -> None:
    profile = config.profiles.get(name)
    if profile is None:
        raise InvalidSpecError(
            f"spec.profile: {name} is not in the operator's configuration; add it to profiles there, or create this TopicSet again with"
            f" spec.profile: one of {', '.join(sorted(config.profiles))}",
            reason=Reason.PROFILE_NOT_FOUND,
        )
    if not allows(profile, namespace):
        raise InvalidSpecError(
            f"spec.profile: namespace {namespace} may not use profile {name}; add the namespace to profiles.{name}.namespaces in the"
            " operator's configuration, or create this TopicSet again with another spec.profile",
            reason=Reason.NOT_ALLOWED,
        )
    if profile.tenancy.adopt != "Any":
        raise InvalidSpecError(
            f"spec.profile: a TopicSet makes IcebergTopics for existing topics, and in profile {name} namespace {namespace} may not adopt"
            f" the topics of others; set profiles.{name}.tenancy.adopt to Any in the operator's configuration, and limit the profile with"
            " namespaces or tenancy.topicNames",
            reason=Reason.NOT_ALLOWED,
        )
