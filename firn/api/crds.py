"""CustomResourceDefinitions, generated from the models."""

from collections.abc import Sequence
from typing import Any, Final

from firn.api.explanations import explained
from firn.api.model import ApiModel
from firn.api.structural import Schema, structural
from firn.api.v1alpha1 import (
    CompactionPolicy,
    DeadLetterReplay,
    IcebergTopic,
    RetentionPolicy,
    TopicGrant,
    TopicSet,
    TopicUser,
    compaction_policy,
    dead_letter_replay,
    iceberg_topic,
    retention_policy,
    topic_grant,
    topic_set,
    topic_user,
)
from firn.model import names
from firn.model.conditions import ConditionType, Reason

Manifest = dict[str, Any]

LABELS: Final = {"app.kubernetes.io/name": "firn", "app.kubernetes.io/part-of": "firn"}

DEFAULT_STATUS: Final[Manifest] = {
    "observedGeneration": -1,
    "conditions": [
        {
            "type": ConditionType.READY.value,
            "status": "Unknown",
            "reason": Reason.PENDING.value,
            "message": "The operator has not read the resource yet",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
            "observedGeneration": -1,
        }
    ],
}
"""Status of an object that the operator has not read. kstatus (Flux, kubectl wait) takes an empty status for a ready object."""


def _condition(name: str, key: str) -> str:
    return f'.status.conditions[?(@.type=="{name}")].{key}'


def _column(name: str, path: str, description: str, *, kind: str = "string", wide: bool = False) -> Manifest:
    return {
        "name": name,
        "type": kind,
        "jsonPath": path,
        "description": description,
        **({"priority": 1} if wide else {}),
    }


_READY = _column("Ready", _condition("Ready", "status"), "Condition Ready.")
_REASON = _column("Reason", _condition("Ready", "reason"), "Reason of Ready.")
_AGE = _column("Age", ".metadata.creationTimestamp", "Time since creation.", kind="date")
_MESSAGE = _column("Message", _condition("Ready", "message"), "Message of Ready.", wide=True)
_RECORDS = (
    _column("Accepted", _condition("RecordsAccepted", "reason"), "Reason of RecordsAccepted.", wide=True),
    _column("Complete", _condition("Complete", "status"), "Condition Complete.", wide=True),
    _column("Audit", ".status.audit.result", "Result of the last audit.", wide=True),
    _column("Audited", ".status.audit.time", "Time since the last audit.", kind="date", wide=True),
)
_RUNS = (
    _column("Topics", ".status.topics", "Number of governed topics.", kind="integer"),
    _column("Last-Run", ".status.lastRun.finishTime", "Time since the last run ended.", kind="date"),
    _column("Result", ".status.lastRun.result", "Result of the last run."),
)
_PLANS = (
    _column("Schedule", ".spec.schedule.cron", "Schedule of runs.", wide=True),
    _column("Next-Run", ".status.nextRunTime", "Time of the next scheduled run.", wide=True),
    _MESSAGE,
)


def _crd(
    model: type[ApiModel],
    kind: str,
    plural: str,
    short: str,
    columns: Sequence[Manifest],
    selectable: Sequence[str] = (),
) -> Manifest:
    made = explained(structural(model.model_json_schema(by_alias=True)))
    properties = made["properties"]
    schema: Schema = {
        "description": made["description"],
        "type": "object",
        "required": ["spec"],
        "x-kubernetes-validations": made["x-kubernetes-validations"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {key: value for key, value in properties["spec"].items() if key != "default"},
        },
    }
    if "status" in properties:
        # Only the operator writes a status. Without `atomic`, the API server records the owner of each field, and a write
        # takes half as much CPU time again (docs/performance.md).
        status = {**properties["status"], "default": DEFAULT_STATUS, "x-kubernetes-map-type": "atomic"}
        schema["properties"]["status"] = status
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        **({"subresources": {"status": {}}} if "status" in properties else {}),
        "additionalPrinterColumns": list(columns),
        **({"selectableFields": [{"jsonPath": path} for path in selectable]} if selectable else {}),
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}", "labels": LABELS},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["lakehouse"],
            },
            "versions": [version],
        },
    }


def iceberg_topics() -> Manifest:
    """Return the CRD of IcebergTopic."""
    columns = (
        _READY,
        _REASON,
        _column("Profile", ".status.profile", "Profile of the topic."),
        _column("Partitions", ".status.partitions", "Number of partitions.", kind="integer"),
        _column("Table", ".status.table.identifier", "The Iceberg table."),
        _column("Fresh", _condition("Fresh", "status"), "Condition Fresh."),
        _AGE,
        _column(
            "Letters",
            ".status.ingestion.deadLetters",
            "Number of records that have landed as dead letters.",
            kind="integer",
            wide=True,
        ),
        *_RECORDS,
        _column(
            "Last-Commit",
            ".status.ingestion.lastCommitTime",
            "Time since the last commit to the table.",
            kind="date",
            wide=True,
        ),
        _column(
            "Compaction",
            ".status.maintenance.compaction.policy",
            "The CompactionPolicy that governs the table.",
            wide=True,
        ),
        _column(
            "Retention",
            ".status.maintenance.retention.policy",
            "The RetentionPolicy that governs topic and table.",
            wide=True,
        ),
        _column(
            "Small-Files", ".status.maintenance.smallFiles", "Number of small data files.", kind="integer", wide=True
        ),
        _column(
            "Due-Files",
            ".status.maintenance.dueFiles",
            "Number of data files that a compaction would rewrite now.",
            kind="integer",
            wide=True,
        ),
        _column(
            "Lag",
            ".status.maintenance.oldestUncompactedTime",
            "Compaction lag: time for which the oldest due data files have been due.",
            kind="date",
            wide=True,
        ),
        _column("Snapshots", ".status.maintenance.snapshots", "Number of snapshots.", kind="integer", wide=True),
        _MESSAGE,
    )
    selectable = (".spec.profile", ".spec.topicName", ".spec.ingestion.group")
    return _crd(IcebergTopic, iceberg_topic.KIND, iceberg_topic.PLURAL, "itopic", columns, selectable)


def compaction_policies() -> Manifest:
    """Return the CRD of CompactionPolicy."""
    columns = (
        _READY,
        _REASON,
        _column("Strategy", ".spec.strategy", "Order of rows in rewritten files."),
        *_RUNS,
        _AGE,
        *_PLANS,
    )
    kind = compaction_policy
    return _crd(CompactionPolicy, kind.KIND, kind.PLURAL, kind.SHORT_NAME, columns)


def retention_policies() -> Manifest:
    """Return the CRD of RetentionPolicy."""
    columns = (_READY, _REASON, _column("Mode", ".spec.mode", "DryRun or Enforce."), *_RUNS, _AGE, *_PLANS)
    kind = retention_policy
    return _crd(RetentionPolicy, kind.KIND, kind.PLURAL, kind.SHORT_NAME, columns)


def dead_letter_replays() -> Manifest:
    """Return the CRD of DeadLetterReplay."""
    columns = (
        _column("Topic", ".spec.topicRef.name", "The topic."),
        _column("Mode", ".spec.mode", "DryRun or Enforce."),
        _column("Finished", _condition("Finished", "status"), "Condition Finished."),
        _column("Reason", _condition("Finished", "reason"), "Reason of Finished."),
        _column("Landed", ".status.landed", "Dead letters that became rows, or would.", kind="integer"),
        _column("Failed", ".status.failed", "Dead letters that do not fit the current schema.", kind="integer"),
        _AGE,
        _column("Remaining", ".status.remaining", "Dead letters that stay.", kind="integer", wide=True),
        _column("Message", _condition("Finished", "message"), "Message of Finished.", wide=True),
    )
    kind = dead_letter_replay
    return _crd(DeadLetterReplay, kind.KIND, kind.PLURAL, kind.SHORT_NAME, columns)


def topic_sets() -> Manifest:
    """Return the CRD of TopicSet."""
    columns = (
        _READY,
        _column("Matched", ".status.matched", "Number of topics that match.", kind="integer"),
        _column("Made", ".status.made", "Number of these topics that have an IcebergTopic.", kind="integer"),
        _column("Refused", ".status.topicsRefused", "Number of refused topics.", kind="integer"),
        _AGE,
        _column("Reason", _condition("Ready", "reason"), "Reason of Ready.", wide=True),
        _column("Profile", ".spec.profile", "Profile of the topics.", wide=True),
        _column("Match", ".spec.match", "Expression that the names of topics match.", wide=True),
        _column(
            "Kept", ".status.kept", "Number of IcebergTopics whose topic no longer matches.", kind="integer", wide=True
        ),
        _MESSAGE,
    )
    kind = topic_set
    return _crd(TopicSet, kind.KIND, kind.PLURAL, kind.SHORT_NAME, columns)


def topic_users() -> Manifest:
    """Return the CRD of TopicUser."""
    columns = (
        _READY,
        _REASON,
        _column("Profile", ".spec.profile", "Profile of the brokers."),
        _column("Type", ".spec.authentication.type", "Type of authentication."),
        _column("Topics", ".status.topics", "Number of IcebergTopics that the user may use.", kind="integer"),
        _column("Refused", ".status.grantsRefused", "Number of refused roles on topics.", kind="integer"),
        _AGE,
        _column("Secret", ".status.credentials.secret", "Secret with the credential.", wide=True),
        _column("Expires", ".status.credentials.expires", "Time of the next rotation.", wide=True),
        _column(
            "Previous-Until",
            ".status.credentials.previousUntil",
            "Time at which the previous credential stops working.",
            wide=True,
        ),
        _MESSAGE,
    )
    kind = topic_user
    return _crd(TopicUser, kind.KIND, kind.PLURAL, kind.SHORT_NAME, columns)


def topic_grants() -> Manifest:
    """Return the CRD of TopicGrant."""
    columns = (
        _column("To", ".spec.to[*].namespace", "Namespace of the first users."),
        _column("Roles", ".spec.roles", "Roles that the users may have."),
        _AGE,
    )
    kind = topic_grant
    return _crd(TopicGrant, kind.KIND, kind.PLURAL, kind.SHORT_NAME, columns)


def all_crds() -> list[Manifest]:
    """Return every CRD of the API group."""
    return [
        iceberg_topics(),
        compaction_policies(),
        retention_policies(),
        dead_letter_replays(),
        topic_sets(),
        topic_users(),
        topic_grants(),
    ]
