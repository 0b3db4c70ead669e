"""Services of a fleet: headless for the brokers themselves, one to bootstrap from, one a broker for clients outside."""

from firn.model import names
from firn_controllers import children
from firn_controllers.cache.addresses import CLIENT_PORT
from firn_controllers.fleet.layout import EXTERNAL_PORT, Fleet
from firn_controllers.ports import Manifest

POD_NAME = "statefulset.kubernetes.io/pod-name"


def headless(fleet: Fleet) -> Manifest:
    """``firn-broker-P``: a DNS name for each broker, also before it is ready, as the quorum forms by these names."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": fleet.labels,
        "ports": [{"name": name, "port": port, "targetPort": name} for name, port in fleet.ports.items()],
    }
    return children.child("v1", "Service", fleet.service, **fleet.meta(), spec=spec)


def bootstrap(fleet: Fleet) -> Manifest:
    """``firn-broker-P-bootstrap``: any ready broker."""
    spec = {
        "type": "ClusterIP",
        "selector": fleet.labels,
        "ports": [{"name": "kafka", "port": CLIENT_PORT, "targetPort": "kafka"}],
    }
    return children.child("v1", "Service", names.bootstrap(fleet.name), **fleet.meta(), spec=spec)


def external(fleet: Fleet) -> list[Manifest]:
    """Services for clients outside the cluster: one to bootstrap from and one for each broker; none without ``external``."""
    settings = fleet.profile.external
    if settings is None:
        return []

    def service(name: str, selector: dict[str, str], node_port: int) -> Manifest:
        port: dict[str, object] = {"name": "kafka", "port": EXTERNAL_PORT, "targetPort": "external"}
        if settings.type == "NodePort":
            port["nodePort"] = node_port
        spec = {"type": settings.type, "selector": selector, "ports": [port]}
        return children.child("v1", "Service", name, **fleet.meta(annotations=settings.annotations), spec=spec)

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
