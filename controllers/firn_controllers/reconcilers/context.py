"""The state and services that all reconcilers of one operator process share."""

from collections.abc import Callable
from dataclasses import dataclass

from firn.model import durations
from firn.model.config import Config
from firn_controllers.board import Board
from firn_controllers.cache.policies import PolicyCache
from firn_controllers.cache.replays import ReplayCache
from firn_controllers.cache.topic_grants import GrantCache
from firn_controllers.cache.topic_sets import SetCache
from firn_controllers.cache.topic_users import UserCache
from firn_controllers.cache.topics import Name, TopicCache, TopicEntry
from firn_controllers.children import Owner
from firn_controllers.conditions.announcements import Announcement
from firn_controllers.ports import Manifest, Ports
from firn_controllers.queue import Lane, Outcome
from firn_controllers.reconcilers.driver_rights import DriverRights

REFRESH = 60.0
"""Least seconds between two writes of a status in which only times and counts differ."""
REFRESHES_PER_SECOND = 10
"""Largest number of such writes a second, of all topics together."""

RESYNCS_PER_SECOND = 10
"""Largest number of topics that the operator reconciles a second without an event."""
ON_ITS_WAY = (5.0, 30.0)
"""Least and most seconds for which the first status of a topic waits for the driver's report, if nothing else is missing."""
REPORTED_PER_SECOND = 100
"""Number of topics that a driver is expected to prepare a second."""

LEAST_REPORT_AGE = 1.0
"""Least seconds between two reads of a driver's report."""
REPORTS_PER_SECOND = 4000
"""Largest number of topics that the operator reads a second from the reports of one driver."""


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that a reconciler needs beside its key."""

    config: Config
    owner: Owner
    cluster_uid: str
    """Uid of the namespace ``kube-system``, which identifies the Kubernetes cluster; empty if unknown."""
    ports: Ports
    topics: TopicCache
    policies: PolicyCache
    sets: SetCache
    replays: ReplayCache
    users: UserCache
    grants: GrantCache
    board: Board
    rights: DriverRights
    wake_topic: Callable[[Name, Lane], None]
    """Puts a topic into a lane of the queue."""
    topic_written: Callable[[TopicEntry], None]
    """Stores a topic as the API server answered to a write."""
    topic_applied: Callable[[Manifest], object]
    """Processes an IcebergTopic that a TopicSet created or changed, as the API server answered."""
    wake_set: Callable[[Name, Lane], None]
    """Puts a TopicSet into a lane of the queue."""
    wake_user: Callable[[Name, Lane], None]
    """Puts a TopicUser into a lane of the queue."""
    wake_topic_after: Callable[[Name, float], None]
    """Puts a topic into the queue after so many seconds."""
    wake_group_after: Callable[[str, float], None]
    """Puts a configured group into the queue after a number of seconds."""
    announce: Callable[[Announcement], None]
    """Records an Event on the ConfigMap ``firn-config``, for objects that have no resource of their own."""
    jitter: Callable[[], float]
    """Random numbers in [0, 1)."""

    @property
    def resync_interval(self) -> float:
        """Seconds after which every resource is reconciled again, even without an event."""
        return max(durations.milliseconds(self.config.resync) / 1000, len(self.topics) / RESYNCS_PER_SECOND)

    @property
    def refresh_interval(self) -> float:
        """Least seconds between two writes of a status in which only times and counts differ."""
        return max(REFRESH, len(self.topics) / REFRESHES_PER_SECOND)

    @property
    def report_interval(self) -> float:
        """Seconds between two reads of a driver's report from which nothing new is expected."""
        return durations.milliseconds(self.config.progress_interval) / 1000

    def report_age(self, group: str) -> float:
        """Return the seconds between two reads of a driver's report while something new is expected."""
        cost = len(self.board.progress.get(group, ())) / REPORTS_PER_SECOND
        return min(self.report_interval, max(LEAST_REPORT_AGE, cost))

    def report_patience(self, group: str) -> float:
        """Return the seconds within which a driver is expected to report a new topic."""
        awaited = self.board.awaited.get(group)
        expected = len(awaited.generations) / REPORTED_PER_SECOND if awaited is not None else 0.0
        least, most = ON_ITS_WAY
        return min(most, max(least, expected))

    def await_report(self, group: str, uid: str, generation: int) -> None:
        """Read the reports of a group more often until its driver reports this generation of a topic's contract."""
        if group in self.config.groups:
            self.board.await_report(group, uid, generation, self.ports.clock.monotonic())
            self.wake_group_after(group, self.report_age(group))

    def resync(self) -> Outcome:
        """Return the outcome that repeats a reconcile after the resync interval, shortened by up to a fifth at random."""
        return Outcome(after=self.resync_interval * (0.8 + 0.2 * self.jitter()))

    def refresh_topic(self, name: Name) -> None:
        """Reconcile a topic of which only times and counts changed, at the next refresh."""
        self.wake_topic_after(name, self.refresh_interval)

    def wake_topics(self, concerned: Callable[[TopicEntry], bool]) -> None:
        """Reconcile every topic for which ``concerned`` is true."""
        for entry in self.topics.all():
            if concerned(entry):
                self.wake_topic(entry.name, Lane.DEPENDENCY)
