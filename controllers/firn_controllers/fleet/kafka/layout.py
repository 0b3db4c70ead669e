"""Names and settings that all objects of an Apache Kafka fleet share: controller quorum, volume, cluster id."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

from firn.model import names
from firn.model.config import Authority, Config, KafkaProfile
from firn.model.errors import InvalidSpecError
from firn_controllers.cache.addresses import CERTIFICATE_PORT, CLIENT_PORT, SECURE_PORT
from firn_controllers.children import Owner, digest
from firn_controllers.fleet.access import OPEN_PORT, annotation, sources_of, super_users
from firn_controllers.fleet.layout import EXTERNAL_PORT, Fleet
from firn_controllers.ports import Manifest, StatefulSetState
from firn_controllers.trust.sources import Sources

CONTROLLER_PORT = 9093
QUORUM_PORT = 9098
"""Port of the controllers with TLS and authentication."""
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
STAGE = f"{names.GROUP}/access-stage"
"""Annotation of the StatefulSet: the `Stage` of its template. Missing before the profile has ``access``."""


class Stage(IntEnum):
    """How far a fleet has moved to its secure listeners. Each stage needs that all brokers have reached the one before."""

    PLAIN = 0
    """The fleet has no secure listener."""
    BESIDE = 1
    """Secure listeners are open beside the others. Brokers, controllers and Firn's clients use the others."""
    MOVED = 2
    """Brokers, controllers and Firn's clients use the secure listeners. The others are still open."""
    CLOSED = 3
    """Controllers have only the secure listener. Brokers have another one only with ``plaintext: Keep``."""


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
    stage: Stage = Stage.PLAIN
    super_users: tuple[str, ...] = ()
    """With ``access``: principals that may do everything."""
    sources: Sources | None = None

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
            voters = int(annotation(live, VOTERS) or voters)
            version = annotation(live, METADATA_VERSION)
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
            sources=sources_of(name, profile.access, live),
        ).at(stage_of(name, profile, live), config)

    def at(self, stage: Stage, config: Config) -> Self:
        """Return the fleet at another stage."""
        moved, access = replace(self, stage=stage), self.profile.access
        if access is None:
            return moved
        accounts = (names.OPERATOR_ACCOUNT, self.profile.service_account)
        users = super_users(config, access, anonymous=moved.open, accounts=accounts)
        return replace(moved, super_users=users)

    @property
    def open(self) -> bool:
        """Return True if clients may connect without encryption."""
        access = self.profile.access
        return access is None or access.plaintext == "Keep" or self.stage < Stage.CLOSED

    @property
    def ports(self) -> Mapping[str, int]:
        """Ports for clients, and for the controllers."""
        # Until all controllers have the secure listener, some of them are reached only at the port without encryption.
        quorum = {"controller": CONTROLLER_PORT} if self.stage < Stage.CLOSED else {}
        quorum |= {"quorum": QUORUM_PORT} if self.stage >= Stage.BESIDE else {}
        return {**self.bootstrap_ports, **quorum}

    @property
    def bootstrap_ports(self) -> Mapping[str, int]:
        """Ports for clients."""
        access = self.profile.access
        ports = {OPEN_PORT: CLIENT_PORT} if self.open else {}
        if access is not None and self.stage >= Stage.BESIDE:
            ports |= {"secure": SECURE_PORT}
            ports |= {"certificate": CERTIFICATE_PORT} if access.client_ca is not None else {}
        return ports

    @property
    def encrypted_ports(self) -> list[int]:
        """Ports for clients at which a broker presents its certificate. Each listener reads a changed file by itself."""
        outside = [] if self.open or self.profile.external is None else [EXTERNAL_PORT]
        return [*(port for name, port in self.bootstrap_ports.items() if name != OPEN_PORT), *outside]

    @property
    def bundle(self) -> Authority | None:
        """The ConfigMap with the CAs by which brokers verify each other, while these come from several Secrets."""
        digest = self.sources.newest.bundle if self.sources is not None else ""
        return Authority(config_map=f"{self.service}-authorities-{digest}") if digest else None

    @property
    def authorities(self) -> list[Authority]:
        """CA certificates that the brokers need beside the one in the Secret of their certificate."""
        access = self.profile.access
        return self.bundles if access is None or access.client_ca is None else [*self.bundles, access.client_ca]

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


def stage_of(name: str, profile: KafkaProfile, live: StatefulSetState | None) -> Stage:
    """Return the stage of a fleet, given its live StatefulSet. A new fleet is closed from the start.

    Raises InvalidSpecError if the live brokers have ``access`` and the profile has none.
    """
    marked = None if live is None else annotation(live, STAGE)
    if profile.access is None:
        if marked is not None:
            raise InvalidSpecError(
                f"configuration profiles.{name}.access: the brokers have it, and it cannot be removed, because they authenticate to each other;"
                " set it again, with plaintext: Keep for clients without encryption"
            )
        return Stage.PLAIN
    if live is None:
        return Stage.CLOSED
    return Stage.BESIDE if marked is None else Stage(int(marked))


def applied_replicas(live: StatefulSetState) -> int:
    """Return the number of brokers that the operator applied last."""
    return int(annotation(live, REPLICAS) or live.replicas)


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
