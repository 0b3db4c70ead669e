"""Acts on the decisions about a credential: the steps before and after the changes of ACLs and quotas."""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from firn.api.v1alpha1.topic_user import SLOTS
from firn.model.errors import CommitConflictError, FirnError
from firn_controllers.cache.topic_users import UserEntry
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.ports import ClientSecret, Manifest, PrincipalState, UserPorts, UserRef
from firn_controllers.queue import Lane, Outcome
from firn_controllers.reconcilers.context import Context
from firn_controllers.topic_users import access, checks, credentials
from firn_controllers.topic_users.client_files import ClientConnection, Login, client_connection, secret_data
from firn_controllers.topic_users.credentials import Credentials, Facts
from firn_controllers.topic_users.status import UserFindings

SPREAD = 2.0
"""Seconds between the last change of a principal and the first client that may use it. Brokers learn of a change one after another."""
LONGEST_SPREAD = 30.0
"""Most seconds for which a credential waits for the end of changes, while topics come and go all the time."""
LONGEST_SECRET_AGE = 0.5
"""Share of the resync interval for which the metadata of a Secret are not read again."""
_REVISION_BYTES = 8

WriteStatus = Callable[[UserEntry, Manifest], Awaitable[UserEntry | None]]


@dataclass(frozen=True, slots=True)
class Pending:
    """A credential that Kafka has, and the Secret does not have yet. Only this process knows its password."""

    revision: str
    password: str = field(repr=False)
    made: float
    """Monotonic time at which Kafka got the credential."""
    changed: float
    """Monotonic time of the last change of ACLs or quotas since then."""


@dataclass(slots=True)
class UserMemory:
    """Knowledge of this process about a user. All of it can be lost."""

    uid: str
    pending: Pending | None = None
    secret: ClientSecret | None = None
    looked: float | None = None
    """Monotonic time at which the metadata of the Secret were read."""
    unused: float | None = None
    """Monotonic time of the first observation in a row that no client uses the previous credential."""


def held(entry: UserEntry) -> Credentials | None:
    """Return the credentials in the status; None for a user without a password."""
    assert entry.resource is not None
    authentication = entry.resource.spec.authentication
    if authentication.type != "ScramSha512":
        return None
    return credentials.read(entry.status, authentication.secret_name or checks.default_secret(entry.name[1]))


class Rotation:
    """Makes and publishes the credential of a user with a password, as far as one reconcile can."""

    def __init__(self, context: Context, ports: UserPorts, memory: UserMemory, write: WriteStatus) -> None:
        self._context = context
        self._ports = ports
        self._memory = memory
        self._write = write
        self._facts: Facts | None = None
        self._connection: ClientConnection | None = None

    async def begin(self, findings: UserFindings, states: Mapping[str, PrincipalState]) -> UserFindings:
        """Make the next credential in Kafka, if one is due. Nothing uses it yet."""
        entry, found = findings.entry, findings.credentials
        assert found is not None
        try:
            facts = await self._observe(entry, found, states, findings)
            now = credentials.settled(found, facts)
            findings = replace(findings, credentials=now)
            pending = self._memory.pending
            if now.next is None:
                self._memory.pending = None
            elif pending is not None and pending.revision == now.next_revision:
                return findings
            begun = credentials.begun(now, facts, secrets.token_hex(_REVISION_BYTES))
            return findings if begun is None else await self._make(replace(findings, credentials=begun), begun)
        except FirnError as error:
            if isinstance(error, CommitConflictError):
                raise
            return replace(findings, credential_problem=error)

    async def publish(self, findings: UserFindings, *, changed: bool) -> tuple[UserFindings, list[Announcement]]:
        """Write the Secret, if Kafka has had credential, ACLs and quotas of the next principal for long enough.

        ``changed``: this reconcile changed ACLs or quotas, so the time begins now.
        """
        found, pending, facts = findings.credentials, self._memory.pending, self._facts
        assert found is not None
        problems = (findings.credential_problem, findings.grant_problem, findings.quota_problem)
        if found.next is None or pending is None or facts is None or self._connection is None or any(problems):
            return findings, []
        if changed:
            pending = self._memory.pending = replace(pending, changed=self._context.ports.clock.monotonic())
        if self._remaining(pending) > 0:
            return findings, []
        entry, memory = findings.entry, self._memory
        login = Login(access.principal(entry, found.next), pending.password)
        known = memory.secret.uid if memory.secret is not None else None
        data = secret_data(self._connection, login)
        owner = UserRef(entry.name[1], entry.uid)
        memory.looked = None  # until the call has ended, its outcome is unknown
        try:
            write = self._ports.secrets.write
            uid = await write(entry.name[0], found.secret, owner, data, pending.revision, known)
        except FirnError as error:
            return replace(findings, credential_problem=error), []
        memory.secret, memory.looked = ClientSecret(uid, pending.revision), self._context.ports.clock.monotonic()
        memory.pending = None
        text = f"Secret {found.secret} has a new credential of principal User:{login.username}"
        return (
            replace(findings, credentials=credentials.published(found, facts, uid)),
            [Announcement("Normal", EventReason.CREDENTIAL_ISSUED, text)],
        )

    def wait(self, findings: UserFindings) -> Outcome:
        """Return when the user is reconciled again."""
        resync = self._context.resync()
        found, pending = findings.credentials, self._memory.pending
        if found is None or self._facts is None or resync.after is None:
            return resync
        if found.next is not None and pending is not None:
            return Outcome(after=max(0.0, self._remaining(pending)), lane=Lane.CHANGE)
        until = credentials.next_change(found, self._facts) or timedelta.max
        return replace(resync, after=min(resync.after, until.total_seconds()))

    def _remaining(self, pending: Pending) -> float:
        return min(pending.changed + SPREAD, pending.made + LONGEST_SPREAD) - self._context.ports.clock.monotonic()

    async def _observe(
        self, entry: UserEntry, found: Credentials, states: Mapping[str, PrincipalState], findings: UserFindings
    ) -> Facts:
        config = self._context.config
        assert entry.resource is not None
        authorities = await self._ports.authorities.certificates(entry.profile)
        self._connection = client_connection(config, entry.profile, checks.profile_users(entry, config), authorities)
        previous = found.previous
        facts = Facts(
            authentication=entry.resource.spec.authentication,
            request=entry.rotate,
            connection=self._connection.digest,
            secret=await self._look(entry, found),
            accepted=frozenset(slot for slot in SLOTS if states[access.principal(entry, slot)].credential),
            now=findings.now,
            last_used=states[access.principal(entry, previous)].last_used if previous is not None else None,
        )
        self._facts = replace(facts, confirmed=self._confirmed(found, facts))
        return self._facts

    def _confirmed(self, found: Credentials, facts: Facts) -> bool:
        """Return whether no client uses the previous credential now, and an earlier observation has shown the same."""
        memory, now = self._memory, self._context.ports.clock.monotonic()
        if credentials.idle_left(found, facts) != timedelta(0):
            memory.unused = None
            return False
        if memory.unused is None:
            memory.unused = now
        return now - memory.unused >= credentials.CONFIRMED_AFTER.total_seconds()

    async def _look(self, entry: UserEntry, found: Credentials) -> ClientSecret | None:
        """Return the metadata of the Secret, at most some minutes old. After a crash, they are read again."""
        memory, clock = self._memory, self._context.ports.clock
        age = clock.monotonic() - memory.looked if memory.looked is not None else None
        known = found.next is None or memory.pending is not None
        if age is None or not known or age > LONGEST_SECRET_AGE * self._context.resync_interval:
            owner = UserRef(entry.name[1], entry.uid)
            memory.secret = await self._ports.secrets.look(entry.name[0], found.secret, owner)
            memory.looked = clock.monotonic()
        return memory.secret

    async def _make(self, findings: UserFindings, begun: Credentials) -> UserFindings:
        """Write the intention into the status, then make the credential in Kafka."""
        entry = findings.entry
        assert entry.resource is not None
        assert begun.next is not None
        section = credentials.written(begun, entry.resource.spec.authentication)
        self._memory.pending = None
        principals = [f"User:{access.principal(entry, slot)}" for slot in begun.live()]
        intended = {**entry.status, "profile": entry.profile, "principals": principals, "credentials": section}
        live = await self._write(entry, intended)
        if live is None:
            raise CommitConflictError(f"TopicUser {entry.name[1]} was deleted")
        password, user = secrets.token_urlsafe(32), access.principal(entry, begun.next)
        findings = replace(findings, entry=live)
        try:
            await self._ports.access.put_credential(entry.profile, user, password)
        except FirnError as error:
            return replace(findings, credential_problem=error)
        made = self._context.ports.clock.monotonic()
        self._memory.pending = Pending(str(begun.next_revision), password, made, made)
        return findings
