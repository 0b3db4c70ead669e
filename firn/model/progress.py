"""Reports of ingestion: offsets in snapshot summaries, and the `/progress` document."""

import json
import re
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from firn.model import names

Offsets = dict[int, int]
"""Next offset to land, by partition."""

_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")


def encode_offsets(offsets: Mapping[int, int]) -> str:
    """Return the value of ``firn.offsets``: a JSON object, partitions ascending."""
    return json.dumps({str(partition): offsets[partition] for partition in sorted(offsets)}, separators=(",", ":"))


def decode_offsets(text: str) -> Offsets:
    """Read the offsets from a value of ``firn.offsets``. Raises ValueError for any other text."""
    value = json.loads(text)
    if not isinstance(value, dict) or not all(
        _PARTITION.fullmatch(partition) and type(offset) is int and offset >= 0 for partition, offset in value.items()
    ):
        raise ValueError(f"{names.SUMMARY_OFFSETS} is not a JSON object of partitions and offsets: {text[:200]}")
    return {int(partition): offset for partition, offset in value.items()}


class HaltedAt(BaseModel):
    """The record at which ingestion of a topic stopped."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    partition: int
    offset: int
    code: str = ""
    detail: str = ""


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
