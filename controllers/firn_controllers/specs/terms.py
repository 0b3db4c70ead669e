"""The terms of a policy: its spec, checked against the configuration, with times and amounts as numbers."""

from dataclasses import dataclass
from datetime import timedelta

from firn.api.v1alpha1 import CompactionPolicy, RetentionPolicy
from firn.model import durations, quantities
from firn.model.conditions import Reason
from firn.model.config import Config
from firn.model.errors import InvalidSpecError
from firn.tables import transforms
from firn_controllers.specs.calendar import Slots, Windows

Policy = CompactionPolicy | RetentionPolicy


@dataclass(frozen=True, slots=True)
class TriggerTerms:
    """Limits of debt from which a table is due."""

    small_files: int | None
    small_bytes: int | None
    deletes: bool
    max_age: timedelta | None
    min_interval: timedelta


@dataclass(frozen=True, slots=True)
class PolicyTerms:
    """The terms of a valid policy. `read_terms` makes them."""

    slots: Slots | None
    windows: Windows
    triggers: TriggerTerms | None
    max_concurrent: int
    deadline: timedelta
    retries: int
    size: str
    suspended: bool
    idle: bool
    """True if a run would have nothing to do, because only ``log`` is set."""


def read_terms(policy: Policy, uid: str, config: Config) -> PolicyTerms:
    """Read a policy.

    Raises InvalidSpecError that names the field: InvalidSpec, BadTransform (columns), NotAllowed (below the
    configuration's limit).
    """
    spec = policy.spec
    maintenance = config.maintenance
    if spec.run.size not in maintenance.sizes:
        sizes = ", ".join(sorted(maintenance.sizes))
        raise InvalidSpecError(
            f"spec.run.size: {spec.run.size} is not in the operator's configuration; choose one of {sizes}",
            reason=Reason.NOT_ALLOWED,
        )
    triggers = None
    windows = Windows()
    if isinstance(policy, CompactionPolicy):
        windows = Windows.parse(policy.spec.windows)
        triggers = _triggers(policy)
        if policy.spec.strategy == "Sort":
            for text in policy.spec.columns:
                try:
                    transforms.parse_sort(text)
                except InvalidSpecError as error:
                    raise InvalidSpecError(f"spec.columns: {error}", reason=error.reason) from error
    else:
        _check_floors(policy, config)
    return PolicyTerms(
        slots=Slots.parse(spec.schedule, uid) if spec.schedule else None,
        windows=windows,
        triggers=triggers,
        max_concurrent=spec.run.max_concurrent,
        deadline=durations.parse(spec.run.deadline),
        retries=spec.run.retries,
        size=spec.run.size,
        suspended=spec.suspend,
        idle=isinstance(policy, RetentionPolicy) and policy.work() is None,
    )


def _triggers(policy: CompactionPolicy) -> TriggerTerms | None:
    given = policy.triggers
    if given is None:
        return None
    return TriggerTerms(
        small_files=given.small_files,
        small_bytes=quantities.size(given.small_bytes) if given.small_bytes else None,
        deletes=given.delete_file_ratio is not None,
        max_age=durations.parse(given.max_age) if given.max_age else None,
        min_interval=durations.parse(given.min_interval),
    )


def _check_floors(policy: RetentionPolicy, config: Config) -> None:
    spec, maintenance = policy.spec, config.maintenance
    if spec.orphan_files is not None:
        _check_floor("orphanFiles.minAge", spec.orphan_files.min_age, maintenance.lowest_orphan_age)
    if spec.snapshots is not None:
        _check_floor("snapshots.maxAge", spec.snapshots.max_age, maintenance.lowest_snapshot_age)


def _check_floor(field: str, given: str, lowest: str) -> None:
    if durations.milliseconds(given) < durations.milliseconds(lowest):
        raise InvalidSpecError(
            f"spec.{field}: {given} is below the operator's configuration, which allows {lowest} or more",
            reason=Reason.NOT_ALLOWED,
        )
