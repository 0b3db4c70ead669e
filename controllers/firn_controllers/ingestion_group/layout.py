"""Labels that the objects of one ingestion group share."""

from firn.model import names
from firn_controllers.children import COMPONENT

INGESTION_LABELS = {names.LABEL_MANAGED_BY: names.MANAGED_BY, COMPONENT: "ingestion"}
"""Labels that all objects of all groups have, and no job contract has."""


def group_labels(group: str) -> dict[str, str]:
    """Return the labels of a group's objects. They select its pod, so they never change."""
    return {COMPONENT: "ingestion", names.LABEL_GROUP: group}
