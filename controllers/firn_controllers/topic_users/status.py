"""The status of a TopicUser: conditions, principals, credential, refused roles."""

from dataclasses import dataclass
from datetime import datetime

from firn.api.v1alpha1.topic_user import MOST_REFUSED
from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn.model.errors import AccessDeniedError, ConflictError, FirnError, InvalidSpecError
from firn_controllers.cache.topic_users import UserEntry
from firn_controllers.conditions.render import Verdict, paused_over, rendered, timestamp
from firn_controllers.conditions.stable_text import steady
from firn_controllers.ports import Manifest
from firn_controllers.topic_users import credentials as rotation
from firn_controllers.topic_users.access import principal
from firn_controllers.topic_users.credentials import Credentials
from firn_controllers.topic_users.grants import Resolved

NAMED = 3
"""Most refused roles that a message names."""


@dataclass(frozen=True, slots=True)
class UserFindings:
    """The facts from which the status of a user is computed."""

    entry: UserEntry
    now: datetime
    problem: InvalidSpecError | None = None
    """Why the spec is refused. The credential is not known then, and ``resolved`` only if it gives no rights."""
    credentials: Credentials | None = None
    """None for a user without a password."""
    resolved: Resolved | None = None
    credential_problem: FirnError | None = None
    grant_problem: FirnError | None = None
    quota_problem: FirnError | None = None


def user_status(findings: UserFindings) -> Manifest:
    """Compute the whole status."""
    entry = findings.entry
    status: Manifest = {
        "observedGeneration": entry.generation,
        "conditions": rendered(_conditions(findings), entry.status, entry.generation, findings.now),
    }
    if findings.problem is not None:
        kept = ["profile", "principals", "credentials"]
        if findings.resolved is None:
            kept += ["topics", "grantsRefused", "refused"]
        status |= {key: entry.status[key] for key in kept if key in entry.status}
        return status | _grants_shown(findings.resolved)
    assert entry.resource is not None
    status["profile"] = entry.profile
    held = findings.credentials
    slots = held.live() if held is not None else (None,)
    status["principals"] = [f"User:{principal(entry, slot)}" for slot in slots]
    if held is not None:
        status["credentials"] = rotation.written(held, entry.resource.spec.authentication)
    return status | _grants_shown(findings.resolved)


def _grants_shown(resolved: Resolved | None) -> Manifest:
    """Return the fields of the status about the grants."""
    if resolved is None:
        return {}
    shown: Manifest = {"topics": resolved.topics, "grantsRefused": len(resolved.refused)}
    if resolved.refused:
        shown["refused"] = [
            {"topic": each.topic, "role": each.role, "why": each.why, "message": each.message}
            for each in resolved.refused[:MOST_REFUSED]
        ]
    return shown


def paused_status(entry: UserEntry, now: datetime, failure: FirnError | None = None) -> Manifest:
    """Compute the status while reconciliation is paused: unchanged, with the condition Paused.

    ``failure``: why the operator could not remove rights that are no longer granted.
    """
    message = (
        f"reconciliation is paused while annotation {names.PAUSE} is true: the operator removes ACLs that are no longer granted, and changes"
        " nothing else; remove the annotation to continue"
    )
    if failure is not None:
        message += f"; the operator cannot change the ACLs of the user: {steady(str(failure))}"
    return paused_over(entry.status, entry.generation, message, now)


def blocked_status(entry: UserEntry, problem: FirnError, now: datetime) -> Manifest:
    """Compute the status of a user whose deletion waits."""
    namespace, name = entry.name
    command = f"kubectl -n {namespace} annotate --overwrite tuser {name} {names.FORCE_DELETION}=true"
    blocked = Verdict(
        "True",
        _reason(problem),
        f"the operator cannot remove the rights and credentials of the user: {steady(str(problem))}; to leave them in Kafka instead: {command}",
    )
    verdicts = {
        ConditionType.READY: Verdict("False", Reason.DELETING, "the user is being deleted"),
        ConditionType.DELETION_BLOCKED: blocked,
    }
    conditions = rendered(verdicts, entry.status, entry.generation, now)
    return {**entry.status, "observedGeneration": entry.generation, "conditions": conditions}


def _conditions(findings: UserFindings) -> dict[ConditionType, Verdict]:
    """Compute each condition. Reconciling and Stalled exist only while they are True."""
    if findings.problem is not None:
        message = steady(str(findings.problem))
        refused = Verdict("False", _reason(findings.problem), message)
        stopped = {
            ConditionType.READY: refused,
            ConditionType.SPEC_VALID: refused,
            ConditionType.STALLED: Verdict("True", Reason.INVALID_SPEC, message),
        }
        return (
            stopped if findings.grant_problem is None else stopped | {ConditionType.GRANTS_APPLIED: _grants(findings)}
        )
    verdicts = {
        ConditionType.SPEC_VALID: Verdict("True", Reason.VALID, "the spec is valid" + findings.entry.remarks),
        ConditionType.GRANTS_APPLIED: _grants(findings),
        ConditionType.QUOTAS_APPLIED: _quotas(findings),
    }
    if findings.credentials is not None:
        verdicts[ConditionType.CREDENTIALS_READY] = _credentials(findings, findings.credentials)
    return verdicts | _ready(findings, verdicts)


def _credentials(findings: UserFindings, held: Credentials) -> Verdict:
    problem = findings.credential_problem
    if problem is not None:
        return Verdict("False", _reason(problem), f"Secret {held.secret}: {steady(str(problem))}")
    if held.current is None:
        return Verdict(
            "False", Reason.PENDING, f"the operator makes the first credential of Secret {held.secret}; wait"
        )
    if held.next is not None:
        text = f"Secret {held.secret} has the password of principal {held.current}; a rotation has begun"
        return Verdict("True", Reason.ISSUED, text)
    if held.previous_until is not None:
        return Verdict(
            "True",
            Reason.ISSUED,
            f"Secret {held.secret} has the password of principal {held.current}; the previous credential works until"
            f" {timestamp(held.previous_until)} at the latest",
        )
    return Verdict("True", Reason.ISSUED, f"Secret {held.secret} has the password of principal {held.current}")


def _grants(findings: UserFindings) -> Verdict:
    problem, resolved = findings.grant_problem, findings.resolved
    if problem is not None:
        return Verdict(
            "False", _reason(problem), f"the operator cannot change the ACLs of the user: {steady(str(problem))}"
        )
    if resolved is None:
        return Verdict("Unknown", Reason.PENDING, "waiting for the ACLs of the user")
    if resolved.refused:
        named = [f"{each.role} on {each.topic} ({each.why}: {each.message})" for each in resolved.refused[:NAMED]]
        more = [f"and {len(resolved.refused) - NAMED} more"] if len(resolved.refused) > NAMED else []
        return Verdict(
            "False",
            Reason.REFUSED_FOR_SOME,
            steady(
                f"the user has roles on {resolved.topics} topics; refused roles: {len(resolved.refused)}, of which status.refused has the first"
                f" twenty: {'; '.join([*named, *more])}"
            ),
        )
    return Verdict("True", Reason.APPLIED, f"the user has roles on {resolved.topics} topics")


def _quotas(findings: UserFindings) -> Verdict:
    problem = findings.quota_problem
    if problem is not None:
        return Verdict(
            "False", _reason(problem), f"the operator cannot change the quotas of the user: {steady(str(problem))}"
        )
    return Verdict("True", Reason.APPLIED, "the brokers have the quotas of the spec")


def _ready(findings: UserFindings, verdicts: dict[ConditionType, Verdict]) -> dict[ConditionType, Verdict]:
    """Return Ready, with Reconciling while waiting may help, or Stalled if a user has to act."""
    order = (ConditionType.CREDENTIALS_READY, ConditionType.GRANTS_APPLIED, ConditionType.QUOTAS_APPLIED)
    stops = [verdicts[kind] for kind in order if kind in verdicts and verdicts[kind].status != "True"]
    if not stops:
        topics = findings.resolved.topics if findings.resolved is not None else 0
        message = f"the user has its grants on {topics} topics, its quotas and its credential"
        return {ConditionType.READY: Verdict("True", Reason.ALL_READY, message)}
    first = stops[0]
    result = {ConditionType.READY: Verdict("False", first.reason, first.message)}
    resolved = findings.resolved
    waits = first.reason not in (Reason.SECRET_NAME_TAKEN, Reason.INVALID_SPEC)
    if first.reason == Reason.REFUSED_FOR_SOME:
        waits = resolved is not None and resolved.waits
    if not waits:
        return result | {ConditionType.STALLED: Verdict("True", first.reason, first.message)}
    reason = first.reason if first.reason == Reason.REFUSED_FOR_SOME else Reason.WAITING_FOR_DEPENDENCY
    return result | {ConditionType.RECONCILING: Verdict("True", reason, first.message)}


def _reason(problem: FirnError) -> Reason:
    """Return the reason of a condition that reports an error."""
    match problem:
        case ConflictError():
            return Reason.SECRET_NAME_TAKEN
        case AccessDeniedError():
            return Reason.ACCESS_DENIED
        case InvalidSpecError():
            known = {str(reason): reason for reason in Reason}
            return known.get(str(problem.reason), Reason.INVALID_SPEC)
    return Reason.PROFILE_NOT_FOUND if problem.reason == Reason.PROFILE_NOT_FOUND else Reason.BROKER_UNREACHABLE
