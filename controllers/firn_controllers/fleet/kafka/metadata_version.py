"""Finalizes a metadata version: the last step of an upgrade, after which a downgrade to the older Kafka is impossible.

A Job from the brokers' own image does this, only if the configuration names a version, and only after all brokers are
new. A cluster that already has the version stays as it is.
"""

from typing import Any

from firn.model import names
from firn_controllers import children
from firn_controllers.cache.addresses import bootstrap_servers, secure_servers
from firn_controllers.fleet.kafka.layout import UID, KafkaFleet, Stage
from firn_controllers.ports import Manifest

RESOURCES = {
    "requests": {"cpu": "50m", "memory": "256Mi", children.EPHEMERAL_STORAGE: "64Mi"},
    "limits": {"memory": "512Mi", children.EPHEMERAL_STORAGE: "1Gi"},
}
"""Resources of the Job. Kafka's tools have a heap of 256 MiB."""

FINALIZE = """set -eu
tool="/opt/kafka/bin/kafka-features.sh --bootstrap-server $1"
if [ -n "${FIRN_CLIENT:-}" ]; then
  echo "$FIRN_CLIENT" > /tmp/client.properties
  tool="$tool --command-config /tmp/client.properties"
fi
features="$($tool version-mapping --release-version "$2")"
set --
for feature in $features; do
  case "$feature" in
    kraft.version=*) ;;
    *.version=[0-9]*) set -- "$@" --feature "$feature" ;;
  esac
done
exec $tool upgrade "$@"
"""
"""Shell script that finalizes the features of a release as a cluster that was formatted with it has them.

``upgrade --release-version`` would include kraft.version. After that, a voter that lost its volume could not join the
quorum again by its node id.
"""


def pending(fleet: KafkaFleet) -> str | None:
    """Return the version that the configuration asks for, if it is not finalized yet."""
    wanted = fleet.profile.metadata_version
    return wanted if wanted != fleet.metadata_version else None


def job_name(fleet: KafkaFleet, version: str) -> str:
    """Return the name of the Job, which differs for every version and image."""
    return f"{names.fleet(fleet.name)}-metadata-{children.digest([version, fleet.image.image])[:8]}"


def build(fleet: KafkaFleet, version: str) -> Manifest:
    """Build the Job that finalizes ``version``."""
    namespace, access = fleet.owner.namespace, fleet.profile.access
    servers = bootstrap_servers(fleet.name, fleet.profile, namespace)
    env = [{"name": "LOG_DIR", "value": "/tmp/logs"}, {"name": "KAFKA_HEAP_OPTS", "value": "-Xmx256m"}]
    volumes: list[dict[str, Any]] = [children.scratch_volume(RESOURCES)]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]
    account = {}
    if access is not None and fleet.stage >= Stage.MOVED:
        servers = secure_servers(fleet.name, namespace)
        authority = names.access_file(fleet.name, "ca.crt") if fleet.bundle is None else fleet.bundle.path
        token = f"file://{names.access_file(fleet.name, 'token')}"
        env += [
            {"name": "FIRN_CLIENT", "value": _client(authority, token)},
            {"name": "KAFKA_OPTS", "value": f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token}"},
        ]
        access_volumes, access_mounts = children.access_volumes({fleet.name: access})
        trust_volumes, trust_mounts = children.trust_volumes(fleet.bundles)
        volumes, mounts = volumes + access_volumes + trust_volumes, mounts + access_mounts + trust_mounts
        account = {"serviceAccountName": fleet.profile.service_account}
    container = {
        "name": "upgrade",
        "image": fleet.image.image,
        "imagePullPolicy": fleet.image.pull_policy,
        "command": ["/bin/sh", "-c", FINALIZE, "finalize", servers, version],
        "env": env,
        "resources": RESOURCES,
        "securityContext": children.container_security(),
        "volumeMounts": mounts,
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": children.pod_security(UID),
        **children.scheduling(fleet.profile.scheduling),
        **children.pull_secrets(fleet.pull_secrets),
        **account,
        "containers": [container],
        "volumes": volumes,
    }
    labels = {children.COMPONENT: "metadata-version", names.LABEL_PROFILE: fleet.name}
    spec = {
        # Retries help with brokers that are busy for a moment, but not with a version that they do not know.
        "backoffLimit": 3,
        "activeDeadlineSeconds": 900,
        "ttlSecondsAfterFinished": 86400,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return children.child_object("batch/v1", "Job", job_name(fleet, version), fleet.owner, labels, spec=spec)


def _client(authority: str, token: str) -> str:
    """Return the properties of a client that logs in with a token."""
    package = "org.apache.kafka.common.security.oauthbearer"
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
        "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": token,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority,
    }
    return "\n".join(f"{key}={value}" for key, value in properties.items())


def succeeded(job: Manifest) -> bool:
    """Return whether the Job is complete."""
    return _condition(job, "Complete") is not None


def failure(job: Manifest, version: str) -> str | None:
    """Return why the Job failed and how to continue, or None if it has not failed."""
    condition = _condition(job, "Failed")
    if condition is None:
        return None
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    return (
        f"metadata version {version} was not finalized, because Job {name} failed ({condition.get('reason', 'Failed')}); see kubectl"
        f" -n {namespace} logs job/{name}, then correct metadataVersion, or delete the Job to retry"
    )


def _condition(job: Manifest, kind: str) -> dict[str, Any] | None:
    conditions = (job.get("status") or {}).get("conditions") or []
    return next((item for item in conditions if item.get("type") == kind and item.get("status") == "True"), None)
