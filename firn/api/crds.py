"""The CustomResourceDefinitions, made from the models."""

from typing import Any, Final

from firn.api.structural import Schema, structural
from firn.api.v1alpha1 import iceberg_topic
from firn.api.v1alpha1.iceberg_topic import IcebergTopic
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
            "message": "Not yet seen by the operator",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
            "observedGeneration": -1,
        }
    ],
}
"""Status of an object that the operator has not seen: without it, kstatus (Flux, kubectl wait) takes an empty status for a ready object."""


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


def iceberg_topics() -> Manifest:
    """The CRD of IcebergTopic."""
    model = structural(IcebergTopic.model_json_schema(by_alias=True))
    properties = model["properties"]
    schema: Schema = {
        "description": model["description"],
        "type": "object",
        "required": ["spec"],
        "x-kubernetes-validations": model["x-kubernetes-validations"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {key: value for key, value in properties["spec"].items() if key != "default"},
            "status": {**properties["status"], "default": DEFAULT_STATUS},
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{iceberg_topic.PLURAL}.{names.GROUP}", "labels": LABELS},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": iceberg_topic.KIND,
                "listKind": f"{iceberg_topic.KIND}List",
                "plural": iceberg_topic.PLURAL,
                "singular": iceberg_topic.KIND.lower(),
                "shortNames": ["itopic"],
                "categories": ["lakehouse"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        _column("Ready", _condition("Ready", "status"), "Whether all is as the spec wants it."),
                        _column("Reason", _condition("Ready", "reason"), "Why."),
                        _column("Profile", ".status.profile", "How the log is kept."),
                        _column("Partitions", ".status.partitions", "Partitions of the topic.", kind="integer"),
                        _column("Table", ".status.table.identifier", "The Iceberg table."),
                        _column("Fresh", _condition("Fresh", "status"), "Whether the table is as fresh as promised."),
                        _column("Age", ".metadata.creationTimestamp", "Since creation.", kind="date"),
                        _column("Group", ".status.ingestion.group", "The ingestion group.", wide=True),
                        _column(
                            "Last-Commit",
                            ".status.ingestion.lastCommitTime",
                            "Since records last reached the table.",
                            kind="date",
                            wide=True,
                        ),
                        _column("Message", _condition("Ready", "message"), "Why, for people.", wide=True),
                    ],
                    "selectableFields": [
                        {"jsonPath": ".spec.profile"},
                        {"jsonPath": ".spec.topicName"},
                        {"jsonPath": ".spec.ingestion.group"},
                    ],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def all_crds() -> list[Manifest]:
    """Every CRD of the API group."""
    return [iceberg_topics()]
