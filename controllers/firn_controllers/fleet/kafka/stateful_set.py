"""The brokers' StatefulSet.

Image contract: the official ``apache/kafka``, with tools under /opt/kafka/bin, a shell and uid 1000.
"""

from typing import Any

from firn.model import names
from firn_controllers import children
from firn_controllers.fleet import outside, stateful_set
from firn_controllers.fleet.kafka import config_map, listeners, token_keys
from firn_controllers.fleet.kafka.layout import (
    CONFIG_PATH,
    DATA_PATH,
    METADATA_VERSION,
    REPLICAS,
    STAGE,
    UID,
    VOTERS,
    KafkaFleet,
    Stage,
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
    if fleet.stage > Stage.PLAIN:
        marks[STAGE] = str(fleet.stage.value)
        marks |= stateful_set.source_marks(fleet)
        volumes += _access_volumes(fleet)
    if fleet.stage >= Stage.MOVED:
        marks[names.SECURED] = "true"
    pod = stateful_set.pod(fleet, UID, 120, _container(fleet, resources), volumes)
    if fleet.stage > Stage.PLAIN:
        pod["serviceAccountName"] = fleet.profile.service_account
    return stateful_set.build(fleet, partition, pod, annotations=marks, claims=[_claim(fleet)])


def _access_volumes(fleet: KafkaFleet) -> list[Manifest]:
    """Return the volumes with the certificate, a token of the brokers, and the keys that verify tokens."""
    token = {
        "audience": names.TOKEN_AUDIENCE,
        "expirationSeconds": names.BROKER_TOKEN_SECONDS,
        "path": listeners.TOKEN_FILE,
    }
    keys = {"name": token_keys.name(fleet), "items": [{"key": listeners.KEYS_FILE, "path": listeners.KEYS_FILE}]}
    sources = [{"serviceAccountToken": token}, {"configMap": keys}]
    return [
        {"name": "tls", "secret": {"secretName": fleet.certificate_secret, "defaultMode": 0o440}},
        {"name": "tokens", "projected": {"defaultMode": 0o440, "sources": sources}},
        {"name": "keystore", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        *children.trust_volumes(fleet.authorities)[0],
    ]


def _container(fleet: KafkaFleet, resources: dict[str, Any]) -> Manifest:
    # In the last stage, only clients connect to the port without encryption, also with plaintext: Keep.
    probe = {"tcpSocket": {"port": "kafka" if fleet.profile.access is None or fleet.stage < Stage.CLOSED else "secure"}}
    mounts = [
        {"name": "data", "mountPath": DATA_PATH},
        {"name": "config", "mountPath": CONFIG_PATH, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if fleet.stage > Stage.PLAIN:
        mounts += [
            {"name": "tls", "mountPath": listeners.TLS_PATH, "readOnly": True},
            {"name": "tokens", "mountPath": listeners.TOKENS_PATH, "readOnly": True},
            {"name": "keystore", "mountPath": listeners.KEYSTORE_PATH},
            *children.trust_volumes(fleet.authorities)[1],
        ]
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
        "volumeMounts": mounts,
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
