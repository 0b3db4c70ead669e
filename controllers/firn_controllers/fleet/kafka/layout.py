"""Names and settings that all objects of an Apache Kafka fleet share: controller quorum, volume, cluster id."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from firn.model import names
from firn.model.config import Config, KafkaProfile
from firn.model.errors import InvalidSpecError
from firn_controllers.cache.addresses import CLIENT_PORT
from firn_controllers.children import Owner, digest
from firn_controllers.fleet.layout import Fleet
from firn_controllers.ports import Manifest, StatefulSetState

CONTROLLER_PORT = 9093
DATA_PATH = "/var/lib/kafka/data"
CONFIG_PATH = "/etc/firn/kafka"
UID = 1000
VOTERS = f"{names.GROUP}/controller-voters"
"""Annotation of the StatefulSet: the number of brokers in the controller quorum when the fleet was created."""
REPLICAS = f"{names.GROUP}/replicas"
"""Annotation of the StatefulSet: the number of brokers that the operator applied last. Other clients may change
``spec.replicas``."""
METADATA_VERSION = f"{names.GROUP}/metadata-version"
"""Annotation of the StatefulSet: the metadata version that a Job finalized last. Missing if there is none."""


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers of voters and brokers whose volumes may exist."""

    voters: int
    replicas: int


@dataclass(frozen=True, slots=True)
class KafkaFleet(Fleet):
    """A fleet of Apache Kafka. Its replicas, voters, metadata version and volume depend on the live StatefulSet.

    A fleet only grows. Its quorum and its volumes stay as they were created.
    """

    profile: KafkaProfile
    voters: int
    metadata_version: str | None
    storage_size: str
    storage_class_name: str | None

    @classmethod
    def from_profile(
        cls,
        config: Config,
        name: str,
        profile: KafkaProfile,
        owner: Owner,
        live: StatefulSetState | None,
        kept: Size | None = None,
    ) -> Self:
        """Return the fleet of profile ``name``, given its live StatefulSet, and the size of an earlier one."""
        size, storage_class = profile.storage.size, profile.storage.storage_class_name
        replicas = max(profile.replicas, kept.replicas if kept is not None else 1)
        voters = kept.voters if kept is not None else 3 if replicas >= 3 else 1
        version = None
        if live is not None:
            replicas = max(replicas, live.replicas, applied_replicas(live))
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
    def ports(self) -> Mapping[str, int]:
        """Ports for clients, and for the controllers."""
        return {"kafka": CLIENT_PORT, "controller": CONTROLLER_PORT}

    @property
    def replication_factor(self) -> int:
        """Number of replicas of new partitions."""
        return min(3, self.replicas)

    @property
    def in_sync(self) -> int:
        """Number of replicas that a write needs (``min.insync.replicas``)."""
        return 2 if self.replication_factor >= 3 else 1

    @property
    def least_ready(self) -> int:
        """Number of ready brokers below which no record can be written."""
        return self.in_sync

    @property
    def cluster_id(self) -> str:
        """Kafka's cluster id.

        It never changes for a namespace and profile, so that existing volumes fit a StatefulSet that is created again.
        """
        return cluster_id(self.owner.namespace, self.name)


def applied_replicas(live: StatefulSetState) -> int:
    """Return the number of brokers that the operator applied last."""
    annotations = live.manifest.get("metadata", {}).get("annotations") or {}
    return int(annotations.get(REPLICAS, live.replicas))


def quorum(fleet: KafkaFleet) -> Manifest:
    """Build the ConfigMap ``firn-broker-P-quorum``, which has the `Size` of the fleet.

    It has no owner, so it stays with the volumes after an uninstallation.
    """
    data = {"voters": str(fleet.voters), "replicas": str(fleet.replicas)}
    metadata = {
        "name": names.quorum(fleet.name),
        "namespace": fleet.owner.namespace,
        "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_PROFILE: fleet.name},
        "annotations": {names.TEMPLATE_HASH: digest(data)},
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def kept_size(quorum: Manifest | None) -> Size | None:
    """Return the size in the ConfigMap `quorum`; None without ConfigMap. Raises InvalidSpecError if it has none."""
    if quorum is None:
        return None
    data = quorum.get("data") or {}
    voters = str(data.get("voters", ""))
    replicas = str(data.get("replicas", voters))  # earlier versions recorded only voters
    name = quorum["metadata"]["name"]
    if not voters.isdecimal() or int(voters) < 1:
        raise InvalidSpecError(
            f"ConfigMap {name}: voters is {voters!r}; set it to the number of brokers in the controller quorum when the volumes were created"
        )
    if not replicas.isdecimal():
        raise InvalidSpecError(
            f"ConfigMap {name}: replicas is {replicas!r}; set it to the number of brokers with volumes"
        )
    return Size(int(voters), max(int(voters), int(replicas)))


def cluster_id(namespace: str, profile: str) -> str:
    """Return 16 bytes in URL-safe base64 without padding, as Kafka writes ids.

    The id never begins with a dash, which Kafka's tools take for an option.
    """
    for attempt in range(256):
        seed = f"firn/{namespace}/{profile}/{attempt}".encode()
        text = base64.urlsafe_b64encode(hashlib.sha256(seed).digest()[:16]).decode().rstrip("=")
        if not text.startswith("-"):
            return text
    raise AssertionError("256 hashes that all begin with a dash")
