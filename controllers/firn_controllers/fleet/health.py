"""The health of a fleet, as its topics need it: from its pods and from an admin client."""

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
    """Health of a fleet. ``degraded``: a problem for a user to solve, although topics can be managed."""

    degraded: str = ""


UNSEEN = FleetHealth(Reason.BROKER_STARTING, "the operator has not checked the brokers yet")


def fleet_health(
    profile: str,
    fleet: Fleet | None,
    pods: Sequence[PodState],
    admin: FleetState | FirnError,
    *,
    rolling: bool = False,
    wrong: str | None = None,
) -> FleetHealth:
    """Return the health of profile ``profile``. ``fleet`` is None for a Kafka that the operator does not run.

    ``wrong``: why a part of the configuration cannot come into force, such as a metadata version
    (``metadata_version.failure``).
    """
    what = f"profile {profile}"
    if isinstance(admin, AccessDeniedError):
        tokens = fleet is not None and getattr(fleet.profile, "access", None) is not None
        hint = (
            "; the operator logs in with a token: check access.issuer and access.certificate of the profile"
            if tokens
            else ""
        )
        return FleetHealth(Reason.ACCESS_DENIED, f"{what}: {admin}{hint}")
    if fleet is None:
        if isinstance(admin, FleetState):
            return FleetHealth()
        return FleetHealth(
            Reason.BROKER_UNREACHABLE,
            f"{what}: the brokers do not answer: {admin}; check bootstrapServers and security of the profile, and the network",
        )
    trouble = pod_troubles.worst_trouble(pods, fleet.image.image, fleet.owner.namespace)
    ready = sum(pod.ready for pod in pods)
    # With fewer brokers than a write needs, the answers of the others do not help.
    if isinstance(admin, FleetState) and ready >= fleet.least_ready:
        degraded = wrong
        if trouble is not None:
            degraded = trouble.message + (
                "; the operator replaces the other brokers after this broker is ready" if rolling else ""
            )
        return FleetHealth(rolling=rolling, degraded=f"{what}: {degraded}" if degraded else "")
    if trouble is not None:
        return FleetHealth(Reason.BROKER_UNREACHABLE, f"{what}: {trouble.message}", rolling, trouble.stalled)
    if ready < fleet.replicas:
        return FleetHealth(Reason.BROKER_STARTING, f"{what}: the brokers are starting", rolling)
    return FleetHealth(
        Reason.BROKER_UNREACHABLE,
        f"{what}: the brokers do not answer: {admin}; see the logs of the profile's pods",
        rolling,
    )
