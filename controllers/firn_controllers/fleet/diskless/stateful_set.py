"""The brokers' StatefulSet.

Image contract: ``firn-broker`` on the path, a shell, any uid. No volume outlives its pod.
"""

from typing import Any

from firn.model import names
from firn_controllers import children
from firn_controllers.fleet import outside, stateful_set
from firn_controllers.fleet.diskless import config_map
from firn_controllers.fleet.diskless.layout import API_SERVER_PATH, CONFIG_PATH, DRAIN_SECONDS, UID, DisklessFleet
from firn_controllers.ports import Manifest

STORAGE = ("64Mi", "1Gi")
"""Request and limit for the disk space of a broker, which stores nothing on its node except logs."""


def build(fleet: DisklessFleet, partition: int) -> Manifest:
    """Build the StatefulSet ``firn-broker-P``. Pods below ordinal ``partition`` keep their template (`rollout`)."""
    resources = stateful_set.resources(fleet.profile.resources, *STORAGE)
    volumes, mounts = children.secret_volumes(fleet.secret_names)
    trust_volumes, trust_mounts = children.trust_volumes(fleet.authorities)
    volumes += [
        *trust_volumes,
        {"name": "config", "configMap": {"name": config_map.name(fleet)}},
        children.scratch_volume(resources),
    ]
    mounts += [
        *trust_mounts,
        {"name": "config", "mountPath": CONFIG_PATH, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if fleet.profile.access is not None:
        volumes.append(_api_server())
        mounts.append({"name": "api-server", "mountPath": API_SERVER_PATH, "readOnly": True})
    pod = stateful_set.pod(fleet, UID, DRAIN_SECONDS, _container(fleet, mounts, resources), volumes)
    pod["serviceAccountName"] = fleet.profile.service_account
    marks = stateful_set.source_marks(fleet) | ({names.SECURED: "true"} if fleet.secured else {})
    return stateful_set.build(fleet, partition, pod, annotations=marks)


def _api_server() -> Manifest:
    """Return the volume with which a broker reads the keys of tokens at the API server."""
    authority = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    sources = [{"serviceAccountToken": {"expirationSeconds": 3600, "path": "token"}}, {"configMap": authority}]
    return {"name": "api-server", "projected": {"defaultMode": 0o440, "sources": sources}}


def _container(fleet: DisklessFleet, mounts: list[Manifest], resources: dict[str, Any]) -> Manifest:
    ready, alive = ({"httpGet": {"path": path, "port": "metrics"}} for path in ("/readyz", "/livez"))
    return {
        "name": "broker",
        "image": fleet.image.image,
        "imagePullPolicy": fleet.image.pull_policy,
        "command": ["/bin/sh", f"{CONFIG_PATH}/start.sh"],
        "env": _environment(fleet),
        "ports": stateful_set.container_ports(fleet),
        # A broker serves metrics and probes after it has joined its fleet, which may include a migration of the database.
        "startupProbe": {**alive, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 300},
        "readinessProbe": {**ready, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {**alive, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        # New clients arrive through the Services until every node knows that the pod terminates.
        "lifecycle": {"preStop": {"sleep": {"seconds": 3}}},
        "resources": resources,
        "securityContext": children.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _environment(fleet: DisklessFleet) -> list[dict[str, Any]]:
    # Kubernetes 1.35 labels pods with the zone of their node. With the label, clients use the brokers of their zone.
    zone = {"fieldRef": {"fieldPath": "metadata.labels['topology.kubernetes.io/zone']"}}
    own: list[dict[str, Any]] = [
        {"name": "FIRN_SERVICE", "value": fleet.domain},
        {"name": "ZONE", "valueFrom": zone},
        *outside.variables(fleet),
    ]
    return stateful_set.variables(fleet, own)
