"""Which data files of a table are rewritten together: pure planning, the same in the operator (what would be rewritten: debt) and in a run.

The rule for small files is size-tiered: a file is rewritten only together with at least as much again. Every rewrite at least doubles the
file that a row lies in, so a row is rewritten a number of times that is logarithmic in target size / first size, however the table is
written. What cannot be merged under that rule grows by size class, so the small files that stay are logarithmically many too. Iceberg's own
planner takes every group of five, the largest of them over and over.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from firn.model.maintenance import CompactionWork

MIN_FILES = 4
"""A group that does not fill a file has at least so many: fewer are not worth a commit."""
MAX_FILES = 2_000
"""A group is closed at so many files: what one task can open in seconds. Its output is merged further by a later plan."""
MANY_DELETE_FILES = 10
"""A file that so many delete files apply to is rewritten whatever they delete: a reader opens all of them for it."""
QUIET_MS = 86_400_000
"""A partition without a new file for so long is taken for closed: what the size rule left there is merged."""
ARRANGED_TARGETS = 64
"""A group of Sort or ZOrder is at most so many target files: what is arranged together, not only rewritten together."""
MANIFEST_BYTES = 8 * 1024 * 1024
"""Iceberg's ``commit.manifest.target-size-bytes``."""
SPARE_MANIFESTS = 10
"""Manifests are fragmented when rewriting them would leave so many fewer, and less than half."""

Reason = Literal["SmallFiles", "Settled", "Deletes", "Arrange"]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A live data file of the table's current snapshot."""

    path: str
    bytes: int
    records: int
    partition: str
    """Partition tuple as text. Only compared."""
    spec_id: int
    added_ms: int
    """Commit time of the snapshot that added it, epoch milliseconds; that of the oldest snapshot known where it has expired."""
    deletes: int = 0
    """Rows of it that are deleted, as `firn.tables.deletes` estimates them."""
    delete_files: int = 0
    """Delete files and deletion vectors that apply to it."""
    arranged: bool = False
    """Written by a run in the very arrangement (strategy and columns) that is wanted now."""
    sequence: int = 0
    """Data sequence number, which says what deletes apply (`firn.tables.deletes`)."""
    written: int = 0
    """Sequence number of the commit that added it; 0 if it is not needed."""
    deleted_ms: int = 0
    """Commit time of the first delete that applies to it; 0 where that is not known or there is none."""

    @property
    def live_bytes(self) -> int:
        """Bytes, less the share of deleted rows."""
        if self.deletes <= 0:
            return self.bytes
        return self.bytes * max(self.records - self.deletes, 0) // max(self.records, 1)


@dataclass(frozen=True, slots=True)
class Group:
    """Files of one partition and spec that are rewritten together, in the order to read them."""

    partition: str
    spec_id: int
    files: tuple[DataFile, ...]
    reason: Reason
    outputs: int
    """How many files to write."""
    owed_ms: int = 0
    """Since when these files are to be rewritten, epoch milliseconds. Files that are merged: since so many of them were past the grace that
    the rule for small files asked for it, or since the partition closed; worn ones: since the first delete. `plan` says it."""

    @property
    def bytes(self) -> int:
        """Bytes read."""
        return sum(file.bytes for file in self.files)


def is_small(size: int, target_bytes: int) -> bool:
    """Return True if a file is below three quarters of the target, as in Iceberg's own rewrite."""
    return size * 4 < target_bytes * 3


def is_worn(file: DataFile, work: CompactionWork) -> bool:
    """Return True if the deletes of a file alone justify a rewrite."""
    if file.delete_files >= MANY_DELETE_FILES:
        return True
    return file.deletes > 0 and file.deletes >= work.delete_file_ratio * file.records


def plan(files: Iterable[DataFile], work: CompactionWork, now_ms: int) -> tuple[Group, ...]:
    """Return the groups of files to rewrite now, most files saved first.

    A file is in at most one group. Files younger than ``open_grace_ms`` are in none. ``files`` may leave out files that are neither small nor
    have deletes, except the newest of each partition, unless ``work.everything``.
    """
    partitions: dict[tuple[int, str], list[DataFile]] = defaultdict(list)
    for file in files:
        partitions[file.spec_id, file.partition].append(file)
    groups = [group for members in partitions.values() for group in _partition(members, work, now_ms)]
    groups.sort(
        key=lambda group: (group.outputs - len(group.files), group.spec_id, group.partition, group.files[0].path)
    )
    return tuple(groups)


def manifests_fragmented(lengths: Sequence[int]) -> bool:
    """Return True if rewriting a snapshot's manifests is worthwhile. ``lengths`` are in bytes."""
    needed = -(-sum(lengths) // MANIFEST_BYTES)
    return len(lengths) - needed >= SPARE_MANIFESTS and len(lengths) > 2 * needed


def _partition(members: list[DataFile], work: CompactionWork, now_ms: int) -> list[Group]:
    reach = [file for file in members if file.added_ms <= now_ms - work.open_grace_ms]
    if work.everything:
        return _arranged(reach, work)
    worn = [file for file in reach if is_worn(file, work)]
    groups = _filled(worn, work, "Deletes", work.target_file_bytes)
    small = [file for file in reach if is_small(file.bytes, work.target_file_bytes) and not is_worn(file, work)]
    tiers = _tiers(small, work)
    closed = max(file.added_ms for file in members) + max(QUIET_MS, work.open_grace_ms)
    if closed <= now_ms and small and not tiers:
        rest = _group(_by_time(small), work, "Settled", closed)
        if len(small) - rest.outputs >= MIN_FILES - 1:
            tiers.append(rest)
    return groups + tiers


def _arranged(reach: list[DataFile], work: CompactionWork) -> list[Group]:
    """All files of a partition that are not in the wanted arrangement, together with those that are where one group holds them all. A larger
    partition is arranged group by group: what is done stays done, so a run that is cut short goes on and does not begin again."""
    if all(file.arranged and not is_worn(file, work) for file in reach):
        return []
    limit = work.target_file_bytes * ARRANGED_TARGETS
    if sum(file.live_bytes for file in reach) > limit:
        reach = [
            file
            for file in reach
            if not file.arranged or is_worn(file, work) or is_small(file.bytes, work.target_file_bytes)
        ]
    return _filled(reach, work, "Arrange", limit)


def _tiers(small: list[DataFile], work: CompactionWork) -> list[Group]:
    """Groups of small files by the size rule. Within a size class they are in order of time, so that the rewritten files keep narrow
    ranges of it."""
    ordered = sorted(small, key=lambda file: (file.bytes.bit_length(), file.added_ms, file.path))
    groups: list[Group] = []
    start = cut = total = largest = 0
    for end, file in enumerate(ordered, 1):
        total += file.bytes
        largest = max(largest, file.bytes)
        count = end - start
        full = total >= work.target_file_bytes
        if not _worth(count, total, largest, work):
            continue
        cut = end
        if full or count >= MAX_FILES:
            groups.append(_merged(ordered[start:end], work))
            start, total, largest = end, 0, 0
    if cut > start:
        groups.append(_merged(ordered[start:cut], work))
    return groups


def _worth(count: int, total: int, largest: int, work: CompactionWork) -> bool:
    """Return True if a group of ``count`` small files with ``total`` bytes is worth a rewrite."""
    return count >= 2 and total >= 2 * largest and (total >= work.target_file_bytes or count >= MIN_FILES)


def _merged(files: Sequence[DataFile], work: CompactionWork) -> Group:
    """Return a group of small files, due since the first of them, in order of time, were enough for a group.

    Later files must not make the group younger. A file without a partner is not due.
    """
    aged = _by_time(files)
    total = largest = 0
    since = aged[-1].added_ms
    for count, file in enumerate(aged, 1):
        total += file.bytes
        largest = max(largest, file.bytes)
        if _worth(count, total, largest, work):
            since = file.added_ms
            break
    return _group(aged, work, "SmallFiles", since + work.open_grace_ms)


def _filled(files: list[DataFile], work: CompactionWork, reason: Reason, limit: int) -> list[Group]:
    """All the files, in order of time, in groups of about ``limit`` live bytes."""
    groups: list[Group] = []
    current: list[DataFile] = []
    total = 0
    for file in _by_time(files):
        current.append(file)
        total += file.live_bytes
        if total >= limit:
            groups.append(_group(current, work, reason, _since(current, work)))
            current, total = [], 0
    if current:
        groups.append(_group(current, work, reason, _since(current, work)))
    return groups


def _since(files: Sequence[DataFile], work: CompactionWork) -> int:
    return min(max(file.added_ms + work.open_grace_ms, file.deleted_ms) for file in files)


def _group(files: Sequence[DataFile], work: CompactionWork, reason: Reason, owed_ms: int) -> Group:
    live = sum(file.live_bytes for file in files)
    outputs = max(1, (2 * live + work.target_file_bytes) // (2 * work.target_file_bytes))
    return Group(files[0].partition, files[0].spec_id, tuple(files), reason, outputs, owed_ms)


def _by_time(files: Iterable[DataFile]) -> list[DataFile]:
    return sorted(files, key=lambda file: (file.added_ms, file.path))
