"""Parts that CompactionPolicy and RetentionPolicy share: selection of topics, schedule, settings of runs, status."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from firn.api.model import DURATION, ApiModel, Condition, Duration, Form, Int64, Rule, up_to_a_day

ConfiguredName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
LabelText = Annotated[str, Field(max_length=317)]
SIZE = Form(
    r"^[1-9][0-9]*(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$",
    "write a whole number of bytes, with a unit such as Mi or Gi, such as 512Mi",
)
ByteSize = Annotated[str, Field(max_length=20), SIZE]
"""A Kubernetes quantity of bytes."""
CRON = Form(
    r"^\s*[0-9A-Za-z*,/#-]+(\s+[0-9A-Za-z*,/#-]+){4}\s*$",
    "write minute, hour, day of month, month and day of week, such as 0 3 * * *",
)
Cron = Annotated[str, Field(max_length=100), CRON]
TimeZone = Annotated[str, Field(pattern=r"^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$", max_length=64)]
NAME_RULE = Rule("self.metadata.name.size() <= 52", "metadata.name must have at most 52 characters")


class LabelRequirement(ApiModel):
    """A requirement of a selector."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "operators In and NotIn need values; Exists and DoesNotExist take none",
        ),
    )

    key: LabelText = Field(min_length=1, description="Key of a label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="Relation of the label to the values."
    )
    values: Annotated[tuple[LabelText, ...], Field(max_length=64)] = Field(
        default=(),
        description="Values for In and NotIn.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return True if the labels meet the requirement. As in Kubernetes, NotIn also holds for an absent label."""
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
    """Labels of IcebergTopics in the policy's namespace. An empty selector matches all of them."""

    match_labels: Annotated[dict[str, LabelText], Field(max_length=64)] = Field(
        default_factory=dict, description="Labels and values that a topic must have."
    )
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=64)] = Field(
        default=(),
        description="Requirements that must all hold.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if the selector matches a topic with these labels."""
        return self.match_labels.items() <= dict(labels).items() and all(
            term.holds(labels) for term in self.match_expressions
        )


class Schedule(ApiModel):
    """Start times of runs."""

    cron: Cron = Field(description="Five fields: minute, hour, day of month, month, day of week, such as `0 3 * * *`.")
    time_zone: TimeZone = Field(
        default="Etc/UTC", description="Time zone of cron: a name of the IANA database, such as Europe/Berlin."
    )
    jitter: Duration | None = Field(
        default=None,
        description="Longest random delay of a run, such as 15m. Each scheduled time of a policy has one delay, which does not change.",
    )


class Window(ApiModel):
    """A time window in which runs may start."""

    cron: Cron = Field(description="Opening times, as a cron expression with five fields.")
    duration: Duration = Field(description="Time for which the window stays open, such as 6h.")
    time_zone: TimeZone = Field(
        default="Etc/UTC", description="Time zone of cron: a name of the IANA database, such as Europe/Berlin."
    )


Deadline = Annotated[Duration, DURATION.bounded(up_to_a_day("1m"), "deadline must be between 1m and 1d")]


class RetentionRun(ApiModel):
    """Settings of runs."""

    max_concurrent: int = Field(
        default=2,
        ge=1,
        le=20,
        description="Largest number of runs of this policy at the same time. A run serves many small tables or one large table.",
    )
    deadline: Deadline = Field(
        default="1h",
        description="Longest time from the creation of the Job to the end of the run, such as 30m: 1m to 1d. After it, the run is stopped, and its"
        " unfinished tables are due again.",
    )
    retries: int = Field(default=2, ge=0, le=10, description="Number of immediate retries of a failed run.")
    size: ConfiguredName = Field(
        default="small", description="Resources of a run: a name in maintenance.sizes of the operator's configuration."
    )


class CompactionRun(RetentionRun):
    """Settings of runs."""

    max_commits: int = Field(
        default=10,
        ge=1,
        le=1000,
        description="Largest number of commits of rewritten data files of a run to a table. A commit stays even if the run ends early. Commits of"
        " merged Iceberg manifests, and retries after a conflict with another writer, do not count.",
    )


class TopicSelection(ApiModel):
    """Selection of the topics that a policy governs."""

    selector: LabelSelector | None = Field(
        default=None,
        description="Selector of topics in the policy's namespace, by label. Empty: all topics. Unset: only topics that name the policy.",
    )
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = Field(
        default=0,
        description="Precedence among policies that select a topic. The highest priority governs, then the oldest policy, then the first by name."
        " A policy that the topic names governs in any case.",
    )
    suspend: bool = Field(default=False, description="If true, no run starts, and running Jobs are stopped.")


class RemovedStatus(ApiModel):
    """Items of one kind that a retention run removed, or would remove with mode DryRun."""

    items: Int64 = Field(default=0, description="Number of rows, snapshots or files.")
    files: Int64 = Field(default=0, description="Number of files.")
    bytes: Int64 = Field(default=0, description="Size of the files in bytes.")
    sample: Annotated[tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=5)] = Field(
        default=(),
        description="Up to five examples: paths of files, or ids of snapshots.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class RunFigures(ApiModel):
    """Figures of a run."""

    commits: int | None = Field(default=None, description="Number of commits to tables.")
    files_before: Int64 | None = Field(default=None, description="Number of data files before the run.")
    files_after: Int64 | None = Field(default=None, description="Number of data files after the run.")
    bytes_rewritten: Int64 | None = Field(default=None, description="Size of the rewritten files in bytes.")
    delete_files_removed: Int64 | None = Field(
        default=None, description="Number of removed delete files that no longer applied to any data file."
    )
    manifests_before: Int64 | None = Field(default=None, description="Number of Iceberg manifests before the run.")
    manifests_after: Int64 | None = Field(default=None, description="Number of Iceberg manifests after the run.")
    rows: RemovedStatus | None = Field(
        default=None, description="Rows that the run removed, or with mode DryRun would remove."
    )
    snapshots: RemovedStatus | None = Field(
        default=None,
        description="Snapshots that the run expired, and their removed files. With mode DryRun: those that it would expire and remove.",
    )
    orphan_files: RemovedStatus | None = Field(
        default=None, description="Orphan files that the run removed, or with mode DryRun would remove."
    )
    metadata_files: RemovedStatus | None = Field(
        default=None, description="Metadata files that the run removed, or with mode DryRun would remove."
    )


class RunStatus(RunFigures):
    """A run: a Job in the operator's namespace."""

    name: str = Field(max_length=63, description="Name of the Job.")
    mode: Literal["DryRun", "Enforce"] | None = Field(default=None, description="Mode of a retention run.")
    start_time: datetime | None = Field(default=None, description="Creation time of the Job.")
    finish_time: datetime | None = Field(default=None, description="End of the run.")
    result: Literal["Running", "Succeeded", "Failed", "Unfinished", "Busy"] = Field(
        default="Running",
        description="Result of the run. Busy: another run held the lease of the table. Unfinished: the run ended before all work was done, usually at"
        " its deadline. Its commits stay, and the rest is due again.",
    )
    message: str | None = Field(default=None, max_length=1024, description="Explanation of the result.")
    tables: int | None = Field(default=None, description="Number of tables of the run.")
    tables_failed: int | None = Field(default=None, description="Number of tables for which the run failed.")


class Governed(ApiModel):
    """A topic that a policy governs."""

    topic: str = Field(max_length=253, description="Name of the topic resource.")
    because: Literal["NamedByTopic", "Selected"] = Field(
        description="NamedByTopic: the topic's spec names the policy. Selected: the policy's selector matches, and no other match takes precedence."
    )


class PolicyStatus(ApiModel):
    """Observed state."""

    observed_generation: Int64 | None = Field(
        default=None, description="Generation of the spec that this status describes."
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Conditions. Ready: the operator follows the policy. SpecValid: the spec is valid. MaintenanceHealthy: runs start in time"
        " and succeed.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    topics: int | None = Field(default=None, description="Number of topics that the policy governs.")
    governs: Annotated[tuple[Governed, ...], Field(max_length=20)] = Field(
        default=(),
        description="The first twenty governed topics by name.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    topics_refused: int | None = Field(
        default=None,
        description="Number of governed topics for which the policy is not valid. Their condition PoliciesResolved names the cause.",
    )
    active_runs: Annotated[tuple[RunStatus, ...], Field(max_length=20)] = Field(
        default=(), description="Active runs.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    last_request: str | None = Field(
        default=None,
        max_length=128,
        description="Last value of the annotation firn.dev/run-now that runs have handled for every governed topic.",
    )
    last_run: RunStatus | None = Field(default=None, description="The last run that ended.")
    next_run_time: datetime | None = Field(default=None, description="Time of the next scheduled run.")
