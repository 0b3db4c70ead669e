"""RetentionPolicy: how long records, rows, snapshots and stray files are kept, for every topic that it governs."""

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
    """How long the broker keeps records. A topic's own spec.config goes before it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.maxAge) || has(self.maxBytes)", "log needs maxAge, maxBytes or both"),
    )

    max_age: Duration | None = Field(default=None, description="The topic's retention.ms.")
    max_bytes: ByteSize | None = Field(default=None, description="The topic's retention.bytes: of each partition.")


class RowRetention(ApiModel):
    """How long the table keeps rows."""

    column: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$",
        max_length=256,
        description="A timestamp, timestamptz or date column of the table, such as _kafka.timestamp. Rows in which it is null are kept.",
    )
    max_age: Duration = Field(
        description="Rows whose column is older go: by whole files where they align, row by row otherwise."
    )


class SnapshotRetention(ApiModel):
    """How long snapshots are kept. Tagged ones, and those that branches need, stay."""

    max_age: Duration = Field(description="Older snapshots go.")
    min_keep: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=1, description="So many stay, however old they are."
    )


class OrphanRetention(ApiModel):
    """Files under the table's location that nothing refers to."""

    min_age: Duration = Field(
        description="Younger files stay: a writer may be about to commit them. The configuration has the lowest age allowed."
    )


class MetadataRetention(ApiModel):
    """Old metadata files."""

    keep: Annotated[int, Field(ge=1, le=100_000)] = Field(description="So many stay.")


class RetentionPolicySpec(TopicSelection):
    """What is wanted."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.log) || has(self.rows) || has(self.snapshots) || has(self.orphanFiles) || has(self.metadataFiles)",
            "a policy needs at least one of log, rows, snapshots, orphanFiles and metadataFiles",
        ),
    )

    mode: Literal["DryRun", "Enforce"] = Field(
        default="DryRun", description="DryRun says in status and Events what would be deleted, and deletes nothing."
    )
    log: LogRetention | None = Field(default=None, description="Records in the topic; unset: the broker's default.")
    rows: RowRetention | None = Field(default=None, description="Rows in the table; unset: all are kept.")
    snapshots: SnapshotRetention | None = Field(default=None, description="Snapshots; unset: all are kept.")
    orphan_files: OrphanRetention | None = Field(default=None, description="Stray files; unset: left where they are.")
    metadata_files: MetadataRetention | None = Field(
        default=None, description="Old metadata files; unset: as the table's properties say."
    )
    schedule: Schedule = Field(default=Schedule(cron="15 3 * * *"), description="When everything but log is looked at.")
    run: RetentionRun = Field(default=RetentionRun(), description="How runs are carried out.")


class RetentionPolicy(ApiModel):
    """Retention of the records, rows, snapshots and files of topics."""

    rules: ClassVar[tuple[Rule, ...]] = (NAME_RULE,)

    metadata: ObjectMeta
    spec: RetentionPolicySpec = Field(default_factory=RetentionPolicySpec)
    status: PolicyStatus = Field(default_factory=PolicyStatus)

    @property
    def enforced(self) -> bool:
        """Whether anything is deleted."""
        return self.spec.mode == "Enforce"

    def work(self) -> RetentionWork | None:
        """What a run does to a table, or None where only ``log`` is set, which needs no run."""
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
