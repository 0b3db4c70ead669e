"""What topics need to know of a fleet, from its pods and from an admin client."""

from collections.abc import Sequence
from dataclasses import dataclass

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, FirnError
from firn_controllers.conditions import pods as pod_troubles
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.fleet.layout import Fleet
from firn_controllers.ports import FleetState, PodState


@dataclass(frozen=True, slots=True)
class FleetHealth(DependencyHealth):
    """``degraded`` says what somebody has to look at although topics can be managed."""

    degraded: str = ""


UNSEEN = FleetHealth(Reason.BROKER_STARTING, "the brokers have not been looked at yet")


def fleet_health(
    profile: str,
    fleet: Fleet | None,
    pods: Sequence[PodState],
    admin: FleetState | FirnError,
    *,
    rolling: bool = False,
    wrong: str | None = None,
) -> FleetHealth:
    """The health of profile ``profile``; ``fleet`` is None for a Kafka that is not ours. ``wrong``: why what is asked for cannot be
    brought into force, such as a metadata version (see ``metadata_version.failure``)."""
    what = f"profile {profile}"
    if isinstance(admin, AccessDeniedError):
        return FleetHealth(Reason.ACCESS_DENIED, f"{what}: {admin}")
    if fleet is None:
        if isinstance(admin, FleetState):
            return FleetHealth()
        return FleetHealth(Reason.BROKER_UNREACHABLE, f"{what}: the brokers do not answer: {admin}")
    trouble = pod_troubles.worst_trouble(pods, fleet.image.image, fleet.owner.namespace)
    ready = sum(pod.ready for pod in pods)
    # With fewer brokers than a write needs, what the others say of the cluster is of no use.
    if isinstance(admin, FleetState) and ready >= fleet.least_ready:
        degraded = wrong
        if trouble is not None:
            degraded = trouble.message + ("; the other brokers keep what they run until it is ready" if rolling else "")
        return FleetHealth(rolling=rolling, degraded=f"{what}: {degraded}" if degraded else "")
    if trouble is not None:
        return FleetHealth(Reason.BROKER_UNREACHABLE, f"{what}: {trouble.message}", rolling, trouble.stalled)
    if ready < fleet.replicas:
        return FleetHealth(Reason.BROKER_STARTING, f"{what}: the brokers are starting", rolling)
    return FleetHealth(Reason.BROKER_UNREACHABLE, f"{what}: the brokers do not answer: {admin}", rolling)
