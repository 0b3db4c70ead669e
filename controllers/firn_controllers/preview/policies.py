"""The effects of a manifest of a CompactionPolicy or RetentionPolicy."""

from collections.abc import Iterable, Iterator
from typing import Any

from firn.api.v1alpha1 import RetentionPolicy
from firn_controllers.cache.policies import PolicyCache, PolicyEntry
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.preview.effects import Effect, EffectKind, changed, created, refused
from firn_controllers.preview.fields import differences

_MOST_NAMES = 5
"""Most topics that a text names."""


def preview(
    before: PolicyEntry | None, after: PolicyEntry, topics: Iterable[TopicEntry], live: PolicyCache, wanted: PolicyCache
) -> tuple[Effect, ...]:
    """Return the effects of applying a policy.

    ``topics`` are those of its namespace. ``live`` and ``wanted`` have the policies before and after.
    """
    if after.problem is not None:
        return (refused("spec", str(after.problem), str(after.problem.reason)),)
    name = f"{after.kind} {after.name[1]}"
    effects = []
    if before is None:
        effects.append(created("spec", f"{name}, which {_work(after)}"))
    elif before.resource is not None and after.resource is not None:
        effects += _fields(before, after)
    return (*effects, *_governed(after, topics, live, wanted))


def _fields(before: PolicyEntry, after: PolicyEntry) -> Iterator[Effect]:
    for difference in differences(_spec(before), _spec(after), "spec"):
        text = f"the policy {_work(after)}" if difference.path == "spec.mode" else ""
        yield changed(difference.path, text, *difference.texts)


def _work(policy: PolicyEntry) -> str:
    if not isinstance(policy.resource, RetentionPolicy):
        return "rewrites data files"
    return "deletes what it does not retain" if policy.resource.enforced else "deletes nothing in mode DryRun"


def _governed(
    policy: PolicyEntry, topics: Iterable[TopicEntry], live: PolicyCache, wanted: PolicyCache
) -> Iterator[Effect]:
    gained, lost = [], []
    for topic in sorted(topics, key=lambda topic: topic.name):
        old, new = (cache.resolve(policy.kind, topic) for cache in (live, wanted))
        governed = [each.policy is not None and each.policy.name == policy.name for each in (old, new)]
        if governed == [False, True]:
            gained.append(topic.name[1])
        elif governed == [True, False]:
            lost.append(topic.name[1])
    if gained:
        kind = EffectKind.REWRITTEN if policy.kind == "CompactionPolicy" else EffectKind.CHANGED
        yield Effect(kind, "spec.selector", f"the policy governs {_listed(gained)}, and {_work(policy)}")
    if lost:
        yield changed("spec.selector", f"the policy no longer governs {_listed(lost)}")


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {more} more topics" if more > 0 else shown


def _spec(policy: PolicyEntry) -> dict[str, Any]:
    assert policy.resource is not None
    return policy.resource.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
