"""The schemas by which routes read the names of messages. All contracts of a Kafka topic share them, so that they decide alike."""

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Protocol
from weakref import WeakValueDictionary

import structlog

from firn.model.errors import FirnError, NotReadyError
from firn.model.jobs import IngestJob, TableTarget, WriterSchema
from firn_spark.ingestion.topics.state import REFUSED_SECONDS
from firn_spark.worker.formats.writer_schemas import Reference, Refusal

log = structlog.get_logger()

MOST_KEPT = 1000
"""Schemas above which the driver forgets those of a topic, when that is safe."""
Answer = WriterSchema | Refusal | int
"""A schema, why records with its id are bad records, or the id of a GUID."""


class Record(Protocol):
    """The record of missing schemas that outlives the driver (`firn_spark.ingestion.topics.missing_schemas`)."""

    def take(self) -> frozenset[Reference]:
        """Become the owner, and return the missing schemas. Raises FirnError."""
        ...

    def record(self, schemas: Collection[Reference]) -> None:
        """Replace the missing schemas. Raises FirnError: NotReadyError if another driver is the owner by now."""
        ...


class RouteSchemas:
    """The answers of a registry. A missing schema stays missing until all tables of the topic have read the same records.

    Otherwise, a table that reads a record later could get another answer, and the record would be in two tables, or in none. So
    the driver records a missing schema before it uses this answer. Other answers do not change.
    """

    def __init__(self) -> None:
        self._known: dict[Reference, Answer] = {}
        self._missing_at: dict[Reference, float] = {}
        """When the driver learned that the registry lacks a schema (monotonic seconds)."""
        self._needed: set[Reference] = set()
        self._record: Record | None = None
        """The record of this driver, as soon as it needed one."""
        self._lock = threading.Lock()
        self._learning = threading.Lock()
        self.own_table: TableTarget | None = None
        """The topic's own table, which has the record."""

    def need(self, references: Iterable[Reference]) -> None:
        """Let the next `learn` request schemas that tasks need."""
        with self._lock:
            self._needed.update(references)

    def learn(
        self,
        find: Callable[[Reference], Answer],
        missing: Callable[[Reference], Refusal],
        record: Callable[[], Record],
        now: float,
    ) -> None:
        """Request the needed schemas at ``now`` (monotonic seconds).

        ``missing`` returns the answer for a schema that the registry lacks, and ``record`` a new record. Raises as
        `Registries.schema` and `Record`.
        """
        with self._learning:
            if self._take_needed() and self._record is None:
                taken = record()
                self._add({each: missing(each) for each in taken.take()}, missing, now)
                self._record = taken
            needed = self._take_needed()
            if not needed:
                return
            found, pending = self._ask(needed, find)
            self._write({*self._missing_at, *(each for each, answer in found.items() if answer == missing(each))})
            self._add(found, missing, now)
        if pending is not None:
            raise pending

    def _take_needed(self) -> set[Reference]:
        """Return the needed schemas that the driver does not have."""
        with self._lock:
            self._needed -= self._known.keys()
            return set(self._needed)

    def _ask(
        self, needed: set[Reference], find: Callable[[Reference], Answer]
    ) -> tuple[dict[Reference, Answer], NotReadyError | None]:
        """Return the answers for ``needed``, and why some of them are not known yet."""
        found: dict[Reference, Answer] = {}
        pending, queue = None, sorted(needed, key=str)
        while queue:
            reference = queue.pop(0)
            try:
                answer = found[reference] = find(reference)
            except NotReadyError as error:
                pending = error
                continue
            if isinstance(answer, int) and not {answer} & (found.keys() | self._known.keys()):
                self.need([answer])
                queue.append(answer)
        return found, pending

    def _add(self, found: dict[Reference, Answer], missing: Callable[[Reference], Refusal], now: float) -> None:
        with self._lock:
            if len(self._known) > MOST_KEPT:
                self._known = {each: self._known[each] for each in self._missing_at}
            self._known |= found
            self._missing_at |= {each: now for each, answer in found.items() if answer == missing(each)}

    def _write(self, missing: set[Reference]) -> None:
        """Record the missing schemas, and check that no other driver decides by now. Raises FirnError."""
        assert self._record is not None
        try:
            self._record.record(missing)
        except NotReadyError:
            # Another driver may have recorded further schemas, so each answer may be outdated.
            with self._lock:
                self._record, self._known, self._missing_at = None, {}, {}
            raise

    def known(self) -> dict[Reference, Answer]:
        """Return the answers for the tasks of a round."""
        with self._lock:
            return dict(self._known)

    @property
    def lacks_any(self) -> bool:
        """True if the registry lacked a schema, so that records with its id became dead letters of the topic."""
        with self._lock:
            return bool(self._missing_at)

    def ask_again(self, now: float) -> None:
        """Let `learn` request schemas again that the registry lacked for some time before ``now`` (monotonic seconds).

        All tables of the topic have to be at the same offsets. If the record cannot be changed now, the schemas stay missing.
        """
        if not self._learning.acquire(blocking=False):
            return  # A registry may be slow, and this round is not about it.
        try:
            old = {each for each, since in self._missing_at.items() if now - since > REFUSED_SECONDS}
            if not old or self._record is None:
                return
            self._write(self._missing_at.keys() - old)
            with self._lock:
                for reference in old:
                    del self._known[reference], self._missing_at[reference]
        except FirnError as error:
            log.warning("missing schemas of routes stay missing", table=str(self.own_table), error=str(error))
        finally:
            self._learning.release()


class SharedRouteSchemas:
    """The `RouteSchemas` of Kafka topics, each while a contract of the topic has it."""

    def __init__(self) -> None:
        self._found: WeakValueDictionary[tuple[str, str], RouteSchemas] = WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, job: IngestJob) -> RouteSchemas:
        """Return the schemas that all contracts of the Kafka topic of ``job`` share."""
        with self._lock:
            found = self._found.setdefault((job.profile, job.topic), RouteSchemas())
            if job.route is not None and not job.route.match:
                found.own_table = job.table
            return found
