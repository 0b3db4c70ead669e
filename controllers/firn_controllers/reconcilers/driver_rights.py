"""The rights of drivers and maintenance runs in Kafka: each of their users may use exactly the topics of its job contracts.

A driver gets the rights for a contract before the contract, and loses them after it has released the topic.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from firn.model import durations, names
from firn.model.config import Config
from firn.model.errors import FirnError
from firn.model.jobs import IngestJob
from firn_controllers.board import Board
from firn_controllers.cache.contracts import is_of_contract, rules_of
from firn_controllers.cache.topics import TopicCache
from firn_controllers.fleet.access import is_secured
from firn_controllers.ports import AclRule, Ports

log = logging.getLogger(__name__)

PAUSE = 5.0
"""Seconds after a failed change in which other contracts get the same error, instead of a timeout each."""
Rules = dict[str, frozenset[AclRule]]
"""Rights by principal, without ``User:``."""


@dataclass(slots=True)
class _Profile:
    """The rights in the brokers of one profile, as this process knows them."""

    known: dict[str, set[AclRule]] = field(default_factory=lambda: defaultdict(set))
    waiting: dict[str, Rules] = field(default_factory=dict)
    """Uid of a topic -> the rights that its next contract needs."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    read: float | None = None
    """Monotonic time of the last complete comparison; None if there was none."""
    failure: tuple[float, FirnError] | None = None

    def has(self, rules: Rules) -> bool:
        """Return whether all rights are there."""
        return all(found <= self.known[user] for user, found in rules.items())


class DriverRights:
    """Creates and deletes the ACLs of drivers and runs in brokers with ``access``, and in an existing Kafka with ``manageAcls``."""

    def __init__(self, config: Config, ports: Ports, board: Board, topics: TopicCache) -> None:
        self._config = config
        self._ports = ports
        self._board = board
        self._topics = topics
        self._profiles = {name: _Profile() for name in config.profiles_with_acls} if ports.rights is not None else {}
        self._interval = durations.milliseconds(config.resync) / 1000

    async def grant(self, job: IngestJob) -> None:
        """Give driver and runs the rights for a job contract. Contracts that wait at the same time share a request. Raises FirnError.

        After it, call `settle`."""
        profile = self._profiles.get(job.profile)
        if profile is None or job.group not in self._config.groups or not await self._serves(job.profile):
            return
        wanted = self._of_principals(job.profile, {job.group: rules_of(job)})
        profile.waiting[job.uid] = wanted
        try:
            async with profile.lock:
                if not profile.has(wanted):
                    await self._add(job.profile, profile)
        except BaseException:
            self.settle(job)
            raise

    def settle(self, job: IngestJob) -> None:
        """Note that the contract is in force, or was not written. Until then, a comparison keeps its rights."""
        profile = self._profiles.get(job.profile)
        if profile is not None:
            profile.waiting.pop(job.uid, None)

    async def sync(self, names_: Iterable[str]) -> None:
        """Compare the ACLs of drivers and runs in these profiles with the job contracts, if that is due. Failures are logged."""
        now = self._ports.clock.monotonic()
        for name in names_:
            profile = self._profiles.get(name)
            if profile is None or (profile.read is not None and now - profile.read < self._interval):
                continue
            if not await self._serves(name) or not self._complete(name):
                continue
            try:
                async with profile.lock:
                    await self._compare(name, profile)
            except FirnError as error:
                log.warning("profile %s: the rights of ingestion drivers cannot be compared: %s", name, error)

    def released(self, group: str, uids: Iterable[str]) -> None:
        """Note that the driver of ``group`` no longer follows the earlier contracts of these topics. Their rights end with the next `sync`."""
        for uid in uids:
            self._board.contracts.leave(uid, group)
        for profile in self._profiles.values():
            profile.read = None

    def users(self, group: str) -> dict[str, str]:
        """Return the user of a group's driver in each profile whose ACLs the operator manages."""
        found = {name: self._config.driver_user(name, group) for name in self._profiles}
        return {name: user for name, user in found.items() if user is not None}

    async def revoke(self, users: Mapping[str, str]) -> bool:
        """Delete the ACLs that the operator created for the driver of a former group. ``users``: its user in each profile. Raises FirnError.

        Users that present drivers or runs have stay. Return whether brokers are not ready for it, so that it has to be called again.
        Brokers that fail delay no others.
        """
        waits, failures = False, list[FirnError]()
        for name, user in users.items():
            profile = self._profiles.get(name)
            if profile is None or user in self._present(name):
                continue
            if not await self._serves(name):
                waits = True
                continue
            try:
                async with profile.lock:
                    await self._delete(name, user)
            except FirnError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return waits

    async def _delete(self, name: str, user: str) -> None:
        """Delete the ACLs for contracts of a user."""
        access = self._ports.rights
        assert access is not None
        live = (await access.describe_acls(name, [user]))[user]
        own = name in self._config.closed_profiles
        unwanted = frozenset(rule for rule in live if is_of_contract(rule, names_files=own))
        if unwanted:
            await access.change_acls(name, user, frozenset(), unwanted)
            log.info("profile %s: removed the ACLs of %s, the user of a former ingestion group", name, user)

    def _present(self, profile: str) -> set[str | None]:
        """Return the users of the configured drivers and runs."""
        return {self._config.driver_user(profile, group) for group in (None, *self._config.groups)}

    async def _add(self, name: str, profile: _Profile) -> None:
        """Create the missing ACLs of all contracts that wait."""
        now = self._ports.clock.monotonic()
        if profile.failure is not None and now - profile.failure[0] < PAUSE:
            raise profile.failure[1]
        missing: defaultdict[str, set[AclRule]] = defaultdict(set)
        for rules in profile.waiting.values():
            for user, found in rules.items():
                missing[user] |= found - profile.known[user]
        assert self._ports.rights is not None
        try:
            for user, added in missing.items():
                if added:
                    await self._ports.rights.change_acls(name, user, frozenset(added), frozenset())
                    profile.known[user] |= added
        except FirnError as error:
            profile.failure = (self._ports.clock.monotonic(), error)
            raise

    async def _compare(self, name: str, profile: _Profile) -> None:
        access = self._ports.rights
        assert access is not None
        groups = dict.fromkeys(self._config.groups, frozenset[AclRule]())
        of_contracts = {group: rules for group, rules in self._board.contracts.rules(name).items() if group in groups}
        wanted = self._of_principals(name, {**groups, **of_contracts})
        for rules in profile.waiting.values():
            wanted = {user: found | rules.get(user, frozenset()) for user, found in wanted.items()}
        live = await access.describe_acls(name, sorted(wanted))
        for user, found in wanted.items():
            added, removed = found - live[user], self._removable(name, live[user] - found)
            if added or removed:
                await access.change_acls(name, user, added, removed)
            profile.known[user] = set(found)
        profile.read = self._ports.clock.monotonic()

    def _removable(self, profile: str, rules: frozenset[AclRule]) -> frozenset[AclRule]:
        """Return those of the rules of a user that the operator may delete. Users of an existing Kafka may have others of an administrator."""
        return rules if profile in self._config.closed_profiles else frozenset(filter(is_of_contract, rules))

    def _of_principals(self, profile: str, groups: Mapping[str, frozenset[AclRule]]) -> Rules:
        """Return the rights of each principal: those of the drivers, and those of maintenance runs, which read the same topics for audits."""
        found: defaultdict[str, frozenset[AclRule]] = defaultdict(frozenset)
        runs = self._config.driver_user(profile, None)
        assert runs is not None
        for group, rules in groups.items():
            driver = self._config.driver_user(profile, group)
            if driver is not None:
                found[driver] |= rules
                found[runs] |= frozenset(rule for rule in rules if (rule.resource, rule.operation) == ("Topic", "Read"))
        return dict(found)

    def _complete(self, profile: str) -> bool:
        """Return whether this process knows the job contracts of all topics of the profile."""
        return self._board.contracts.knows(entry.uid for entry in self._topics.all() if entry.profile == profile)

    async def _serves(self, profile: str) -> bool:
        """Return whether drivers use the listener that authenticates. With ``access``, they do so when all brokers have it."""
        if profile not in self._config.closed_profiles:
            return True
        live = await self._ports.cluster.stateful_set(names.fleet(profile))
        return is_secured(self._config.profiles[profile].access, live)
