"""Contract between the operator and a maintenance run, and back: what to do to which tables, and what was done.

The operator writes a `MaintenanceRun` into the ConfigMap that a run's Job mounts. What the run did comes back as a `RunReport` in the
container's termination message, packed by `pack`: a run needs no right to write anything in Kubernetes but the leases of its tables, and its
executors where it has some.
"""

import base64
import zlib
from typing import Literal

from pydantic import Field

from firn.model import names
from firn.model.config import Executors
from firn.model.jobs import CatalogConnection, Contract, TableTarget

MESSAGE_BYTES = 4096
"""Kubernetes keeps this much of a container's termination message."""
TABLES_PER_RUN = 24
"""So many tables' reports fit a termination message, samples left out where they do not."""


class CompactionWork(Contract):
    """The work of a CompactionPolicy on a table."""

    strategy: Literal["BinPack", "Sort", "ZOrder"] = "BinPack"
    columns: tuple[str, ...] = ()
    """For Sort (``time_hour desc nulls last``, as in ``table.sortBy``; empty: the table's own order) and ZOrder (column names)."""
    target_file_bytes: int = 512 * 1024 * 1024
    open_grace_ms: int = 300_000
    """Files younger than this are left to the writer."""
    delete_file_ratio: float = 0.3
    """A data file with so many deleted rows, as a share of its own, is rewritten whatever its size."""
    rewrite_manifests: Literal["Never", "WhenFragmented", "Always"] = "WhenFragmented"
    max_commits: int = 10
    everything: bool = False
    """Sort and ZOrder on a schedule or by run-now: all files in reach, not only small ones."""


class RowsWork(Contract):
    """Rows whose ``column`` (a timestamp, timestamptz or date of the table) is older than ``max_age_ms`` go."""

    column: str
    max_age_ms: int


class SnapshotsWork(Contract):
    """Snapshots older than ``max_age_ms`` go, but ``min_keep`` stay."""

    max_age_ms: int
    min_keep: int


class RetentionWork(Contract):
    """The work of a RetentionPolicy on a table. Without ``enforce`` nothing is deleted, and the report says what
    would be."""

    enforce: bool = False
    rows: RowsWork | None = None
    snapshots: SnapshotsWork | None = None
    orphan_min_age_ms: int | None = None
    metadata_keep: int | None = None


class TableWork(Contract):
    """A table of a run, and the work on it."""

    uid: str
    """Of the IcebergTopic."""
    namespace: str
    name: str
    table: TableTarget
    table_uuid: str
    """A table that is another one by now is left alone."""
    dead_letters: bool = True
    """If true, the same work is done on the dead-letter table, if it exists (rows by ``ingested_at``)."""
    compaction: CompactionWork | None = None
    retention: RetentionWork | None = None


class MaintenanceRun(Contract):
    """The contract of a run. Connections name secrets by file."""

    version: Literal[1] = 1
    name: str
    """Of the Job; also the holder of the leases that it takes."""
    namespace: str = ""
    """The operator's namespace, which has the leases. If empty, leases are files in ``leases_directory``."""
    leases_directory: str | None = None
    lease_seconds: int = 60
    tables: tuple[TableWork, ...]
    catalogs: dict[str, CatalogConnection] = Field(default_factory=dict)
    deadline_ms: int = 3_600_000
    until_ms: int | None = None
    """Latest end of the run in milliseconds since 1970, for all attempts together. None: no limit.

    Kubernetes ends the Job soon after, and a run that still works then loses its report.
    """
    cores: int = 1
    heap: str = "1g"
    executors: Executors | None = None
    executor_image: str | None = None
    executor_pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    service_account: str = ""
    spark_conf: dict[str, str] = Field(default_factory=dict)

    @property
    def application(self) -> str:
        """Name of the Spark application."""
        return self.name

    @property
    def driver_host(self) -> str | None:
        """Return None: executors use the address of the driver's pod, because a Job's pod has no name in DNS."""
        return None

    @property
    def executor_labels(self) -> dict[str, str]:
        """Return the labels of this run's executors."""
        return {names.LABEL_RUN: self.name}


class Removed(Contract):
    """Items that a part of retention removed, or would remove."""

    files: int = 0
    bytes: int = 0
    items: int = 0
    """Rows, snapshots or metadata files, by the part that says it."""
    sample: tuple[str, ...] = ()
    """A few of them, by path or id."""


class TableReport(Contract):
    """The result for a table. Counts include the dead-letter table if the run worked on it."""

    uid: str
    outcome: Literal["Done", "Nothing", "Busy", "Gone", "Failed", "Unfinished"] = "Unfinished"
    """Nothing: there was nothing to do. Busy: another run has the table's lease. Gone: dropped, or another table by now.
    Unfinished: the deadline or the end of the process came first."""
    begun: bool = True
    """False where the run ended before it came to the table."""
    reason: str = ""
    """A condition's reason where it failed (`firn.model.conditions.Reason`)."""
    message: str = ""
    seconds: float = 0.0
    commits: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_rewritten: int = 0
    delete_files_removed: int = 0
    manifests_before: int = 0
    manifests_after: int = 0
    rows: Removed | None = None
    snapshots: Removed | None = None
    orphans: Removed | None = None
    metadata: Removed | None = None


class RunReport(Contract):
    """All of a run."""

    name: str
    tables: tuple[TableReport, ...] = ()


def pack(report: RunReport) -> str:
    """The report as a termination message of at most `MESSAGE_BYTES`. What does not fit is left out: samples, then messages, then the last
    tables (the operator takes those for unfinished)."""
    text = _packed(report)
    if len(text) > MESSAGE_BYTES:
        parts = ("rows", "snapshots", "orphans", "metadata")
        tables = [
            table.model_copy(
                update={
                    part: removed.model_copy(update={"sample": ()})
                    for part in parts
                    if (removed := getattr(table, part)) is not None
                }
            )
            for table in report.tables
        ]
        report = report.model_copy(update={"tables": tuple(tables)})
        text = _packed(report)
    if len(text) > MESSAGE_BYTES:
        cut = [table.model_copy(update={"message": table.message[:80]}) for table in report.tables]
        report = report.model_copy(update={"tables": tuple(cut)})
        text = _packed(report)
    while len(text) > MESSAGE_BYTES:
        report = report.model_copy(update={"tables": report.tables[:-1]})
        text = _packed(report)
    return text


def _packed(report: RunReport) -> str:
    document = report.model_dump_json(exclude_defaults=True).encode()
    return base64.b85encode(zlib.compress(document, 9)).decode()


def unpack(message: str) -> RunReport:
    """The report in a termination message. Raises ValueError where it is none."""
    try:
        return RunReport.model_validate_json(zlib.decompress(base64.b85decode(message.strip())))
    except (zlib.error, ValueError) as error:
        raise ValueError(f"no report: {error}") from error
