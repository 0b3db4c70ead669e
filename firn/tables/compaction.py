"""Plan which data files of a table are rewritten together. The operator measures debt with the same plan that a run executes.

The rule for small files is size-tiered: a file is rewritten only with other files of at least its size in sum. Every rewrite at least
doubles the size of the file that contains a row. The number of rewrites of a row is therefore logarithmic in target size / first size.
The number of small files that remain is logarithmic too. Iceberg's own planner takes every group of five files, and so rewrites the
largest of them again and again.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from firn.model.maintenance import CompactionWork

MIN_FILES = 4
"""Fewest files of a group that does not fill a target file. Fewer files do not justify a commit."""
MAX_FILES = 2_000
"""Most files of a group: a task can open them in seconds. A later plan merges the output further."""
MANY_DELETE_FILES = 10
"""Number of delete files from which a data file is rewritten, because a reader opens all of them."""
QUIET_MS = 86_400_000
"""Time without a new file after which a partition is closed: all its small files are merged."""
ARRANGED_TARGETS = 64
"""Most target files of a group of Sort or ZOrder, whose rows are ordered together."""
MANIFEST_BYTES = 8 * 1024 * 1024
"""Iceberg's ``commit.manifest.target-size-bytes``."""
SPARE_MANIFESTS = 10
"""Manifests are fragmented if a rewrite removes at least this many, and more than half."""

RewriteReason = Literal["SmallFiles", "Settled", "Deletes", "Arrange"]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A live data file of the table's current snapshot."""

    path: str
    bytes: int
    records: int
    partition: str
    """Partition tuple as text, only for comparison."""
    spec_id: int
    added_ms: int
    """Commit time of the snapshot that added the file, in epoch milliseconds. If that snapshot was removed: that of the next one."""
    deletes: int = 0
    """Deleted rows of the file, as `firn.tables.deletes` estimates them."""
    delete_files: int = 0
    """Number of delete files and deletion vectors that apply to the file."""
    arranged: bool = False
    """True if a run wrote the file with the strategy and columns of the policy."""
    sequence: int = 0
    """Data sequence number, which decides what deletes apply (`firn.tables.deletes`)."""
    written: int = 0
    """Sequence number of the commit that added the file; 0 if not needed."""
    deleted_ms: int = 0
    """Commit time of the first delete that applies to the file; 0 if unknown or if there is none."""

    @property
    def live_bytes(self) -> int:
        """Return the bytes without the share of deleted rows."""
        if self.deletes <= 0:
            return self.bytes
        return self.bytes * max(self.records - self.deletes, 0) // max(self.records, 1)


@dataclass(frozen=True, slots=True)
class Group:
    """Files of one partition and spec that are rewritten together, in the order to read them."""

    partition: str
    spec_id: int
    files: tuple[DataFile, ...]
    reason: RewriteReason
    outputs: int
    """Number of files to write."""
    owed_ms: int = 0
    """Time since which the group is due, in epoch milliseconds. Merged files: since enough of them were past the grace for the size rule, or
    since the partition closed. Files with deletes: since the first delete."""

    @property
    def bytes(self) -> int:
        """Return the bytes to read."""
        return sum(file.bytes for file in self.files)


class CommitTimes:
    """Commit times by sequence number, in epoch milliseconds. ``snapshots`` has those of the known snapshots.

    A removed snapshot counts as committed with the next known one: its files are at least as old as that.
    """

    def __init__(self, snapshots: Mapping[int, int]) -> None:
        self._numbers = sorted(snapshots)
        self._times = [snapshots[number] for number in self._numbers]

    def of(self, number: int) -> int:
        """Return the commit time of a sequence number."""
        return self._times[min(bisect_left(self._numbers, number), len(self._times) - 1)]


def is_small(size: int, target_bytes: int) -> bool:
    """Return True if a file is smaller than three quarters of the target size, like Iceberg's own rewrite."""
    return size * 4 < target_bytes * 3


def is_worn(file: DataFile, work: CompactionWork) -> bool:
    """Return True if the deletes of a file justify its rewrite."""
    if file.delete_files >= MANY_DELETE_FILES:
        return True
    return file.deletes > 0 and file.deletes >= work.delete_file_ratio * file.records


def plan(files: Iterable[DataFile], work: CompactionWork, now_ms: int) -> tuple[Group, ...]:
    """Plan the groups to rewrite now, those that remove the most files first.

    A file is in one group at most. Files younger than ``open_grace_ms`` are in none.

    ``files`` may omit files that are neither small nor have deletes, except the newest of each partition. With ``work.everything``
    it has all files.
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
    """Return True if a rewrite of a snapshot's manifests is worthwhile. ``lengths``: their bytes."""
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
    """Group the files of a partition that are not arranged as the policy asks.

    If one group can hold the whole partition, it also has the arranged files. A larger partition is arranged group by group, so that a
    run that ends early is continued by the next one."""
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
    """Group small files by the size rule.

    Files of a size class are grouped in order of time, so that rewritten files have narrow ranges of time."""
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
    """Return True if this number of small files with these bytes is rewritten together."""
    return count >= 2 and total >= 2 * largest and (total >= work.target_file_bytes or count >= MIN_FILES)


def _merged(files: Sequence[DataFile], work: CompactionWork) -> Group:
    """Return a group of small files with the time since which it is due.

    It is due since the first of its files, in order of time, were enough for the size rule. Later files do not change that time."""
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


def _filled(files: list[DataFile], work: CompactionWork, reason: RewriteReason, limit: int) -> list[Group]:
    """Group all files, in order of time, by about ``limit`` live bytes."""
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


def _group(files: Sequence[DataFile], work: CompactionWork, reason: RewriteReason, owed_ms: int) -> Group:
    live = sum(file.live_bytes for file in files)
    outputs = max(1, (2 * live + work.target_file_bytes) // (2 * work.target_file_bytes))
    return Group(files[0].partition, files[0].spec_id, tuple(files), reason, outputs, owed_ms)


def _by_time(files: Iterable[DataFile]) -> list[DataFile]:
    return sorted(files, key=lambda file: (file.added_ms, file.path))
