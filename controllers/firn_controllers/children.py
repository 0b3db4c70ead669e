"""Parts that all Kubernetes child objects share: owner, labels, hashes, restricted security context, secret volumes."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from firn.model import names
from firn.model.config import Access, Authority, Scheduling
from firn_controllers.ports import Manifest

PART_OF = "app.kubernetes.io/part-of"
COMPONENT = "app.kubernetes.io/component"


@dataclass(frozen=True, slots=True)
class Owner:
    """The ConfigMap ``firn-config`` in the operator's namespace.

    It owns all children, so that uninstalling deletes them.
    """

    namespace: str
    uid: str


def digest(value: object) -> str:
    """Return a short hash of any JSON value. The order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def child_object(
    api_version: str, kind: str, name: str, owner: Owner, labels: Mapping[str, str], **body: Any
) -> Manifest:
    """Return a manifest in the operator's namespace.

    Its annotation ``firn.dev/template-hash`` is a hash of the rest of it.
    """
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
    """Return a pod template that carries its own hash. A pod shows by the hash which template made it."""
    metadata = {"labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, PART_OF: names.MANAGED_BY, **labels}}
    marks = {
        **annotations,
        names.TEMPLATE_HASH: digest({"metadata": metadata, "annotations": annotations, "spec": spec}),
    }
    return {"metadata": {**metadata, "annotations": marks}, "spec": dict(spec)}


def template_hash(stateful_set: Manifest) -> str:
    """Return the hash that the pod template of a StatefulSet manifest carries."""
    hash_: str = stateful_set["spec"]["template"]["metadata"]["annotations"][names.TEMPLATE_HASH]
    return hash_


def pod_security(uid: int) -> dict[str, Any]:
    """Return a pod security context that PodSecurity ``restricted`` accepts. Volumes belong to the group ``uid``."""
    return {
        "runAsNonRoot": True,
        "runAsUser": uid,
        "runAsGroup": uid,
        "fsGroup": uid,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """Return a container security context that PodSecurity ``restricted`` accepts."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


EPHEMERAL_STORAGE = "ephemeral-storage"
"""Kubernetes' resource for the disk space of a pod on its node."""


def with_ephemeral_storage(resources: Mapping[str, Mapping[str, str]], request: str, limit: str) -> dict[str, Any]:
    """Return requests and limits of a container with these amounts of disk space, unless ``resources`` sets its own."""
    if any(EPHEMERAL_STORAGE in amounts for amounts in resources.values()):
        return {key: dict(amounts) for key, amounts in resources.items() if amounts}
    more = {"requests": request, "limits": limit}
    return {key: {**resources.get(key, {}), EPHEMERAL_STORAGE: amount} for key, amount in more.items()}


def scratch_volume(resources: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return the volume ``tmp``. It has no more space than the container may use.

    Kubernetes evicts the pod if the volume has more bytes. Without a limit, one pod could fill the disk of its node.
    """
    limit = resources.get("limits", {}).get(EPHEMERAL_STORAGE)
    return {"name": "tmp", "emptyDir": {"sizeLimit": limit} if limit else {}}


def scheduling(settings: Scheduling) -> dict[str, Any]:
    """Return the parts of a pod spec that decide on its node; only those that are set."""
    parts: dict[str, Any] = {
        "nodeSelector": settings.node_selector,
        "tolerations": settings.tolerations,
        "affinity": settings.affinity,
        "topologySpreadConstraints": settings.topology_spread_constraints,
        "priorityClassName": settings.priority_class_name,
    }
    return {key: value for key, value in parts.items() if value}


def pull_secrets(secrets: Iterable[str]) -> dict[str, Any]:
    """Return ``imagePullSecrets`` of a pod spec, if there are any."""
    references = [{"name": name} for name in secrets]
    return {"imagePullSecrets": references} if references else {}


def secret_volumes(secrets: Iterable[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return volumes and mounts that put every Secret into the path of ``firn.model.names.secret_file``.

    The volumes are optional: a missing Secret fails only the connection that needs it, not the whole pod.
    """
    volumes, mounts = [], []
    for number, name in enumerate(secrets):
        source = {"secretName": name, "defaultMode": 0o440, "optional": True}
        volumes.append({"name": f"secret-{number}", "secret": source})
        mounts.append({"name": f"secret-{number}", "mountPath": f"{names.SECRETS_PATH}/{name}", "readOnly": True})
    return volumes, mounts


def trust_volumes(authorities: Iterable[Authority]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return volumes and mounts that put CA certificates into the paths of ``firn.model.names.trust_file``.

    Only the named keys are mounted, because the Secret of a server may have its private key too.
    """
    keys: dict[tuple[str, str], set[str]] = {}
    for authority in authorities:
        source = names.trust_source(authority.path)
        assert source is not None
        keys.setdefault(source[:2], set()).add(source[2])
    volumes, mounts = [], []
    for number, ((kind, name), found) in enumerate(sorted(keys.items())):
        items = [{"key": key, "path": key} for key in sorted(found)]
        common = {"defaultMode": 0o440, "optional": True, "items": items}
        place: dict[str, Any] = {"secret": {"secretName": name, **common}}
        if kind == "configmap":
            place = {"configMap": {"name": name, **common}}
        volumes.append({"name": f"trust-{number}", **place})
        mounts.append({"name": f"trust-{number}", "mountPath": f"{names.TRUST_PATH}/{kind}-{name}", "readOnly": True})
    return volumes, mounts


TOKEN_SECONDS = 7200
"""Lifetime of a projected token. The kubelet replaces it after 80% of it, so every read gives a token for 24 minutes or more."""


def access_volumes(profiles: Mapping[str, Access]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return volumes and mounts of what a client of the secure listener of each profile needs: the CA of the brokers, while its source
    changes also the previous CA, and a token of the pod's ServiceAccount (`firn.model.names.access_file`).

    The private key of the brokers is in the same Secret as the CA, and is not mounted.
    """
    volumes, mounts = [], []
    for number, (profile, access) in enumerate(sorted(profiles.items())):
        authorities = [
            {"secret": {"name": secret, "items": [{"key": "ca.crt", "path": path}], "optional": True}}
            for secret, path in zip(access.certificate.trusted(profile), names.ACCESS_AUTHORITIES, strict=False)
        ]
        token = {"audience": names.TOKEN_AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
        sources = [*authorities, {"serviceAccountToken": token}]
        volumes.append({"name": f"access-{number}", "projected": {"defaultMode": 0o440, "sources": sources}})
        mounts.append({"name": f"access-{number}", "mountPath": f"{names.ACCESS_PATH}/{profile}", "readOnly": True})
    return volumes, mounts
