"""What topics need to know of their driver, from its pod and from what it says of itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from firn.model.conditions import Reason
from firn.model.progress import GroupProgress
from firn_controllers.conditions import pods as pod_troubles
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.ports import PodState

Said = tuple[GroupProgress, datetime]
"""A progress document and when it was read."""


@dataclass(frozen=True, slots=True)
class GroupHealth(DependencyHealth):
    """``executors``: the problem is that none of them runs; the driver does."""

    executors: bool = False

    @property
    def heard(self) -> bool:
        """What the driver says of topics can be believed."""
        return self.problem is None or self.executors


UNSEEN = GroupHealth(Reason.STARTING, "the ingestion application has not been looked at yet")


def group_health(
    group: str,
    pods: Sequence[PodState],
    said: Said | None,
    *,
    executors: Sequence[PodState] | None = None,
    image: str,
    memory_hint: str = "",
    namespace: str,
    now: datetime,
    stale_after: timedelta,
    rolling: bool,
) -> GroupHealth:
    """The health of ``group``: of its driver, and of its ``executors`` where it is to have any. ``stale_after``: a document older than that
    says nothing any more."""
    trouble = pod_troubles.worst_trouble(pods, image, namespace)
    if trouble is not None:
        hint = memory_hint if trouble.reason is Reason.OUT_OF_MEMORY else ""
        message = f"ingestion group {group}: {trouble.message}{hint}"
        return GroupHealth(trouble.reason, message, rolling, trouble.stalled)
    running = [pod for pod in pods if pod.running and not pod.deleting]
    current = said is not None and now - said[1] <= stale_after
    if running and current:
        missing = pod_troubles.executor_trouble(executors, image, namespace, group) if executors is not None else None
        if missing is None:
            return GroupHealth(rolling=rolling)
        message = f"ingestion group {group}: {missing.message}"
        return GroupHealth(missing.reason, message, rolling, missing.stalled, executors=True)
    if any(pod.ready for pod in running):
        return GroupHealth(
            Reason.BACKING_OFF,
            f"ingestion group {group}: pod {running[0].name} is ready but does not answer on /progress",
            rolling=rolling,
        )
    return GroupHealth(Reason.STARTING, f"ingestion group {group}: the driver is starting", rolling=rolling)


def released(uid: str, pods: Sequence[PodState], said: Said | None, since: datetime, grace: timedelta) -> bool:
    """No driver lands records of the topic resource ``uid`` any more, whose contract has been gone ``since`` then.

    Either nothing runs (a driver that starts again reads the contracts afresh), or it has said so itself, ``grace`` after.
    """
    if not any(pod.running for pod in pods):
        return True
    if said is None:
        return False
    document, read = said
    return read >= since + grace and all(topic.uid != uid for topic in document.topics)
