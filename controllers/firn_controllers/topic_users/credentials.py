"""The rotation of a password, as steps that can stop anywhere and be repeated.

Kafka knows one password for each name. So a user has two principals, a and b, and its Secret has the password of one of them. A rotation
takes four steps:

1. The status names the principal that is next, and a new revision.
2. Kafka gets the credential, the ACLs and the quotas of this principal.
3. The Secret gets the password and, as an annotation, the revision.
4. The status names the principal as the current one.

Then an overlap begins, in which both credentials work. It ends at its deadline. If the brokers describe the last use of credentials, it
ends earlier, when no client has used the previous credential for some time.

The operator does not store the password, and cannot read the Secret. After a crash, the revision in the metadata of the Secret tells
whether step 3 was done. If it was, step 4 follows. Otherwise no client knows the password, so step 1 begins again with another revision.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from firn.api.v1alpha1.topic_user import SLOTS, Authentication, Slot
from firn.model import durations
from firn_controllers.conditions.render import timestamp
from firn_controllers.ports import ClientSecret, Manifest
from firn_controllers.topic_users.checks import DEFAULT_IDLE, DEFAULT_OVERLAP

VISIBLE_WITHIN = timedelta(minutes=1)
"""Time after a credential was made, within which brokers may not describe it yet."""
CONFIRMED_AFTER = timedelta(minutes=3)
"""Time between the two observations that no client uses a credential. After an outage of the coordinator, brokers store the last uses
again within a minute."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """``status.credentials``: what was done, and the step that was begun."""

    secret: str
    secret_uid: str | None = None
    current: Slot | None = None
    revision: str | None = None
    connection: str | None = None
    """Digest of the addresses, the protocol and the certificates in the Secret."""
    issued: datetime | None = None
    previous_until: datetime | None = None
    next: Slot | None = None
    next_revision: str | None = None
    request: str | None = None
    previous_last_used: datetime | None = None
    """Last use of the previous credential, to the minute; None if it was not used since the rotation."""

    def live(self) -> tuple[Slot, ...]:
        """Return the principals that may have rights."""
        return tuple(slot for slot in SLOTS if slot in (self.current, self.next, self.previous))

    @property
    def previous(self) -> Slot | None:
        """The principal of the credential before, while it works."""
        return other(self.current) if self.current is not None and self.previous_until is not None else None


def other(slot: Slot) -> Slot:
    """Return the other principal."""
    return "b" if slot == "a" else "a"


def read(status: Mapping[str, Any], secret: str) -> Credentials:
    """Return the credentials in a status."""
    section = status.get("credentials") or {}
    return Credentials(
        secret=secret,
        secret_uid=section.get("secretUid"),
        current=section.get("current"),
        revision=section.get("revision"),
        connection=section.get("connection"),
        issued=_time(section.get("issued")),
        previous_until=_time(section.get("previousUntil")),
        next=section.get("next"),
        next_revision=section.get("nextRevision"),
        request=section.get("request"),
        previous_last_used=_time(section.get("previousLastUsed")),
    )


def written(credentials: Credentials, authentication: Authentication) -> Manifest:
    """Return the section of the status."""
    issued, every = credentials.issued, _every(authentication)
    values: dict[str, Any] = {
        "secret": credentials.secret,
        "secretUid": credentials.secret_uid,
        "current": credentials.current,
        "revision": credentials.revision,
        "connection": credentials.connection,
        "issued": timestamp(issued) if issued else None,
        "expires": timestamp(issued + every) if issued and every else None,
        "previousUntil": timestamp(credentials.previous_until) if credentials.previous_until else None,
        "previousLastUsed": timestamp(credentials.previous_last_used) if credentials.previous_last_used else None,
        "next": credentials.next,
        "nextRevision": credentials.next_revision,
        "request": credentials.request,
    }
    return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a decision about the credential depends on, besides the status."""

    authentication: Authentication
    request: str
    """Value of the annotation that asks for a rotation."""
    connection: str
    """Digest of the connection that the Secret should have."""
    secret: ClientSecret | None
    """The metadata of the Secret; None if it does not exist."""
    accepted: frozenset[Slot]
    """The principals that have a credential in Kafka."""
    now: datetime
    last_used: datetime | None = None
    """Last use of the previous credential; None if the brokers do not describe it, or if there is no previous credential."""
    confirmed: bool = False
    """True if an observation some minutes ago has also shown that no client uses the previous credential."""


def settled(credentials: Credentials, facts: Facts) -> Credentials:
    """Return the credentials after changes that the status lacks: the operator wrote the Secret, or an overlap ended."""
    secret = facts.secret
    if credentials.next is not None and secret is not None and secret.revision == credentials.next_revision:
        return published(credentials, facts, secret.uid)
    if credentials.previous_until is None or credentials.issued is None:
        return credentials
    # A shorter overlap in the spec takes effect at once.
    until = min(credentials.previous_until, credentials.issued + overlap(facts.authentication))
    if facts.now >= until or (facts.confirmed and idle_left(credentials, facts) == timedelta(0)):
        return replace(credentials, previous_until=None, previous_last_used=None)
    used = facts.last_used
    since = used if used is not None and used > credentials.issued else credentials.previous_last_used
    return replace(credentials, previous_until=until, previous_last_used=since)


def idle_left(credentials: Credentials, facts: Facts) -> timedelta | None:
    """Return the time until the previous credential counts as no longer used; None if the brokers do not describe its use.

    A client that has not read the Secret again since the rotation has time to connect, so the time begins with the rotation.
    """
    if credentials.previous_until is None or credentials.issued is None or facts.last_used is None:
        return None
    since = max(credentials.issued, facts.last_used)
    return max(timedelta(0), since + idle(facts.authentication) - facts.now)


def idle(authentication: Authentication) -> timedelta:
    """Return the time without use after which the credential before ends."""
    return durations.parse(authentication.rotation.idle if authentication.rotation is not None else DEFAULT_IDLE)


def published(credentials: Credentials, facts: Facts, uid: str) -> Credentials:
    """Return the credentials after the Secret got the next revision."""
    until = facts.now + overlap(facts.authentication) if credentials.current is not None else None
    return replace(
        credentials,
        secret_uid=uid,
        current=credentials.next,
        revision=credentials.next_revision,
        connection=facts.connection,
        issued=facts.now,
        previous_until=until,
        previous_last_used=None,
        next=None,
        next_revision=None,
    )


def begun(credentials: Credentials, facts: Facts, revision: str) -> Credentials | None:
    """Return the credentials with a rotation that begins, or begins again; None if no rotation is due."""
    if credentials.next is not None:
        return replace(credentials, next_revision=revision)
    if not (_is_lost(credentials, facts) or (credentials.previous_until is None and _is_due(credentials, facts))):
        return None
    slot = other(credentials.current) if credentials.current is not None else SLOTS[0]
    request = facts.request or None
    return replace(
        credentials, next=slot, next_revision=revision, previous_until=None, previous_last_used=None, request=request
    )


def overlap(authentication: Authentication) -> timedelta:
    """Return the time for which the credential before works."""
    return durations.parse(authentication.rotation.overlap if authentication.rotation is not None else DEFAULT_OVERLAP)


def next_change(credentials: Credentials, facts: Facts) -> timedelta | None:
    """Return the time until the end of the overlap, or until the next rotation; None without either."""
    every = _every(facts.authentication)
    if credentials.previous_until is not None:
        end, left = max(timedelta(0), credentials.previous_until - facts.now), idle_left(credentials, facts)
        return end if left is None else min(end, max(left, CONFIRMED_AFTER))
    if credentials.issued is not None and every is not None:
        return max(timedelta(0), credentials.issued + every - facts.now)
    return None


def _is_lost(credentials: Credentials, facts: Facts) -> bool:
    """Return whether the Secret has no credential that works. Then a rotation does not wait for the end of an overlap."""
    if credentials.current is None or credentials.issued is None or facts.secret is None:
        return True
    if facts.secret.revision != credentials.revision:
        return True
    return credentials.current not in facts.accepted and facts.now - credentials.issued >= VISIBLE_WITHIN


def _is_due(credentials: Credentials, facts: Facts) -> bool:
    every = _every(facts.authentication)
    expired = every is not None and credentials.issued is not None and facts.now >= credentials.issued + every
    requested = bool(facts.request) and facts.request != credentials.request
    return expired or requested or credentials.connection != facts.connection


def _every(authentication: Authentication) -> timedelta | None:
    rotation = authentication.rotation
    return durations.parse(rotation.every) if rotation is not None and rotation.every is not None else None


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
