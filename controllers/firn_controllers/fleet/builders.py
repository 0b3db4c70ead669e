"""Objects that every fleet has, whatever its brokers are: configuration, Services and disruption budget."""

from collections.abc import Mapping

from firn.model import names
from firn_controllers import children
from firn_controllers.cache.addresses import CLIENT_PORT
from firn_controllers.fleet.layout import EXTERNAL_PORT, Fleet
from firn_controllers.ports import Manifest

POD_NAME = "statefulset.kubernetes.io/pod-name"


def config_map_name(fleet: Fleet, read_at_start: Mapping[str, str]) -> str:
    """``firn-broker-P-HASH``: another one for every content, named by the pod template. So a broker that restarts while a change is
    rolled out starts from what it ran with before, until it is its turn."""
    return f"{fleet.service}-{children.digest(dict(read_at_start))[:8]}"


def config_map(fleet: Fleet, read_at_start: Mapping[str, str], **others: str) -> Manifest:
    """The ConfigMap. ``others`` are files that are not part of its name."""
    data = {**read_at_start, **others}
    return children.child_object("v1", "ConfigMap", config_map_name(fleet, read_at_start), **fleet.meta(), data=data)


def headless_service(fleet: Fleet) -> Manifest:
    """``firn-broker-P``: a DNS name for each broker, also before it is ready, as the quorum forms by these names."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": fleet.labels,
        "ports": [{"name": name, "port": port, "targetPort": name} for name, port in fleet.ports.items()],
    }
    return children.child_object("v1", "Service", fleet.service, **fleet.meta(), spec=spec)


def bootstrap_service(fleet: Fleet) -> Manifest:
    """``firn-broker-P-bootstrap``: any ready broker."""
    spec = {
        "type": "ClusterIP",
        "selector": fleet.labels,
        "ports": [{"name": "kafka", "port": CLIENT_PORT, "targetPort": "kafka"}],
    }
    return children.child_object("v1", "Service", names.bootstrap(fleet.name), **fleet.meta(), spec=spec)


def external_services(fleet: Fleet) -> list[Manifest]:
    """Services for clients outside the cluster: one to bootstrap from and one for each broker; none without ``external``."""
    settings = fleet.profile.external
    if settings is None:
        return []

    def service(name: str, selector: dict[str, str], node_port: int) -> Manifest:
        port: dict[str, object] = {"name": "kafka", "port": EXTERNAL_PORT, "targetPort": "external"}
        if settings.type == "NodePort":
            port["nodePort"] = node_port
        spec = {"type": settings.type, "selector": selector, "ports": [port]}
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
    """What the names of all Services for clients outside the cluster begin with."""
    return f"{fleet.service}-external"


def disruption_budget(fleet: Fleet) -> Manifest:
    """The PodDisruptionBudget ``firn-broker-P``: a drain may take away one broker at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": fleet.labels}}
    return children.child_object("policy/v1", "PodDisruptionBudget", fleet.service, **fleet.meta(), spec=spec)
