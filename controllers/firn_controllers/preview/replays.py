"""The effects of a manifest of a DeadLetterReplay. It runs once, and its spec cannot change."""

from firn.api.v1alpha1.dead_letter_replay import DeadLetterReplaySpec
from firn.model.conditions import Reason
from firn_controllers.cache.replays import ReplayEntry
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.preview.effects import Effect, created, refused


def preview(
    before: ReplayEntry | None, after: ReplayEntry, topic: TopicEntry | None, *, configured: bool
) -> tuple[Effect, ...]:
    """Return the effects of applying a replay. ``topic`` None: the person sees no topic of this name.

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
        # Without the right to a dry run, the API server does not say this.
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
        else f"{text}; it waits while IcebergTopic {place}, which this plan does not see, does not exist"
    )
