"""An Iceberg catalog and its object store in memory: metadata that is replaced as a whole, snapshots, files of rows.

`firn_spark` reaches it through `tests.fakes.lake.java`, the operator through `LakeTables`. The contract suites of both
sides (tests/contract) pass on this lake and on real catalogs.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, RecordSchema, TableTarget
from firn.tables import evolution, rows, table_properties, types
from firn.tables.ownership import Claimant, Ownership
from firn_controllers.ports import Dropped, FoundTable, TableState
from firn_spark.tables.java_tables import schema_json

MAIN = "main"
SKEW_MS = 60_000
"""By how much a snapshot may be older than the newest before it (TableMetadata in Iceberg)."""


class Row(NamedTuple):
    """A row or a dead letter: the place of its record, the record's serial number, and when it was written."""

    partition: int
    offset: int
    serial: int
    ingested_at: int = 0


class RefusedError(Exception):
    """The catalog refuses a request. ``kind`` is Iceberg's exception."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A snapshot. ``files`` are all files of its table, ``added`` those that it added."""

    id: int
    parent: int | None
    at_ms: int
    operation: str
    properties: Mapping[str, str]
    files: tuple[str, ...]
    added: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Metadata:
    """A version of a table's metadata."""

    uuid: str
    name: str
    location: str
    schema: str
    properties: Mapping[str, str]
    all_snapshots: tuple[Snapshot, ...] = ()
    references: Mapping[str, int] = field(default_factory=dict)
    schema_id: int = 0
    format: int = 2
    moved: frozenset[str] = frozenset()
    """References that the changes move, before a commit. One that they remove afterwards is required to be unmoved, too."""

    @property
    def head(self) -> Snapshot | None:
        """The current snapshot."""
        return self.find(self.references.get(MAIN))

    @property
    def branch(self) -> str:
        """The branch on which rows land."""
        return self.properties.get(names.TABLE_BRANCH, MAIN)

    @property
    def landing(self) -> Snapshot | None:
        """The newest snapshot of the branch on which rows land."""
        return self.find(self.references.get(self.branch)) or self.head

    def find(self, id: int | None) -> Snapshot | None:
        """Return the snapshot with this id, if the metadata still has it."""
        return next((each for each in self.all_snapshots if each.id == id), None)

    def history(self, newest: Snapshot | None = None) -> Iterable[Snapshot]:
        """Yield a snapshot, by default the current one, and those before it, newest first."""
        snapshot = newest or self.head
        while snapshot is not None:
            yield snapshot
            snapshot = self.find(snapshot.parent)

    def with_snapshot(self, snapshot: Snapshot, branch: str = MAIN) -> "Metadata":
        """Return the metadata with ``snapshot`` as the newest of a branch."""
        head = self.head
        if branch == MAIN and head is not None and snapshot.at_ms < head.at_ms - SKEW_MS:
            raise RefusedError("java.lang.IllegalArgumentException", "[BUG] Expected sorted snapshot log entries.")
        return replace(
            self,
            all_snapshots=(*self.all_snapshots, snapshot),
            references={**self.references, branch: snapshot.id},
        )

    def waiting(self) -> list[Snapshot] | None:
        """Return the snapshots of the landing branch that main lacks, newest first; None if main is not behind the branch."""
        found: list[Snapshot] = []
        for snapshot in self.history(self.landing):
            if snapshot is self.head:
                return found
            found.append(snapshot)
        return None

    def without(self, gone: Iterable[int]) -> "Metadata":
        """Return the metadata without these snapshots."""
        ids = set(gone)
        if ids & set(self.references.values()):
            raise RefusedError("java.lang.IllegalArgumentException", "Cannot remove a referenced snapshot")
        return replace(self, all_snapshots=tuple(each for each in self.all_snapshots if each.id not in ids))


class Lake:
    """The tables of one catalog, and the objects of its store. ``kind`` is ``sql`` or ``rest``.

    A SQL catalog replaces exactly the metadata that a writer read. A REST catalog gets changes and what they require:
    the same table, and an unmoved branch if the change has a snapshot.
    """

    def __init__(self, kind: str = "sql") -> None:
        self.kind = kind
        self.tables: dict[str, Metadata] = {}
        self.objects: dict[str, tuple[Row, ...]] = {}
        self.written: dict[str, int] = {}
        """Object -> number of its write, in order."""
        self.watch: Callable[[str, Metadata | None, Metadata | None], None] = lambda name, before, after: None
        """Called after each change of a table with its name, and the metadata before and after."""
        self._numbers = itertools.count(1)

    def number(self) -> int:
        """Return a number that was never returned before."""
        return next(self._numbers)

    def put(self, path: str, content: Iterable[Row]) -> None:
        """Store an object."""
        self.objects[path] = tuple(content)
        self.written[path] = self.number()

    def rows(self, snapshot: Snapshot | None) -> list[Row]:
        """Return the rows of a snapshot, without those of missing files."""
        files = snapshot.files if snapshot is not None else ()
        return [row for path in files for row in self.objects.get(path, ())]

    def create(
        self, name: str, schema: str, properties: Mapping[str, str], format_version: int = 2, location: str = ""
    ) -> Metadata:
        """Create a table. Raises RefusedError if it exists."""
        if name in self.tables:
            raise RefusedError("org.apache.iceberg.exceptions.AlreadyExistsException", f"Table already exists: {name}")
        number = self.number()
        uuid = f"{number:08x}-0000-4000-8000-000000000000"
        created = Metadata(
            uuid, name, location or f"s3://firn/{name}/{number}", schema, dict(properties), format=format_version
        )
        self._change(name, created)
        return created

    def drop(self, name: str) -> None:
        """Drop a table with its files."""
        gone = self.tables[name]
        self._change(name, None)
        for path in {path for snapshot in gone.all_snapshots for path in snapshot.files}:
            self.objects.pop(path, None)

    def commit(self, name: str, base: Metadata, updated: Metadata) -> Metadata:
        """Replace the metadata of a table. Raises RefusedError."""
        present = self.tables.get(name)
        if present is None:
            raise RefusedError("org.apache.iceberg.exceptions.NoSuchTableException", f"Table does not exist: {name}")
        if present is not base:
            if self.kind == "sql":
                raise RefusedError(_CONFLICT, f"Cannot commit {name}: metadata location has changed")
            updated = _applied(present, base, updated)
        updated = replace(updated, moved=frozenset())
        self._change(name, updated)
        return updated

    def update(self, name: str, change: Callable[[Metadata], Metadata]) -> None:
        """Change a table as another engine does, without a race."""
        self._change(name, change(self.tables[name]))

    def _change(self, name: str, after: Metadata | None) -> None:
        before = self.tables.pop(name, None)
        if after is not None:
            self.tables[name] = after
        self.watch(name, before, after)


_CONFLICT = "org.apache.iceberg.exceptions.CommitFailedException"


def _applied(present: Metadata, base: Metadata, updated: Metadata) -> Metadata:
    """Return ``present`` with the changes from ``base`` to ``updated``, as a REST catalog makes them."""
    if present.uuid != base.uuid:
        raise RefusedError(_CONFLICT, f"Requirement failed: UUID does not match: expected {base.uuid}")
    moved = {name for name, id in updated.references.items() if base.references.get(name) != id} | updated.moved
    for name in sorted(moved):
        if present.references.get(name) != base.references.get(name):
            raise RefusedError(_CONFLICT, f"Requirement failed: reference {name} has changed")
    if base.schema_id != updated.schema_id and present.schema_id != base.schema_id:
        raise RefusedError(_CONFLICT, "Requirement failed: current schema changed")
    known, kept = set(base.all_snapshots), set(updated.all_snapshots)
    gone = base.properties.keys() - updated.properties.keys()
    properties = {key: value for key, value in present.properties.items() if key not in gone}
    properties |= {key: value for key, value in updated.properties.items() if base.properties.get(key) != value}
    dropped = base.references.keys() - updated.references.keys()
    references = {key: id for key, id in present.references.items() if key not in dropped}
    references |= {key: id for key, id in updated.references.items() if base.references.get(key) != id}
    snapshots = [each for each in present.all_snapshots if each not in known or each in kept]
    snapshots += [each for each in updated.all_snapshots if each not in known]
    ids = {each.id for each in snapshots}
    schema = updated if base.schema_id != updated.schema_id else present
    return replace(
        present,
        properties=properties,
        references={key: id for key, id in references.items() if id in ids},
        all_snapshots=tuple(snapshots),
        schema=schema.schema,
        schema_id=schema.schema_id,
    )


# What engines and maintenance do


def compacted(lake: Lake, base: Metadata, files: Iterable[str], at_ms: int, summary: Mapping[str, str]) -> Metadata:
    """Return ``base`` with ``files`` of the landing branch rewritten as one file. Its object is stored."""
    head, old = base.landing, set(files)
    assert head is not None
    path = f"{base.location}/data/compacted-{lake.number()}"
    lake.put(path, [row for file in head.files if file in old for row in lake.objects[file]])
    kept = tuple(file for file in head.files if file not in old)
    made = Snapshot(lake.number(), head.id, max(at_ms, head.at_ms), "replace", dict(summary), (*kept, path), (path,))
    return base.with_snapshot(made, base.branch)


def expired(base: Metadata, keep: int) -> Metadata:
    """Return ``base`` without all but the newest ``keep`` snapshots of its history, and without all others.

    Those that main lacks stay. If main is not behind the landing branch, the whole branch stays.
    """
    kept = [each.id for each, _ in zip(base.history(), range(keep), strict=False)]
    waiting = base.waiting()
    kept += [each.id for each in (waiting if waiting is not None else base.history(base.landing))]
    kept += base.references.values()
    return base.without(each.id for each in base.all_snapshots if each.id not in kept)


def unreachable(lake: Lake, base: Metadata, after: Metadata) -> set[str]:
    """Return the files that only snapshots removed between ``base`` and ``after`` refer to."""
    left = {path for snapshot in after.all_snapshots for path in snapshot.files}
    return {path for snapshot in base.all_snapshots for path in snapshot.files} - left


def rolled_back(base: Metadata) -> Metadata:
    """Return ``base`` with its landing branch at the snapshot before, and main too if it was there. Without one, return ``base``."""
    landing = base.landing
    before = base.find(landing.parent) if landing is not None else None
    if before is None or base.waiting() is None:
        return base
    back = {base.branch: before.id} | ({MAIN: before.id} if base.head is landing else {})
    return replace(base, references={**base.references, **back})


class LakeTables:
    """Port `Tables` of the operator on a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    async def ensure(self, target: TableTarget, schema: RecordSchema, claimant: Claimant) -> TableState | None:
        """Implement `Tables.ensure`, without partitioning and sort order."""
        name, columns = _name(target), rows.table_columns(schema, target.metadata_columns)
        live = self._lake.tables.get(name)
        properties = {
            **target.properties,
            **table_properties.marks(claimant, target.properties, table_properties.layout_set_by(target)),
        }
        created = live is None
        if live is None:
            if target.format_version == 3:
                return None
            properties = {**table_properties.created_with(columns, own_references=False), **properties}
            live = self._lake.create(name, schema_json(columns), properties)
            return TableState(live.uuid, live.location, live.format, None, created=created)
        ownership = Ownership.of(live.properties)
        claimant.check(target.identifier, ownership)
        if schema.subject is not None:
            present = json.loads(live.schema)["fields"]
            columns = evolution.merged_columns(
                [Column(name=item["name"], type=types.of_json(item["type"])) for item in present],
                columns,
                schema.format,
            )
        evolved = _evolved(live, columns, target, own=ownership.owner == claimant.uid)
        spent = claimant.spent(live.properties)
        kept = {key: value for key, value in evolved.properties.items() if key not in spent}
        updated = replace(evolved, properties={**kept, **properties})
        if (updated.schema, updated.properties) != (live.schema, live.properties):
            self._lake.commit(name, live, updated)
        changed = ("columns",) if updated.schema != live.schema else ()
        return TableState(live.uuid, live.location, live.format, ownership.owner or None, changed=changed)

    async def found(self, target: TableTarget) -> FoundTable | None:
        """Implement `Tables.found`."""
        live = self._lake.tables.get(_name(target))
        if live is None:
            return None
        topic_id = live.properties.get(names.SUMMARY_TOPIC_ID, "")
        return FoundTable(Ownership.of(live.properties), topic_id)

    async def drop(self, target: TableTarget, owner: str) -> Dropped | None:
        """Implement `Tables.drop`."""
        mine = [
            name
            for name in (_name(target), _name(target) + names.DEAD_LETTER_SUFFIX)
            if name in self._lake.tables and self._lake.tables[name].properties.get(names.TABLE_OWNER) == owner
        ]
        for name in mine:
            self._lake.drop(name)
        return Dropped() if mine else None

    async def check(self, catalog: str) -> None:
        """Implement `Tables.check`."""


def _name(target: TableTarget) -> str:
    return f"{target.namespace}.{target.name}"


def _evolved(live: Metadata, columns: Iterable[Column], target: TableTarget, own: bool) -> Metadata:
    """Return ``live`` with these columns, in addition to its own."""
    present: dict[str, Any] = {item["name"]: item for item in json.loads(live.schema)["fields"]}
    wanted = {column.name: column for column in columns}
    for name, item in present.items():
        column = wanted.get(name)
        if column is None or evolution.can_become(types.parse(types.of_json(item["type"])), types.parse(column.type)):
            continue
        reason = Reason.INCOMPATIBLE_SCHEMA if own else Reason.SCHEMA_INCOMPATIBLE
        raise InvalidSpecError(
            f"table {target.identifier}: column {name} cannot change to {column.type}", reason=reason
        )
    kept = [wanted.pop(name, Column(name=name, type=types.of_json(item["type"]))) for name, item in present.items()]
    text = schema_json([*kept, *wanted.values()])
    return live if text == live.schema else replace(live, schema=text, schema_id=live.schema_id + 1)
