"""The addresses by which clients outside the cluster reach a broker: variables of its pod, and the lines of its start
script.
"""

from typing import Any

from firn.model.errors import InvalidSpecError
from firn_controllers.fleet.layout import EXTERNAL_PORT, Fleet

ADDRESS = f"""external=
if [ -n "${{FIRN_EXTERNAL_HOSTS:-}}" ]; then
  set -- $FIRN_EXTERNAL_HOSTS
  shift "$ordinal"
  external="$1:{EXTERNAL_PORT}"
elif [ -n "${{FIRN_EXTERNAL_PORT:-}}" ]; then
  external="${{FIRN_EXTERNAL_HOST:-$NODE_IP}}:$((FIRN_EXTERNAL_PORT + 1 + ordinal))"
fi
"""
"""Shell script that sets ``external`` to the HOST:PORT that broker ``$ordinal`` advertises, or to nothing."""


def placed(script: str, fleet: Fleet) -> str:
    """Return a start script in which `ADDRESS` is that of the fleet. Names of TLSRoutes need no variable, so new brokers replace no others.

    Raises InvalidSpecError if a broker has no TLSRoute.
    """
    external = fleet.profile.external
    route = None if external is None else external.tls_route
    if route is None:
        return script
    if fleet.replicas > fleet.profile.replicas:
        raise InvalidSpecError(
            f"configuration profiles.{fleet.name}.replicas: {fleet.replicas} brokers exist, and the chart creates TLSRoutes for"
            f" {fleet.profile.replicas}; set replicas to {fleet.replicas}"
        )
    return script.replace(ADDRESS, f'external="{route.host("${ordinal}")}:{route.port}"\n')


def variables(fleet: Fleet) -> list[dict[str, Any]]:
    """Return the environment that `ADDRESS` reads; none without ``external``."""
    external = fleet.profile.external
    if external is None or external.type == "TLSRoute":
        return []
    if external.type == "LoadBalancer":
        return [{"name": "FIRN_EXTERNAL_HOSTS", "value": " ".join(load_balancer_hosts(fleet))}]
    return [
        {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "FIRN_EXTERNAL_HOST", "value": external.host},
        {"name": "FIRN_EXTERNAL_PORT", "value": str(external.port)},
    ]


def load_balancer_hosts(fleet: Fleet) -> list[str]:
    """Return the advertised name of each broker behind load balancers.

    Raises InvalidSpecError if the configuration lacks one.
    """
    settings = fleet.profile.external
    hosts = settings.hosts if settings else []
    if len(hosts) < fleet.replicas:
        raise InvalidSpecError(
            f"configuration profiles.{fleet.name}.external.hosts: {fleet.replicas} brokers need {fleet.replicas} host names,"
            f" and the list has {len(hosts)}"
        )
    return hosts
