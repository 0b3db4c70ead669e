"""One broker at a time may be taken away by a drain."""

from firn_controllers import children
from firn_controllers.fleet.layout import Fleet
from firn_controllers.ports import Manifest


def build(fleet: Fleet) -> Manifest:
    """The PodDisruptionBudget ``firn-broker-P``."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": fleet.labels}}
    return children.child("policy/v1", "PodDisruptionBudget", fleet.service, **fleet.meta(), spec=spec)
