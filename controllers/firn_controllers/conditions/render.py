"""Conditions as ``status`` lists them: in one order, with a transition time that moves only when ``status`` flips."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from firn.model.conditions import ConditionType, Reason
from firn_controllers.ports import Manifest

Status = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Status, reason and message of a condition."""

    status: Status
    reason: Reason
    message: str = ""


def rendered(
    verdicts: Mapping[ConditionType, Verdict], previous: Mapping[str, Any], generation: int, now: datetime
) -> list[Manifest]:
    """Return the list of conditions, in the order of `ConditionType`."""
    before = {item["type"]: item for item in previous.get("conditions") or []}
    conditions = []
    for kind in ConditionType:
        verdict = verdicts.get(kind)
        if verdict is None:
            continue
        old = before.get(kind)
        since = old["lastTransitionTime"] if old and old["status"] == verdict.status else timestamp(now)
        conditions.append(
            {
                "type": str(kind),
                "status": verdict.status,
                "reason": str(verdict.reason),
                "message": verdict.message,
                "lastTransitionTime": since,
                "observedGeneration": generation,
            }
        )
    return conditions


def paused_over(previous: Mapping[str, Any], generation: int, message: str, now: datetime) -> Manifest:
    """Return the previous status with the condition Paused added."""
    verdict = Verdict("True", Reason.PAUSED_BY_ANNOTATION, message)
    mine = rendered({ConditionType.PAUSED: verdict}, previous, generation, now)
    others = [item for item in previous.get("conditions") or [] if item["type"] != ConditionType.PAUSED]
    order = {str(kind): number for number, kind in enumerate(ConditionType)}
    merged = sorted([*others, *mine], key=lambda item: order.get(item["type"], len(order)))
    return {**previous, "conditions": merged}


def timestamp(moment: datetime) -> str:
    """Return a time as Kubernetes writes it: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
