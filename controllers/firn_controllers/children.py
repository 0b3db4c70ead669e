"""What all child objects have in common: owner, labels, hashes, the restricted security context, secret volumes."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from firn.model import names
from firn.model.config import Scheduling
from firn_controllers.ports import Manifest

PART_OF = "app.kubernetes.io/part-of"
COMPONENT = "app.kubernetes.io/component"


@dataclass(frozen=True, slots=True)
class Owner:
    """The ConfigMap ``firn-config`` in the operator's namespace: it owns all children, so that uninstalling collects them."""

    namespace: str
    uid: str


def digest(value: object) -> str:
    """A short hash of anything that JSON can write, the same whatever the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def child_object(
    api_version: str, kind: str, name: str, owner: Owner, labels: Mapping[str, str], **body: Any
) -> Manifest:
    """A manifest in the operator's namespace. Its annotation ``firn.dev/template-hash`` is the hash of all of it."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": owner.namespace,
        "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, PART_OF: names.MANAGED_BY, **labels},
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": names.CONFIG_OBJECT,
                "uid": owner.uid,
                "controller": True,
            }
        ],
    }
    metadata["annotations"] = dict(body.pop("annotations", {}))
    manifest: Manifest = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
    metadata["annotations"][names.TEMPLATE_HASH] = digest(manifest)
    return manifest


def pod_template(labels: Mapping[str, str], annotations: Mapping[str, str], spec: Mapping[str, Any]) -> Manifest:
    """A pod template that carries the hash of itself: pods tell by it which template they were made from."""
    metadata = {"labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, PART_OF: names.MANAGED_BY, **labels}}
    marks = {
        **annotations,
        names.TEMPLATE_HASH: digest({"metadata": metadata, "annotations": annotations, "spec": spec}),
    }
    return {"metadata": {**metadata, "annotations": marks}, "spec": dict(spec)}


def template_hash(stateful_set: Manifest) -> str:
    """The hash that a StatefulSet manifest's pod template carries."""
    hash_: str = stateful_set["spec"]["template"]["metadata"]["annotations"][names.TEMPLATE_HASH]
    return hash_


def pod_security(uid: int) -> dict[str, Any]:
    """Pod security context that PodSecurity ``restricted`` accepts; volumes belong to the group ``uid``."""
    return {
        "runAsNonRoot": True,
        "runAsUser": uid,
        "runAsGroup": uid,
        "fsGroup": uid,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """Container security context that PodSecurity ``restricted`` accepts."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def scheduling(settings: Scheduling) -> dict[str, Any]:
    """The parts of a pod spec that say where it may run; only those that are set."""
    parts: dict[str, Any] = {
        "nodeSelector": settings.node_selector,
        "tolerations": settings.tolerations,
        "affinity": settings.affinity,
        "topologySpreadConstraints": settings.topology_spread_constraints,
        "priorityClassName": settings.priority_class_name,
    }
    return {key: value for key, value in parts.items() if value}


def pull_secrets(secrets: Iterable[str]) -> dict[str, Any]:
    """``imagePullSecrets`` of a pod spec, where there are any."""
    references = [{"name": name} for name in secrets]
    return {"imagePullSecrets": references} if references else {}


def secret_volumes(secrets: Iterable[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts that put every Secret where ``firn.model.names.secret_file`` says.

    They are optional: one that is missing fails what needs it, not the whole pod.
    """
    volumes, mounts = [], []
    for number, name in enumerate(secrets):
        source = {"secretName": name, "defaultMode": 0o440, "optional": True}
        volumes.append({"name": f"secret-{number}", "secret": source})
        mounts.append({"name": f"secret-{number}", "mountPath": f"{names.SECRETS_PATH}/{name}", "readOnly": True})
    return volumes, mounts
