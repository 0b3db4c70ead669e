"""What CompactionPolicy and RetentionPolicy share: whom they govern, when they run, with what, and what came of it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from firn.api.model import ApiModel, Condition, Duration, Rule

ConfiguredName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
LabelText = Annotated[str, Field(max_length=317)]
ByteSize = Annotated[str, Field(pattern=r"^[1-9][0-9]*(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$", max_length=20)]
"""A Kubernetes quantity of bytes."""
Cron = Annotated[str, Field(pattern=r"^\s*[0-9A-Za-z*,/#-]+(\s+[0-9A-Za-z*,/#-]+){4}\s*$", max_length=100)]
"""Five fields: minute, hour, day of month, month, day of week."""
TimeZone = Annotated[str, Field(pattern=r"^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$", max_length=64)]
NAME_RULE = Rule("self.metadata.name.size() <= 52", "metadata.name has at most 52 characters")


class LabelRequirement(ApiModel):
    """One term of a selector."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "In and NotIn need values, Exists and DoesNotExist take none",
        ),
    )

    key: LabelText = Field(min_length=1, description="A label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="What has to be true of it.")
    values: Annotated[tuple[LabelText, ...], Field(max_length=64)] = Field(
        default=(),
        description="Values for In and NotIn.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it, as Kubernetes has it: NotIn holds where the label is absent too."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case _:
                return self.key not in labels


class LabelSelector(ApiModel):
    """Labels of IcebergTopics in the policy's namespace; empty: all of them."""

    match_labels: Annotated[dict[str, LabelText], Field(max_length=64)] = Field(
        default_factory=dict, description="Labels that a topic has, with these values."
    )
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=64)] = Field(
        default=(), description="All of them hold.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a topic with these labels is selected."""
        return self.match_labels.items() <= dict(labels).items() and all(
            term.holds(labels) for term in self.match_expressions
        )


class Schedule(ApiModel):
    """When runs start."""

    cron: Cron = Field(description="Five fields: minute, hour, day of month, month, day of week, such as `0 3 * * *`.")
    time_zone: TimeZone = Field(default="Etc/UTC", description="A zone of the IANA database, such as Europe/Berlin.")
    jitter: Duration | None = Field(
        default=None,
        description="A run starts up to this much later, differently at each time and for each policy.",
    )


class Window(ApiModel):
    """A time in which runs may start."""

    cron: Cron = Field(description="When it opens: five fields.")
    duration: Duration = Field(description="How long it stays open.")
    time_zone: TimeZone = Field(default="Etc/UTC", description="A zone of the IANA database, such as Europe/Berlin.")


Deadline = Annotated[
    Duration,
    Rule(
        "self.endsWith('d') ? self == '1d' : (self.endsWith('ms') || self.size() <= 6)"
        " && duration(self) >= duration('1m') && duration(self) <= duration('24h')",
        "deadline is between 1m and 1d",
    ),
]


class RetentionRun(ApiModel):
    """How runs are carried out."""

    max_concurrent: int = Field(
        default=2,
        ge=1,
        le=20,
        description="Runs of this policy at the same time, each with many small tables or a large one.",
    )
    deadline: Deadline = Field(
        default="1h", description="A run is stopped so long after its Job was made, and tried again later."
    )
    retries: int = Field(default=2, ge=0, le=10, description="So often a run is tried again at once.")
    size: ConfiguredName = Field(
        default="small", description="Resources of a run: a size of the operator's configuration."
    )


class CompactionRun(RetentionRun):
    """How runs are carried out."""

    max_commits: int = Field(
        default=10,
        ge=1,
        le=1000,
        description="What a run rewrites of a table is committed in so many parts at most, each of which is kept once it is in. Manifests,"
        " and parts that other writers were in the way of, are committed beside these.",
    )


class TopicSelection(ApiModel):
    """Whom a policy governs."""

    selector: LabelSelector | None = Field(
        default=None,
        description="Topics of the policy's namespace by label; empty: all; unset: only topics that name the policy.",
    )
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = Field(
        default=0,
        description="Of several policies that select a topic the highest governs it, then the older one, then the name."
        " A policy that the topic names goes before all.",
    )
    suspend: bool = Field(default=False, description="No run starts, and one at work is stopped.")


class RemovedStatus(ApiModel):
    """What one part of retention removed or, in DryRun, would remove."""

    items: int = Field(
        default=0, description="Rows, snapshots or metadata files.", json_schema_extra={"format": "int64"}
    )
    files: int = Field(default=0, description="Files.", json_schema_extra={"format": "int64"})
    bytes: int = Field(default=0, description="Their bytes.", json_schema_extra={"format": "int64"})
    sample: Annotated[tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=5)] = Field(
        default=(), description="A few of them.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )


class RunFigures(ApiModel):
    """What a run did."""

    commits: int | None = Field(default=None, description="Commits to tables.")
    files_before: int | None = Field(
        default=None, description="Data files before.", json_schema_extra={"format": "int64"}
    )
    files_after: int | None = Field(
        default=None, description="Data files after.", json_schema_extra={"format": "int64"}
    )
    bytes_rewritten: int | None = Field(
        default=None, description="Bytes of the files that were rewritten.", json_schema_extra={"format": "int64"}
    )
    delete_files_removed: int | None = Field(
        default=None, description="Delete files that no longer apply.", json_schema_extra={"format": "int64"}
    )
    manifests_before: int | None = Field(
        default=None, description="Manifests before.", json_schema_extra={"format": "int64"}
    )
    manifests_after: int | None = Field(
        default=None, description="Manifests after.", json_schema_extra={"format": "int64"}
    )
    rows: RemovedStatus | None = Field(default=None, description="Rows that were too old.")
    snapshots: RemovedStatus | None = Field(default=None, description="Snapshots that were too old, and their files.")
    orphan_files: RemovedStatus | None = Field(default=None, description="Files that nothing refers to.")
    metadata_files: RemovedStatus | None = Field(default=None, description="Old metadata files.")


class RunStatus(RunFigures):
    """One run: a Job in the operator's namespace."""

    name: str = Field(max_length=63, description="Name of the Job.")
    mode: Literal["DryRun", "Enforce"] | None = Field(
        default=None, description="Of retention: whether anything was deleted."
    )
    start_time: datetime | None = Field(default=None, description="When the Job was made.")
    finish_time: datetime | None = Field(default=None, description="When it ended.")
    result: Literal["Running", "Succeeded", "Failed", "Unfinished", "Busy"] = Field(
        default="Running",
        description="What came of it. Busy: another run had the table's lease. Unfinished: it ended, mostly at its deadline, before all"
        " was done; what it did stays, and the rest is due again.",
    )
    message: str | None = Field(default=None, max_length=1024, description="Why, for people.")
    tables: int | None = Field(default=None, description="Tables that it was for.")
    tables_failed: int | None = Field(default=None, description="Tables of which it failed.")


class Governed(ApiModel):
    """A topic that a policy governs."""

    topic: str = Field(max_length=253, description="Its name.")
    because: Literal["NamedByTopic", "Selected"] = Field(
        description="NamedByTopic: the topic's spec names the policy. Selected: the policy's selector fits, and none that fits goes before it."
    )


class PolicyStatus(ApiModel):
    """What is."""

    observed_generation: int | None = Field(
        default=None,
        description="The generation of the spec that this status is about.",
        json_schema_extra={"format": "int64"},
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Ready: the policy is followed. SpecValid: it can be. MaintenanceHealthy: its runs succeed in time.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    topics: int | None = Field(default=None, description="Topics that it governs.")
    governs: Annotated[tuple[Governed, ...], Field(max_length=20)] = Field(
        default=(),
        description="The first twenty of them, by name.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    topics_refused: int | None = Field(
        default=None, description="Topics among them that it does not fit; their PoliciesResolved says why."
    )
    active_runs: Annotated[tuple[RunStatus, ...], Field(max_length=20)] = Field(
        default=(), description="Runs at work.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    last_request: str | None = Field(
        default=None,
        max_length=128,
        description="The last value of the annotation firn.dev/run-now that was answered for every topic that it governed then.",
    )
    last_run: RunStatus | None = Field(default=None, description="The run that ended last.")
    next_run_time: datetime | None = Field(default=None, description="When the schedule is next due.")
