"""Checks of a TopicUser: its spec, and what the configuration allows to its namespace."""

from collections.abc import Sequence
from datetime import timedelta
from fnmatch import fnmatchcase

from firn.api.v1alpha1.topic_user import Authentication
from firn.model import durations, names
from firn.model.conditions import Reason
from firn.model.config import Access, Config, ProfileUsers, access_of, allows
from firn.model.errors import InvalidSpecError
from firn_controllers.cache.topic_users import UserEntry

DEFAULT_OVERLAP = "1d"
DEFAULT_IDLE = "1h"
SHORTEST_IDLE = timedelta(minutes=5)
"""Brokers store the last use of a credential once a minute, so a shorter time could end one that clients use."""
WHOLE_SUBJECT = "DEFAULT"
"""The principal rule that makes the whole subject of a certificate the name of the client."""


def default_secret(name: str) -> str:
    """Return the name of the Secret of a user that names none."""
    return f"{name}-kafka"


def profile_users(entry: UserEntry, config: Config) -> ProfileUsers:
    """Return what the configuration says about the users of the profile. Raises InvalidSpecError if the user may not exist."""
    name, namespace = entry.profile, entry.name[0]
    profile = config.profiles.get(name)
    if profile is None:
        raise InvalidSpecError(
            f"spec.profile: {name} is not in the operator's configuration; add it to profiles there, or create this TopicUser again with"
            f" spec.profile: one of {', '.join(sorted(config.profiles))}",
            reason=Reason.PROFILE_NOT_FOUND,
        )
    users = profile.users
    if users is None:
        raise InvalidSpecError(
            f"spec.profile: profile {name} has no users; if its brokers are an existing Kafka with an authorizer, or the profile has access, set"
            f" profiles.{name}.users in the operator's configuration, or create this TopicUser again with another spec.profile",
            reason=Reason.NOT_ALLOWED,
        )
    if not (allows(profile, namespace) and allows(users, namespace)):
        raise InvalidSpecError(
            f"spec.profile: namespace {namespace} may not have users of profile {name}; add the namespace to profiles.{name}.users.namespaces and"
            f" to profiles.{name}.namespaces in the operator's configuration, or create this TopicUser again with another spec.profile",
            reason=Reason.NOT_ALLOWED,
        )
    access = access_of(profile)
    if access is not None:
        _check_login(entry, access)
    return users


def _check_login(entry: UserEntry, access: Access) -> None:
    """Raise InvalidSpecError if no client can log in to the brokers as the user."""
    kind = entry.resource.spec.authentication.type if entry.resource is not None else None
    place = f"profiles.{entry.profile}.access"
    if kind is not None and kind not in access.authentication:
        step = f"add {kind} to {place}.authentication"
        if kind == "Certificate":
            step = f"add Certificate to {place}.authentication, and set {place}.clientCa"
        raise InvalidSpecError(
            f"spec.authentication.type: the brokers of profile {entry.profile} do not accept {kind}; {step} in the operator's"
            f" configuration, or create this TopicUser again with one of {', '.join(access.authentication)}",
            reason=Reason.NOT_ALLOWED,
        )
    if kind == "Certificate" and set(access.principal_rules) <= {WHOLE_SUBJECT}:
        raise InvalidSpecError(
            f"spec.authentication.type: {place}.principalRules in the operator's configuration names a client by the whole subject of its"
            f" certificate, and the name of this user is {names.user(*entry.name)}; set principalRules to RULE:^CN=([^,]+).*$/$1/ there, or create"
            " this TopicUser again with another type",
            reason=Reason.NOT_ALLOWED,
        )


def problem(entry: UserEntry, config: Config, rival: UserEntry | None = None) -> InvalidSpecError | None:
    """Return why the operator does not follow the spec; None if it does. ``rival``: an older user with the same principal."""
    if entry.problem is None and not config.users.enabled:
        return InvalidSpecError(
            "users are disabled in the operator's configuration; set users.enabled to true there",
            reason=Reason.NOT_ALLOWED,
        )
    own = own_problem(entry)
    if own is not None:
        return own
    try:
        profile_users(entry, config)
    except InvalidSpecError as error:
        return error
    if rival is None:
        return None
    return InvalidSpecError(
        f"spec.authentication.serviceAccount: TopicUser {rival.name[1]}, which is older, has the same ServiceAccount in the same brokers; delete"
        " one of both",
        reason=Reason.RESOURCE_CONFLICT,
    )


def own_problem(entry: UserEntry) -> InvalidSpecError | None:
    """Return why the spec is not valid, whatever the configuration is."""
    if entry.problem is not None or entry.resource is None:
        return entry.problem or InvalidSpecError(f"TopicUser {entry.name[1]} cannot be read")
    return _rotation_problem(entry.resource.spec.authentication)


def _rotation_problem(authentication: Authentication) -> InvalidSpecError | None:
    rotation = authentication.rotation
    if rotation is not None and durations.parse(rotation.idle) < SHORTEST_IDLE:
        return InvalidSpecError(
            f"spec.authentication.rotation.idle: {rotation.idle} is shorter than 5m, and brokers report uses once a minute; raise idle to 5m or more"
        )
    if rotation is None or rotation.every is None:
        return None
    if durations.parse(rotation.overlap) < durations.parse(rotation.every):
        return None
    return InvalidSpecError(
        f"spec.authentication.rotation: overlap {rotation.overlap} is not shorter than every {rotation.every}; shorten overlap, or raise every"
    )


def pattern_allowed(pattern: str, namespace: str, patterns: Sequence[str]) -> bool:
    """Return whether TopicUsers of the namespace may use the group or transactional id, or each with the prefix of a pattern that ends with ``*``."""
    allowed = [each.replace("{namespace}", namespace) for each in patterns]
    # A character that no name has stands for the rest of the name, so that only a pattern's own * can match it.
    sample = pattern[:-1] + "\0" if pattern.endswith("*") else pattern
    return any(fnmatchcase(sample, each) and (not pattern.endswith("*") or each.endswith("*")) for each in allowed)
