"""Changes that maintenance makes to a table: snapshots beside ingestion's, and metadata without a new snapshot."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from firn.model import names
from firn.model.errors import CommitConflictError, NotReadyError
from firn.model.progress import AuditFrom, Offsets
from firn_spark.jvm import texts
from firn_spark.tables.branches.landing import branch_of, head, head_of, on_branch
from firn_spark.tables.commits import carried_from, newest, shared_offsets
from firn_spark.tables.swaps import OutdatedError, builder_on, in_order

RUN = "firn.run"
"""Summary key: name of the run that made the snapshot."""


class Guard:
    """Conditions of every change and deletion of a run: the table is still the same table, and the run may still
    work."""

    def __init__(self, jvm: Any, table: Any, uuid: str, may: Callable[[], None]) -> None:
        self.jvm = jvm
        self.table = table
        self.name = str(table.name())
        self._uuid = uuid
        self._may = may

    def check(self) -> None:
        """Check the conditions. Raises NotReadyError if another table has the name, FencedError if the lease is lost,
        StoppedError if the run ends."""
        self._may()
        uuid = str(self.table.operations().current().uuid())
        if uuid != self._uuid:
            raise NotReadyError(
                f"table {self.name}: it was replaced by a table with uuid {uuid}; the run was created for uuid {self._uuid}"
            )


def _nothing(_: Any) -> None:
    """Check nothing."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a snapshot besides those of every run: keys of its summary, and properties of the table that the same
    commit sets.

    ``check`` gets the table as last read, and raises FirnError if the snapshot must not be committed to it any more.
    """

    summary: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Any], None] = _nothing


class NewSnapshot:
    """A snapshot made by ``produce``'s producer, built on the current table at each attempt.

    It carries the summary of the newest ingestion commit.
    """

    def __init__(
        self,
        guard: Guard,
        kind: str,
        run: str,
        produce: Callable[[Any], Any],
        *,
        expect: Mapping[str, str] | None = None,
        drops_rows: bool = False,
        marks: Marks | None = None,
    ) -> None:
        self._guard = guard
        self._marks = marks or Marks()
        self._drops_rows = drops_rows
        self._kind = kind
        self._run = run
        self._produce = produce
        self._expect = dict(expect or {})
        self._producer: Any | None = None
        self._branch = ""
        self._id: int | None = None
        self.snapshot: Any | None = None

    def done(self, table: Any) -> bool:
        """Implement `Change.done`: look for the run's snapshot."""
        self.snapshot = table.snapshot(self._id) if self._id is not None else None
        if self.snapshot is not None:
            return True
        self._guard.check()
        self._marks.check(table)
        return False

    def build(self, table: Any) -> tuple[Any, Any]:
        """Implement `Change.build`."""
        operations = table.operations()
        # The same producer at each attempt: it reuses its manifests, so that it succeeds on a table with frequent commits too.
        branch = branch_of(table)
        if self._branch not in ("", branch):
            raise OutdatedError(
                f"table {table.name()}: since the run began, rows land on another branch: {branch}; the next run plans again"
            )
        producer = self._producer = self._producer or on_branch(self._produce(table), branch)
        self._branch = branch
        for key, value in {
            **carried_from(table),
            names.SUMMARY_KIND: self._kind,
            RUN: self._run,
            **self._marks.summary,
        }.items():
            producer.set(key, value)
        seen = _snapshot_id(head(table))
        snapshot = producer.apply()
        base = operations.current()
        if not snapshot.parentId() == seen == _snapshot_id(head_of(base)):
            raise CommitConflictError(f"table {table.name()}: other commits changed it while the snapshot was built")
        summary = snapshot.summary()
        for key, value in self._expect.items():
            if (summary.get(key) or "0") != value:
                raise OutdatedError(
                    f"table {table.name()}: the new snapshot has {key}={summary.get(key)}, but the run planned {value}, because other"
                    " commits changed the files; the run does not commit it"
                )
        self._guard.check()
        self._marks.check(table)
        self._id = int(snapshot.snapshotId())
        builder = builder_on(self._guard.jvm, base, int(time.time() * 1000))
        builder = builder.setBranchSnapshot(in_order(self._guard.jvm, base, snapshot), branch)
        return base, builder.setProperties({**self._audit_from(table), **self._marks.properties}).build()

    def _audit_from(self, table: Any) -> dict[str, str]:
        """Return the property that keeps audits from missing the rows that the snapshot drops."""
        if not self._drops_rows:
            return {}
        properties, shared = texts(table.properties()), shared_offsets(table)
        if shared is not None:
            return dict(
                _raised(properties, names.of_topic(names.TABLE_AUDIT_FROM, topic_id), topic_id, commit.offsets)
                for topic_id, commit in shared.topics.items()
            )
        landed = newest(table)
        return dict([_raised(properties, names.TABLE_AUDIT_FROM, landed.topic_id, landed.offsets)]) if landed else {}


def _raised(properties: Mapping[str, str], key: str, topic_id: str, offsets: Offsets) -> tuple[str, str]:
    """Return the property ``key`` for audits of a topic that landed ``offsets``, after rows before them were dropped."""
    known = AuditFrom.read(properties.get(key))
    if known is None or known.topic_id != topic_id:
        known = AuditFrom(topic_id=topic_id, mixed=key == names.TABLE_AUDIT_FROM)
    commit = properties.get(names.SUMMARY_COMMIT_ID) or ""
    return key, known.raised(offsets).model_copy(update={"commit": commit}).model_dump_json()


class NewMetadata:
    """A change of metadata without a new snapshot.

    ``edit`` gets a ``TableMetadata.Builder`` and the metadata that it starts from.
    """

    def __init__(self, guard: Guard, edit: Callable[[Any, Any], None], done: Callable[[Any], bool]) -> None:
        self._guard = guard
        self._edit = edit
        self._done = done
        self.before: Any | None = None

    def done(self, table: Any) -> bool:
        """Implement `Change.done`: check the metadata, whichever writer made it so."""
        if self._done(table.operations().current()):
            return True
        self._guard.check()
        return False

    def build(self, table: Any) -> tuple[Any, Any]:
        """Implement `Change.build`."""
        base = table.operations().current()
        builder = builder_on(self._guard.jvm, base, int(time.time() * 1000))
        self._edit(builder, base)
        self._guard.check()
        self.before = base
        return base, builder.build()


def _snapshot_id(snapshot: Any | None) -> int | None:
    return int(snapshot.snapshotId()) if snapshot is not None else None
