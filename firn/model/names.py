"""Names that are derived from other names: labels, annotations, child objects, tables."""

import re

GROUP = "firn.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
FIELD_MANAGER = "firn-operator"
MANAGED_BY = "firn"
CONFIG_OBJECT = "firn-config"

# Labels
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_TOPIC = f"{GROUP}/topic"
LABEL_TOPIC_NAMESPACE = f"{GROUP}/topic-namespace"
LABEL_PROFILE = f"{GROUP}/profile"
LABEL_GROUP = f"{GROUP}/group"
LABEL_JOB = f"{GROUP}/job"
LABEL_RUN = f"{GROUP}/run"
LABEL_POLICY_KIND = f"{GROUP}/policy-kind"
LABEL_POLICY_NAMESPACE = f"{GROUP}/policy-namespace"
LABEL_POLICY = f"{GROUP}/policy"
LABEL_POLICY_UID = f"{GROUP}/policy-uid"

EXECUTOR_ROLE = {"spark-role": "executor"}
"""The label that Spark gives executor pods. They also have `LABEL_GROUP` and `LABEL_MANAGED_BY`."""

# Annotations
TEMPLATE_HASH = f"{GROUP}/template-hash"
PAUSE = f"{GROUP}/pause-reconciliation"
FORCE_DELETION = f"{GROUP}/allow-forced-deletion"
RESUME = f"{GROUP}/resume"
RESTART = f"{GROUP}/restart"
RUN_NOW = f"{GROUP}/run-now"

FINALIZER = f"{GROUP}/delete-data"

# Snapshot summary keys and table properties
SUMMARY_TOPIC_ID = "firn.topic-id"
SUMMARY_EPOCH = "firn.epoch"
SUMMARY_OFFSETS = "firn.offsets"
SUMMARY_KIND = "firn.kind"
TABLE_OWNER = "firn.owner"
"""Table property: uid of the IcebergTopic that made or adopted the table; only that one may drop it."""

DEAD_LETTER_SUFFIX = "__dlq"

CONFIG_PATH = "/etc/firn/config.yaml"
GROUP_PATH = "/etc/firn/group/group.json"
RUN_PATH = "/etc/firn/run/run.json"
"""Path of the contract in a maintenance run's pod."""
SECRETS_PATH = "/etc/firn/secrets"


def fleet(profile: str) -> str:
    """StatefulSet and headless Service of a profile's brokers."""
    return f"firn-broker-{profile}"


def bootstrap(profile: str) -> str:
    """Service that clients bootstrap from, port 9092."""
    return f"firn-broker-{profile}-bootstrap"


def ingestion(group: str) -> str:
    """StatefulSet, Service and settings ConfigMap of an ingestion group."""
    return f"firn-ingest-{group}"


def job(uid: str) -> str:
    """ConfigMap with the job contract of the topic resource with this uid."""
    return f"firn-job-{uid}"


def run(policy: str, digest: str) -> str:
    """Job and ConfigMap of a maintenance run for this policy; ``digest`` tells one run from another."""
    return f"firn-run-{policy[:36].rstrip('-.')}-{digest}"


def table_lease(table_uuid: str) -> str:
    """Lease of the table with this UUID, and of its dead letters: a topic that is deleted with Retain and applied again has another uid."""
    return f"firn-table-{table_uuid}"


def secret_file(secret: str, key: str) -> str:
    """Return the path at which a Secret's key is mounted in the pods that need it."""
    return f"{SECRETS_PATH}/{secret}/{key}"


def table_part(text: str) -> str:
    """A table or namespace name derived from a Kubernetes or Kafka name: characters outside [a-z0-9_] become _."""
    return re.sub(r"[^a-z0-9_]", "_", text.lower())


def dead_letters(table: str) -> str:
    """Name of a table's dead-letter table."""
    return f"{table}{DEAD_LETTER_SUFFIX}"
