"""Find which delete files apply to which data files, and how many rows they delete: Iceberg's rules, from metadata only."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from firn.tables.compaction import DataFile


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A position or equality delete file, or a deletion vector."""

    records: int
    """Number of positions, or of rows with values."""
    sequence: int
    """Data sequence number."""
    spec_id: int
    partition: str
    equality: bool = False
    everywhere: bool = False
    """Equality deletes written under an unpartitioned spec apply to every partition."""
    target: str | None = None
    """Path of the only data file to which the deletes apply: deletion vectors, and position deletes of one file."""
    added_ms: int = 0
    """Commit time of the snapshot that added the file, as in `DataFile`; 0 if not needed."""
    written: int = 0
    """Sequence number of the commit, as in `DataFile`."""

    @property
    def reach(self) -> int:
        """Return the highest data sequence number of files to which the deletes apply.

        Equality deletes do not apply to rows of their own commit."""
        return self.sequence - 1 if self.equality else self.sequence


def applied(files: Iterable[DataFile], deletes: Iterable[DeleteFile]) -> list[DataFile]:
    """Return the files in the same order, with ``deletes``, ``delete_files`` and ``deleted_ms`` set.

    The rows of a delete file that applies to several data files are distributed by their records. For position deletes the sum is exact.
    For equality deletes it is an upper bound, because values may match no row.
    """
    ordered = list(files)
    by_target: dict[str, list[DeleteFile]] = defaultdict(list)
    by_partition: dict[tuple[int, str], list[DeleteFile]] = defaultdict(list)
    everywhere: list[DeleteFile] = []
    for delete in deletes:
        if delete.target is not None:
            by_target[delete.target].append(delete)
        elif delete.everywhere:
            everywhere.append(delete)
        else:
            by_partition[delete.spec_id, delete.partition].append(delete)
    members: dict[tuple[int, str], list[DataFile]] = defaultdict(list)
    for file in ordered if by_partition else ():
        members[file.spec_id, file.partition].append(file)
    shares = {key: _Scope(members[key], partition_deletes) for key, partition_deletes in by_partition.items()}
    common = _Scope(ordered, everywhere) if everywhere else None
    out = []
    for file in ordered:
        direct = [delete for delete in by_target.get(file.path, ()) if delete.reach >= file.sequence]
        rows = float(sum(delete.records for delete in direct))
        count = len(direct)
        since = min((delete.added_ms for delete in direct), default=_NEVER)
        for scope in (shares.get((file.spec_id, file.partition)), common):
            if scope is not None:
                more, weight, first = scope.applying_to(file)
                count, rows = count + more, rows + weight * file.records
                since = min(since, first)
        if count:
            matched_rows = min(file.records, max(1, round(rows)))
            file = replace(file, deletes=matched_rows, delete_files=count, deleted_ms=since)
        out.append(file)
    return out


_NEVER = 2**62


class _Scope:
    """Deletes that apply to all older files of a set.

    Sums by sequence number make the cost linear in the number of deletes and files."""

    def __init__(self, files: Sequence[DataFile], deletes: list[DeleteFile]) -> None:
        aged = sorted(files, key=lambda file: file.sequence)
        sequences = [file.sequence for file in aged]
        records = [0, *accumulate(file.records for file in aged)]
        deletes = sorted(deletes, key=lambda delete: delete.reach)
        self._reaches = [delete.reach for delete in deletes]
        totals = [records[bisect_right(sequences, reach)] for reach in self._reaches]
        weights = [delete.records / total if total else 0.0 for delete, total in zip(deletes, totals, strict=True)]
        self._weights = [*reversed(list(accumulate(reversed(weights)))), 0.0]
        first = accumulate(reversed([delete.added_ms for delete in deletes]), min, initial=_NEVER)
        self._since = [*reversed(list(first))]

    def applying_to(self, file: DataFile) -> tuple[int, float, int]:
        """Return the number of delete files that apply, the share of rows that they delete, and the time of the first."""
        first = bisect_left(self._reaches, file.sequence)
        return len(self._reaches) - first, self._weights[first], self._since[first]
