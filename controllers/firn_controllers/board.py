"""Facts that the reconcilers of fleets, catalogs, groups and policies leave for the reconciler of topics.

The board is a cache, built again after a restart. Topics read it instead of asking the same broker a thousand times.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from firn.model.jobs import RecordSchema
from firn.model.progress import TopicProgress
from firn_controllers.cache.contracts import ContractCache
from firn_controllers.cache.policies import Kind
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.fleet import health as fleet_health
from firn_controllers.fleet.health import FleetHealth
from firn_controllers.ingestion_group import health as group_health
from firn_controllers.ingestion_group.health import GroupHealth
from firn_controllers.policies.outcome import PolicyOutcome
from firn_controllers.ports import TableDebt
from firn_controllers.topic_sets.listing import Listing

PATIENCE = 60.0
"""Seconds without an expected report of a group, or of its start, after which the operator stops expecting it."""
_FINAL = frozenset({"Running", "CaughtUp", "Suspended"})
"""States of a driver after which no other state of the same contract is expected soon."""


@dataclass(slots=True)
class AwaitedReports:
    """Contracts of one group that its driver has not reported yet: uid -> generation, until a monotonic time."""

    generations: dict[str, int] = field(default_factory=dict)
    until: float = 0.0


@dataclass(slots=True)
class Board:
    """Health, progress, debts and policy outcomes, as they were last observed."""

    fleets: dict[str, FleetHealth] = field(default_factory=dict)
    catalogs: dict[str, DependencyHealth] = field(default_factory=dict)
    groups: dict[str, GroupHealth] = field(default_factory=dict)
    progress: dict[str, dict[str, TopicProgress]] = field(default_factory=dict)
    """Group -> uid of a topic -> the driver's progress report about it."""
    awaited: dict[str, AwaitedReports] = field(default_factory=dict)
    debts: dict[str, TableDebt] = field(default_factory=dict)
    """Uid of a topic -> the maintenance debt of its table."""
    configs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Uid of a topic -> the configs of its Kafka topic, with the brokers' defaults that are known."""
    schemas: dict[str, RecordSchema] = field(default_factory=dict)
    """Uid of a topic whose columns the operator has to find -> its schema with these columns."""
    outcomes: dict[tuple[str, Kind], PolicyOutcome] = field(default_factory=dict)
    """Uid of a topic and kind of policy -> the policy's effect on the topic."""
    certificate_ends: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """Profile and kind -> when the certificate of its brokers ends: ``brokers`` is that of cert-manager, and ``presented`` the one
    that brokers of Apache Kafka use."""
    open_fleets: dict[str, bool] = field(default_factory=dict)
    """Profile whose brokers the operator runs -> whether a broker accepts clients without encryption, or is to do so."""
    plain_clients: dict[str, frozenset[str]] = field(default_factory=dict)
    """Profile of Apache Kafka with ``plaintext: Keep`` -> the clients that connect without encryption."""
    listings: dict[str, Listing] = field(default_factory=dict)
    """Profile with TopicSets -> its topics."""
    contracts: ContractCache = field(default_factory=ContractCache)

    def fleet(self, profile: str) -> FleetHealth:
        """Return the health of a profile's brokers."""
        return self.fleets.get(profile, fleet_health.UNSEEN)

    def catalog(self, name: str) -> DependencyHealth:
        """Return the health of a catalog."""
        return self.catalogs.get(name, DependencyHealth())

    def group(self, name: str) -> GroupHealth:
        """Return the health of an ingestion group's driver."""
        return self.groups.get(name, group_health.UNSEEN)

    def topic_progress(self, group: str, uid: str) -> TopicProgress | None:
        """Return the progress of a topic, as the driver of ``group`` last reported it."""
        return self.progress.get(group, {}).get(uid)

    def await_report(self, group: str, uid: str, generation: int, now: float) -> None:
        """Expect the driver's report about a new contract. ``now`` is in monotonic seconds."""
        awaited = self.awaited.setdefault(group, AwaitedReports())
        awaited.generations[uid] = generation
        awaited.until = now + PATIENCE

    def settle_reports(self, group: str, now: float) -> None:
        """Remove arrived reports from the expected ones. Remove all after `PATIENCE` seconds without an arrival."""
        awaited = self.awaited.get(group)
        if awaited is None:
            return
        reports = self.progress.get(group, {})
        arrived = [
            uid
            for uid, generation in awaited.generations.items()
            if uid in reports and reports[uid].generation >= generation and reports[uid].state in _FINAL
        ]
        for uid in arrived:
            del awaited.generations[uid]
        if arrived:
            awaited.until = now + PATIENCE
        if not awaited.generations or awaited.until <= now:
            del self.awaited[group]
