"""Conditions of topics whose log keeps no copy of the records that the table has (`firn.model.names.HISTORY`)."""

from collections.abc import Sequence

from firn.model import names
from firn.model.conditions import Reason
from firn.model.jobs import TableTarget
from firn.model.progress import HistoryProgress
from firn_controllers.conditions.render import Verdict
from firn_controllers.conditions.stable_text import steady
from firn_controllers.iceberg_topic.observed import ObservedTopic

MOST_SHOWN = 10
"""Partitions in a message."""


def digest(progress: HistoryProgress | None) -> tuple[object, ...]:
    """Return the parts of a report that can change the condition."""
    return () if progress is None else (steady(progress.problem), progress.untagged and sorted(progress.untagged))


def _report(observed: ObservedTopic) -> HistoryProgress | None:
    """Return the driver's report on the history of the spec."""
    progress = observed.progress
    heard = progress is not None and observed.group.heard and observed.resource.history == names.SINGLE
    return progress.history if heard and progress is not None else None


def history_readable(observed: ObservedTopic) -> Verdict | None:
    """Return the verdict of HistoryReadable, None if the driver has not reported."""
    report = _report(observed)
    if report is None or report.untagged is None:
        return None
    if report.untagged:
        table = observed.target.identifier if isinstance(observed.target, TableTarget) else ""
        partitions = _numbers(sorted(report.untagged))
        return Verdict(
            "False",
            Reason.TAG_MISSING,
            f"table {table}: another client dropped tags {names.LOG_TAG}*, and the brokers still need their data files for partitions"
            f" {partitions}; the brokers move records that newer data files have; if this stays for two hours, restore the data files, or delete"
            " the records up to the last offset that the brokers log as unreadable (kafka-delete-records.sh)",
        )
    return Verdict(
        "True", Reason.TAGS_HOLD, "tags of the table hold the data files of the records that only the table has"
    )


def _numbers(partitions: Sequence[int]) -> str:
    """Return the first partitions as text."""
    shown = ", ".join(map(str, partitions[:MOST_SHOWN]))
    return f"{shown}, ..." if len(partitions) > MOST_SHOWN else shown


def single_copy(observed: ObservedTopic) -> Verdict | None:
    """Return the verdict of SingleCopy, None if the driver has not reported."""
    report = _report(observed)
    if report is None:
        return None
    if report.problem:
        return Verdict(
            "False",
            Reason.HISTORY_IN_LOG,
            f"the driver could not name data files to the brokers, so the log keeps all records that they have not compared with the table:"
            f" {steady(report.problem)}",
        )
    return Verdict(
        "True",
        Reason.HISTORY_IN_TABLE,
        "the brokers compare the log with the table once in an hour, and delete batches that the table gives back",
    )
