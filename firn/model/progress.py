"""Reports of ingestion: offsets in snapshot summaries, and the `/progress` document."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from firn.model import names

Offsets = dict[int, int]
"""Next offset to land, by partition."""

_SINCE = "since"
"""Key in the offsets of a summary: the others are those of the commit with this id."""
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")


def encode_offsets(offsets: Mapping[int, int]) -> str:
    """Return the value of ``firn.offsets``: a JSON object, partitions ascending."""
    return json.dumps({str(partition): offsets[partition] for partition in sorted(offsets)}, separators=(",", ":"))


def encode_changes(offsets: Mapping[int, int], before: Mapping[int, int], since: str) -> str:
    """Return the value of ``firn.offsets`` in a summary that has only the offsets that its commit changed.

    ``since`` is the id of the ingestion commit with the offsets ``before``. An older version of Firn rejects the value:
    it would land the partitions that are not in it again.
    """
    changed = {
        str(partition): offsets[partition] for partition in sorted(offsets) if _changed(offsets, before, partition)
    }
    return json.dumps({_SINCE: since, **changed}, separators=(",", ":"))


def count_changes(offsets: Mapping[int, int], before: Mapping[int, int]) -> int:
    """Return the number of partitions whose offset differs from ``before``."""
    return sum(_changed(offsets, before, partition) for partition in offsets)


def _changed(offsets: Mapping[int, int], before: Mapping[int, int], partition: int) -> bool:
    return before.get(partition) != offsets[partition]


def decode_offsets(text: str) -> Offsets:
    """Read the offsets of all partitions from a value of ``firn.offsets``. Raises ValueError for any other text."""
    offsets, since = _decode(text)
    if since is not None:
        raise ValueError(f"{names.SUMMARY_OFFSETS} has only the offsets that changed since commit {since}")
    return offsets


def is_complete(text: str | None) -> bool:
    """Return True if a value of ``firn.offsets`` has the offsets of all partitions. Does not check the value further."""
    return text is not None and f'"{_SINCE}"' not in text


def _decode(text: str) -> tuple[Offsets, str | None]:
    value = json.loads(text)
    since = value.pop(_SINCE, None) if isinstance(value, dict) else None
    if (
        not isinstance(value, dict)
        or not (since is None or isinstance(since, str))
        or not all(
            _PARTITION.fullmatch(partition) and type(offset) is int and offset >= 0
            for partition, offset in value.items()
        )
    ):
        raise ValueError(f"{names.SUMMARY_OFFSETS} is not a JSON object of partitions and offsets: {text[:200]}")
    return {int(partition): offset for partition, offset in value.items()}, since


def _whole(text: str) -> Offsets | None:
    try:
        return decode_offsets(text)
    except ValueError:
        return None


def recorded_offsets(summaries: Iterable[Mapping[str, str]], properties: Mapping[str, str]) -> Offsets | None:
    """Return the offsets of the newest ingestion commit in a table's history; None for a table without ingestion.

    ``summaries`` are those of the history, newest first, and ``properties`` those of the table. The properties have the
    offsets of all partitions after the last commit that the table received. They count only if that commit is the
    newest of the history, because a rollback does not change them. Otherwise, summaries that have only changed offsets
    are completed from older ones. Raises ValueError if the history does not have the offsets of all partitions.
    """
    offsets: Offsets = {}
    since: str | None = None
    for summary in summaries:
        text = summary.get(names.SUMMARY_OFFSETS)
        if text is None:
            continue
        commit = summary.get(names.SUMMARY_COMMIT_ID)
        if since is not None and commit != since:
            break
        whole = _whole(text)
        if whole is None and commit and commit == properties.get(names.SUMMARY_COMMIT_ID):
            whole = _whole(properties.get(names.SUMMARY_OFFSETS, ""))
        if whole is not None:
            return {**whole, **offsets}
        changed, since = _decode(text)
        offsets = {**changed, **offsets}
    if since is not None:
        raise ValueError(f"the commit {since}, which has the offsets of the other partitions, is not in the history")
    text = properties.get(names.SUMMARY_OFFSETS)
    return decode_offsets(text) if text is not None else None


class HaltedAt(BaseModel):
    """The record at which ingestion of a topic stopped. It has no value of the record, because every reader of the resource sees it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    partition: int
    offset: int
    code: str = ""
    column: str = ""
    """Column of the schema whose value does not fit; empty if it is none."""


class SuspiciousTimes(BaseModel):
    """A column of which most integers are sensible times only in another ``epoch``. ``sample`` is the date of one in the table."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    column: str
    epoch: str
    sample: str


class RecentRecords(BaseModel):
    """The newest records that have landed. ``code`` and ``path`` belong to the newest that does not fit the schema."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    records: int
    rejected: int = 0
    code: str = ""
    path: str = ""
    times: SuspiciousTimes | None = None


class TopicProgress(BaseModel):
    """The driver's report of a topic. Times are Unix seconds; lag is in records and in seconds."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    uid: str
    generation: int
    state: Literal["Starting", "Running", "CaughtUp", "BackingOff", "Halted", "Suspended", "Fenced"]
    reason: str = ""
    message: str = ""
    failures: int = 0
    next_attempt: float | None = None
    topic_id: str | None = None
    table_uuid: str | None = None
    table_location: str | None = None
    table_ready: bool = False
    table_reason: str = ""
    table_message: str = ""
    last_commit: float | None = None
    lag_records: int | None = None
    lag_seconds: float | None = None
    backfilling: bool = False
    rows: int = 0
    dead_letters: int = 0
    skipped: int = 0
    dead_letter_table: str | None = None
    halted_at: HaltedAt | None = None
    recent: RecentRecords | None = None
    """None until a record lands after the start of the driver, or after a change of the schema."""


class GroupProgress(BaseModel):
    """The `/progress` document of an ingestion application."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    group: str
    started: float
    version: str = ""
    topics: list[TopicProgress] = Field(default_factory=list)
