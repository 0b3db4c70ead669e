"""The change of the branch on which rows of a table land."""

from typing import Any

from firn.model.conditions import Reason
from firn.model.errors import ConflictError, FirnError
from firn.tables.table_properties import MAIN
from firn_spark.tables.branches.landing import branch_of
from firn_spark.tables.commits import Committer, Extras, Landed
from firn_spark.tables.java_errors import JAVA_ERRORS, java_class

_REFUSALS = ("UnsupportedOperationException", "BadRequestException")
"""Exceptions of catalogs that have no branches."""


def lands_on(table: Any, branch: str) -> bool:
    """Return whether rows of ``table``, as read last, land on ``branch``, and the branch exists."""
    return branch_of(table) == branch and (branch == MAIN or table.snapshot(branch) is not None)


def land_on(committer: Committer, table: Any, branch: str, landed: Landed | None, topic_id: str, epoch: int) -> Landed:
    """Let rows land on ``branch``. If it is main, main gets all rows of the branch before.

    A commit without rows does it, so an older driver cannot land rows on the branch before after it. Returns this commit. Raises
    ConflictError (BranchRefused) if the catalog has no branches, or another writer made this one, and the errors of `Committer.commit`.
    """

    def commit(base: Landed | None, to: str) -> Landed:
        offsets = base.offsets if base is not None and base.topic_id == topic_id else {}
        epochs = base.leader_epochs if base is not None else {}
        extras = Extras(branch=to, leader_epochs=epochs)
        return committer.commit(table, (), base, topic_id, epoch, offsets, extras)

    try:
        made = commit(landed, branch)
    except FirnError as error:
        cause = error.__cause__
        if isinstance(cause, JAVA_ERRORS) and java_class(cause).endswith(_REFUSALS):
            raise _refused(table, branch, str(error)) from error
        raise
    if lands_on(table, branch):
        return made
    # Nessie accepts the request, and ignores the branch. Rows would reach readers without checks.
    commit(made, MAIN)
    raise _refused(table, branch, "it ignores branches of tables")


def _refused(table: Any, branch: str, problem: str) -> ConflictError:
    return ConflictError(
        f"table {table.name()}: the catalog refuses branch {branch}: {problem}; remove spec.quality.publish, or use a catalog with branches",
        reason=Reason.BRANCH_REFUSED,
    )
