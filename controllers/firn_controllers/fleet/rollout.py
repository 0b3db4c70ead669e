"""Rolling updates, one broker at a time behind a health gate.

A StatefulSet replaces the pods at or above ``partition``, highest first. A new template is applied together with a
partition above all pods, so that it replaces none at first; then each reconcile may lower the partition by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from firn_controllers.ports import FleetState, PodState, StatefulSetState


@dataclass(frozen=True, slots=True)
class Step:
    """The ``partition`` to apply with the template, and the condition that the next broker ``waits`` for, if any."""

    partition: int
    waits: str | None = None


def ordinal(pod: PodState) -> int:
    """Return the number at the end of the name of a StatefulSet's pod."""
    return int(pod.name.rsplit("-", 1)[1])


def step(
    wanted: str, live: StatefulSetState | None, pods: Sequence[PodState], admin: FleetState | None, replicas: int
) -> Step:
    """Return how far the template whose hash is ``wanted`` may be rolled out now.

    ``admin`` is None while the brokers do not answer.
    """
    if live is None:
        return Step(0)
    if live.template_hash != wanted:
        return Step(replicas if any(pod.ready for pod in pods) else 0)
    if live.partition == 0 or not live.generation_observed:
        return Step(live.partition)
    here = min(live.partition, replicas)
    by_ordinal = {ordinal(pod): pod for pod in pods}
    for number in range(here, replicas):
        pod = by_ordinal.get(number)
        if pod is None or not pod.ready or pod.template_hash != wanted:
            return Step(here, f"until pod {live.name}-{number} is replaced and ready")
    following = by_ordinal.get(here - 1)
    if following is None:
        return Step(here, f"until pod {live.name}-{here - 1} exists")
    # Replacing a broker that is down costs nothing, and the new template may repair it.
    if not following.ready or following.template_hash == wanted or replicas == 1:
        return Step(here - 1)
    waits = blocked(pods, admin, replicas)
    return Step(here - 1) if waits is None else Step(here, waits)


def blocked(pods: Sequence[PodState], admin: FleetState | None, replicas: int) -> str | None:
    """Return why no further broker may be replaced.

    None if every broker is ready and every partition has all its replicas in sync. Brokers that have joined also have
    the whole metadata log. In one process, broker and controller share the log, so the quorum needs no check of its own.
    """
    if admin is None:
        return "until the brokers answer"
    up = sum(pod.ready and not pod.deleting for pod in pods)
    if up != replicas:
        return f"until all {replicas} pods are ready"
    if admin.brokers < replicas:
        return f"until all {replicas} brokers have joined the cluster"
    if admin.under_replicated:
        of = f" (topics {', '.join(admin.lagging_topics)})" if admin.lagging_topics else ""
        return f"until the replicas of {admin.under_replicated} under-replicated partition(s) are in sync{of}"
    return None


def complete(wanted: str, pods: Sequence[PodState], replicas: int) -> bool:
    """Return whether every pod is ready and made from the template whose hash is ``wanted``."""
    return len(pods) == replicas and all(pod.ready and pod.template_hash == wanted for pod in pods)


def under_way(wanted: str, live: StatefulSetState | None, pods: Sequence[PodState]) -> bool:
    """Return whether pods are still to be replaced, or the last one replaced is not ready yet."""
    return live is not None and (
        any(pod.template_hash != wanted for pod in pods) or live.current_revision != live.update_revision
    )
