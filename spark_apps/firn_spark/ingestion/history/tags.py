"""Tags that hold the data files from which brokers rebuild the log. No expiry of snapshots, of whatever engine, removes these files.

While only appends come, one tag moves forward, because the newest snapshot has all earlier files. A rewrite or a deletion removes files
from the newest snapshot. Then the tag stays, and another one follows. It goes when the log no longer has the offsets
of its snapshot."""

from collections.abc import Mapping
from typing import Any

from firn.model.progress import Offsets, recorded_offsets
from firn_spark.jvm import texts
from firn_spark.tables.branches.landing import lineage

TAG = "firn-log"
"""Name of the first tag. Others end with - and a number."""
APPEND = "append"
_FOREVER_MS = 2**63 - 1


def hold(table: Any, snapshot: Any) -> str:
    """Let a tag hold the files of a snapshot and those of earlier calls, and return its name. Raises Java's exceptions."""
    tags, id = _tags(table), int(snapshot.snapshotId())
    newest = max(tags, default=0)
    if tags.get(newest) == id:
        return _name(newest)
    change = table.manageSnapshots()
    if newest and _only_appends(table, snapshot, tags[newest]):
        change.replaceTag(_name(newest), id).commit()
        return _name(newest)
    name = _name(newest + 1)
    change.createTag(name, id).setMaxRefAgeMs(name, _FOREVER_MS).commit()
    return name


def release(table: Any, starts: Mapping[int, int]) -> list[str]:
    """Drop all tags but the newest whose snapshots have only offsets before ``starts``, and return their names. Raises Java's exceptions."""
    tags = _tags(table)
    dropped = []
    for number in sorted(tags)[:-1]:
        offsets = _offsets(table, tags[number])
        if offsets is not None and all(starts.get(part, 0) >= end for part, end in offsets.items()):
            table.manageSnapshots().removeTag(_name(number)).commit()
            dropped.append(_name(number))
    return dropped


def _name(number: int) -> str:
    return TAG if number == 1 else f"{TAG}-{number}"


def _tags(table: Any) -> dict[int, int]:
    """Return the snapshots of the tags by their numbers."""
    found = {}
    for name, ref in dict(table.refs()).items():
        first, _, number = str(name).partition(f"{TAG}-")
        if str(name) == TAG:
            found[1] = int(ref.snapshotId())
        elif not first and number.isdecimal():
            found[int(number)] = int(ref.snapshotId())
    return found


def _only_appends(table: Any, snapshot: Any, earlier: int) -> bool:
    """Return whether all snapshots after ``earlier`` up to ``snapshot`` only appended files."""
    for each in lineage(table, snapshot):
        if int(each.snapshotId()) == earlier:
            return True
        if str(each.operation()) != APPEND:
            return False
    return False


def _offsets(table: Any, snapshot: int) -> Offsets | None:
    """Return the landed offsets of a snapshot; None if they are not known."""
    summaries = (texts(each.summary()) for each in lineage(table, table.snapshot(snapshot)))
    try:
        return recorded_offsets(summaries, {})
    except ValueError:
        return None
