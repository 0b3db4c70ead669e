"""The ConfigMap that brokers start from, whatever they are: named after its content."""

from collections.abc import Mapping

from firn_controllers import children
from firn_controllers.fleet.layout import Fleet
from firn_controllers.ports import Manifest


def name(fleet: Fleet, read_at_start: Mapping[str, str]) -> str:
    """``firn-broker-P-HASH``: another one for every content, named by the pod template. So a broker that restarts while a change is
    rolled out starts from what it ran with before, until it is its turn."""
    return f"{fleet.service}-{children.digest(dict(read_at_start))[:8]}"


def build(fleet: Fleet, read_at_start: Mapping[str, str], **others: str) -> Manifest:
    """The ConfigMap. ``others`` are files that are not part of its name."""
    data = {**read_at_start, **others}
    return children.child("v1", "ConfigMap", name(fleet, read_at_start), **fleet.meta(), data=data)
