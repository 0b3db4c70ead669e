"""Names of labels, annotations, objects, Secrets and tables, and the rules that derive them."""

import re
from typing import Literal, cast

GROUP = "firn.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
FIELD_MANAGER = "firn-operator"
SIGNER = "firn-signer"
"""Name and field manager of the signer of certificates."""
TOPIC_SET_MANAGER = "firn-topic-set"
"""Field manager of the fields that a TopicSet sets in its IcebergTopics."""
MANAGED_BY = "firn"
CONFIG_OBJECT = "firn-config"
CLAIM = "firn-operator"
"""Name of the Lease by which a release claims the resources of a namespace."""

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
LABEL_TOPIC_SET = f"{GROUP}/topic-set"
"""Label of an IcebergTopic: the TopicSet of its namespace that made it."""
LABEL_ROUTES_OF = f"{GROUP}/routes-of"
"""Label of an IcebergTopic for a table of ``spec.routes``: the name of the IcebergTopic with the routes."""

LONGEST_NAME = 52
"""Longest name of an IcebergTopic or of another resource of Firn, in characters. Rules of the resources have it, too."""

RESOURCE_NAMES = (
    f"names of IcebergTopics have 1 to {LONGEST_NAME} lower-case letters, digits, - and ., and each part between dots begins and ends with"
    " a letter or digit"
)
"""The rule of `is_resource` for messages."""
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LONGEST_DNS_LABEL = 63

EXECUTOR_ROLE = {"spark-role": "executor"}
"""Labels that Spark adds to executor pods. Executors also have `LABEL_GROUP` and `LABEL_MANAGED_BY`."""

# Annotations
TEMPLATE_HASH = f"{GROUP}/template-hash"
PAUSE = f"{GROUP}/pause-reconciliation"
FORCE_DELETION = f"{GROUP}/allow-forced-deletion"
RESUME = f"{GROUP}/resume"
RESTART = f"{GROUP}/restart"
SECURED = f"{GROUP}/secured"
"""Annotation of the StatefulSet of brokers: all of them have had the secure listener since the profile has ``access``."""
DRIVER_USERS = f"{GROUP}/driver-users"
"""Annotation of the ConfigMap of a group: the user of its driver in each profile whose ACLs the operator manages, as JSON."""
ACKNOWLEDGE_LOSS = f"{GROUP}/acknowledge-loss"
ACKNOWLEDGE_AUDIT = f"{GROUP}/acknowledge-audit"
APPROVE = f"{GROUP}/approve"
PUBLISH = f"{GROUP}/publish"
RUN_NOW = f"{GROUP}/run-now"
ROTATE = f"{GROUP}/rotate"
CREDENTIAL = f"{GROUP}/credential"
"""Annotation of the Secret of a TopicUser: the revision of its credential."""

FINALIZER = f"{GROUP}/delete-data"
TOPIC_SET_FINALIZER = f"{GROUP}/delete-iceberg-topics"
"""Finalizer of a TopicSet with removal Delete."""
USER_FINALIZER = f"{GROUP}/remove-access"
"""Finalizer of a TopicUser, until its rights and credentials are removed from Kafka."""

# Snapshot summary keys and table properties
SUMMARY_TOPIC_ID = "firn.topic-id"
SUMMARY_EPOCH = "firn.epoch"
SUMMARY_OFFSETS = "firn.offsets"
SUMMARY_COMMIT_ID = "firn.commit-id"
"""Identifies a commit when the table is read back."""
SUMMARY_LANDED_AT = "firn.landed-at"
"""When records landed last (milliseconds since 1970)."""
SUMMARY_KIND = "firn.kind"
TABLE_WRITER = "firn.writer"
"""Process that made the newest ingestion commit."""
TABLE_CLAIM = "firn.claim"
"""Epoch and writer of the newest claim."""
TABLE_KAFKA_CLUSTER = "firn.kafka-cluster"
"""Table property: id of the Kafka cluster whose topic lands in the table."""
LOG_TAG = "firn-log-"
"""Beginning of the names of tags with the data files from which brokers rebuild the log."""
HISTORY_TAG = "firn-history"
"""Tag on a snapshot of a table whose metadata lacks older snapshots."""
TABLE_BRANCH = "firn.branch"
"""Table property: branch on which rows land, and that main follows after the checks of ``spec.quality.publish``."""
TABLE_LOST = "firn.lost"
"""Table property: offsets that passed without landing (`firn.model.progress`)."""
TABLE_LEADER_EPOCHS = "firn.leader-epochs"
"""Table property: leader epochs of the Kafka log whose records have landed (`firn.model.progress`)."""
TABLE_REFUSED_SCHEMAS = "firn.refused-schemas"
"""Table property of the own table of a topic whose routes need schemas of writers: the refused schemas, and the driver that owns the list."""
TABLE_CONNECTOR = "firn.connector"
"""Table property: group of the connector from which ingestion took the table over, and its offsets then."""
TABLE_AUDIT_FROM = "firn.audit-from"
"""Table property: offsets from which every record has to be in the table (`firn.model.progress.AuditFrom`)."""
TABLE_FILTERED = "firn.filtered"
"""Table property: numbers of records that the filter of the topic left out (`firn.model.progress.Filtered`)."""
REPLAY = "firn.replay"
"""Summary key of the snapshots of a replay: the UID of the DeadLetterReplay and the part. As a property of the table, it has the
counts of the newest replay, and whether its letters may be rows already (`firn.model.progress.Replaying`). As a property of the
dead-letter table, it changes each time that a replay removes letters."""
TABLE_OWNER = "firn.owner"
"""Table property: UID of the IcebergTopic that created or adopted the table. Only that resource may drop the table."""
TABLE_TENANT = "firn.tenant"
"""Table property: Kubernetes namespace of that IcebergTopic."""
TABLE_KUBERNETES_CLUSTER = "firn.kubernetes-cluster"
"""Table property: UID of the namespace kube-system of the Kubernetes cluster of that IcebergTopic."""
SHARED = "shared"
"""Value of ``firn.owner`` of a table whose rows are of several topics."""
TABLE_ADOPT = "firn.adopt"
"""Table property that a user sets: ``NAMESPACE/NAME`` of the IcebergTopic that may adopt the table."""

# Topic configs that only diskless brokers have
OWN_CONFIG = "firn."
"""Prefix of the topic configs that Kafka does not have."""
HISTORY = "firn.history"
"""Config of topics and property of tables: whether the log keeps the records that the table has."""
COPY, SINGLE = "Copy", "Single"
"""Values of `HISTORY`: in the log and in the table, or only in the table."""
SCHEMA_GATE, SCHEMA_REGISTRY, SCHEMA_SUBJECT = "firn.schema.gate", "firn.schema.registry", "firn.schema.subject"
SCHEMA_CONTRACT = "firn.schema.contract"

DEAD_LETTER_SUFFIX = "__dlq"

CONFIG_PATH = "/etc/firn/config.yaml"
CLI_ENDS_WITH_INPUT = "FIRN_ENDS_WITH_INPUT"
"""Variable of a command that another ``firn`` has started in the operator's pod. It ends with its standard input."""
QUERY_POD = "FIRN_QUERY_POD"
"""Variable of the operator's container: name of the pod in which ``firn sql`` runs."""
QUERY_MEMORY = "FIRN_QUERY_MEMORY"
"""Variable of that pod's container: its memory limit in bytes."""
QUERY_SECONDS = "FIRN_QUERY_SECONDS"
"""Variable of that pod's container: the longest time of a statement."""
GROUP_PATH = "/etc/firn/group/group.json"
RUN_PATH = "/etc/firn/run/run.json"
"""Path of a maintenance run's contract."""
SCHEMA_DIRECTORY = "/tmp/firn-schemas"
SECRETS_PATH = "/etc/firn/secrets"
ACCESS_PATH = "/etc/firn/access"
TRUST_PATH = "/etc/firn/trust"
TOKEN_AUDIENCE = "firn-broker"
"""Audience of the tokens of ServiceAccounts with which clients authenticate at brokers."""
OPERATOR_ACCOUNT = "firn-operator"
"""ServiceAccount of the operator."""
BROKER_TOKEN_SECONDS = 7 * 86400
"""Lifetime of the tokens with which brokers of Apache Kafka authenticate to each other. The kubelet replaces a token after a
day, so brokers find each other for six days without the API server."""


def is_resource(name: str) -> bool:
    """Return whether an IcebergTopic can have this name: a DNS subdomain of at most `LONGEST_NAME` characters."""
    return len(name) <= LONGEST_NAME and re.fullmatch(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*", name) is not None


def is_namespace(name: str) -> bool:
    """Return whether a Kubernetes namespace can have this name: a DNS label."""
    return len(name) <= _LONGEST_DNS_LABEL and re.fullmatch(_DNS_LABEL, name) is not None


def fleet(profile: str) -> str:
    """Return the name of the StatefulSet and the headless Service of a profile's brokers."""
    return f"firn-broker-{profile}"


def quorum(profile: str) -> str:
    """Return the name of the ConfigMap with the size of the controller quorum of a profile's volumes."""
    return f"firn-broker-{profile}-quorum"


def direct_reads(profile: str) -> str:
    """Return the name of the Secret with the token of a profile's internal listener, unless the configuration names another."""
    return f"firn-direct-reads-{profile}"


def brokers_certificate(profile: str) -> str:
    """Return the name of the Secret with the certificate that `firn-signer` issues for a profile's brokers."""
    return f"firn-broker-{profile}-tls"


def issued_certificate(profile: str, issuer: str) -> str:
    """Return the name of the Certificate of cert-manager for a profile's brokers, and of its Secret. It contains the name of the issuer."""
    return f"{brokers_certificate(profile)}-{issuer}"


def authority(profile: str) -> str:
    """Return the name of the Secret with the CA of a profile and its key. Only `firn-signer` reads it."""
    return f"firn-signer-{profile}"


def store(name: str) -> str:
    """Return the name of the Service of a store of the quick start: ``postgres`` or ``s3``."""
    return f"firn-{name}"


def store_certificate(name: str) -> str:
    """Return the name of the Secret with the certificate of a store of the quick start."""
    return f"firn-{name}-tls"


def store_authority(name: str) -> str:
    """Return the name of the Secret with the CA of a store of the quick start and its key. Only `firn-signer` reads it."""
    return f"firn-{name}-signer"


def bootstrap(profile: str) -> str:
    """Return the name of the bootstrap Service (port 9092)."""
    return f"firn-broker-{profile}-bootstrap"


def ingestion(group: str) -> str:
    """Return the name of the StatefulSet, the Service and the ConfigMap of an ingestion group."""
    return f"firn-ingest-{group}"


def job(uid: str) -> str:
    """Return the name of the ConfigMap with the job contract of a topic, by the UID of its resource."""
    return f"firn-job-{uid}"


def kept_topic(digest: str) -> str:
    """Return the name of the ConfigMap that remembers which namespace made a Kafka topic. ``digest`` identifies the topic."""
    return f"firn-topic-{digest}"


def run(policy: str, digest: str) -> str:
    """Return the name of the Job and the ConfigMap of a maintenance run. ``digest`` identifies the run."""
    return f"firn-run-{policy[:36].rstrip('-.')}-{digest}"


def table_lease(table_uuid: str) -> str:
    """Return the name of the Lease of a table and its dead letters, by the table's UUID.

    A topic that is deleted with Retain and created again has another UID, but the same table."""
    return f"firn-table-{table_uuid}"


def secret_file(secret: str, key: str) -> str:
    """Return the path of a Secret's key in every pod that needs it."""
    return f"{SECRETS_PATH}/{secret}/{key}"


def trust_file(kind: Literal["secret", "configmap"], name: str, key: str) -> str:
    """Return the path of the CA certificates in a key of a Secret or ConfigMap, in every pod that needs them."""
    return f"{TRUST_PATH}/{kind}-{name}/{key}"


def trust_source(path: str) -> tuple[Literal["secret", "configmap"], str, str] | None:
    """Return kind, name and key of a path of `trust_file`; None for any other path."""
    found = re.fullmatch(rf"{TRUST_PATH}/(secret|configmap)-([^/]+)/([^/]+)", path)
    return None if found is None else cast(tuple[Literal["secret", "configmap"], str, str], found.groups())


def user(namespace: str, name: str) -> str:
    """Return the name of a TopicUser's principal. A namespace has no dot, so no other TopicUser has it."""
    return f"{namespace}.{name}"


def service_account(namespace: str, name: str) -> str:
    """Return the subject of the tokens of a ServiceAccount."""
    return f"system:serviceaccount:{namespace}:{name}"


ACCESS_AUTHORITIES = ("ca.crt", "previous.crt")
"""Files with the CA certificates of the present and of the previous source of the certificate of brokers, for `access_file`."""


def access_file(profile: str, key: str) -> str:
    """Return the path of ``ca.crt``, ``previous.crt`` or ``token`` in every pod that connects to the secure listener of a profile."""
    return f"{ACCESS_PATH}/{profile}/{key}"


def table_part(text: str) -> str:
    """Return a Kubernetes or Kafka name as a name of a table or namespace: characters outside [a-z0-9_] become _."""
    return re.sub(r"[^a-z0-9_]", "_", text.lower())


def dead_letters(table: str, resource: str = "") -> str:
    """Return the name of a table's dead-letter table. In a shared table, each ``resource`` (IcebergTopic) has its own."""
    return f"{table}__{table_part(resource)}{DEAD_LETTER_SUFFIX}" if resource else f"{table}{DEAD_LETTER_SUFFIX}"


def of_topic(key: str, topic_id: str) -> str:
    """Return the property of a shared table that has the value of ``key`` for one topic. Without a topic, it is ``key``."""
    return f"{key}.{topic_id}" if topic_id else key


def topic_of(key: str) -> str:
    """Return the topic id in a name that `of_topic` can have made. The names of other properties give no topic id."""
    prefix, _, topic_id = key.removeprefix("firn.").rpartition(".")
    return topic_id if prefix and key.startswith("firn.") else ""
