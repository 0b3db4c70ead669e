"""The operator's memory of its last visit to each topic.

A complete visit found Kafka topic and table in agreement with the spec. Until the next resync, a reconcile of the same
spec reuses these findings and asks neither brokers nor catalog. The memory is a cache: a process that starts has none,
and checks everything.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from firn.model.clock import Clock
from firn.model.jobs import RecordSchema
from firn_controllers.cache.topics import Name, TopicEntry
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.iceberg_topic.status import TopicFindings
from firn_controllers.policies.log_retention import LogRetention
from firn_controllers.ports import TableState, TopicState

REUSED_SHARE = 0.75
"""Share of the resync interval for which findings are reused, so that a resync always checks everything."""
CONTENT = frozenset({"Starting", "Running", "CaughtUp", "Suspended"})
"""States of a driver that give no reason to doubt topic or table."""


@dataclass(frozen=True, slots=True)
class Visit:
    """The findings of a complete visit, and the state that they depend on."""

    uid: str
    generation: int
    log_retention: LogRetention
    at: float
    """Monotonic seconds."""
    topic: TopicState
    table: TableState | None
    schema: RecordSchema | None = None
    """The schema of a topic with a schema registry, which may change without a new spec."""


@dataclass(frozen=True, slots=True)
class Recollection:
    """The part of the last visit that a reconcile may use."""

    topic: TopicState | None = None
    """The Kafka topic, if there is no reason to describe it again."""
    table: TableState | None = None
    """The table, if there is no reason to load it again."""
    settled: bool = False
    """True if spec and policy have not changed since the last visit, so that another client made any difference."""


class TopicMemory:
    """Remembers the last complete visit to each topic, and the Kafka topics that this process created.

    ``resync`` returns the seconds between two visits without an event.
    """

    def __init__(self, clock: Clock, resync: Callable[[], float]) -> None:
        self._clock = clock
        self._resync = resync
        self._visits: dict[Name, Visit] = {}
        self._created: set[str] = set()
        self._invisible: dict[str, float] = {}

    def is_recent(self, entry: TopicEntry) -> bool:
        """Return whether the last complete visit was to this very resource, and not long ago."""
        visit = self._visit(entry)
        return visit is not None and self._is_recent(visit)

    def recall(self, observed: ObservedTopic) -> Recollection:
        """Return what this reconcile may reuse of the last visit."""
        entry, job = observed.entry, observed.job
        visit = self._visit(entry)
        same_policy = visit is None or visit.log_retention == observed.log_retention
        settled = job is not None and job.job.generation == entry.generation and same_policy
        content = observed.progress is None or observed.progress.state in CONTENT
        same_schema = visit is None or visit.schema is None or visit.schema == observed.schema
        if visit is None or visit.generation != entry.generation or not same_policy or not same_schema:
            return Recollection(settled=settled)
        if not content or not self._is_recent(visit):
            return Recollection(settled=settled)
        return Recollection(visit.topic, visit.table, settled)

    def remember(self, observed: ObservedTopic, recalled: Recollection, findings: TopicFindings) -> None:
        """Keep the findings of a complete visit. After an incomplete visit the next reconcile checks everything."""
        name = observed.entry.name
        agreed = findings.table_missing or (isinstance(findings.table, TableState) and findings.table.proposed is None)
        # An approval is an annotation, which changes no generation.
        waits = isinstance(findings.table, TableState) and bool(findings.table.gone)
        if findings.failure is not None or not isinstance(findings.topic, TopicState) or not agreed or waits:
            self._visits.pop(name, None)
        elif recalled.topic is None:
            table = findings.table if isinstance(findings.table, TableState) else None
            self._visits[name] = Visit(
                uid=observed.entry.uid,
                generation=observed.entry.generation,
                log_retention=observed.log_retention,
                at=self._clock.monotonic(),
                topic=findings.topic,
                table=replace(table, created=False, changed=()) if table else None,
                schema=observed.schema
                if observed.registry_dependency and isinstance(observed.schema, RecordSchema)
                else None,
            )

    def forget_visit(self, name: Name) -> None:
        """Make the next reconcile check everything."""
        self._visits.pop(name, None)

    def forget(self, name: Name, uid: str) -> None:
        """Forget everything about a deleted resource."""
        visit = self._visits.get(name)
        if visit is not None and visit.uid == uid:
            del self._visits[name]
        self._invisible.pop(uid, None)
        self._created.discard(uid)

    def note_created(self, uid: str) -> None:
        """Remember that this process created the Kafka topic of a resource."""
        self._created.add(uid)

    def has_created(self, uid: str) -> bool:
        """Return whether this process created the Kafka topic of a resource."""
        return uid in self._created

    def note_visible(self, uid: str) -> None:
        """Remember that the brokers describe the Kafka topic of a resource."""
        self._invisible.pop(uid, None)

    def invisible_seconds(self, uid: str) -> float:
        """Return for how long the brokers have not described a Kafka topic that was created, from the first such call
        on.
        """
        now = self._clock.monotonic()
        return now - self._invisible.setdefault(uid, now)

    def _visit(self, entry: TopicEntry) -> Visit | None:
        visit = self._visits.get(entry.name)
        return visit if visit is not None and visit.uid == entry.uid else None

    def _is_recent(self, visit: Visit) -> bool:
        return self._clock.monotonic() - visit.at < self._resync() * REUSED_SHARE
