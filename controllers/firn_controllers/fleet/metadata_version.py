"""Finalising a metadata version: the last step of a version upgrade, after which there is no way back to the older Kafka.

It runs as a Job from the brokers' own image, only when the configuration names a version, and only when all brokers are new.
"""

from typing import Any

from firn.model import names
from firn_controllers import manifests
from firn_controllers.fleet.layout import UID, Fleet, bootstrap_servers
from firn_controllers.ports import Manifest


def pending(fleet: Fleet) -> str | None:
    """The version that the configuration asks for and that is not finalised yet."""
    wanted = fleet.profile.metadata_version
    return wanted if wanted != fleet.metadata_version else None


def job_name(fleet: Fleet, version: str) -> str:
    """One Job for each version and image."""
    return f"{names.fleet(fleet.name)}-metadata-{manifests.digest([version, fleet.image.image])[:8]}"


def build(fleet: Fleet, version: str) -> Manifest:
    """The Job that finalises ``version``."""
    servers = bootstrap_servers(fleet.name, fleet.profile, fleet.owner.namespace)
    upgrade = [
        "/opt/kafka/bin/kafka-features.sh", "--bootstrap-server", servers, "upgrade", "--release-version", version,
    ]  # fmt: skip
    container = {
        "name": "upgrade",
        "image": fleet.image.image,
        "imagePullPolicy": fleet.image.pull_policy,
        "command": upgrade,
        "env": [{"name": "LOG_DIR", "value": "/tmp/logs"}, {"name": "KAFKA_HEAP_OPTS", "value": "-Xmx256m"}],
        "securityContext": manifests.container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": manifests.pod_security(UID),
        **manifests.scheduling(fleet.profile.scheduling),
        **manifests.pull_secrets(fleet.pull_secrets),
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    labels = {manifests.COMPONENT: "metadata-version", names.LABEL_PROFILE: fleet.name}
    spec = {
        "backoffLimit": 6,
        "activeDeadlineSeconds": 900,
        "ttlSecondsAfterFinished": 86400,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return manifests.child("batch/v1", "Job", job_name(fleet, version), fleet.owner, labels, spec=spec)


def succeeded(job: Manifest | None) -> bool:
    """The Job has its Complete condition."""
    conditions = ((job or {}).get("status") or {}).get("conditions") or []
    return any(item.get("type") == "Complete" and item.get("status") == "True" for item in conditions)
