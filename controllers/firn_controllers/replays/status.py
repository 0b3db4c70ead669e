"""The status document of one DeadLetterReplay, computed whole. It is written only if it changed."""

from collections.abc import Mapping
from datetime import datetime

from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn.model.errors import InvalidSpecError
from firn_controllers.cache.replays import ReplayEntry
from firn_controllers.conditions.render import Verdict, paused_over, rendered, timestamp
from firn_controllers.conditions.stable_text import steady
from firn_controllers.ports import Manifest
from firn_controllers.replays.decision import ReplayDecision


def replay_status(replay: ReplayEntry, decision: ReplayDecision, now: datetime) -> Manifest:
    """Compute the whole status."""
    status: Manifest = {
        "observedGeneration": replay.generation,
        "conditions": _rendered(replay, _verdicts(replay, decision), now),
    }
    if decision.run is not None:
        status |= {"run": decision.run.name, "startTime": timestamp(decision.run.job.created)}
    if decision.state in ("Succeeded", "Failed"):
        ended = decision.run.job.finished if decision.run is not None else None
        status["finishTime"] = timestamp(ended or now)
    if decision.report is not None:
        status |= decision.report.model_dump(include={"matched", "landed", "failed", "remaining"}, exclude_none=True)
        for key in ("codes", "failures"):
            counts: Mapping[str, int] = getattr(decision.report, key)
            if counts:
                status[key] = dict(sorted(counts.items()))
    return status


def invalid_status(replay: ReplayEntry, problem: InvalidSpecError, now: datetime) -> Manifest:
    """Compute the status of a replay whose spec cannot be followed. It has ended, unless another configuration can allow the spec."""
    reasons = {str(reason): reason for reason in Reason}
    reason, message = reasons.get(problem.reason, Reason.INVALID_SPEC), steady(str(problem))
    # The spec cannot change, so only the configuration can cure a problem.
    ended = reason is not Reason.NOT_ALLOWED
    verdicts = {
        ConditionType.READY: Verdict("False", reason, message),
        ConditionType.SPEC_VALID: Verdict("False", reason, message),
        ConditionType.FINISHED: Verdict("True" if ended else "False", Reason.INVALID_SPEC, message),
        ConditionType.STALLED: Verdict("True", Reason.INVALID_SPEC, message),
    }
    status: Manifest = {"observedGeneration": replay.generation, "conditions": _rendered(replay, verdicts, now)}
    return status | {"finishTime": timestamp(now)} if ended else status


def paused_status(replay: ReplayEntry, now: datetime) -> Manifest:
    """Compute the status while reconciliation is paused: unchanged, with the condition Paused."""
    message = f"reconciliation is paused while annotation {names.PAUSE} is true, and no run starts; remove the annotation to continue"
    return paused_over(replay.status, replay.generation, message, now)


def _rendered(replay: ReplayEntry, verdicts: Mapping[ConditionType, Verdict], now: datetime) -> list[Manifest]:
    return rendered(verdicts, replay.status, replay.generation, now)


def _verdicts(replay: ReplayEntry, decision: ReplayDecision) -> dict[ConditionType, Verdict]:
    """Compute each condition. Stalled exists only while it is True."""
    message = steady(decision.message)
    ended = decision.state in ("Succeeded", "Failed")
    verdicts = {
        ConditionType.READY: Verdict("True" if decision.state == "Succeeded" else "False", decision.reason, message),
        ConditionType.SPEC_VALID: Verdict("True", Reason.VALID, "the spec is valid" + replay.remarks),
        ConditionType.FINISHED: Verdict("True" if ended else "False", decision.reason, message),
    }
    if decision.state == "Failed" or decision.reason is Reason.TOPIC_NOT_FOUND:
        verdicts[ConditionType.STALLED] = Verdict("True", decision.reason, message)
    return verdicts
