"""Removes rights of TopicUsers in Kafka: of deleted users all, of users that the operator does not follow those that are not granted."""

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError, NotReadyError
from firn_controllers.cache.topic_users import UserEntry
from firn_controllers.cache.topics import topic_claim
from firn_controllers.ports import UserPorts
from firn_controllers.reconcilers.context import Context
from firn_controllers.topic_users import access, checks
from firn_controllers.topic_users.access import PrincipalChange
from firn_controllers.topic_users.grants import Resolved, resolve


def rival(context: Context, entry: UserEntry) -> UserEntry | None:
    """Return the oldest other user with the same principal in the same brokers, if it is older."""
    return next((each for each in _sharing(context, entry) if each.age < entry.age), None)


async def limit(context: Context, entry: UserEntry) -> Resolved | None:
    """Remove the ACLs that the user may no longer have, while it is paused or refused. Add nothing, and keep credentials.

    Returns the present grants; None if nothing is known about them, or if the principal is not that of the user. Raises FirnError.
    """
    ports, profile = context.ports.users, entry.profile
    accepted = names.USER_FINALIZER in entry.finalizers or entry.status.get("profile") == profile
    # ACLs of a principal that the operator has never managed belong to administrators.
    if ports is None or entry.resource is None or not accepted or rival(context, entry) is not None:
        return None
    if profile not in context.config.profiles:
        return None
    granted = _granted(context, entry)
    states = await ports.access.describe(profile, access.principals(entry))
    for user, state in states.items():
        await apply_acls(ports, profile, PrincipalChange(user, remove=state.acls - granted.rules))
    return granted


async def revoke(context: Context, entry: UserEntry) -> None:
    """Remove the rights of a deleted user, then its credentials. Raises FirnError."""
    ports, profile = context.ports.users, entry.profile
    if any(_followed(context, each) for each in _sharing(context, entry)):
        return  # the operator keeps the ACLs of the principal equal to the grants of the other user
    if ports is None:
        raise NotReadyError("users are disabled in the operator's configuration; set users.enabled to true there")
    if profile not in context.config.profiles:
        raise NotReadyError(
            f"profile {profile} is no longer in the operator's configuration; add it again",
            reason=Reason.PROFILE_NOT_FOUND,
        )
    states = await ports.access.describe(profile, access.principals(entry))
    for change in access.plan(states, (), frozenset(), {}, access.with_password(entry)):
        await apply_acls(ports, profile, change)
        await apply_quotas(ports, profile, change)
        await apply_credential(ports, profile, change)


async def apply_acls(ports: UserPorts, profile: str, change: PrincipalChange) -> None:
    """Create and delete the ACLs of a principal."""
    if change.add or change.remove:
        await ports.access.change_acls(profile, change.user, change.add, change.remove)


async def apply_quotas(ports: UserPorts, profile: str, change: PrincipalChange) -> None:
    """Set and remove the quotas of a principal."""
    if change.quotas:
        await ports.access.change_quotas(profile, change.user, change.quotas)


async def apply_credential(ports: UserPorts, profile: str, change: PrincipalChange) -> None:
    """Remove the credential of a principal that is no longer live."""
    if change.remove_credential:
        await ports.access.remove_credential(profile, change.user)


def _granted(context: Context, entry: UserEntry) -> Resolved:
    """Return what the grants give the user: nothing if the configuration does not allow the user."""
    try:
        return resolve(entry, context.topics, context.users, context.grants, context.config)
    except InvalidSpecError:
        return Resolved(frozenset(), 0, ())


def _sharing(context: Context, entry: UserEntry) -> list[UserEntry]:
    """Return the other users with the same principal in the same brokers, the oldest first."""
    if entry.service_account is None:
        return []
    brokers = topic_claim(context.config, entry.profile, "")
    return [
        each
        for each in context.users.of_account(entry.service_account)
        if each.uid != entry.uid and topic_claim(context.config, each.profile, "") == brokers
    ]


def _followed(context: Context, entry: UserEntry) -> bool:
    """Return whether the operator adds and removes ACLs of the user."""
    if names.USER_FINALIZER not in entry.finalizers or entry.deleting or entry.paused:
        return False
    return checks.problem(entry, context.config, rival(context, entry)) is None
