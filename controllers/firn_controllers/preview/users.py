"""The effects of manifests of TopicUsers and TopicGrants, as far as their specs decide them."""

from typing import Any

from firn.model.config import Config
from firn_controllers.cache.topic_users import UserEntry
from firn_controllers.ports import Manifest
from firn_controllers.preview.effects import Effect, changed, created, refused
from firn_controllers.preview.fields import differences
from firn_controllers.topic_users import checks

_EFFECTS = {
    "spec.grants": "the operator changes the ACLs of the user",
    "spec.quotas": "the operator changes the quotas of the user",
    "spec.authentication.rotation": "the operator rotates the credential at these times",
}


def preview(before: UserEntry | None, after: UserEntry, config: Config, *, configured: bool) -> tuple[Effect, ...]:
    """Return the effects of applying a user. ``configured``: the configuration is known."""
    problem = checks.problem(after, config) if configured else checks.own_problem(after)
    if problem is not None:
        return (refused("spec", str(problem), str(problem.reason)),)
    if before is None:
        return (created("spec", f"TopicUser {after.name[1]}, with {_credential(after)}"),)
    found = differences(_spec(before), _spec(after), "spec")
    return tuple(changed(each.path, _effect(each.path), *each.texts) for each in found)


def preview_grant(before: Manifest | None, after: Manifest) -> tuple[Effect, ...]:
    """Return the effects of applying a TopicGrant."""
    if before is None:
        name = after["metadata"]["name"]
        return (created("spec", f"TopicGrant {name}, with which TopicUsers of other namespaces may use the topics"),)
    text = "the operator changes the ACLs of the users that it concerns"
    found = differences(before.get("spec") or {}, after.get("spec") or {}, "spec")
    return tuple(changed(each.path, text, *each.texts) for each in found)


def _credential(entry: UserEntry) -> str:
    assert entry.resource is not None
    authentication = entry.resource.spec.authentication
    if authentication.type != "ScramSha512":
        return "no credential, because the operator makes none for this type of authentication"
    return f"a credential in Secret {authentication.secret_name or checks.default_secret(entry.name[1])}"


def _effect(path: str) -> str:
    return next((text for prefix, text in _EFFECTS.items() if path.startswith(prefix)), "")


def _spec(entry: UserEntry) -> dict[str, Any]:
    if entry.resource is None:
        return {}
    return entry.resource.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
