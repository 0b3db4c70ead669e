"""What the objects of one fleet agree on, whatever its brokers are: names, labels, ports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firn.model import names
from firn.model.config import Image, Profile
from firn_controllers.cache.addresses import CLIENT_PORT
from firn_controllers.children import COMPONENT, Owner

EXTERNAL_PORT = 9094


@dataclass(frozen=True, slots=True)
class Fleet:
    """One managed fleet. ``replicas`` takes what is live into account where brokers hold data."""

    name: str
    profile: Profile
    owner: Owner
    image: Image
    pull_secrets: tuple[str, ...]
    replicas: int

    @property
    def service(self) -> str:
        """StatefulSet, headless Service and PodDisruptionBudget; ConfigMaps begin with it."""
        return names.fleet(self.name)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every object of the fleet; they select its pods, so they never change."""
        return {COMPONENT: "broker", names.LABEL_PROFILE: self.name}

    @property
    def ports(self) -> Mapping[str, int]:
        """The brokers' ports inside the cluster, by name."""
        return {"kafka": CLIENT_PORT}

    @property
    def least_ready(self) -> int:
        """With fewer ready brokers than this, nothing can be written."""
        return 1

    @property
    def domain(self) -> str:
        """DNS name below which each broker's pod has its own."""
        return f"{self.service}.{self.owner.namespace}.svc"

    def host(self, ordinal: int) -> str:
        """DNS name of one broker's pod."""
        return f"{self.service}-{ordinal}.{self.domain}"

    def meta(self, **more: Any) -> dict[str, Any]:
        """Arguments of ``children.child`` that all objects of the fleet share."""
        return {"owner": self.owner, "labels": self.labels, **more}
