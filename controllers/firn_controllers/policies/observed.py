"""Everything that a decision about one policy rests on, observed first, in one frozen value."""

from dataclasses import dataclass
from datetime import datetime

from firn.model.jobs import TableTarget
from firn_controllers.cache.policies import PolicyEntry
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.policies.outcome import PolicyOutcome
from firn_controllers.policies.runs import PolicyRun
from firn_controllers.ports import TableDebt


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table that runs may work on. A table that is dropped and created again has another uuid."""

    target: TableTarget
    uuid: str
    sharers: tuple[str, ...] = ()
    """Names of the other IcebergTopics of a shared table."""


@dataclass(frozen=True, slots=True)
class GovernedTopic:
    """A topic that the policy governs."""

    entry: TopicEntry
    because: str
    """NamedByTopic or Selected."""
    refusal: str = ""
    """The reason why the policy does not fit this topic. Empty if it fits."""
    table: TargetTable | None = None
    """Its table. None if there is none, or if runs may not work on it."""
    debt: TableDebt | None = None
    """The maintenance debt that was measured last."""
    outcome: PolicyOutcome | None = None
    """The policy's effect on the topic, as the last reconcile found it."""
    due_since: datetime | None = None
    """Since when reconciles of this process have found the table due."""

    @property
    def followed(self) -> bool:
        """True if the policy fits this topic."""
        return not self.refusal


@dataclass(frozen=True, slots=True)
class ObservedPolicy:
    """A policy, its topics and its runs, at one moment."""

    policy: PolicyEntry
    topics: tuple[GovernedTopic, ...]
    runs: tuple[PolicyRun, ...]
    """Runs of this policy whose Jobs exist, except those that were stopped."""
    active: tuple[PolicyRun, ...]
    """Active runs of all policies."""
    claimed: frozenset[str]
    """Uids of topics for whose tables this process is creating a run right now."""
    now: datetime
