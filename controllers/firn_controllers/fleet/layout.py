"""What the objects of one fleet agree on: names, ports, labels, the controller quorum, the volume in force."""

import base64
import hashlib
from dataclasses import dataclass
from typing import Any, Self

from firn.model import names
from firn.model.config import Config, Image, Profile
from firn_controllers.manifests import COMPONENT, Owner
from firn_controllers.ports import StatefulSetState

CLIENT_PORT = 9092
CONTROLLER_PORT = 9093
EXTERNAL_PORT = 9094
DATA_PATH = "/var/lib/kafka/data"
CONFIG_PATH = "/etc/firn/kafka"
UID = 1000
VOTERS = f"{names.GROUP}/controller-voters"
"""Annotation of the StatefulSet: how many brokers were in the controller quorum when the fleet was created."""
METADATA_VERSION = f"{names.GROUP}/metadata-version"
"""Annotation of the StatefulSet: the metadata version that a Job last finalised; missing where none has."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """One managed fleet. ``replicas``, ``voters``, ``metadata_version`` and the volume take what is live into account:
    a fleet only grows, its quorum and its volumes stay as they were created."""

    name: str
    profile: Profile
    owner: Owner
    image: Image
    pull_secrets: tuple[str, ...]
    replicas: int
    voters: int
    metadata_version: str | None
    storage_size: str
    storage_class_name: str | None

    @classmethod
    def of(cls, config: Config, name: str, owner: Owner, live: StatefulSetState | None) -> Self:
        """The fleet of profile ``name``, given its StatefulSet as it is now."""
        profile = config.profiles[name]
        size, storage_class = profile.storage.size, profile.storage.storage_class_name
        replicas = profile.replicas
        voters = 3 if replicas >= 3 else 1
        version = None
        if live is not None:
            replicas = max(replicas, live.replicas)
            annotations = live.manifest.get("metadata", {}).get("annotations") or {}
            voters = int(annotations.get(VOTERS, voters))
            version = annotations.get(METADATA_VERSION)
            for claim in live.manifest.get("spec", {}).get("volumeClaimTemplates") or []:
                size = claim["spec"]["resources"]["requests"]["storage"]
                storage_class = claim["spec"].get("storageClassName")
        return cls(
            name=name,
            profile=profile,
            owner=owner,
            image=profile.image or config.images.kafka,
            pull_secrets=tuple(config.images.pull_secrets),
            replicas=replicas,
            voters=voters,
            metadata_version=version,
            storage_size=size,
            storage_class_name=storage_class,
        )

    @property
    def service(self) -> str:
        """StatefulSet, headless Service, ConfigMap and PodDisruptionBudget."""
        return names.fleet(self.name)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every object of the fleet; they select its pods, so they never change."""
        return {COMPONENT: "broker", names.LABEL_PROFILE: self.name}

    @property
    def replication_factor(self) -> int:
        """Replicas of new partitions."""
        return min(3, self.replicas)

    @property
    def in_sync(self) -> int:
        """Replicas that a write needs (``min.insync.replicas``)."""
        return 2 if self.replication_factor >= 3 else 1

    @property
    def cluster_id(self) -> str:
        """Kafka's cluster id: the same for ever for this namespace and profile, so that volumes found again fit."""
        return cluster_id(self.owner.namespace, self.name)

    def host(self, ordinal: int) -> str:
        """DNS name of one broker's pod."""
        return f"{self.service}-{ordinal}.{self.service}.{self.owner.namespace}.svc"

    def meta(self, **more: Any) -> dict[str, Any]:
        """Arguments of ``manifests.child`` that all objects of the fleet share."""
        return {"owner": self.owner, "labels": self.labels, **more}


def bootstrap_servers(profile_name: str, profile: Profile, namespace: str) -> str:
    """Where clients inside the cluster connect."""
    return profile.bootstrap_servers or f"{names.bootstrap(profile_name)}.{namespace}.svc:{CLIENT_PORT}"


def cluster_id(namespace: str, profile: str) -> str:
    """16 bytes in URL-safe base64 without padding, as Kafka writes ids; never with a leading dash, which its tools take for an option."""
    for attempt in range(256):
        seed = f"firn/{namespace}/{profile}/{attempt}".encode()
        text = base64.urlsafe_b64encode(hashlib.sha256(seed).digest()[:16]).decode().rstrip("=")
        if not text.startswith("-"):
            return text
    raise AssertionError("256 hashes that all begin with a dash")
