"""Rolling updates, one broker at a time behind a health gate.

A StatefulSet replaces the pods at or above ``partition``, highest first. A new template is applied together with a partition above
all pods, so that nothing moves; then each reconcile may lower it by one.
"""

from collections.abc import Sequence

from firn_controllers.ports import FleetState, PodState, StatefulSetState


def ordinal(pod: PodState) -> int:
    """The number at the end of a StatefulSet pod's name."""
    return int(pod.name.rsplit("-", 1)[1])


def partition(
    wanted: str, live: StatefulSetState | None, pods: Sequence[PodState], admin: FleetState | None, replicas: int
) -> int:
    """The partition to apply with the template whose hash is ``wanted``. ``admin`` is None while the brokers do not answer."""
    if live is None:
        return 0
    if live.template_hash != wanted:
        return replicas if any(pod.ready for pod in pods) else 0
    if live.partition == 0 or not live.generation_observed:
        return live.partition
    here = min(live.partition, replicas)
    by_ordinal = {ordinal(pod): pod for pod in pods}
    done = [by_ordinal.get(number) for number in range(here, replicas)]
    if any(pod is None or not pod.ready or pod.template_hash != wanted for pod in done):
        return here
    following = by_ordinal.get(here - 1)
    if following is None:
        return here
    # A broker that is down already loses nothing by being replaced; it may be what the new template repairs.
    costs_nothing = not following.ready or following.template_hash == wanted
    return here - 1 if costs_nothing or replicas == 1 or healthy(pods, admin, replicas) else here


def healthy(pods: Sequence[PodState], admin: FleetState | None, replicas: int) -> bool:
    """Every broker is up and every partition has all its replicas in sync: one more may go away."""
    return (
        admin is not None
        and admin.brokers >= replicas
        and admin.under_replicated == 0
        and sum(pod.ready and not pod.deleting for pod in pods) == replicas
    )


def complete(wanted: str, pods: Sequence[PodState], replicas: int) -> bool:
    """Every pod is ready and made from the template whose hash is ``wanted``."""
    return len(pods) == replicas and all(pod.ready and pod.template_hash == wanted for pod in pods)
