"""The status document of one TopicSet, computed whole from its plan. It is written only if it changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from firn.api.v1alpha1.topic_set import MOST_REFUSED
from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn.model.errors import InvalidSpecError
from firn_controllers.cache.topic_sets import SetEntry
from firn_controllers.conditions.render import Verdict, paused_over, rendered
from firn_controllers.conditions.stable_text import steady
from firn_controllers.ports import Manifest
from firn_controllers.topic_sets.listing import Listing
from firn_controllers.topic_sets.plan import SetPlan
from firn_controllers.topic_sets.template import Refusal

NAMED = 3
"""Most refused topics that a message names."""


@dataclass(frozen=True, slots=True)
class SetReport:
    """The facts from which the status of a set is computed."""

    entry: SetEntry
    listing: Listing
    plan: SetPlan | None
    """The plan after its changes were made; None without a valid spec or a list of topics."""
    problem: InvalidSpecError | None
    """Why the spec is refused."""
    now: datetime


def set_status(report: SetReport) -> Manifest:
    """Compute the whole status."""
    entry, plan = report.entry, report.plan
    status: Manifest = {
        "observedGeneration": entry.generation,
        "conditions": rendered(conditions(report), entry.status, entry.generation, report.now),
    }
    if cluster_id := _cluster_id(report):
        status["clusterId"] = cluster_id
    if plan is None:
        kept = ("matched", "made", "kept", "topicsRefused", "refused")
        return status | {key: entry.status[key] for key in kept if key in entry.status}
    status |= {"matched": plan.matched, "made": plan.made, "kept": plan.kept, "topicsRefused": len(plan.refused)}
    if plan.refused:
        status["refused"] = [
            {"topic": refusal.topic, "why": refusal.why, "message": refusal.message}
            for refusal in plan.refused[:MOST_REFUSED]
        ]
    return status


def _cluster_id(report: SetReport) -> str:
    """Return Kafka's id of the cluster that the set follows. A set that deletes nothing follows the brokers of its profile."""
    known, listed = report.entry.cluster_id, report.listing.cluster_id
    return known if known and (report.entry.deletes or not listed) else listed


def paused_status(entry: SetEntry, now: datetime) -> Manifest:
    """Compute the status while reconciliation is paused: unchanged, with the condition Paused."""
    message = f"reconciliation is paused while annotation {names.PAUSE} is true, and no IcebergTopic changes; remove the annotation to continue"
    return paused_over(entry.status, entry.generation, message, now)


def conditions(report: SetReport) -> dict[ConditionType, Verdict]:
    """Compute each condition. LimitReached, Reconciling and Stalled exist only while they are True."""
    if report.problem is not None:
        message = steady(str(report.problem))
        reasons = {str(reason): reason for reason in Reason}
        refused = Verdict("False", reasons.get(report.problem.reason, Reason.INVALID_SPEC), message)
        return {
            ConditionType.READY: refused,
            ConditionType.SPEC_VALID: refused,
            ConditionType.STALLED: Verdict("True", Reason.INVALID_SPEC, message),
        }
    verdicts = {
        ConditionType.SPEC_VALID: Verdict("True", Reason.VALID, "the spec is valid" + report.entry.remarks),
        ConditionType.TOPICS_LISTED: _listed(report),
    }
    plan = report.plan
    if plan is None:
        verdicts[ConditionType.READY] = verdicts[ConditionType.TOPICS_LISTED]
        return verdicts
    if plan.excess:
        verdicts[ConditionType.LIMIT_REACHED] = _over_limit(report, plan)
    return verdicts | _ready(report, plan, verdicts)


def _listed(report: SetReport) -> Verdict:
    problem, profile = report.listing.problem, report.entry.profile
    if problem is not None:
        denied = problem.reason == Reason.ACCESS_DENIED
        reason = Reason.ACCESS_DENIED if denied else Reason.BROKER_UNREACHABLE
        return Verdict("False", reason, steady(f"the topics of profile {profile} cannot be listed: {problem}"))
    if report.listing.topics is None:
        return Verdict("Unknown", Reason.PENDING, f"waiting for a list of the topics of profile {profile}")
    return Verdict("True", Reason.LISTED, f"the operator has listed the topics of profile {profile}")


def _over_limit(report: SetReport, plan: SetPlan) -> Verdict:
    assert report.entry.resource is not None
    limit = report.entry.resource.spec.limit
    return Verdict(
        "True",
        Reason.LIMIT_REACHED,
        f"{plan.matched} topics match, {plan.excess} of them beyond the limit of {limit}, and these get no IcebergTopics; raise spec.limit, or"
        " narrow spec.match",
    )


def _ready(report: SetReport, plan: SetPlan, verdicts: dict[ConditionType, Verdict]) -> dict[ConditionType, Verdict]:
    """Return Ready, with Reconciling or Stalled. A user has to act before the operator has finished its own part."""
    listed = verdicts[ConditionType.TOPICS_LISTED]
    if not plan.settled:
        work = f"{plan.made} of {plan.matched} topics have an IcebergTopic; waiting for {_work(plan)}"
        making = Verdict("False", Reason.MAKING_TOPICS, work)
        return {
            ConditionType.READY: making,
            ConditionType.RECONCILING: Verdict("True", Reason.MAKING_TOPICS, work),
        }
    if plan.other_cluster:
        other = _other_cluster(report, plan)
        return {
            ConditionType.READY: other,
            ConditionType.STALLED: Verdict("True", Reason.OTHER_CLUSTER, other.message),
        }
    if plan.lost:
        lost = _lost(report, plan)
        return {
            ConditionType.READY: lost,
            ConditionType.STALLED: Verdict("True", Reason.TOPIC_GONE, lost.message),
        }
    if plan.refused:
        message = _refused(plan.refused, plan)
        return {
            ConditionType.READY: Verdict("False", Reason.REFUSED_FOR_SOME, message),
            ConditionType.STALLED: Verdict("True", Reason.REFUSED_FOR_SOME, message),
        }
    if plan.excess:
        over = verdicts[ConditionType.LIMIT_REACHED]
        return {
            ConditionType.READY: Verdict("False", Reason.LIMIT_REACHED, over.message),
            ConditionType.STALLED: over,
        }
    if listed.status != "True":
        return {ConditionType.READY: listed}
    if not plan.matched:
        return {
            ConditionType.READY: Verdict(
                "True",
                Reason.ALL_READY,
                f"no topic of profile {report.entry.profile} matches; the operator looks for new topics",
            )
        }
    return {
        ConditionType.READY: Verdict(
            "True", Reason.ALL_READY, f"each of {plan.matched} matched topics has its IcebergTopic"
        )
    }


def _other_cluster(report: SetReport, plan: SetPlan) -> Verdict:
    return Verdict(
        "False",
        Reason.OTHER_CLUSTER,
        f"the brokers of profile {report.entry.profile} are those of Kafka cluster {plan.other_cluster}, and the set has the topics of cluster"
        f" {report.entry.cluster_id}, so the operator changes none of its {plan.made + plan.kept} IcebergTopics; correct the brokers of the profile,"
        " or set removal to Keep, after which the set follows the new cluster",
    )


def _lost(report: SetReport, plan: SetPlan) -> Verdict:
    return Verdict(
        "False",
        Reason.TOPIC_GONE,
        f"no topic of the set exists in profile {report.entry.profile}, so the operator deletes none of its {plan.lost} IcebergTopics: the brokers"
        " may be those of another cluster; check the brokers of the profile, or delete the IcebergTopics yourself",
    )


def _work(plan: SetPlan) -> str:
    parts = [
        f"{len(plan.create)} to be created" if plan.create else "",
        f"{len(plan.update)} to be updated" if plan.update else "",
        f"{len(plan.delete)} to be deleted" if plan.delete else "",
    ]
    return ", ".join(part for part in parts if part)


def _refused(refused: Sequence[Refusal], plan: SetPlan) -> str:
    named = [f"{refusal.topic} ({refusal.why}: {refusal.message})" for refusal in refused[:NAMED]]
    more = [f"and {len(refused) - NAMED} more"] if len(refused) > NAMED else []
    return steady(
        f"{plan.made} of {plan.matched} topics have an IcebergTopic; refused topics: {len(refused)}, of which status.refused has the first"
        f" twenty: {'; '.join([*named, *more])}"
    )
