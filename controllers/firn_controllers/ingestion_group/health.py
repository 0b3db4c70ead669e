"""The health of an ingestion group, as its topics need it: from the pods of the driver and from its progress report."""

from collections.abc import Sequence
from dataclasses import dataclass

from firn.model.conditions import Reason
from firn.model.progress import GroupProgress
from firn_controllers.conditions import pods as pod_troubles
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.ports import PodState

DriverReport = tuple[GroupProgress, float]
"""A progress document and the monotonic time when the operator read it. A clock that is set has no effect on its age."""


@dataclass(frozen=True, slots=True)
class GroupHealth(DependencyHealth):
    """Health of a driver. ``executors``: the problem is that none of its executors runs, but the driver does."""

    executors: bool = False

    @property
    def heard(self) -> bool:
        """True if the driver's report about topics is current."""
        return self.problem is None or self.executors


UNSEEN = GroupHealth(Reason.STARTING, "the operator has not checked the ingestion driver yet")


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """An ingestion group, as its pods and its driver show it."""

    name: str
    namespace: str
    image: str
    pods: Sequence[PodState]
    report: DriverReport | None
    now: float
    """Monotonic seconds."""
    stale_after: float
    """Age in seconds from which a report no longer counts."""
    rolling: bool = False
    """True while the driver's pod is being replaced."""
    executors: Sequence[PodState] | None = None
    """Pods of the group's Spark executors. None if the configuration gives it none."""
    memory_hint: str = ""
    """Sentence for a message about missing memory; empty if the memory is large enough."""


def group_health(group: ObservedGroup) -> GroupHealth:
    """Return the health of the group's driver, and of its executors if it has any."""
    prefix = f"ingestion group {group.name}"
    rolling = group.rolling
    trouble = pod_troubles.worst_trouble(group.pods, group.image, group.namespace)
    if trouble is not None:
        hint = group.memory_hint if trouble.reason is Reason.OUT_OF_MEMORY else ""
        message = f"{prefix}: {trouble.message}" + (f"; {hint}" if hint else "")
        return GroupHealth(trouble.reason, message, rolling, trouble.stalled)
    running = [pod for pod in group.pods if pod.running and not pod.deleting]
    current = group.report is not None and group.now - group.report[1] <= group.stale_after
    if running and current:
        missing = _missing_executors(group)
        if missing is None:
            return GroupHealth(rolling=rolling)
        return GroupHealth(missing.reason, f"{prefix}: {missing.message}", rolling, missing.stalled, executors=True)
    if any(pod.ready for pod in running):
        message = (
            f"{prefix}: pod {running[0].name} is ready, but does not answer on /progress; check the NetworkPolicies"
        )
        return GroupHealth(Reason.BACKING_OFF, message, rolling)
    return GroupHealth(Reason.STARTING, f"{prefix}: the driver is starting", rolling)


def _missing_executors(group: ObservedGroup) -> pod_troubles.Trouble | None:
    if group.executors is None:
        return None
    return pod_troubles.executor_trouble(group.executors, group.image, group.namespace, group.name)


def released(uid: str, pods: Sequence[PodState], report: DriverReport | None, since: float, grace: float) -> bool:
    """Return whether no driver lands records any more of the topic ``uid``, whose contract was removed at ``since``.

    That is so if no driver runs, because a driver that starts reads the contracts again. It is also so if the driver
    reported, ``grace`` after the removal or later, that it does not have the topic.
    """
    if not any(pod.running for pod in pods):
        return True
    if report is None:
        return False
    document, read = report
    return read >= since + grace and uid not in document.uids
