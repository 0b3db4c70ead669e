"""The driver's headless Service: where the operator reads progress, and where executors find the driver."""

from firn.model import names
from firn_controllers import children
from firn_controllers.ports import Manifest

PROGRESS_PORT = 8080
DRIVER_PORT = 7078
BLOCK_MANAGER_PORT = 7079


def build(group: str, owner: children.Owner, labels: dict[str, str]) -> Manifest:
    """The Service ``firn-ingest-G``. It has addresses before the driver is ready, as executors are asked for before that."""
    ports = (("progress", PROGRESS_PORT), ("driver", DRIVER_PORT), ("block-manager", BLOCK_MANAGER_PORT))
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": labels,
        "ports": [{"name": name, "port": port, "targetPort": name} for name, port in ports],
    }
    return children.child_object("v1", "Service", names.ingestion(group), owner, labels, spec=spec)
