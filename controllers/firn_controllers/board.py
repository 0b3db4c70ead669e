"""What reconcilers of shared things leave for those of topics: health of fleets, catalogs and groups, and what drivers say.

A cache, rebuilt from the world after a restart. Topics read it instead of asking the same broker a thousand times.
"""

from dataclasses import dataclass, field

from firn.model.progress import TopicProgress
from firn_controllers.cache.policies import Kind
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.fleet import health as fleet_health
from firn_controllers.fleet.health import FleetHealth
from firn_controllers.ingestion_group import health as group_health
from firn_controllers.ingestion_group.health import GroupHealth
from firn_controllers.policies.outcome import PolicyOutcome
from firn_controllers.ports import TableDebt


@dataclass(slots=True)
class Board:
    """Newest findings by name."""

    fleets: dict[str, FleetHealth] = field(default_factory=dict)
    catalogs: dict[str, DependencyHealth] = field(default_factory=dict)
    groups: dict[str, GroupHealth] = field(default_factory=dict)
    progress: dict[str, dict[str, TopicProgress]] = field(default_factory=dict)
    """Group -> uid of a topic resource -> what the driver says of it."""
    debts: dict[str, TableDebt] = field(default_factory=dict)
    """Uid of a topic resource -> what maintenance its table waits for."""
    outcomes: dict[tuple[str, Kind], PolicyOutcome] = field(default_factory=dict)
    """Uid of a topic resource and kind of policy -> what became of it under the policy."""

    def fleet(self, profile: str) -> FleetHealth:
        """Health of a profile's brokers."""
        return self.fleets.get(profile, fleet_health.UNSEEN)

    def catalog(self, name: str) -> DependencyHealth:
        """Health of a catalog."""
        return self.catalogs.get(name, DependencyHealth())

    def group(self, name: str) -> GroupHealth:
        """Health of an ingestion group's driver."""
        return self.groups.get(name, group_health.UNSEEN)

    def topic_progress(self, group: str, uid: str) -> TopicProgress | None:
        """What the driver of ``group`` says of a topic resource."""
        return self.progress.get(group, {}).get(uid)
