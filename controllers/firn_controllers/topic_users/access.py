"""The changes in Kafka that bring the principals of a TopicUser into agreement with its grants and quotas."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from firn.api.v1alpha1.topic_user import SLOTS, Quotas, Slot
from firn.model import names, quantities
from firn_controllers.cache.topic_users import UserEntry
from firn_controllers.ports import AclRule, PrincipalState

QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
"""Kafka's keys of the quotas that the operator manages."""


@dataclass(frozen=True, slots=True)
class PrincipalChange:
    """The changes of one principal."""

    user: str
    add: frozenset[AclRule] = frozenset()
    remove: frozenset[AclRule] = frozenset()
    quotas: Mapping[str, float | None] = field(default_factory=dict)
    remove_credential: bool = False


def principal(entry: UserEntry, slot: Slot | None) -> str:
    """Return the name of a principal. Only users with a password have slots."""
    user = entry.service_account or names.user(*entry.name)
    return f"{user}.{slot}" if slot is not None else user


def with_password(entry: UserEntry) -> tuple[str, ...]:
    """Return the principals of the user whose passwords the operator makes."""
    if entry.resource is not None and entry.resource.spec.authentication.type != "ScramSha512":
        return ()
    return tuple(principal(entry, slot) for slot in SLOTS)


def principals(entry: UserEntry) -> tuple[str, ...]:
    """Return the names of all principals that the user can have.

    Without a readable spec, they are those in the status, and those of a password.
    """
    if entry.resource is None:
        known = tuple(str(each).removeprefix("User:") for each in entry.status.get("principals") or ())
        return tuple(dict.fromkeys((*known, *with_password(entry))))
    return with_password(entry) or (principal(entry, None),)


def quotas_of(quotas: Quotas, live: int) -> dict[str, float | None]:
    """Return the quotas of each of ``live`` principals, which together have those of the user. None: no quota."""
    producer, consumer = quotas.producer_bytes_per_second, quotas.consumer_bytes_per_second
    whole: dict[str, float | None] = {
        "producer_byte_rate": float(quantities.size(producer)) if producer is not None else None,
        "consumer_byte_rate": float(quantities.size(consumer)) if consumer is not None else None,
        "request_percentage": float(quotas.request_percent) if quotas.request_percent is not None else None,
    }
    return {key: value / max(live, 1) if value is not None else None for key, value in whole.items()}


def plan(
    states: Mapping[str, PrincipalState],
    live: Collection[str],
    rules: frozenset[AclRule],
    quotas: Mapping[str, float | None],
    passwords: Collection[str],
) -> Sequence[PrincipalChange]:
    """Return the changes of all described principals. Those that are not ``live`` lose everything.

    The operator removes credentials only of the principals in ``passwords``. Those of others belong to administrators.
    """
    found = []
    for user, state in states.items():
        wanted = rules if user in live else frozenset()
        limits = quotas if user in live else dict.fromkeys(QUOTAS)
        change = PrincipalChange(
            user,
            add=wanted - state.acls,
            remove=state.acls - wanted,
            quotas={key: value for key, value in limits.items() if state.quotas.get(key) != value},
            remove_credential=state.credential and user not in live and user in passwords,
        )
        if change != PrincipalChange(user):
            found.append(change)
    return found
