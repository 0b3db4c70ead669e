"""Port `Access` in memory. It passes tests/contract/test_access.py like the adapter."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from firn.model.errors import FirnError, InvalidSpecError
from firn_controllers.ports import AclRule, PrincipalState
from tests.fakes.faults import Faults, effect

QUOTAS = frozenset({"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"})
"""Kafka's keys of the quotas of a user."""
NEVER = datetime.fromtimestamp(0, UTC)
"""The last use of a credential without any."""
Principal = tuple[str, str]
"""Profile and user."""


class FakeAccess:
    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.passwords: dict[Principal, str] = {}
        self.acls: defaultdict[Principal, set[AclRule]] = defaultdict(set)
        self.denied: defaultdict[Principal, set[AclRule]] = defaultdict(set)
        """ACLs of administrators, which deny."""
        self.quotas: defaultdict[Principal, dict[str, float]] = defaultdict(dict)
        self.problem: dict[str, FirnError] = {}
        """Profile, or name of a method -> the error of every call."""
        self.tracks = False
        """True if the brokers describe last uses of credentials, as diskless brokers do."""
        self.used: dict[Principal, datetime] = {}
        """Last uses of credentials since they were put."""
        self.calls: Counter[str] = Counter()
        self.described: list[tuple[str, ...]] = []
        """Users of each call of describe."""

    async def describe(self, profile: str, users: Sequence[str]) -> Mapping[str, PrincipalState]:
        self._answer(profile, "describe")
        self.described.append(tuple(users))
        return {user: self._state((profile, user)) for user in users}

    async def describe_acls(self, profile: str, users: Sequence[str]) -> Mapping[str, frozenset[AclRule]]:
        self._answer(profile, "describe_acls")
        return {user: self._state((profile, user)).acls for user in users}

    @effect
    async def put_credential(self, profile: str, user: str, password: str) -> None:
        self._answer(profile, "put_credential")
        self.passwords[profile, user] = password
        self.used.pop((profile, user), None)
        self.faults.log.append(f"put credential {user}")

    @effect
    async def remove_credential(self, profile: str, user: str) -> None:
        self._answer(profile, "remove_credential")
        if self.passwords.pop((profile, user), None) is not None:
            self.faults.log.append(f"remove credential {user}")

    @effect
    async def change_acls(self, profile: str, user: str, add: frozenset[AclRule], remove: frozenset[AclRule]) -> None:
        self._answer(profile, "change_acls")
        live = self.acls[profile, user]
        if add - live or (remove & (live | add)):
            self.acls[profile, user] = (live | add) - remove
            self.faults.log.append(f"change ACLs {user}")

    @effect
    async def change_quotas(self, profile: str, user: str, quotas: Mapping[str, float | None]) -> None:
        self._answer(profile, "change_quotas")
        for key in quotas:
            if key not in QUOTAS:
                raise InvalidSpecError(f"user {user}: {key} is no quota")
        live = self.quotas[profile, user]
        wanted = {key: value for key, value in {**live, **quotas}.items() if value is not None}
        if wanted != live:
            self.quotas[profile, user] = wanted
            self.faults.log.append(f"change quotas {user}")

    # What tests see and do

    @property
    def states(self) -> dict[Principal, PrincipalState]:
        """Return the states of all principals that have any right, quota or password."""
        known = {principal: self._state(principal) for principal in {*self.passwords, *self.acls, *self.quotas}}
        return {principal: state for principal, state in known.items() if state != PrincipalState()}

    def put(self, profile: str, user: str, state: PrincipalState) -> None:
        """Give a principal this state, as an administrator does."""
        self.acls[profile, user] = set(state.acls)
        self.quotas[profile, user] = dict(state.quotas)
        if state.credential:
            self.passwords[profile, user] = "of an administrator"

    def forget(self) -> None:
        """Lose everything, as a cluster that was made again."""
        for each in (self.passwords, self.acls, self.quotas):
            each.clear()

    def accepts(self, profile: str, user: str, password: str) -> bool:
        """Return whether a client can log in."""
        return self.passwords.get((profile, user)) == password

    def _state(self, principal: Principal) -> PrincipalState:
        acls, quotas = self.acls.get(principal, set()), self.quotas.get(principal, {})
        known = principal in self.passwords
        used = self.used.get(principal, NEVER) if known and self.tracks else None
        return PrincipalState(frozenset(acls), dict(quotas), known, used)

    def _answer(self, profile: str, method: str) -> None:
        self.calls[method] += 1
        for key in (profile, method):
            if key in self.problem:
                raise self.problem[key]
