"""Names, labels and ports that all objects of one fleet share, whatever its brokers are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firn.model import names
from firn.model.config import Authority, Image, Profile
from firn_controllers.cache.addresses import CLIENT_PORT
from firn_controllers.children import COMPONENT, Owner
from firn_controllers.trust.sources import Sources

EXTERNAL_PORT = 9094


@dataclass(frozen=True, slots=True)
class Fleet:
    """A managed fleet. ``replicas`` is never below the live number if brokers hold data."""

    name: str
    profile: Profile
    owner: Owner
    image: Image
    pull_secrets: tuple[str, ...]
    replicas: int

    @property
    def service(self) -> str:
        """Name of StatefulSet, headless Service and PodDisruptionBudget. Names of ConfigMaps begin with it."""
        return names.fleet(self.name)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every object of the fleet. They select its pods, so they never change."""
        return {COMPONENT: "broker", names.LABEL_PROFILE: self.name}

    @property
    def ports(self) -> Mapping[str, int]:
        """Ports of the brokers inside the cluster, by name."""
        return {"kafka": CLIENT_PORT}

    @property
    def bootstrap_ports(self) -> Mapping[str, int]:
        """The ports that any ready broker can serve."""
        return {"kafka": CLIENT_PORT}

    @property
    def least_ready(self) -> int:
        """Number of ready brokers below which no record can be written."""
        return 1

    @property
    def sources(self) -> Sources | None:
        """The Secrets with certificates and CAs that the brokers use; None without ``access``."""
        return None

    @property
    def certificate_secret(self) -> str:
        """Name of the Secret with the certificate of the brokers."""
        assert self.sources is not None
        return self.sources.newest.presents

    @property
    def bundle(self) -> Authority | None:
        """The ConfigMap with the CAs by which brokers verify each other, while these come from several Secrets; None if there is none."""
        return None

    @property
    def bundles(self) -> list[Authority]:
        """`bundle` as a list."""
        return [] if self.bundle is None else [self.bundle]

    @property
    def domain(self) -> str:
        """Domain of the DNS names of the brokers' pods."""
        return f"{self.service}.{self.owner.namespace}.svc"

    def host(self, ordinal: int) -> str:
        """Return the DNS name of a broker's pod."""
        return f"{self.service}-{ordinal}.{self.domain}"

    def meta(self, **more: Any) -> dict[str, Any]:
        """Return the arguments of ``children.child_object`` that all objects of the fleet share."""
        return {"owner": self.owner, "labels": self.labels, **more}
