"""The change by which main of a table follows the branch on which rows land."""

from typing import Any

from firn.model.errors import CommitConflictError
from firn.tables.table_properties import MAIN
from firn_spark.tables.branches.landing import branch_of
from firn_spark.tables.commits import Committer, main_moved
from firn_spark.tables.swaps import builder_on


class FollowBranch:
    """Lets main refer to a snapshot of the branch, if main is an ancestor of this snapshot."""

    def __init__(self, committer: Committer, jvm: Any, branch: str, snapshot_id: int, epoch: int) -> None:
        """``epoch`` is that of the writer's claim."""
        self._committer = committer
        self._jvm = jvm
        self._branch = branch
        self._id = snapshot_id
        self._epoch = epoch

    def done(self, table: Any) -> bool:
        """Implement `Change.done`: main has the snapshot, whichever driver made it so."""
        main, ancestors = table.currentSnapshot(), self._jvm.org.apache.iceberg.util.SnapshotUtil
        if table.snapshot(self._id) is None or branch_of(table) != self._branch:
            raise CommitConflictError(
                f"table {table.name()}: branch {self._branch} or its snapshot was removed in the meantime; the driver reads the table again"
            )
        if main is not None and ancestors.isAncestorOf(table, main.snapshotId(), self._id):
            return True
        self._committer.check_claim(table, self._epoch)
        if main is not None and not ancestors.isAncestorOf(table, self._id, main.snapshotId()):
            raise main_moved(table)
        return False

    def build(self, table: Any) -> tuple[Any, Any]:
        """Implement `Change.build`."""
        base = table.operations().current()
        builder = builder_on(self._jvm, base, self._committer.now_ms())
        return base, builder.setBranchSnapshot(self._id, MAIN).build()
