"""The driver's headless Service. The operator reads progress through it, and executors find the driver by it."""

from firn.model import names
from firn_controllers import children
from firn_controllers.ports import Manifest

PROGRESS_PORT = 8080
DRIVER_PORT = 7078
BLOCK_MANAGER_PORT = 7079


def build(group: str, owner: children.Owner, labels: dict[str, str]) -> Manifest:
    """Build the Service ``firn-ingest-G``.

    It has addresses before the driver is ready, because executors need them earlier.
    """
    ports = (("progress", PROGRESS_PORT), ("driver", DRIVER_PORT), ("block-manager", BLOCK_MANAGER_PORT))
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": labels,
        "ports": [{"name": name, "port": port, "targetPort": name} for name, port in ports],
    }
    return children.child_object("v1", "Service", names.ingestion(group), owner, labels, spec=spec)
