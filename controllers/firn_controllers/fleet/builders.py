"""Objects that every fleet has, whatever its brokers are: configuration, Services and disruption budget."""

from collections.abc import Mapping

from firn.model import names
from firn_controllers import children
from firn_controllers.fleet.layout import EXTERNAL_PORT, Fleet
from firn_controllers.ports import Manifest

POD_NAME = "statefulset.kubernetes.io/pod-name"


def config_map_name(fleet: Fleet, read_at_start: Mapping[str, str]) -> str:
    """Return the name ``firn-broker-P-HASH``, which differs for every content and which the pod template contains.

    A broker that restarts during a roll-out starts from its old configuration until it is replaced.
    """
    return f"{fleet.service}-{children.digest(dict(read_at_start))[:8]}"


def config_map(fleet: Fleet, read_at_start: Mapping[str, str], **others: str) -> Manifest:
    """Build the ConfigMap that brokers start from. ``others`` are files that are not part of its name."""
    data = {**read_at_start, **others}
    return children.child_object("v1", "ConfigMap", config_map_name(fleet, read_at_start), **fleet.meta(), data=data)


def headless_service(fleet: Fleet) -> Manifest:
    """Build the headless Service ``firn-broker-P``.

    Brokers have a DNS name before they are ready, because the quorum forms by these names.
    """
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": fleet.labels,
        "ports": [{"name": name, "port": port, "targetPort": name} for name, port in fleet.ports.items()],
    }
    return children.child_object("v1", "Service", fleet.service, **fleet.meta(), spec=spec)


def bootstrap_service(fleet: Fleet) -> Manifest:
    """Build the Service ``firn-broker-P-bootstrap``, which leads to any ready broker."""
    spec = {
        "type": "ClusterIP",
        "selector": fleet.labels,
        "ports": [{"name": name, "port": port, "targetPort": name} for name, port in fleet.bootstrap_ports.items()],
    }
    return children.child_object("v1", "Service", names.bootstrap(fleet.name), **fleet.meta(), spec=spec)


def external_services(fleet: Fleet) -> list[Manifest]:
    """Build the Services for clients outside: one to bootstrap from and one for each broker; none without ``external``."""
    settings = fleet.profile.external
    if settings is None:
        return []
    type_ = "ClusterIP" if settings.type == "TLSRoute" else settings.type

    def service(name: str, selector: dict[str, str], node_port: int) -> Manifest:
        port: dict[str, object] = {"name": "kafka", "port": EXTERNAL_PORT, "targetPort": "external"}
        if settings.type == "NodePort":
            port["nodePort"] = node_port
        spec: dict[str, object] = {"type": type_, "selector": selector, "ports": [port]}
        if settings.source_ranges:
            spec["loadBalancerSourceRanges"] = settings.source_ranges
        return children.child_object("v1", "Service", name, **fleet.meta(annotations=settings.annotations), spec=spec)

    prefix = external_prefix(fleet)
    brokers = [
        service(
            f"{prefix}-{ordinal}", fleet.labels | {POD_NAME: f"{fleet.service}-{ordinal}"}, settings.port + 1 + ordinal
        )
        for ordinal in range(fleet.replicas)
    ]
    return [service(prefix, fleet.labels, settings.port), *brokers]


def external_prefix(fleet: Fleet) -> str:
    """Return the prefix of the names of all Services for clients outside."""
    return f"{fleet.service}-external"


def disruption_budget(fleet: Fleet) -> Manifest:
    """Build the PodDisruptionBudget ``firn-broker-P``: a drain may evict one broker at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": fleet.labels}}
    return children.child_object("policy/v1", "PodDisruptionBudget", fleet.service, **fleet.meta(), spec=spec)
