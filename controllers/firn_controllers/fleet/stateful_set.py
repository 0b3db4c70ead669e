"""The parts of a fleet's StatefulSet that do not depend on the kind of its brokers."""

from collections.abc import Mapping, Sequence
from typing import Any

from firn.model.config import Resources
from firn_controllers import children
from firn_controllers.fleet.access import SOURCES
from firn_controllers.fleet.layout import EXTERNAL_PORT, Fleet
from firn_controllers.ports import Manifest


def build(
    fleet: Fleet,
    partition: int,
    pod: Mapping[str, Any],
    *,
    annotations: Mapping[str, str] | None = None,
    claims: Sequence[Manifest] = (),
) -> Manifest:
    """Build the StatefulSet ``firn-broker-P``. Pods below ordinal ``partition`` keep their template (`rollout`)."""
    spec: dict[str, Any] = {
        "serviceName": fleet.service,
        "replicas": fleet.replicas,
        # Parallel: a quorum cannot form if pods start one by one, and a pod that never became ready must not block its repair.
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
        "selector": {"matchLabels": fleet.labels},
        "template": children.pod_template(fleet.labels, {}, pod),
    }
    if claims:
        spec["volumeClaimTemplates"] = list(claims)
    meta = fleet.meta(annotations=dict(annotations or {}))
    return children.child_object("apps/v1", "StatefulSet", fleet.service, **meta, spec=spec)


def pod(
    fleet: Fleet, uid: int, grace_seconds: int, container: Mapping[str, Any], volumes: Sequence[Manifest]
) -> dict[str, Any]:
    """Build the spec of a broker's pod."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds,
        "securityContext": children.pod_security(uid),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": fleet.labels},
            }
            for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ],
        **children.scheduling(fleet.profile.scheduling),
        **children.pull_secrets(fleet.pull_secrets),
        "containers": [dict(container)],
        "volumes": list(volumes),
    }


def source_marks(fleet: Fleet) -> dict[str, str]:
    """Return the annotation with the Secrets that the brokers use; empty without ``access``."""
    return {} if fleet.sources is None else {SOURCES: fleet.sources.written()}


def container_ports(fleet: Fleet) -> list[dict[str, Any]]:
    """Return the ports of a broker's container."""
    ports = [{"name": name, "containerPort": port} for name, port in fleet.ports.items()]
    if fleet.profile.external is not None:
        ports.append({"name": "external", "containerPort": EXTERNAL_PORT})
    return ports


def variables(fleet: Fleet, own: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the variables of a broker's container: those of the profile that Firn does not set, and ``own``."""
    taken = {variable["name"] for variable in own}
    settings = sorted(fleet.profile.environment.items())
    return [*({"name": name, "value": value} for name, value in settings if name not in taken), *own]


def resources(settings: Resources, request: str, limit: str) -> dict[str, Any]:
    """Return requests and limits of a container. ``request`` and ``limit`` are its disk space, unless the profile sets its own."""
    return children.with_ephemeral_storage({"requests": settings.requests, "limits": settings.limits}, request, limit)
