"""CompactionPolicy: merge small files, and remove deleted rows from files, in the tables of the governed topics."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from firn.api.model import ApiModel, Duration, ObjectMeta, Rule
from firn.api.v1alpha1.policy import (
    NAME_RULE,
    SIZE,
    ByteSize,
    CompactionRun,
    PolicyStatus,
    Schedule,
    TopicSelection,
    Window,
)
from firn.model import durations, quantities
from firn.model.maintenance import CompactionWork

KIND = "CompactionPolicy"
PLURAL = "compactionpolicies"
SHORT_NAME = "cpol"

Ratio = Annotated[
    str,
    Field(pattern=r"^(0\.[0-9]{1,4}|1|1\.0{1,4})$", max_length=6),
    Rule("double(self) > 0.0", "deleteFileRatio must be above 0 and at most 1"),
]


class Triggers(ApiModel):
    """Triggers of a run. A table is due when one of the set triggers is reached. They count only files that a run would rewrite."""

    small_files: Annotated[int, Field(ge=2, le=1_000_000)] | None = Field(
        default=None, description="Number of data files that a run would rewrite now, at which a run starts."
    )
    small_bytes: ByteSize | None = Field(
        default=None,
        description="Bytes of the data files that a run would rewrite now, at which a run starts, such as 1Gi.",
    )
    delete_file_ratio: Ratio | None = Field(
        default=None, description='Share of deleted rows in a data file at which a run starts, such as "0.3".'
    )
    max_age: Duration | None = Field(
        default=None,
        description="Time for which the oldest due data file has been due, after which a run starts, such as 1h. It limits the compaction lag.",
    )
    min_interval: Duration = Field(
        default="10m",
        description="Shortest time between the end of a run on a table and the next run that a trigger starts, such as 10m.",
    )


class CompactionPolicySpec(TopicSelection):
    """Desired compaction."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.strategy != 'BinPack' || !has(self.columns) || self.columns.size() == 0",
            "strategy BinPack takes no columns: remove columns, or set strategy to Sort or ZOrder",
        ),
        Rule(
            "self.strategy != 'ZOrder' || (has(self.columns) && self.columns.size() > 0)",
            "strategy ZOrder needs columns: name at least one column",
        ),
        Rule(
            "self.strategy != 'ZOrder' || !has(self.columns) || self.columns.all(column, !column.contains(' '))",
            "strategy ZOrder takes names of columns, without a direction",
        ),
    )

    triggers: Triggers | None = Field(
        default=None,
        description='Triggers of a run. Default: {smallFiles: 100, smallBytes: 1Gi, deleteFileRatio: "0.3", maxAge: 1h},'
        " or none if there is a schedule.",
    )
    schedule: Schedule | None = Field(default=None, description="Times at which all governed tables are due.")
    windows: Annotated[tuple[Window, ...], Field(max_length=16)] = Field(
        default=(),
        description="Time windows in which runs may start. Default: at any time. The annotation firn.dev/run-now ignores windows.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    strategy: Literal["BinPack", "Sort", "ZOrder"] = Field(
        default="BinPack",
        description="Order of rows in rewritten files: unchanged (BinPack), sorted (Sort), or along a Z-order curve (ZOrder). With Sort and"
        " ZOrder, a scheduled or requested run rewrites each partition that has files the policy has not arranged. A run that a trigger starts"
        " rewrites only the files that triggers count.",
    )
    columns: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=256)], ...], Field(max_length=8)] = Field(
        default=(),
        description="Columns for Sort, as in table.sortBy, or for ZOrder, by name. Default of Sort: the table's own order.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    target_file_size: Annotated[
        ByteSize,
        SIZE.bounded(
            "quantity(self).compareTo(quantity('1Mi')) >= 0 && quantity(self).compareTo(quantity('16Gi')) <= 0",
            "targetFileSize must be between 1Mi and 16Gi",
        ),
    ] = Field(default="512Mi", description="Target size of rewritten files, such as 512Mi: 1Mi to 16Gi.")
    open_grace: Duration = Field(
        default="5m", description="Age below which compaction does not rewrite a file, such as 5m."
    )
    rewrite_manifests: Literal["Never", "WhenFragmented", "Always"] = Field(
        default="WhenFragmented",
        description="When a run merges Iceberg manifests. WhenFragmented: if this removes at least 10 of them and more than half."
        " Always: if there are at least two.",
    )
    run: CompactionRun = Field(default=CompactionRun(), description="Settings of runs.")


DEFAULT_TRIGGERS = Triggers(small_files=100, small_bytes="1Gi", delete_file_ratio="0.3", max_age="1h")


class CompactionPolicy(ApiModel):
    """A policy for merging the small files of the selected topics' tables."""

    rules: ClassVar[tuple[Rule, ...]] = (NAME_RULE,)

    metadata: ObjectMeta
    spec: CompactionPolicySpec = Field(default_factory=CompactionPolicySpec)
    status: PolicyStatus = Field(default_factory=PolicyStatus)

    @property
    def triggers(self) -> Triggers | None:
        """Return the triggers in force, None without any."""
        spec = self.spec
        if spec.triggers is None:
            return DEFAULT_TRIGGERS if spec.schedule is None else None
        named = spec.triggers.model_dump(exclude={"min_interval"}, exclude_none=True)
        if not named and spec.schedule is None:
            return DEFAULT_TRIGGERS.model_copy(update={"min_interval": spec.triggers.min_interval})
        return spec.triggers

    def work(self, *, everything: bool = False) -> CompactionWork:
        """Return the work of a run on a table. ``everything``: on schedule or on request, so Sort and ZOrder include all files."""
        spec = self.spec
        ratio = self.triggers.delete_file_ratio if self.triggers else None
        return CompactionWork(
            strategy=spec.strategy,
            columns=spec.columns,
            target_file_bytes=quantities.size(spec.target_file_size),
            open_grace_ms=durations.milliseconds(spec.open_grace),
            delete_file_ratio=float(ratio or DEFAULT_TRIGGERS.delete_file_ratio or 0.3),
            rewrite_manifests=spec.rewrite_manifests,
            max_commits=spec.run.max_commits,
            everything=everything and spec.strategy != "BinPack",
        )
