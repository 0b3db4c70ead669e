"""The branch on which rows of a table land. The table names it, so that drivers, runs and the operator agree.

Without the property `firn.model.names.TABLE_BRANCH`, rows land on main. With it, every change of rows goes to that
branch: ingestion, replays, compaction and retention. Main only follows it (`firn_spark.ingestion.publishing`).
"""

from collections.abc import Iterator
from typing import Any

from firn.model import names
from firn.tables.table_properties import MAIN


def branch_of(table: Any) -> str:
    """Return the branch on which rows land, of a table or of its metadata (Java)."""
    return str(table.properties().get(names.TABLE_BRANCH) or MAIN)


def head(table: Any) -> Any | None:
    """Return the newest snapshot (Java) of the branch on which rows of ``table`` land, None without a snapshot."""
    branch = branch_of(table)
    return (table.snapshot(branch) if branch != MAIN else None) or table.currentSnapshot()


def head_of(metadata: Any) -> Any | None:
    """Return the newest snapshot (Java) of the branch on which rows land, in the metadata of a table.

    If another engine has dropped the branch, it begins again at main.
    """
    branch = branch_of(metadata)
    ref = metadata.ref(branch) if branch != MAIN else None
    return metadata.snapshot(ref.snapshotId()) if ref is not None else metadata.currentSnapshot()


def on_branch(producer: Any, branch: str) -> Any:
    """Return a producer of a snapshot (Java), which continues ``branch``."""
    return producer if branch == MAIN else producer.toBranch(branch)


def unpublished(metadata: Any) -> list[Any] | None:
    """Return the snapshots (Java) of the branch on which rows land that main does not have, oldest first.

    Returns None if main is not an ancestor of the head of the branch: another writer has moved it.
    """
    main = metadata.currentSnapshot()
    found: list[Any] = []
    for snapshot in lineage(metadata, head_of(metadata)):
        if main is not None and snapshot.snapshotId() == main.snapshotId():
            return found[::-1]
        found.append(snapshot)
    return found[::-1] if main is None else None


def lineage(table: Any, snapshot: Any | None) -> Iterator[Any]:
    """Yield ``snapshot`` and those before it, newest first, as far as ``table`` (Java: a table or its metadata) has them."""
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = table.snapshot(parent) if parent is not None else None
