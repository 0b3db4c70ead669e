"""The schemas by which routes read the names of messages. All contracts of a Kafka topic share them, so that they decide alike."""

import threading
from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

from firn.model.errors import NotReadyError
from firn.model.jobs import IngestJob, WriterSchema
from firn_spark.ingestion.topics.state import REFUSED_SECONDS
from firn_spark.worker.formats.writer_schemas import Reference, Refusal

MOST_KEPT = 1000
"""Schemas above which the driver forgets those of a topic, when that is safe."""
Answer = WriterSchema | Refusal | int
"""A schema, why records with its id are bad records, or the id of a GUID."""


class RouteSchemas:
    """The answers of a registry. An answer stays until all tables of the topic have read the same records.

    Otherwise, a table that reads a record later could get another answer, and the record would be in two tables, or in none.
    """

    def __init__(self) -> None:
        self._known: dict[Reference, Answer] = {}
        self._refused_at: dict[Reference, float] = {}
        """When the driver got a refusal (monotonic seconds)."""
        self._needed: set[Reference] = set()
        self._lock = threading.Lock()

    def need(self, references: Iterable[Reference]) -> None:
        """Let the next `learn` request schemas that tasks need."""
        with self._lock:
            self._needed.update(references)

    def learn(self, find: Callable[[Reference], Answer], now: float) -> None:
        """Request the needed schemas at ``now`` (monotonic seconds). Raises as `Registries.schema`."""
        pending, queue = None, sorted(self._needed.copy(), key=str)
        while queue:
            reference = queue.pop(0)
            try:
                found = find(reference)
            except NotReadyError as error:
                pending = error
                continue
            with self._lock:
                # The worker of another table may have got an answer meanwhile. The first one counts.
                found = self._known.setdefault(reference, found)
                if isinstance(found, Refusal):
                    self._refused_at.setdefault(reference, now)
                self._needed.discard(reference)
                if isinstance(found, int) and found not in self._known:
                    self._needed.add(found)
                    queue.append(found)
        if pending is not None:
            raise pending

    def known(self) -> dict[Reference, Answer]:
        """Return the answers for the tasks of a round."""
        with self._lock:
            return dict(self._known)

    @property
    def refuses(self) -> bool:
        """True if the registry lacked a schema, so that records with its id became dead letters of the topic."""
        with self._lock:
            return bool(self._refused_at)

    def forget_refusals(self, now: float) -> None:
        """Let the driver ask again for schemas that the registry did not have for some time before ``now`` (monotonic seconds).

        All tables of the topic have to be at the same offsets.
        """
        with self._lock:
            old = [each for each, since in self._refused_at.items() if now - since > REFUSED_SECONDS]
            for reference in old if len(self._known) <= MOST_KEPT else list(self._known):
                self._known.pop(reference, None)
                self._refused_at.pop(reference, None)


class SharedRouteSchemas:
    """The `RouteSchemas` of Kafka topics, each while a contract of the topic has it."""

    def __init__(self) -> None:
        self._found: WeakValueDictionary[tuple[str, ...], RouteSchemas] = WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, job: IngestJob) -> RouteSchemas:
        """Return the schemas that all contracts of the Kafka topic of ``job`` share."""
        with self._lock:
            return self._found.setdefault((job.profile, job.topic, job.topic_id or ""), RouteSchemas())
