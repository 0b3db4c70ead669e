"""Tags that hold the data files from which brokers rebuild the log. No expiry of snapshots, of whatever engine, removes these files.

While only appends come, one tag moves forward, because the newest snapshot has all earlier files. A rewrite or a deletion removes files
from the newest snapshot. Then the tag stays, and another one follows. The number in the name of a tag is the generation of its files
(`firn.driver_requests.landed_offsets`): the time at which it began, so that no number comes again if another client drops the tags."""

import time
from typing import Any

from firn.model.errors import ConflictError
from firn.model.names import LOG_TAG
from firn_spark.tables.branches.landing import lineage

APPEND = "append"
_FOREVER_MS = 2**63 - 1


def hold(table: Any, snapshot: Any) -> int:
    """Let a tag hold the files of a snapshot, and return its generation.

    Raises Java's exceptions, and ConflictError if the catalog does not keep the tag."""
    tags, id = _tags(table), int(snapshot.snapshotId())
    newest = max(tags, default=0)
    if tags.get(newest) == id:
        return newest
    change = table.manageSnapshots()
    if newest and _only_appends(table, snapshot, tags[newest]):
        begun = newest
        change.replaceTag(_name(newest), id).commit()
    else:
        begun = max(int(time.time()), newest + 1)
        change.createTag(_name(begun), id).setMaxRefAgeMs(_name(begun), _FOREVER_MS).commit()
    table.refresh()
    if _tags(table).get(begun) != id:
        # Nessie accepts the request, and ignores the tag.
        raise ConflictError(
            f"table {table.name()}: the catalog did not keep tag {_name(begun)}, which holds the data files of the log; set"
            " spec.storage.history: Copy, or use a catalog that keeps tags"
        )
    return begun


def exist(table: Any) -> bool:
    """Return whether a table has such a tag. Raises Java's exceptions."""
    return bool(_tags(table))


def generations(table: Any) -> tuple[int, ...]:
    """Return the generations whose data files tags hold. Raises Java's exceptions."""
    return tuple(sorted(_tags(table)))


def replaced_before(table: Any, moment: float) -> int:
    """Return the newest generation that had begun by ``moment`` (Unix seconds); 0 without one. Raises Java's exceptions."""
    return max((each for each in _tags(table) if each <= moment), default=0)


def release(table: Any, generation: int) -> list[str]:
    """Drop the tags of earlier generations, and return their names. Raises Java's exceptions."""
    dropped = [_name(each) for each in sorted(_tags(table)) if each < generation]
    for name in dropped:
        table.manageSnapshots().removeTag(name).commit()
    return dropped


def _name(generation: int) -> str:
    return f"{LOG_TAG}{generation}"


def _tags(table: Any) -> dict[int, int]:
    """Return the snapshots of the tags by their generations."""
    return {
        int(generation): int(ref.snapshotId())
        for name, ref in dict(table.refs()).items()
        if (generation := str(name).removeprefix(LOG_TAG)) != str(name) and generation.isdecimal()
    }


def _only_appends(table: Any, snapshot: Any, earlier: int) -> bool:
    """Return whether all snapshots after ``earlier`` up to ``snapshot`` only appended files."""
    for each in lineage(table, snapshot):
        if int(each.snapshotId()) == earlier:
            return True
        if str(each.operation()) != APPEND:
            return False
    return False
