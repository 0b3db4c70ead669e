"""The brokers' StatefulSet.

Image contract: the official ``apache/kafka``, with tools under /opt/kafka/bin, a shell and uid 1000.
"""

from typing import Any

from firn_controllers import children
from firn_controllers.fleet import outside, stateful_set
from firn_controllers.fleet.kafka import config_map
from firn_controllers.fleet.kafka.layout import (
    CONFIG_PATH,
    DATA_PATH,
    METADATA_VERSION,
    REPLICAS,
    UID,
    VOTERS,
    KafkaFleet,
)
from firn_controllers.ports import Manifest

STORAGE = ("128Mi", "4Gi")
"""Request and limit for the disk space of a broker beside its volume: logs, and up to 1 GB of Kafka's garbage collection logs in ``/tmp``."""


def build(fleet: KafkaFleet, partition: int) -> Manifest:
    """Build the StatefulSet ``firn-broker-P``. Pods below ordinal ``partition`` keep their template (`rollout`)."""
    marks = {VOTERS: str(fleet.voters), REPLICAS: str(fleet.replicas)}
    if fleet.metadata_version is not None:
        marks[METADATA_VERSION] = fleet.metadata_version
    resources = stateful_set.resources(fleet.profile.resources, *STORAGE)
    volumes = [
        {"name": "config", "configMap": {"name": config_map.name(fleet)}},
        children.scratch_volume(resources),
    ]
    pod = stateful_set.pod(fleet, UID, 120, _container(fleet, resources), volumes)
    return stateful_set.build(fleet, partition, pod, annotations=marks, claims=[_claim(fleet)])


def _container(fleet: KafkaFleet, resources: dict[str, Any]) -> Manifest:
    probe = {"tcpSocket": {"port": "kafka"}}
    return {
        "name": "kafka",
        "image": fleet.image.image,
        "imagePullPolicy": fleet.image.pull_policy,
        "command": ["/bin/sh", f"{CONFIG_PATH}/start.sh"],
        "env": _environment(fleet),
        "ports": stateful_set.container_ports(fleet),
        # The port opens after the logs are recovered, which can take long after a crash.
        "startupProbe": {**probe, "periodSeconds": 2, "failureThreshold": 900},
        "readinessProbe": {**probe, "periodSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {**probe, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 12},
        "resources": resources,
        "securityContext": children.container_security(),
        "volumeMounts": [
            {"name": "data", "mountPath": DATA_PATH},
            {"name": "config", "mountPath": CONFIG_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _environment(fleet: KafkaFleet) -> list[dict[str, Any]]:
    heap = fleet.profile.heap
    own: list[dict[str, Any]] = [
        {"name": "KAFKA_HEAP_OPTS", "value": f"-Xms{heap} -Xmx{heap}"},
        {"name": "LOG_DIR", "value": "/tmp/logs"},
        {"name": "FIRN_CLUSTER_ID", "value": fleet.cluster_id},
        {"name": "FIRN_SERVICE", "value": fleet.domain},
        {"name": "FIRN_VOTERS", "value": str(fleet.voters)},
        *outside.variables(fleet),
    ]
    return stateful_set.variables(fleet, own)


def _claim(fleet: KafkaFleet) -> Manifest:
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": fleet.storage_size}},
    }
    if fleet.storage_class_name is not None:
        spec["storageClassName"] = fleet.storage_class_name
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec}
