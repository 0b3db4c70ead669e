"""The brokers' StatefulSet. Image contract: the official ``apache/kafka`` (tools under /opt/kafka/bin, a shell, uid 1000)."""

from typing import Any

from firn_controllers import manifests
from firn_controllers.fleet import config_map, services
from firn_controllers.fleet.layout import (
    CLIENT_PORT,
    CONFIG_PATH,
    CONTROLLER_PORT,
    DATA_PATH,
    EXTERNAL_PORT,
    METADATA_VERSION,
    UID,
    VOTERS,
    Fleet,
)
from firn_controllers.ports import Manifest


def build(fleet: Fleet, partition: int) -> Manifest:
    """The StatefulSet ``firn-broker-P``. Pods below ordinal ``partition`` keep the template they have (see ``rollout``)."""
    marks = {VOTERS: str(fleet.voters)}
    if fleet.metadata_version is not None:
        marks[METADATA_VERSION] = fleet.metadata_version
    spec = {
        "serviceName": fleet.service,
        "replicas": fleet.replicas,
        # Parallel: a quorum cannot form one ready pod at a time, and a pod that never became ready does not block its repair.
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
        "selector": {"matchLabels": fleet.labels},
        "template": _template(fleet),
        "volumeClaimTemplates": [_claim(fleet)],
    }
    return manifests.child("apps/v1", "StatefulSet", fleet.service, **fleet.meta(annotations=marks), spec=spec)


def _template(fleet: Fleet) -> Manifest:
    profile = fleet.profile
    probe = {"tcpSocket": {"port": "kafka"}}
    ports = [
        {"name": "kafka", "containerPort": CLIENT_PORT},
        {"name": "controller", "containerPort": CONTROLLER_PORT},
    ]
    if profile.external is not None:
        ports.append({"name": "external", "containerPort": EXTERNAL_PORT})
    container = {
        "name": "kafka",
        "image": fleet.image.image,
        "imagePullPolicy": fleet.image.pull_policy,
        "command": ["/bin/sh", f"{CONFIG_PATH}/start.sh"],
        "env": _environment(fleet),
        "ports": ports,
        # Recovering the logs after a crash can take long; only then does the port open.
        "startupProbe": {**probe, "periodSeconds": 2, "failureThreshold": 900},
        "readinessProbe": {**probe, "periodSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {**probe, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 12},
        "resources": {
            key: value
            for key, value in (("requests", profile.resources.requests), ("limits", profile.resources.limits))
            if value
        },
        "securityContext": manifests.container_security(),
        "volumeMounts": [
            {"name": "data", "mountPath": DATA_PATH},
            {"name": "config", "mountPath": CONFIG_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 120,
        "securityContext": manifests.pod_security(UID),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": fleet.labels},
            }
            for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ],
        **manifests.scheduling(profile.scheduling),
        **manifests.pull_secrets(fleet.pull_secrets),
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": config_map.name(fleet)}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    return manifests.pod_template(fleet.labels, {}, spec)


def _environment(fleet: Fleet) -> list[dict[str, Any]]:
    heap = fleet.profile.heap
    variables: list[dict[str, Any]] = [
        {"name": "KAFKA_HEAP_OPTS", "value": f"-Xms{heap} -Xmx{heap}"},
        {"name": "LOG_DIR", "value": "/tmp/logs"},
        {"name": "FIRN_CLUSTER_ID", "value": fleet.cluster_id},
        {"name": "FIRN_SERVICE", "value": f"{fleet.service}.{fleet.owner.namespace}.svc"},
        {"name": "FIRN_VOTERS", "value": str(fleet.voters)},
    ]
    external = fleet.profile.external
    if external is not None and external.type == "LoadBalancer":
        variables.append({"name": "FIRN_EXTERNAL_HOSTS", "value": " ".join(services.load_balancer_hosts(fleet))})
    elif external is not None:
        variables.append({"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}})
        variables.append({"name": "FIRN_EXTERNAL_HOST", "value": external.host})
        variables.append({"name": "FIRN_EXTERNAL_PORT", "value": str(external.port)})
    return variables


def _claim(fleet: Fleet) -> Manifest:
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": fleet.storage_size}},
    }
    if fleet.storage_class_name is not None:
        spec["storageClassName"] = fleet.storage_class_name
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec}
