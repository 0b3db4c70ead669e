"""The maintenance debt of tables (port `Debts`), measured from metadata alone.

A measurement reads one row of the catalog, the metadata file, the manifest list and the new manifests. Manifests never
change, so their content is cached: a table with a commit every few seconds costs its newest manifests. A table without
new commits costs a share of one query, until its files become due by age. Calls block, so they run on a few threads,
which also limits the requests to catalog and object store.
"""

import asyncio
import gzip
import json
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pyiceberg import exceptions as iceberg_errors
from pyiceberg.io import FileIO

from firn.model.clock import Clock
from firn.model.conditions import Reason
from firn.model.errors import UnavailableError
from firn.model.jobs import CatalogConnection, TableTarget
from firn.model.maintenance import CompactionWork
from firn.tables import compaction, deletes
from firn.tables.compaction import CommitTimes, DataFile
from firn.tables.deletes import DeleteFile
from firn.tables.table_properties import landing_branch
from firn_controllers.ports import TableDebt
from firn_operator.adapters.batches import Batch
from firn_operator.adapters.iceberg import file_io, iceberg_manifests
from firn_operator.adapters.iceberg.catalogs import TableKey, places
from firn_operator.adapters.iceberg.connections import Connection
from firn_operator.adapters.iceberg.iceberg_manifests import IcebergManifest

THREADS = 3
"""Number of threads that read the metadata of one catalog."""
_BATCH = 500
_ATTEMPTS = 3
_KEPT_FILES = 200_000
"""Largest number of files in the cache, of all tables together; about 200 bytes each."""
_PLANNED_FILES = 200_000
"""Largest number of files of one table that are planned. Further small files count as small, but not as due."""
_ABSENT_MS = 600_000
"""Interval at which a REST catalog is asked for a dead-letter table that did not exist. SQL needs no query for that."""


_Files = tuple[tuple[DataFile, ...], tuple[DeleteFile, ...]]


@dataclass(slots=True)
class _Contents:
    """The content of a manifest.

    ``files`` are those that planning may need: all of them, or the small ones and the newest of each partition.
    """

    files: tuple[DataFile, ...] = ()
    deletes: tuple[DeleteFile, ...] = ()
    data_files: int = 0
    data_bytes: int = 0
    small_files: int = 0
    _dated: tuple[dict[int, int], _Files] = ({}, ((), ()))

    def dated(self, times: CommitTimes) -> _Files:
        """Return the files with their commit times, from ``times`` by sequence number.

        A commit time is known while the snapshot exists (`CommitTimes`). A run computes ages in the same
        way. Cached times would make files due here that a run leaves alone.
        """
        written = {file.written for file in self.files} | {delete.written for delete in self.deletes}
        moments = {number: times.of(number) for number in written}
        # Usually nothing changed, and creating the files again takes longer than planning.
        if self._dated[0] != moments:
            files = tuple(replace(file, added_ms=moments[file.written]) for file in self.files)
            deletes = tuple(replace(file, added_ms=moments[file.written]) for file in self.deletes)
            self._dated = (moments, (files, deletes))
        return self._dated[1]


class _Manifests:
    """A cache of the content of manifests that drops the least recently used first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[str, int], _Contents] = OrderedDict()
        self.weight = 0
        """Number of cached files, plus a constant for each manifest."""
        self._lock = threading.Lock()
        self.read = 0
        """Number of manifests that were read so far."""

    def get(self, manifest: IcebergManifest, kind: int, read: Callable[[], _Contents]) -> _Contents:
        """Return the content of the manifest from the cache or from ``read``. ``kind`` separates different readings
        of a manifest."""
        key = (manifest.path, kind)
        with self._lock:
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return kept
            self.read += 1
        contents = read()
        weight = _weight(contents)
        with self._lock:
            if key not in self._kept and weight <= self._limit // 4:
                self._kept[key] = contents
                self.weight += weight
                while self.weight > self._limit:
                    _, gone = self._kept.popitem(last=False)
                    self.weight -= _weight(gone)
        return contents


def _weight(contents: _Contents) -> int:
    return 4 + len(contents.files) + len(contents.deletes)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The last result for a table. It is valid until ``until_ms`` while the metadata of its tables has not moved."""

    places: tuple[str | None, ...]
    work: CompactionWork
    debt: TableDebt | None
    until_ms: int


class CatalogDebts:
    """Port `Debts` over real catalogs. Made and used on one event loop; `close` ends its threads."""

    def __init__(
        self, connections: Mapping[str, CatalogConnection], clock: Clock, kept_files: int = _KEPT_FILES
    ) -> None:
        self._connections = {name: Connection(name, settings, THREADS) for name, settings in connections.items()}
        self._places: dict[str, Batch[TableKey, str | None]] = {
            name: Batch(_place_reader(connection), _BATCH)
            for name, connection in self._connections.items()
            if connection.settings.type == "sql"
        }
        self._clock = clock
        self._measured: dict[str, _Measured] = {}
        self._without_letters: dict[str, int] = {}
        """REST tables without dead letters, and the time of the next check."""
        self.manifests = _Manifests(kept_files)

    def close(self) -> None:
        """Let the threads end after their present calls."""
        for connection in self._connections.values():
            connection.pool.shutdown(wait=False, cancel_futures=True)

    def forget(self, target: TableTarget) -> None:
        """Drop the cached result of the table."""
        self._measured.pop(target.identifier, None)
        self._without_letters.pop(target.identifier, None)

    async def measure(self, target: TableTarget, work: CompactionWork) -> TableDebt | None:
        """Measure the debt of the table and of its dead letters under ``work``."""
        connection = self._connections[target.catalog]
        work = work.model_copy(update={"everything": False})
        for attempt in range(_ATTEMPTS):
            located = await self._locate(connection, target)
            now = self._now()
            last = self._measured.get(target.identifier)
            lie = tuple(place for place, _ in located if place is not None)
            if last is not None and last.places == lie and last.work == work and now < last.until_ms:
                return last.debt
            subject = f"maintenance debt of table {target.identifier}"
            try:
                debt, until = await connection.call(subject, partial(self._both, connection, located, work, now))
            except _Moved as error:
                # The file expired or was dropped during the read: locate the metadata again.
                if attempt == _ATTEMPTS - 1:
                    raise UnavailableError(
                        f"{subject}: a file of its metadata does not exist: {error}",
                        reason=Reason.CATALOG_UNREACHABLE,
                    ) from error
                continue
            self._measured[target.identifier] = _Measured(lie, work, debt, until)
            return debt
        raise AssertionError("the last attempt returns or raises")

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    async def _locate(self, connection: Connection, target: TableTarget) -> list[tuple[str | None, FileIO | None]]:
        """Find the metadata of the table and of its dead letters, and the file access of their own, if they have one."""
        keys = [(target.namespace, target.name), (target.namespace, target.dead_letters)]
        if (batch := self._places.get(target.catalog)) is not None:
            lie = await asyncio.gather(*(batch.submit(key) for key in keys))
            return [(place, None) for place in lie]
        if self._without_letters.get(target.identifier, 0) > self._now():
            keys.pop()
        located = await connection.call(
            f"maintenance debt of table {target.identifier}", lambda: [_load(connection, key) for key in keys]
        )
        if len(located) > 1 and located[1][0] is None:
            self._without_letters[target.identifier] = self._now() + _ABSENT_MS
        return located

    def _both(
        self,
        connection: Connection,
        located: Sequence[tuple[str | None, FileIO | None]],
        work: CompactionWork,
        now: int,
    ) -> tuple[TableDebt | None, int]:
        """Return the debt of table and dead letters together, and the time until which it is valid without a commit.

        It runs in a thread, because a catalog whose secrets have changed opens its database again.
        """
        (place, io), *letters = located
        if place is None:
            return None, _NEVER
        common = io or file_io.ObjectFileIO(connection.catalog().properties)
        debt, until = self._measure_place(place, common, work, now)
        for other, other_io in letters:
            if other is not None:
                more, sooner = self._measure_place(other, other_io or common, work, now)
                debt, until = _sum(debt, more), min(until, sooner)
        return debt, until

    def _measure_place(self, place: str, io: FileIO, work: CompactionWork, now: int) -> tuple[TableDebt, int]:
        try:
            document, size = read_metadata(io, place)
            return self._measure(document, size, io, work, now)
        except FileNotFoundError as error:
            raise _Moved(str(error).partition("\n")[0]) from error

    def _measure(
        self, document: Mapping[str, Any], size: int, io: FileIO, work: CompactionWork, now: int
    ) -> tuple[TableDebt, int]:
        snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in document.get("snapshots") or ()}
        debt = TableDebt(table_uuid=document["table-uuid"], snapshots=len(snapshots), metadata_bytes=size)
        branch = (document.get("refs") or {}).get(landing_branch(document.get("properties") or {})) or {}
        current = snapshots.get(branch.get("snapshot-id") or document.get("current-snapshot-id"))
        if current is None:
            return debt, _NEVER
        listed = iceberg_manifests.read_list(io, current["manifest-list"])
        times = CommitTimes(
            {snapshot.get("sequence-number", 0): snapshot["timestamp-ms"] for snapshot in snapshots.values()}
        )
        plain = frozenset(spec["spec-id"] for spec in document.get("partition-specs", ()) if _partitions_nothing(spec))
        removed = [
            delete
            for manifest in listed
            if manifest.deletes
            for delete in self.manifests.get(manifest, _DELETES, _delete_reader(io, manifest, plain)).dated(times)[1]
        ]
        # With deletes, any file may have to be rewritten. Without them, only small ones.
        kind = _ALL if removed else work.target_file_bytes
        contents = [
            self.manifests.get(manifest, kind, _data_reader(io, manifest, work.target_file_bytes, kind == _ALL))
            for manifest in listed
            if not manifest.deletes
        ]
        files = [file for part in contents for file in part.dated(times)[0]]
        small = sum(part.small_files for part in contents)
        if kind == _ALL:
            files = deletes.applied(files, removed)
            small = sum(compaction.is_small(file.bytes, work.target_file_bytes) for file in files)
        groups = compaction.plan(files[:_PLANNED_FILES], work, now)
        due = [file for group in groups for file in group.files]
        debt = replace(
            debt,
            data_files=sum(part.data_files for part in contents),
            data_bytes=sum(part.data_bytes for part in contents),
            small_files=small,
            delete_files=len(removed),
            manifests=len(listed),
            metadata_bytes=size + sum(manifest.length for manifest in listed),
            due_files=len(due),
            due_bytes=sum(file.bytes for file in due),
            due_for_deletes=sum(len(group.files) for group in groups if group.reason == "Deletes"),
            oldest_due=_time(min((group.owed_ms for group in groups), default=None)),
        )
        return debt, _until(files, work, now)


_DELETES, _ALL = -1, -2
"""Kinds of cached content of a manifest. Any other kind is a target size: the files that are small for it."""
_NEVER = 2**62
_GZIP = b"\x1f\x8b"


class _Moved(Exception):
    """A file that the metadata names does not exist."""


def _until(files: Iterable[DataFile], work: CompactionWork, now: int) -> int:
    """Return the next time at which age alone changes the plan: of a file (the grace) or of a partition (quiet)."""
    newest: dict[tuple[int, str], int] = {}
    soonest = _NEVER
    for file in files:
        key = (file.spec_id, file.partition)
        newest[key] = max(newest.get(key, 0), file.added_ms)
        if (grown := file.added_ms + work.open_grace_ms) > now:
            soonest = min(soonest, grown)
    quiet = max(compaction.QUIET_MS, work.open_grace_ms)
    return min((soonest, *(moment + quiet for moment in newest.values() if moment + quiet > now)))


def _delete_reader(io: FileIO, manifest: IcebergManifest, plain: frozenset[int]) -> Callable[[], _Contents]:
    return lambda: _Contents(deletes=tuple(iceberg_manifests.read_deletes(io, manifest, plain)))


def _data_reader(io: FileIO, manifest: IcebergManifest, target: int, whole: bool) -> Callable[[], _Contents]:
    def read() -> _Contents:
        kept: list[DataFile] = []
        newest: dict[str, DataFile] = {}
        count = size = small = 0
        for file in iceberg_manifests.read_data(io, manifest):
            count += 1
            size += file.bytes
            is_small = compaction.is_small(file.bytes, target)
            small += is_small
            if whole:
                kept.append(file)
                continue
            # Without deletes, the path is not needed.
            file = replace(file, path="")
            if is_small:
                kept.append(file)
            elif (rival := newest.get(file.partition)) is None or rival.written < file.written:
                newest[file.partition] = file
        return _Contents((*kept, *newest.values()), (), count, size, small)

    return read


def _sum(first: TableDebt, other: TableDebt) -> TableDebt:
    ages = [debt.oldest_due for debt in (first, other) if debt.oldest_due is not None]
    counts = (
        "data_files",
        "data_bytes",
        "small_files",
        "delete_files",
        "manifests",
        "snapshots",
        "metadata_bytes",
        "due_files",
        "due_bytes",
        "due_for_deletes",
    )
    totals: dict[str, Any] = {name: getattr(first, name) + getattr(other, name) for name in counts}
    return replace(first, **totals, oldest_due=min(ages, default=None))


def _time(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def _partitions_nothing(spec: Mapping[str, Any]) -> bool:
    return all(field["transform"] == "void" for field in spec["fields"])


def read_metadata(io: FileIO, place: str) -> tuple[dict[str, Any], int]:
    """Return the table metadata, and its stored length in bytes. Raises FileNotFoundError."""
    with io.new_input(place).open() as raw:
        stored = raw.read()
    document: dict[str, Any] = json.loads(gzip.decompress(stored) if stored.startswith(_GZIP) else stored)
    return document, len(stored)


def _load(connection: Connection, key: TableKey) -> tuple[str | None, FileIO | None]:
    """Ask a REST catalog for the location of a table's metadata and for the file access to it."""
    catalog = connection.catalog()
    try:
        table = catalog.load_table(key)
    except (iceberg_errors.NoSuchTableError, iceberg_errors.NoSuchNamespaceError):
        return None, file_io.ObjectFileIO(catalog.properties)
    return table.metadata_location, table.io


def _place_reader(connection: Connection) -> Callable[[Sequence[TableKey]], Awaitable[Sequence[str | None]]]:
    async def read(keys: Sequence[TableKey]) -> Sequence[str | None]:
        return await connection.call(f"catalog {connection.name}", lambda: places(connection.catalog(), keys))

    return read
