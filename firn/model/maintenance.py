"""Contracts between the operator and a maintenance run: the work for each table, and the report.

The operator writes a `MaintenanceRun` into the ConfigMap that the run's Job mounts. The run returns a `RunReport` in the container's
termination message, packed by `pack`. A run therefore writes only the leases of its tables and its executors in Kubernetes.
"""

import base64
import zlib
from collections.abc import Iterable
from itertools import pairwise
from typing import Literal, NamedTuple

from pydantic import Field

from firn.model import names
from firn.model.config import Executors
from firn.model.jobs import CatalogConnection, Contract, IngestJob, KafkaConnection, RegistryConnection, TableTarget

MESSAGE_BYTES = 4096
"""Bytes of a termination message that Kubernetes stores."""
TABLES_PER_RUN = 24
"""Number of tables whose reports fit a termination message, if necessary without samples."""
MOST_RANGES = 16
"""Number of ranges of wrong offsets in a report, for each kind of fault."""
ANY_PARTITION = -1
_FEWER_RANGES = (4, 1)
"""Numbers of ranges in reports that do not fit a termination message otherwise."""


class OffsetRange(NamedTuple):
    """Offsets of a partition, without ``end``. With `ANY_PARTITION`: these offsets of all partitions."""

    partition: int
    start: int
    end: int

    def within(self, others: Iterable["OffsetRange"]) -> bool:
        """Return whether one of ``others`` has all offsets of this range."""
        return any(
            other.partition in (self.partition, ANY_PARTITION) and other.start <= self.start and self.end <= other.end
            for other in others
        )


def covering(ranges: Iterable[OffsetRange], most: int) -> tuple[OffsetRange, ...]:
    """Return at most ``most`` ranges that have all offsets of ``ranges``, and as few others as possible.

    The ranges that cover a part of ``ranges`` are within those that cover all of them. So what remains of a finding is
    within the finding.
    """
    merged: list[OffsetRange] = []
    for new in sorted(ranges):
        last = merged[-1] if merged else None
        if last is not None and last.partition == new.partition and new.start <= last.end:
            merged[-1] = last._replace(end=max(last.end, new.end))
        else:
            merged.append(new)
    if len(merged) <= most:
        return tuple(merged)
    partitions = len({own.partition for own in merged})
    if partitions > most:
        return (OffsetRange(ANY_PARTITION, min(own.start for own in merged), max(own.end for own in merged)),)
    pairs = [
        (after.start - before.end, number)
        for number, (before, after) in enumerate(pairwise(merged))
        if before.partition == after.partition
    ]
    # Of equal distances, the later stays: the start of the log removes ranges from the front.
    joined = {number for _, number in sorted(pairs)[: len(merged) - most]}
    result = [merged[0]]
    for number, own in enumerate(merged[1:]):
        if number in joined:
            result[-1] = result[-1]._replace(end=own.end)
        else:
            result.append(own)
    return tuple(result)


class CompactionWork(Contract):
    """Work of a CompactionPolicy on a table."""

    strategy: Literal["BinPack", "Sort", "ZOrder"] = "BinPack"
    columns: tuple[str, ...] = ()
    """Sort: terms such as ``time_hour desc nulls last``; empty: the table's own order. ZOrder: names of columns."""
    target_file_bytes: int = 512 * 1024 * 1024
    open_grace_ms: int = 300_000
    """Age below which files are not rewritten."""
    delete_file_ratio: float = 0.3
    """Share of deleted rows from which a data file of any size is rewritten."""
    rewrite_manifests: Literal["Never", "WhenFragmented", "Always"] = "WhenFragmented"
    max_commits: int = 10
    everything: bool = False
    """True: Sort and ZOrder rewrite all files, because the run was scheduled or requested."""


class RowsWork(Contract):
    """Delete rows whose ``column`` (timestamp, timestamptz or date) is older than ``max_age_ms``."""

    column: str
    max_age_ms: int


class SnapshotsWork(Contract):
    """Expire snapshots older than ``max_age_ms``, but keep ``min_keep``."""

    max_age_ms: int
    min_keep: int


class RetentionWork(Contract):
    """Work of a RetentionPolicy on a table. Without ``enforce`` the run only reports what it would delete."""

    enforce: bool = False
    rows: RowsWork | None = None
    snapshots: SnapshotsWork | None = None
    orphan_min_age_ms: int | None = None
    metadata_keep: int | None = None


class AuditWork(Contract):
    """Compare the offsets of a Kafka topic with the rows of its tables."""

    profile: str
    topic: str
    others: tuple[TableTarget, ...] = Field(default=(), exclude_if=lambda others: not others)
    """Further tables of the topic. Each record is in one of them, or in the table itself."""


class ReplayWork(Contract):
    """Decode dead letters with the topic's current schema, and move those that fit into the table."""

    uid: str
    """UID of the DeadLetterReplay. It is in the snapshots of the replay."""
    enforce: bool = False
    """False: decode the letters, and commit nothing."""
    job: IngestJob
    """The topic's job contract, with the schema to decode with."""
    codes: tuple[str, ...] = ()
    """Only letters with these causes (``error_code``). Empty: all."""
    since_ms: int | None = None
    """Only letters that landed at this time or later, in milliseconds since 1970."""
    generations: tuple[int, ...] = ()
    """Only letters that landed under these generations of the IcebergTopic. Empty: all."""
    records: int | None = None
    """Largest number of letters to decode."""


class TableWork(Contract):
    """A table of a run."""

    uid: str
    """UID of the IcebergTopic."""
    namespace: str
    name: str
    table: TableTarget
    table_uuid: str
    """UUID of the table. A table with another UUID is not touched."""
    dead_letters: bool = True
    """Work on the dead-letter table, if it exists. The age of its rows is that of ``ingested_at``."""
    sharers: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """Names of the other IcebergTopics of a shared table. ``dead_letters`` includes theirs."""
    compaction: CompactionWork | None = None
    retention: RetentionWork | None = None
    audit: AuditWork | None = None
    # A run without a replay has the contract of the release before.
    replay: ReplayWork | None = Field(default=None, exclude_if=lambda work: work is None)


class MaintenanceRun(Contract):
    """A Job. Files have the secret values of connections."""

    version: Literal[1] = 1
    name: str
    """Name of the Job, and holder of its leases."""
    namespace: str = ""
    """Namespace of the leases: that of the operator. Empty: leases are files in ``leases_directory``."""
    leases_directory: str | None = None
    lease_seconds: int = 60
    tables: tuple[TableWork, ...]
    catalogs: dict[str, CatalogConnection] = Field(default_factory=dict)
    kafka: dict[str, KafkaConnection] = Field(default_factory=dict)
    """Connections to the brokers of profiles, for audits."""
    registries: dict[str, RegistryConnection] = Field(
        default_factory=dict, exclude_if=lambda registries: not registries
    )
    """Connections to schema registries, for replays."""
    salts: dict[str, str] = Field(default_factory=dict, exclude_if=lambda salts: not salts)
    """Files with the salts of digests, for replays."""
    deadline_ms: int = 3_600_000
    until_ms: int | None = None
    """Deadline of all attempts of the run, in milliseconds since 1970. Kubernetes ends the Job soon after it, and a run that is ended
    so cannot report. None: no deadline."""
    cores: int = 1
    heap: str = "1g"
    executors: Executors | None = None
    executor_image: str | None = None
    executor_pull_policy: str = "IfNotPresent"
    # An application without executors keeps the document of the release before.
    executor_storage: str | None = Field(default=None, exclude_if=lambda size: size is None)
    """Limit for the disk space of each executor on its node."""
    executor_storage_request: str | None = Field(default=None, exclude_if=lambda size: size is None)
    """Disk space that a node must have for an executor."""
    pull_secrets: tuple[str, ...] = ()
    service_account: str = ""
    spark_conf: dict[str, str] = Field(default_factory=dict)

    @property
    def application(self) -> str:
        """Name of the Spark application."""
        return self.name

    @property
    def rows_in_jvm(self) -> bool:
        """Return True: rewrites other than plain merges pass rows through the JVM."""
        return True

    @property
    def driver_host(self) -> str | None:
        """Return the address at which executors reach the driver. The pod of a Job has no DNS name."""
        return None

    @property
    def executor_labels(self) -> dict[str, str]:
        """Return the labels of this run's executors."""
        return {names.LABEL_RUN: self.name}


class Removed(Contract):
    """Data that a part of retention removed or would remove."""

    files: int = 0
    bytes: int = 0
    items: int = 0
    """Number of rows, snapshots or metadata files."""
    sample: tuple[str, ...] = ()
    """Some examples, by path or ID."""


class AuditReport(Contract):
    """Result of an audit. An example of a wrong offset has ``partition`` and ``offset``."""

    topic_id: str
    offsets: int = 0
    """Number of offsets that were compared."""
    missing: int = 0
    """Records without a row and without a dead letter."""
    doubled: int = 0
    """Surplus rows and dead letters of offsets that have several."""
    stray: int = 0
    """Rows beyond the landed offsets."""
    unproved: int = 0
    """Offsets for which the audit cannot decide."""
    filtered: int = Field(default=0, exclude_if=lambda records: not records)
    """Records without a row that the filter of the topic left out."""
    partition: int | None = None
    offset: int | None = None
    missing_ranges: tuple[OffsetRange, ...] = ()
    """Ranges with the missing records, at most `MOST_RANGES`."""
    surplus_ranges: tuple[OffsetRange, ...] = ()
    """Ranges with the doubled and stray rows, at most `MOST_RANGES`."""
    unsearched_ranges: tuple[OffsetRange, ...] = ()
    """If records are missing: ranges without a row in which the audit did not look for records, at most `MOST_RANGES`."""

    @property
    def wrong(self) -> int:
        """Return the number of wrong offsets."""
        return self.missing + self.doubled + self.stray


class ReplayReport(Contract):
    """Result of a replay, over all attempts of its run. In a dry run, ``landed`` and ``remaining`` are those of a replay."""

    matched: int = 0
    """Dead letters that the replay selects."""
    landed: int = 0
    """Dead letters that became rows."""
    failed: int = 0
    """Selected dead letters that do not fit the schema, and stay."""
    remaining: int | None = 0
    """Dead letters of the topic that stay, selected or not; None if the topic was created again during the replay."""
    codes: dict[str, int] = Field(default_factory=dict)
    """Number of selected dead letters by their cause."""
    failures: dict[str, int] = Field(default_factory=dict)
    """Number of dead letters that stay by the cause that they have now."""
    causes: dict[str, int] = Field(default_factory=dict, exclude_if=lambda causes: not causes)
    """If no dead letter is selected: number of the topic's dead letters by cause."""


class TableReport(Contract):
    """Result for a table. Counts include the dead-letter table."""

    uid: str
    outcome: Literal["Done", "Nothing", "Busy", "Gone", "Failed", "Unfinished"] = "Unfinished"
    """Nothing: there was no work. Busy: another run holds the table's lease. Gone: the table was dropped or replaced.
    Unfinished: the run ended before the table's work did."""
    begun: bool = True
    """False if the run ended before it started on the table."""
    reason: str = ""
    """Reason of a failure (`firn.model.conditions.Reason`)."""
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
    audit: AuditReport | None = None
    replay: ReplayReport | None = None


class RunReport(Contract):
    """The report of a run."""

    name: str
    tables: tuple[TableReport, ...] = ()


def pack(report: RunReport) -> str:
    """Return the report as a termination message of at most `MESSAGE_BYTES`.

    If it does not fit, samples are left out first, then ranges of wrong offsets are joined, then messages are cut, and the
    last tables are left out. The operator treats missing tables as unfinished."""
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
    for most in _FEWER_RANGES:
        if len(text) > MESSAGE_BYTES:
            report = report.model_copy(update={"tables": tuple(_joined(table, most) for table in report.tables)})
            text = _packed(report)
    if len(text) > MESSAGE_BYTES:
        cut = [table.model_copy(update={"message": table.message[:80]}) for table in report.tables]
        report = report.model_copy(update={"tables": tuple(cut)})
        text = _packed(report)
    while len(text) > MESSAGE_BYTES:
        report = report.model_copy(update={"tables": report.tables[:-1]})
        text = _packed(report)
    return text


def _joined(table: TableReport, most: int) -> TableReport:
    """Return the report with at most ``most`` ranges of wrong offsets for each kind of fault."""
    if table.audit is None:
        return table
    parts = ("missing_ranges", "surplus_ranges", "unsearched_ranges")
    fewer = {part: covering(getattr(table.audit, part), most) for part in parts}
    return table.model_copy(update={"audit": table.audit.model_copy(update=fewer)})


def _packed(report: RunReport) -> str:
    document = report.model_dump_json(exclude_defaults=True).encode()
    return base64.b85encode(zlib.compress(document, 9)).decode()


def unpack(message: str) -> RunReport:
    """Read the report from a termination message. Raises ValueError if the message is no report."""
    try:
        return RunReport.model_validate_json(zlib.decompress(base64.b85decode(message.strip())))
    except (zlib.error, ValueError) as error:
        raise ValueError(f"the termination message is not a report: {error}") from error
