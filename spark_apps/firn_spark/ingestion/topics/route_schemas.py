"""The schemas by which routes read the names of messages, or fields. All contracts of a Kafka topic share them, so that they decide alike."""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
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
MOST_SEARCHED = 100
"""Refused schemas for which the driver asks at a time."""
Answer = WriterSchema | Refusal | int
"""A schema, why records with its id are bad records, or the id of a GUID."""


class Record(Protocol):
    """The stored refused schemas, which outlive the driver (`firn_spark.ingestion.topics.refused_schemas`)."""

    def take(self) -> frozenset[Reference]:
        """Become the owner, and return the refused schemas. Raises FirnError."""
        ...

    def record(self, schemas: Collection[Reference]) -> None:
        """Replace the refused schemas. Raises FirnError: NotReadyError if another driver is the owner by now."""
        ...


class RouteSchemas:
    """The answers of a registry. A refused schema stays refused until all tables of the topic have read the same records.

    Otherwise, a table that reads a record later could get another answer, and the record would be in two tables, or in none. So
    the driver stores a refused schema before it uses this answer. It does not store answers that can never change.
    """

    def __init__(self) -> None:
        self._known: dict[Reference, Answer] = {}
        self._refused_at: dict[Reference, float] = {}
        """When the driver learned that the registry lacks a schema, or that it cannot be used (monotonic seconds)."""
        self._found_late: set[Reference] = set()
        """Refused schemas that the registry has by now."""
        self._needed: set[Reference] = set()
        self._record: Record | None = None
        """The stored refused schemas; None before this driver needs them."""
        self.own_table: TableTarget | None = None
        """The topic's own table, which stores the refused schemas."""
        self._own_uuid = ""
        self._lock = threading.Lock()
        self._learning = threading.Lock()
        self._searching = False

    def keep_in(self, own_table: TableTarget, uuid: str) -> None:
        """Store refused schemas in the topic's own table. Forget them all if another table has replaced it."""
        with self._learning:
            if self.own_table is not None and (self.own_table.identifier, self._own_uuid) != (
                own_table.identifier,
                uuid,
            ):
                self._forget()
            self.own_table, self._own_uuid = own_table, uuid

    def need(self, references: Iterable[Reference]) -> None:
        """Let the next `learn` request schemas that tasks need."""
        with self._lock:
            self._needed.update(references)

    def learn(
        self,
        find: Callable[[Reference], Answer],
        refused_before: Callable[[Reference], Refusal],
        record: Callable[[], Record],
        now: float,
        *,
        again: bool = False,
    ) -> None:
        """Request the needed schemas at ``now`` (monotonic seconds).

        ``refused_before`` returns the answer for a stored refused schema, and ``record`` opens the stored ones. ``again``: the last round of the
        caller needed schemas, too, so the driver keeps all that it has. Raises as `Registries.schema` and `Record`.
        """
        with self._learning:
            if self._take_needed() and self._record is None:
                taken = record()
                self._add({each: refused_before(each) for each in taken.take()}, now)
                self._record = taken
            needed = self._take_needed()
            if not needed:
                return
            found, pending = self._ask(needed, find)
            self._write({*self._refused_at, *_refused(found)})
            with self._lock:
                if not again and len(self._known) > MOST_KEPT:
                    self._known = {each: self._known[each] for each in self._refused_at}
            self._add(found, now)
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

    def _add(self, found: dict[Reference, Answer], now: float) -> None:
        with self._lock:
            self._known |= found
            self._refused_at |= dict.fromkeys(_refused(found), now)

    def _write(self, refused: set[Reference]) -> None:
        """Store the refused schemas, and check that no other driver owns them by now. Raises FirnError."""
        assert self._record is not None
        try:
            self._record.record(refused)
        except FirnError:
            # Another driver may have stored other schemas, or the answer of the catalog is lost. The next `learn` reads them again.
            self._forget()
            raise

    def _forget(self) -> None:
        with self._lock:
            self._record, self._known, self._refused_at, self._found_late = None, {}, {}, set()

    def known(self) -> dict[Reference, Answer]:
        """Return the answers for the tasks of a round."""
        with self._lock:
            return dict(self._known)

    @property
    def refuses(self) -> bool:
        """True if a schema is refused, so that records with its id became dead letters of the topic."""
        with self._lock:
            return bool(self._refused_at)

    def search_due(self, now: float) -> bool:
        """Return whether the caller should `search` at ``now`` (monotonic seconds). Until this search ends, no other one is due."""
        with self._lock:
            if self._searching:
                return False
            self._searching = any(now - since > REFUSED_SECONDS for since in self._refused_at.values())
            return self._searching

    def search(self, find: Callable[[Reference], Answer], now: float) -> None:
        """Ask the registry for schemas that it refused for some time before ``now`` (monotonic seconds). Never raises.

        Their answer stays until `ask_again`.
        """
        try:
            with self._lock:
                old = [each for each, since in self._refused_at.items() if now - since > REFUSED_SECONDS]
            for reference in old[:MOST_SEARCHED]:
                if not _refused({reference: find(reference)}):
                    self._found_late.add(reference)
                with self._lock:
                    if reference in self._refused_at:
                        self._refused_at[reference] = now
        except FirnError as error:
            log.info("cannot ask for refused schemas of routes; the driver tries again", error=str(error))
        finally:
            with self._lock:
                self._searching = False

    def ask_again(self) -> None:
        """Let `learn` request the schemas that the registry has by now, or all if they are many. Never raises.

        All tables of the topic have to have landed the same offsets.
        """
        if not self._learning.acquire(blocking=False):
            return  # another worker waits for a registry, and this round does not need its answer
        try:
            late = self._found_late & self._refused_at.keys()
            if len(self._refused_at) > MOST_KEPT:
                late = {*self._refused_at}
            if not late or self._record is None:
                return
            self._write(self._refused_at.keys() - late)
            with self._lock:
                self._found_late.clear()
                for reference in late:
                    self._known.pop(reference, None)
                    self._refused_at.pop(reference, None)
        except FirnError as error:
            log.warning(
                "cannot store that the registry has schemas of routes by now; the driver tries again",
                table=self.own_table.identifier if self.own_table else "",
                error=str(error),
            )
        finally:
            self._learning.release()


def _refused(found: Mapping[Reference, Answer]) -> set[Reference]:
    """Return the schemas whose refusal may end."""
    return {each for each, answer in found.items() if isinstance(answer, Refusal) and not answer.final}


class SharedRouteSchemas:
    """The `RouteSchemas` of Kafka topics, each while a contract of the topic has it."""

    def __init__(self) -> None:
        self._found: WeakValueDictionary[tuple[str, str], RouteSchemas] = WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, job: IngestJob) -> RouteSchemas:
        """Return the schemas that all contracts of the Kafka topic of ``job`` share."""
        with self._lock:
            return self._found.setdefault((job.profile, job.topic), RouteSchemas())
