"""The condition SingleCopy: whether the log keeps a copy of the records that the table has (`firn.model.names.HISTORY`)."""

from firn.model import names
from firn.model.conditions import Reason
from firn.model.progress import HistoryProgress
from firn_controllers.conditions.render import Verdict
from firn_controllers.conditions.stable_text import steady
from firn_controllers.iceberg_topic.observed import ObservedTopic


def digest(progress: HistoryProgress | None) -> tuple[object, ...]:
    """Return the parts of a report that can change the condition."""
    return () if progress is None else (steady(progress.problem),)


def single_copy(observed: ObservedTopic) -> Verdict | None:
    """Return the verdict, None if the driver has not reported on the history of the spec."""
    progress = observed.progress
    report = progress.history if progress is not None and observed.group.heard else None
    if report is None or observed.resource.history != names.SINGLE:
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
