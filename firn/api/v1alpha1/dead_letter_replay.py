"""DeadLetterReplay: decode the dead letters of a topic again, and move those that fit into its table. It runs once."""

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from firn.api.model import ApiModel, Condition, Duration, Int64, ObjectMeta, Rule
from firn.api.v1alpha1.policy import NAME_RULE, ConfiguredName, Deadline

KIND = "DeadLetterReplay"
PLURAL = "deadletterreplays"
SHORT_NAME = "dlr"

Code = Annotated[str, Field(pattern=r"^[A-Za-z]+$", max_length=40)]
Counts = Annotated[dict[str, Int64], Field(max_length=64)]


class ReplayedTopic(ApiModel):
    """The topic whose dead letters are replayed."""

    name: str = Field(
        min_length=1, max_length=253, description="Name of an IcebergTopic in the namespace of the DeadLetterReplay."
    )


class LetterFilter(ApiModel):
    """Conditions that a dead letter must meet."""

    codes: Annotated[tuple[Code, ...], Field(max_length=32)] = Field(
        default=(),
        description="Causes (column error_code), such as WrongKind: those of the page From record to row. Empty: all.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    since: datetime | None = Field(
        default=None,
        description="Time from which dead letters landed (column ingested_at), such as 2026-03-01T00:00:00Z. Unset: from the first one on.",
    )
    generations: Annotated[tuple[Int64, ...], Field(max_length=32)] = Field(
        default=(),
        description="Generations of the IcebergTopic under which dead letters landed (column generation). Empty: all.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class ReplayLimit(ApiModel):
    """Limits of a replay."""

    records: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        default=None, description="Largest number of dead letters that the replay decodes. Unset: all."
    )


class ReplayRun(ApiModel):
    """Settings of the run."""

    deadline: Deadline = Field(
        default="1h",
        description="Longest time from the creation of the Job to the end of the run, such as 30m: 1m to 1d.",
    )
    retries: int = Field(default=2, ge=0, le=10, description="Number of immediate retries of a failed run.")
    size: ConfiguredName = Field(
        default="small",
        description="Resources of the run: a name in maintenance.sizes of the operator's configuration.",
    )


class DeadLetterReplaySpec(ApiModel):
    """Desired replay. It cannot change: create another DeadLetterReplay instead."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self == oldSelf", "the spec of a DeadLetterReplay cannot change; create another DeadLetterReplay"),
    )

    topic_ref: ReplayedTopic = Field(description="The topic whose dead letters are replayed.")
    mode: Literal["DryRun", "Enforce"] = Field(
        default="DryRun",
        description="DryRun: decode the dead letters, commit nothing, and report the numbers in status. Enforce: append those that fit to"
        " the table, and remove them from the dead letters.",
    )
    where: LetterFilter = Field(
        default=LetterFilter(), description="Conditions that dead letters must meet. Default: all dead letters."
    )
    limit: ReplayLimit = Field(default=ReplayLimit(), description="Limits of the replay.")
    run: ReplayRun = Field(default=ReplayRun(), description="Settings of the run.")
    ttl_after_finished: Duration | None = Field(
        default=None,
        description="Time after the end of the replay at which the operator deletes the DeadLetterReplay, such as 7d. Unset: it stays.",
    )


class ReplayStatus(ApiModel):
    """Observed state."""

    observed_generation: Int64 | None = Field(
        default=None, description="Generation of the spec that this status describes."
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Conditions. Finished: the replay has ended, well or not. Ready: it has ended well. SpecValid: the spec is valid.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    run: str | None = Field(
        default=None, max_length=63, description="Name of the run's Job in the operator's namespace."
    )
    start_time: datetime | None = Field(default=None, description="Creation time of the Job.")
    finish_time: datetime | None = Field(default=None, description="End of the replay.")
    matched: Int64 | None = Field(default=None, description="Number of dead letters that meet the conditions.")
    landed: Int64 | None = Field(
        default=None, description="Number of dead letters that became rows, or with mode DryRun would become rows."
    )
    failed: Int64 | None = Field(
        default=None, description="Number of decoded dead letters that do not fit the current schema, and stay."
    )
    remaining: Int64 | None = Field(
        default=None,
        description="Number of dead letters of the topic after the replay, or with mode DryRun: that would stay. Missing if the topic "
        "was created again during the replay.",
    )
    codes: Counts | None = Field(
        default=None, description="Number of dead letters that meet the conditions, by their cause."
    )
    failures: Counts | None = Field(
        default=None,
        description="Number of dead letters that do not fit the current schema, by the cause that they have now.",
    )


class DeadLetterReplay(ApiModel):
    """A replay of dead letters: records that did not fit the schema become rows, if they fit the current one."""

    rules: ClassVar[tuple[Rule, ...]] = (NAME_RULE,)

    metadata: ObjectMeta
    spec: DeadLetterReplaySpec
    status: ReplayStatus = Field(default_factory=ReplayStatus)
