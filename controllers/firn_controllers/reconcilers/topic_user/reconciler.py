"""The reconcile of one TopicUser: check -> resolve grants -> describe -> change -> rotate -> report, from the top each time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from firn.model import names
from firn.model.errors import FirnError, InvalidSpecError
from firn_controllers.cache.topic_users import UserEntry, user_entry
from firn_controllers.cache.topics import Name
from firn_controllers.conditions import announcements
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.ports import Manifest, PrincipalState, UserPorts
from firn_controllers.queue import Lane, Outcome
from firn_controllers.reconcilers.context import Context
from firn_controllers.reconcilers.topic_user import revocation
from firn_controllers.reconcilers.topic_user.rotation import Rotation, UserMemory, held
from firn_controllers.topic_users import access, checks
from firn_controllers.topic_users.access import PrincipalChange
from firn_controllers.topic_users.grants import resolve
from firn_controllers.topic_users.status import UserFindings, blocked_status, paused_status, user_status

KIND = "TopicUser"
LONGEST_BLOCKED_DELAY = 60.0
"""Most seconds between two attempts to remove the rights of a deleted user."""


class TopicUserReconciler:
    """Reconciles TopicUsers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._memory: dict[Name, UserMemory] = {}

    async def reconcile(self, name: Name) -> Outcome:
        """Bring the user in Kafka and its Secret closer to the spec, and update the status."""
        entry = self._context.users.get(name)
        if entry is None:
            self._memory.pop(name, None)
            return Outcome()
        if entry.deleting and not entry.paused:
            return await self._end(entry)
        ports = self._context.ports.users
        problem = checks.problem(entry, self._context.config, revocation.rival(self._context, entry))
        if problem is None and ports is None:
            problem = InvalidSpecError(
                "users are disabled in the operator's configuration; set users.enabled to true there"
            )
        if problem is not None or ports is None or entry.paused:
            return await self._hold(entry, problem)
        agreed = await self._agree_finalizers(entry)
        return await self._converge(agreed, ports) if agreed is not None else Outcome()

    async def _hold(self, entry: UserEntry, problem: InvalidSpecError | None) -> Outcome:
        """Remove rights that are no longer granted, and change nothing else, while the user is paused or refused."""
        granted, failure = None, None
        try:
            granted = await revocation.limit(self._context, entry)
        except FirnError as error:
            failure = error
        now = self._context.ports.clock.now()
        if entry.paused:
            status = paused_status(entry, now, failure)
        else:
            without = granted if granted is not None and not granted.rules else None
            findings = UserFindings(entry, now, problem=problem, resolved=without, grant_problem=failure)
            status = user_status(findings)
        await self._write(entry, status)
        if failure is not None:
            return Outcome(failed=True)
        return Outcome() if entry.paused else self._context.resync()

    async def _converge(self, entry: UserEntry, ports: UserPorts) -> Outcome:
        """Bring ACLs, quotas and credential of a user whose spec is valid closer to the spec."""
        context = self._context
        assert entry.resource is not None
        resolved = resolve(entry, context.topics, context.users, context.grants, context.config)
        findings = UserFindings(entry, context.ports.clock.now(), credentials=held(entry), resolved=resolved)
        try:
            states = await ports.access.describe(entry.profile, access.principals(entry))
        except FirnError as error:
            problem = error if findings.credentials is not None and findings.credentials.current is None else None
            findings = replace(findings, credential_problem=problem, grant_problem=error, quota_problem=error)
            await self._write(entry, user_status(findings))
            return Outcome(failed=True)
        rotation, done = Rotation(context, ports, self._recall(entry), self._write), list[Announcement]()
        if findings.credentials is not None:
            findings = await rotation.begin(findings, states)
        changes = _changes(findings, states)
        findings = await self._apply(findings, ports, changes)
        if findings.credentials is not None:
            findings, done = await rotation.publish(findings, changed=bool(changes))
        await self._write(findings.entry, user_status(findings), done)
        problems = (findings.credential_problem, findings.grant_problem, findings.quota_problem)
        return Outcome(failed=True) if any(problems) else rotation.wait(findings)

    async def _apply(
        self, findings: UserFindings, ports: UserPorts, changes: Sequence[PrincipalChange]
    ) -> UserFindings:
        """Change ACLs, quotas and surplus credentials of all principals, as far as the brokers allow it."""
        entry = findings.entry
        for change in changes:
            try:
                await revocation.apply_acls(ports, entry.profile, change)
            except FirnError as error:
                findings = replace(findings, grant_problem=error)
                continue  # a credential goes after the ACLs
            try:
                await revocation.apply_quotas(ports, entry.profile, change)
            except FirnError as error:
                findings = replace(findings, quota_problem=error)
            try:
                await revocation.apply_credential(ports, entry.profile, change)
            except FirnError as error:
                findings = replace(findings, credential_problem=error)
        return findings

    def _recall(self, entry: UserEntry) -> UserMemory:
        memory = self._memory.get(entry.name)
        if memory is None or memory.uid != entry.uid:
            memory = self._memory[entry.name] = UserMemory(entry.uid)
        return memory

    # Deletion

    async def _end(self, entry: UserEntry) -> Outcome:
        """Remove the rights of a deleted user, then its credentials, and let it go. Kubernetes deletes the Secret."""
        if names.USER_FINALIZER not in entry.finalizers:
            return Outcome()
        try:
            await revocation.revoke(self._context, entry)
        except FirnError as error:
            if not entry.forced:
                await self._write(entry, blocked_status(entry, error, self._context.ports.clock.now()))
                return Outcome(failed=True, longest=LONGEST_BLOCKED_DELAY)
            text = f"annotation {names.FORCE_DELETION} is true, so the operator leaves rights and credentials of the user in Kafka: {error}"
            await self._announce(entry, [Announcement("Warning", EventReason.DATA_LEFT_BEHIND, text)])
        await self._set_finalizers(entry, tuple(name for name in entry.finalizers if name != names.USER_FINALIZER))
        if entry.service_account is not None:
            for each in self._context.users.of_account(entry.service_account):
                self._context.wake_user(each.name, Lane.CHANGE)
        return Outcome()

    # Kubernetes

    async def _agree_finalizers(self, entry: UserEntry) -> UserEntry | None:
        """Set our finalizer. Returns None if the user was deleted."""
        if names.USER_FINALIZER in entry.finalizers:
            return entry
        return await self._set_finalizers(entry, (*entry.finalizers, names.USER_FINALIZER))

    async def _set_finalizers(self, entry: UserEntry, wanted: tuple[str, ...]) -> UserEntry | None:
        cluster = self._context.ports.cluster
        return self._put(entry, await cluster.set_finalizers(*entry.name, wanted, entry.resource_version, KIND))

    async def _write(self, entry: UserEntry, status: Manifest, done: Sequence[Announcement] = ()) -> UserEntry | None:
        """Write the status if it changed, and announce ``done`` and the transitions. Returns the user after the change."""
        if status == entry.status:
            await self._announce(entry, done)
            return entry
        live = await self._context.ports.cluster.patch_status(*entry.name, status, entry.resource_version, KIND)
        await self._announce(entry, [*done, *announcements.transitions(entry.status, status)])
        return self._put(entry, live)

    async def _announce(self, entry: UserEntry, done: Sequence[Announcement]) -> None:
        for item in done:
            await self._context.ports.cluster.event(
                *entry.name, entry.uid, KIND, item.type, str(item.reason), item.message
            )

    def _put(self, entry: UserEntry, live: Manifest | None) -> UserEntry | None:
        if live is None:
            self._context.users.remove(entry.name, entry.uid)
            return None
        new = user_entry(live)
        self._context.users.put(new)
        return new


def _changes(findings: UserFindings, states: Mapping[str, PrincipalState]) -> Sequence[PrincipalChange]:
    """Return the changes of all principals of a user."""
    entry, found = findings.entry, findings.credentials
    assert entry.resource is not None
    assert findings.resolved is not None
    slots = found.live() if found is not None else (None,)
    live = [access.principal(entry, slot) for slot in slots]
    quotas = access.quotas_of(entry.resource.spec.quotas, len(live))
    return access.plan(states, live, findings.resolved.rules, quotas, access.with_password(entry))
