"""The effects of a manifest of a DeadLetterReplay. It runs once, and its spec cannot change."""

from firn.api.v1alpha1.dead_letter_replay import DeadLetterReplaySpec
from firn.model.conditions import Reason
from firn_controllers.cache.replays import ReplayEntry
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.preview.effects import Effect, created, refused


def preview(
    before: ReplayEntry | None, after: ReplayEntry, topic: TopicEntry | None, *, configured: bool
) -> tuple[Effect, ...]:
    """Return the effects of applying a replay. ``topic`` None: the cluster has no such topic, or the user may not read it.

    ``configured``: the configuration is known. Without it, a name of ``maintenance.sizes`` may be valid.
    """
    problem = after.problem
    if problem is not None and (configured or problem.reason != Reason.NOT_ALLOWED):
        return (refused("spec", str(problem), str(problem.reason)),)
    assert after.resource is not None
    spec = after.resource.spec
    if before is None:
        return (created("spec", _created(after, spec, topic)),)
    if before.resource is not None and before.resource.spec != spec:
        # Without the right to a dry run, the user gets no answer of the API server about this rule.
        (rule,) = DeadLetterReplaySpec.rules
        return (refused("spec", rule.message, "Invalid"),)
    return ()


def _created(replay: ReplayEntry, spec: DeadLetterReplaySpec, topic: TopicEntry | None) -> str:
    place = f"{replay.name[0]}/{spec.topic_ref.name}"
    work = f"which decodes the dead letters of IcebergTopic {place}"
    result = "moves those that fit into its table" if spec.mode == "Enforce" else "commits nothing in mode DryRun"
    text = f"DeadLetterReplay {replay.name[1]}, {work} and {result}"
    return (
        text
        if topic is not None
        else f"{text}; this plan does not see IcebergTopic {place}, and the replay waits until it exists"
    )
