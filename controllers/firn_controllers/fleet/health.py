"""What topics need to know of a fleet, from its pods and from an admin client."""

from collections.abc import Sequence
from dataclasses import dataclass

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, FirnError
from firn_controllers import pods as pod_troubles
from firn_controllers.fleet.layout import Fleet
from firn_controllers.ports import FleetState, PodState


@dataclass(frozen=True, slots=True)
class FleetHealth:
    """``problem`` is None while topics can be managed. Equal healths wake nobody."""

    problem: Reason | None = None
    message: str = ""
    rolling: bool = False
    stalled: bool = False


UNSEEN = FleetHealth(Reason.BROKER_STARTING, "the brokers have not been looked at yet")


def of(
    profile: str, fleet: Fleet | None, pods: Sequence[PodState], admin: FleetState | FirnError, rolling: bool
) -> FleetHealth:
    """The health of profile ``profile``; ``fleet`` is None for a Kafka that is not ours."""
    match admin:
        case FleetState():
            return FleetHealth(rolling=rolling)
        case AccessDeniedError():
            return FleetHealth(Reason.ACCESS_DENIED, f"profile {profile}: {admin}")
    if fleet is None:
        return FleetHealth(Reason.BROKER_UNREACHABLE, f"profile {profile}: the brokers do not answer: {admin}")
    trouble = pod_troubles.worst(pods, fleet.image.image, fleet.owner.namespace)
    if trouble is not None:
        return FleetHealth(Reason.BROKER_UNREACHABLE, f"profile {profile}: {trouble.message}", rolling, trouble.stalled)
    if sum(pod.ready for pod in pods) < fleet.replicas:
        return FleetHealth(Reason.BROKER_STARTING, f"profile {profile}: the brokers are starting", rolling)
    return FleetHealth(Reason.BROKER_UNREACHABLE, f"profile {profile}: the brokers do not answer: {admin}", rolling)
