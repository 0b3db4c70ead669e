"""Port `Debts` in memory, with other writers of its tables. It passes tests/contract/suites.py like the adapter."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count

from firn.model import names
from firn.model.clock import Clock, SystemClock
from firn.model.errors import FirnError
from firn.model.jobs import TableTarget
from firn.model.maintenance import CompactionWork
from firn.tables import compaction, deletes
from firn.tables.compaction import DataFile
from firn.tables.deletes import DeleteFile
from firn_controllers.ports import TableDebt


@dataclass
class Contents:
    """A table as its metadata shows it."""

    uuid: str
    files: list[DataFile] = field(default_factory=list)
    deletes: list[DeleteFile] = field(default_factory=list)
    manifests: int = 0
    snapshots: int = 0


class FakeDebts:
    """The port, and the changes by other processes (`create` to `drop`)."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.tables: dict[str, Contents] = {}
        self.problem: dict[str, FirnError] = {}
        """Catalog -> the error of every call."""
        self.asked: list[str] = []
        """Identifiers in the order of the calls."""
        self._ids = count(1)

    async def measure(self, target: TableTarget, work: CompactionWork) -> TableDebt | None:
        self.asked.append(target.identifier)
        if target.catalog in self.problem:
            raise self.problem[target.catalog]
        table = self.tables.get(target.identifier)
        if table is None:
            return None
        parts = [table]
        if (letters := self.tables.get(names.dead_letters(target.identifier))) is not None:
            parts.append(letters)
        now = int(self.clock.now().timestamp() * 1000)
        groups = [
            group
            for part in parts
            for group in compaction.plan(
                deletes.applied(part.files, part.deletes), work.model_copy(update={"everything": False}), now
            )
        ]
        files = [file for part in parts for file in part.files]
        due = [file for group in groups for file in group.files]
        return TableDebt(
            table_uuid=table.uuid,
            data_files=len(files),
            data_bytes=sum(file.bytes for file in files),
            small_files=sum(compaction.is_small(file.bytes, work.target_file_bytes) for file in files),
            delete_files=sum(len(part.deletes) for part in parts),
            manifests=sum(part.manifests for part in parts),
            snapshots=sum(part.snapshots for part in parts),
            metadata_bytes=sum(1000 + 500 * part.snapshots for part in parts),
            due_files=len(due),
            due_bytes=sum(file.bytes for file in due),
            due_for_deletes=sum(len(group.files) for group in groups if group.reason == "Deletes"),
            oldest_due=datetime.fromtimestamp(min(group.owed_ms for group in groups) / 1000, UTC) if due else None,
        )

    def forget(self, target: TableTarget) -> None:
        pass

    def create(self, target: TableTarget) -> str:
        uuid = f"table-{next(self._ids)}"
        self.tables[target.identifier] = Contents(uuid)
        return uuid

    def snapshots(self, target: TableTarget) -> int:
        return self.tables[target.identifier].snapshots

    def append(self, target: TableTarget, sizes: Sequence[int], partition: int = 0) -> None:
        table = self.tables[target.identifier]
        table.snapshots += 1
        table.manifests += 1
        now = int(self.clock.now().timestamp() * 1000)
        table.files += [
            DataFile(f"f{next(self._ids)}", size, 100, str(partition), 0, now, sequence=table.snapshots)
            for size in sizes
        ]

    def replace(self, target: TableTarget, sizes: Sequence[int]) -> None:
        self.tables[target.identifier].files.clear()
        self.append(target, sizes)

    def delete_rows(self, target: TableTarget, rows: int) -> None:
        table = self.tables[target.identifier]
        table.snapshots += 1
        table.manifests += 1
        table.deletes.append(DeleteFile(rows, table.snapshots, 0, "0"))

    def drop(self, target: TableTarget) -> None:
        del self.tables[target.identifier]

    def age(self, target: TableTarget, milliseconds: int) -> None:
        """Move the commits of all files into the past."""
        table = self.tables[target.identifier]
        table.files = [replace(file, added_ms=file.added_ms - milliseconds) for file in table.files]
