"""Names and settings that all objects of a diskless fleet share.

Nothing here depends on live objects, because brokers come and go without moving data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from firn.model import names
from firn.model.config import Config, DisklessProfile, Registry, SecretKey
from firn_controllers.cache.addresses import CLIENT_PORT, INTERNAL_PORT
from firn_controllers.children import Owner
from firn_controllers.fleet.layout import Fleet

METRICS_PORT = 9090
CONFIG_PATH = "/etc/firn/broker"
UID = 65532
DRAIN_SECONDS = 60
"""Seconds from the signal to stop until the broker is killed.

New clients still arrive for a few seconds; then the broker answers and stores everything that it has accepted.
"""


@dataclass(frozen=True, slots=True)
class DisklessFleet(Fleet):
    """A fleet with as many brokers as the profile says."""

    profile: DisklessProfile
    registries: Mapping[str, Registry] = field(default_factory=dict)
    """Schema registries that the brokers ask."""

    @classmethod
    def from_profile(cls, config: Config, name: str, profile: DisklessProfile, owner: Owner) -> Self:
        """Return the fleet of profile ``name``.

        A valid configuration has an image for it.
        """
        image = profile.image or config.images.broker
        assert image is not None
        return cls(
            name=name,
            profile=profile,
            owner=owner,
            image=image,
            pull_secrets=tuple(config.images.pull_secrets),
            replicas=profile.replicas,
            registries={registry: config.registries[registry] for registry in profile.registries},
        )

    @property
    def ports(self) -> Mapping[str, int]:
        """Ports for clients, for metrics and probes, and for drivers that read the bucket."""
        return {**self.bootstrap_ports, "metrics": METRICS_PORT}

    @property
    def bootstrap_ports(self) -> Mapping[str, int]:
        """Ports for clients, and for drivers that read the bucket."""
        return {"kafka": CLIENT_PORT} | ({"internal": INTERNAL_PORT} if self.token is not None else {})

    @property
    def token(self) -> SecretKey | None:
        """Secret key with the token of the internal listener; None without this listener."""
        return self.profile.token(self.name)

    @property
    def secret_names(self) -> list[str]:
        """Names of the Secrets that the brokers need, sorted."""
        token = [] if self.token is None else [self.token.secret]
        registries = [reference.secret for each in self.registries.values() for reference in each.references()]
        return sorted({*self.profile.secret_names(), *token, *registries})

    @property
    def schema(self) -> str:
        """Schema of the fleet in the coordinator's database."""
        return f"firn_broker_{names.table_part(self.name)}"

    @property
    def url(self) -> str:
        """URL below which the fleet's objects are stored."""
        return self.profile.object_store.place(self.name)
