"""RetentionPolicy: remove old records, rows, snapshots, metadata files and orphan files of the governed topics."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from firn.api.model import ApiModel, Duration, ObjectMeta, Rule
from firn.api.v1alpha1.policy import NAME_RULE, ByteSize, PolicyStatus, RetentionRun, Schedule, TopicSelection
from firn.model import durations
from firn.model.maintenance import RetentionWork, RowsWork, SnapshotsWork

KIND = "RetentionPolicy"
PLURAL = "retentionpolicies"
SHORT_NAME = "rpol"


class LogRetention(ApiModel):
    """Retention of records in the broker. spec.config of the topic takes precedence."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.maxAge) || has(self.maxBytes)", "log needs maxAge, maxBytes or both"),
    )

    max_age: Duration | None = Field(
        default=None,
        description="Age after which the broker removes records, such as 7d. Sets retention.ms of the topic.",
    )
    max_bytes: ByteSize | None = Field(
        default=None,
        description="Size of each partition above which the broker removes the oldest records, such as 10Gi. Sets retention.bytes of the topic.",
    )


class RowRetention(ApiModel):
    """Retention of rows in the table."""

    column: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$",
        max_length=256,
        description="A timestamp, timestamptz or date column of the table, such as _kafka.timestamp. Rows with null in this column stay.",
    )
    max_age: Duration = Field(
        description="Age after which rows are removed, such as 30d. A file with only old rows is removed. A file with old and new rows is rewritten."
    )


class SnapshotRetention(ApiModel):
    """Retention of snapshots. Snapshots with tags, and those that branches need, stay."""

    max_age: Duration = Field(
        description="Age after which snapshots expire, such as 5d, counted from the time when a newer snapshot replaced them."
    )
    min_keep: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=1, description="Number of newest snapshots that stay, whatever their age."
    )


class OrphanRetention(ApiModel):
    """Removal of files below the table's location to which no metadata refers."""

    min_age: Duration = Field(
        description="Age after which an orphan file is removed, such as 3d: at least maintenance.lowestOrphanAge of the operator's configuration."
        " A writer may still commit a younger file."
    )


class MetadataRetention(ApiModel):
    """Removal of old metadata files."""

    keep: Annotated[int, Field(ge=1, le=100_000)] = Field(description="Number of metadata files that stay.")


class RetentionPolicySpec(TopicSelection):
    """Desired retention."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.log) || has(self.rows) || has(self.snapshots) || has(self.orphanFiles) || has(self.metadataFiles)",
            "a RetentionPolicy needs at least one of log, rows, snapshots, orphanFiles and metadataFiles",
        ),
    )

    mode: Literal["DryRun", "Enforce"] = Field(
        default="DryRun",
        description="DryRun: delete nothing, and report in status and Events what a run would delete. Enforce: delete.",
    )
    log: LogRetention | None = Field(
        default=None,
        description="Retention of records in the Kafka topic. spec.config of the topic takes precedence. Default: the broker's default.",
    )
    rows: RowRetention | None = Field(
        default=None, description="Retention of rows in the table. Default: all rows stay."
    )
    snapshots: SnapshotRetention | None = Field(
        default=None, description="Retention of snapshots. Default: all snapshots stay."
    )
    orphan_files: OrphanRetention | None = Field(default=None, description="Removal of orphan files. Default: none.")
    metadata_files: MetadataRetention | None = Field(
        default=None, description="Removal of old metadata files. Default: the table's properties decide."
    )
    schedule: Schedule = Field(
        default=Schedule(cron="15 3 * * *"),
        description="Times of runs. Default: daily at 03:15 UTC. spec.log needs no run: with mode Enforce, it takes effect at once.",
    )
    run: RetentionRun = Field(default=RetentionRun(), description="Settings of runs.")


class RetentionPolicy(ApiModel):
    """A policy for removing old records, rows, snapshots and files of the selected topics."""

    rules: ClassVar[tuple[Rule, ...]] = (NAME_RULE,)

    metadata: ObjectMeta
    spec: RetentionPolicySpec = Field(default_factory=RetentionPolicySpec)
    status: PolicyStatus = Field(default_factory=PolicyStatus)

    @property
    def enforced(self) -> bool:
        """Return True if runs delete data."""
        return self.spec.mode == "Enforce"

    def work(self) -> RetentionWork | None:
        """Return the work of a run on a table, None if only ``log`` is set, which needs no run."""
        spec = self.spec
        if not (spec.rows or spec.snapshots or spec.orphan_files or spec.metadata_files):
            return None
        milliseconds = durations.milliseconds
        return RetentionWork(
            enforce=self.enforced,
            rows=RowsWork(column=spec.rows.column, max_age_ms=milliseconds(spec.rows.max_age)) if spec.rows else None,
            snapshots=SnapshotsWork(max_age_ms=milliseconds(spec.snapshots.max_age), min_keep=spec.snapshots.min_keep)
            if spec.snapshots
            else None,
            orphan_min_age_ms=milliseconds(spec.orphan_files.min_age) if spec.orphan_files else None,
            metadata_keep=spec.metadata_files.keep if spec.metadata_files else None,
        )
