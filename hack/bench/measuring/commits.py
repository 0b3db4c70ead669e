"""Read the commits of a table over time, and compute throughput and freshness from them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firn.model import names


@dataclass(frozen=True)
class Commit:
    """A snapshot that added rows. ``time`` is in Unix seconds, ``rows`` counts the table after it. ``offsets`` may
    be absent."""

    time: float
    rows: int
    files: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DataFile:
    """A data file of the current snapshot."""

    rows: int
    bytes: int


def history(table: Any) -> list[Commit]:
    """Return the commits of a PyIceberg table, oldest first."""
    commits: list[Commit] = []
    offsets: dict[int, int] = {}
    for snapshot in sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms):
        summary = snapshot.summary
        if summary is None or not int(summary.get("added-records", 0) or 0):
            continue
        # A summary has the offsets of all partitions, or only those that its commit changed.
        recorded = json.loads(summary.get(names.SUMMARY_OFFSETS) or "{}")
        offsets |= {int(partition): offset for partition, offset in recorded.items() if partition.isdigit()}
        commits.append(
            Commit(
                snapshot.timestamp_ms / 1000,
                int(summary.get("total-records", 0) or 0),
                int(summary.get("added-data-files", 0) or 0),
                dict(offsets),
            )
        )
    return sorted(commits, key=lambda commit: (commit.time, commit.rows))


def landed(table: Any) -> int:
    """Return the number of rows in a PyIceberg table, by the summary of its current snapshot."""
    snapshot = table.current_snapshot()
    return int(snapshot.summary.get("total-records", 0)) if snapshot is not None and snapshot.summary is not None else 0


def data_files(table: Any) -> list[DataFile]:
    """Return all data files of the current snapshot of a PyIceberg table."""
    return [DataFile(task.file.record_count, task.file.file_size_in_bytes) for task in table.scan().plan_files()]


def backlogged(commits: Sequence[Commit]) -> tuple[Commit, Commit] | None:
    """Return the ends of the part in which records waited all the time: the first commit and the last but one.

    The last commit may have waited for its interval instead of records. None with fewer than three commits.
    """
    return (commits[0], commits[-2]) if len(commits) >= 3 else None


def rate(start: Commit, end: Commit) -> float | None:
    """Return the rows per second between two commits, None if their times are equal."""
    return (end.rows - start.rows) / (end.time - start.time) if end.time > start.time else None


def best_rate(commits: Sequence[Commit], window: float) -> float | None:
    """Return the highest rows per second over commits that span at least ``window`` seconds, None without such commits."""
    rates = [
        candidate
        for index, start in enumerate(commits)
        if (end := next((later for later in commits[index + 1 :] if later.time - start.time >= window), None))
        is not None
        and (candidate := rate(start, end)) is not None
    ]
    return max(rates, default=None)


def delays(written: Sequence[float], commits: Sequence[Commit], until: float, partition: int = 0) -> list[float]:
    """Return the seconds from each record's writing (``written``: Unix seconds by offset) to the commit with it.

    A record in no commit has waited until ``until``.
    """
    seconds: list[float] = []
    for commit in commits:
        end = commit.offsets.get(partition, len(seconds))
        seconds += [commit.time - moment for moment in written[len(seconds) : end]]
    return seconds + [until - moment for moment in written[len(seconds) :]]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of ``values`` that at least ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
