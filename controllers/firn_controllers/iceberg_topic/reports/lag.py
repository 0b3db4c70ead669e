"""The lag of a topic in its status. The operator does not write the status for each change of the lag. Metrics have live figures."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from firn.model.progress import TopicProgress
from firn_controllers.conditions.render import timestamp
from firn_controllers.ports import Manifest

Magnitude = tuple[int, int]


def magnitude(progress: TopicProgress) -> Magnitude | None:
    """Return the numbers of bits of the waiting records and of their seconds; None if the driver does not know the lag."""
    if progress.lag_records is None:
        return None
    return _magnitude(progress.lag_records, _seconds(progress))


def section(progress: TopicProgress | None, previous: Mapping[str, Any], now: datetime, *, written: bool) -> Manifest:
    """Return ``status.ingestion.lag``; empty if no driver has measured the lag.

    The ``previous`` section stays while both figures are below the same powers of two. So a topic without traffic causes no
    write, and the lag of a halted topic causes a write each time that it doubles. ``written``: another figure of
    ingestion has changed, so the status is written anyway.
    """
    if progress is None or progress.lag_records is None:
        return dict(previous)
    seconds = _seconds(progress)
    if previous and not written and _magnitude(previous["records"], previous["seconds"]) == magnitude(progress):
        return dict(previous)
    return {"records": progress.lag_records, "seconds": seconds, "time": timestamp(now)}


def _seconds(progress: TopicProgress) -> int:
    return max(0, round(progress.lag_seconds or 0.0))


def _magnitude(records: int, seconds: int) -> Magnitude:
    return records.bit_length(), seconds.bit_length()
