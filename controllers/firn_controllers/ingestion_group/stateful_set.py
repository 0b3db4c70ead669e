"""The driver's StatefulSet: at most one pod, because it has one name; a roll-out never runs a second one.

Job contracts are read at run time and are no part of the template, so topics come and go without a restart. The
settings are read at start, so their hash is in the template. Image contract: an entry point that runs its arguments,
with ``firn-ingest`` on PATH.
"""

from typing import Any

from firn.model import names
from firn.model.config import Config
from firn.model.jobs import GroupSettings
from firn_controllers import children
from firn_controllers.ingestion_group import needs
from firn_controllers.ingestion_group.service import BLOCK_MANAGER_PORT, DRIVER_PORT, PROGRESS_PORT
from firn_controllers.ports import Manifest

UID = 185
SETTINGS_HASH = "firn.dev/config-hash"
GRACE_SECONDS = 120


def build(
    config: Config, settings: GroupSettings, owner: children.Owner, labels: dict[str, str], *, in_use: bool
) -> Manifest:
    """Build the StatefulSet ``firn-ingest-G``: one pod while any topic uses the group, else none."""
    name = names.ingestion(settings.group)
    spec = {
        "serviceName": name,
        "replicas": 1 if in_use else 0,
        # Parallel: a pod that never became ready must not block the template that repairs it. There is only one pod.
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "selector": {"matchLabels": labels},
        "template": _template(config, settings, labels),
    }
    return children.child_object("apps/v1", "StatefulSet", name, owner, labels, spec=spec)


def _template(config: Config, settings: GroupSettings, labels: dict[str, str]) -> Manifest:
    group = config.groups[settings.group]
    image = group.image or config.images.spark
    members = needs.of_settings(settings)
    volumes, mounts = children.secret_volumes(needs.secret_names(config, settings.group, members))
    trust_volumes, trust_mounts = children.trust_volumes(needs.authorities(config, members))
    guarded = {name for name, connection in settings.kafka.items() if connection.sasl_token_path is not None}
    access = {name: access for name, access in config.closed_profiles.items() if name in guarded}
    access_volumes, access_mounts = children.access_volumes(access)
    amounts = {"requests": {"cpu": group.cpu, "memory": group.memory}, "limits": {"memory": group.memory}}
    resources = children.with_ephemeral_storage(amounts, group.ephemeral_storage_request, group.ephemeral_storage)
    probe = {"port": "progress"}
    container = {
        "name": "driver",
        "image": image.image,
        "imagePullPolicy": image.pull_policy,
        "args": ["firn-ingest"],
        "env": _environment(settings.group, group.environment),
        "ports": [
            {"name": "progress", "containerPort": PROGRESS_PORT},
            {"name": "driver", "containerPort": DRIVER_PORT},
            {"name": "block-manager", "containerPort": BLOCK_MANAGER_PORT},
        ],
        "resources": resources,
        "startupProbe": {"httpGet": {"path": "/livez", **probe}, "periodSeconds": 2, "failureThreshold": 150},
        "readinessProbe": {"httpGet": {"path": "/readyz", **probe}, "periodSeconds": 3, "timeoutSeconds": 3},
        "livenessProbe": {
            "httpGet": {"path": "/livez", **probe},
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 12,
        },
        "securityContext": children.container_security(),
        "volumeMounts": [
            {"name": "settings", "mountPath": names.GROUP_PATH.rsplit("/", 1)[0], "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *mounts,
            *access_mounts,
            *trust_mounts,
        ],
    }
    spec: dict[str, Any] = {
        "serviceAccountName": config.ingest_account(settings.group),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": children.pod_security(UID),
        **children.scheduling(group.scheduling),
        **children.pull_secrets(config.images.pull_secrets),
        "containers": [container],
        "volumes": [
            {"name": "settings", "configMap": {"name": names.ingestion(settings.group)}},
            children.scratch_volume(resources),
            *volumes,
            *access_volumes,
            *trust_volumes,
        ],
    }
    return children.pod_template(labels, {SETTINGS_HASH: children.digest(settings.model_dump(mode="json"))}, spec)


def _environment(group: str, more: dict[str, str]) -> list[dict[str, Any]]:
    fields = {
        "POD_NAME": "metadata.name", "POD_UID": "metadata.uid", "POD_NAMESPACE": "metadata.namespace",
        "POD_IP": "status.podIP",
    }  # fmt: skip
    ours = {"FIRN_GROUP": group, "HOME": "/tmp", "SPARK_LOCAL_DIRS": "/tmp"} | more
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *({"name": name, "value": value} for name, value in sorted(ours.items())),
    ]
