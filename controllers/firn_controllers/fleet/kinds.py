"""Fleets by the kind of their profile, and the builders of the objects in which the kinds differ."""

from typing import TypeAlias

from firn.model.config import Config, DisklessProfile, KafkaProfile
from firn.model.errors import InvalidSpecError
from firn_controllers.children import Owner
from firn_controllers.fleet.diskless import config_map as diskless_config_map
from firn_controllers.fleet.diskless import stateful_set as diskless_stateful_set
from firn_controllers.fleet.diskless.layout import DisklessFleet
from firn_controllers.fleet.kafka import config_map as kafka_config_map
from firn_controllers.fleet.kafka import stateful_set as kafka_stateful_set
from firn_controllers.fleet.kafka.layout import KafkaFleet, Size
from firn_controllers.ports import Manifest, StatefulSetState

AnyFleet: TypeAlias = KafkaFleet | DisklessFleet


def managed_fleet(
    config: Config, name: str, owner: Owner, live: StatefulSetState | None, kept: Size | None = None
) -> AnyFleet:
    """Return the fleet of the managed profile ``name``, given its live StatefulSet, and the size of an earlier one."""
    match config.profiles[name]:
        case KafkaProfile() as profile:
            return KafkaFleet.from_profile(config, name, profile, owner, live, kept)
        case DisklessProfile() as profile:
            return DisklessFleet.from_profile(config, name, profile, owner, live)


def refuse_other_kind(fleet: AnyFleet, live: StatefulSetState | None) -> None:
    """Refuse to replace brokers of one kind by brokers of another.

    Raises InvalidSpecError if the live StatefulSet is of the other kind. Kubernetes would not change it, and brokers of
    both kinds behind one address would be two clusters.
    """
    if live is None:
        return
    keeps = bool(live.manifest.get("spec", {}).get("volumeClaimTemplates"))
    if keeps != isinstance(fleet, KafkaFleet):
        kind = "Kafka" if keeps else "Diskless"
        raise InvalidSpecError(
            f"configuration profiles.{fleet.name}.kind: the brokers of StatefulSet {live.name} are of kind {kind}, which cannot change; add"
            " a new profile, or delete the StatefulSet when its topics are no longer needed"
        )


def config_map(fleet: AnyFleet) -> Manifest:
    """Build the ConfigMap that the brokers start from."""
    match fleet:
        case KafkaFleet():
            return kafka_config_map.build(fleet)
        case DisklessFleet():
            return diskless_config_map.build(fleet)


def stateful_set(fleet: AnyFleet, partition: int) -> Manifest:
    """Build the StatefulSet ``firn-broker-P``. Pods below ordinal ``partition`` keep their template (`rollout`)."""
    match fleet:
        case KafkaFleet():
            return kafka_stateful_set.build(fleet, partition)
        case DisklessFleet():
            return diskless_stateful_set.build(fleet, partition)
