"""What the objects of a diskless fleet agree on. Nothing of it depends on what is live: its brokers come and go without moving data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from firn.model import names
from firn.model.config import Config, DisklessProfile
from firn_controllers.cache.addresses import CLIENT_PORT
from firn_controllers.children import Owner
from firn_controllers.fleet.layout import Fleet

METRICS_PORT = 9090
CONFIG_PATH = "/etc/firn/broker"
UID = 65532
DRAIN_SECONDS = 60
"""What a broker has from being told to stop: a few seconds while new clients still come, then all that was taken is answered and stored."""


@dataclass(frozen=True, slots=True)
class DisklessFleet(Fleet):
    """As many brokers as the profile says, now."""

    profile: DisklessProfile

    @classmethod
    def from_profile(cls, config: Config, name: str, profile: DisklessProfile, owner: Owner) -> Self:
        """The fleet of profile ``name``. The configuration has an image for it, or it would not have been accepted."""
        image = profile.image or config.images.broker
        assert image is not None
        return cls(
            name=name,
            profile=profile,
            owner=owner,
            image=image,
            pull_secrets=tuple(config.images.pull_secrets),
            replicas=profile.replicas,
        )

    @property
    def ports(self) -> Mapping[str, int]:
        """Clients', and that of metrics and probes."""
        return {"kafka": CLIENT_PORT, "metrics": METRICS_PORT}

    @property
    def schema(self) -> str:
        """The fleet's schema in the coordinator's database."""
        return f"firn_broker_{names.table_part(self.name)}"

    @property
    def url(self) -> str:
        """Where the fleet's objects are."""
        return f"{self.profile.object_store.url.rstrip('/')}/{self.name}"
