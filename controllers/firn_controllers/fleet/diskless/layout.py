"""Names and settings that all objects of a diskless fleet share.

Nothing here depends on live objects, because brokers come and go without moving data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from firn.model import names
from firn.model.config import Authority, Config, DisklessProfile, Registry, SecretKey
from firn_controllers.cache.addresses import CLIENT_PORT, INTERNAL_PORT, SECURE_PORT
from firn_controllers.children import Owner
from firn_controllers.fleet.access import OPEN_PORT, is_secured, sources_of, super_users
from firn_controllers.fleet.layout import Fleet
from firn_controllers.ports import StatefulSetState
from firn_controllers.trust.sources import Sources

METRICS_PORT = 9090
CONFIG_PATH = "/etc/firn/broker"
API_SERVER_PATH = "/etc/firn/api-server"
"""Directory with the CA of the API server, and a token with which a broker reads the keys of ServiceAccount tokens."""
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
    super_users: tuple[str, ...] = ()
    """With ``access``: principals that may do everything."""
    secured: bool = False
    """With ``access``: all brokers have the secure listener, so Firn's own clients may use it."""
    sources: Sources | None = None

    @classmethod
    def from_profile(
        cls, config: Config, name: str, profile: DisklessProfile, owner: Owner, live: StatefulSetState | None
    ) -> Self:
        """Return the fleet of profile ``name``, given its live StatefulSet.

        A valid configuration has an image for it.
        """
        image, access = profile.image or config.images.broker, profile.access
        assert image is not None
        return cls(
            name=name,
            profile=profile,
            owner=owner,
            image=image,
            pull_secrets=tuple(config.images.pull_secrets),
            replicas=profile.replicas,
            registries={registry: config.registries[registry] for registry in profile.registries},
            super_users=() if access is None else super_users(config, access, anonymous=access.plaintext == "Keep"),
            secured=is_secured(access, live),
            sources=sources_of(name, access, live),
        )

    @property
    def ports(self) -> Mapping[str, int]:
        """Ports for clients, for metrics and probes, and for drivers that read the bucket."""
        return self._ports(plaintext=not self.closed) | {"metrics": METRICS_PORT}

    @property
    def bootstrap_ports(self) -> Mapping[str, int]:
        """Ports for clients, and for drivers that read the bucket."""
        # Until all brokers have the secure listener, clients reach the others at the port without encryption.
        return self._ports(plaintext=not (self.closed and self.secured))

    def _ports(self, *, plaintext: bool) -> dict[str, int]:
        ports = {
            OPEN_PORT: CLIENT_PORT if plaintext else None,
            "secure": SECURE_PORT if self.profile.access is not None else None,
            "internal": INTERNAL_PORT if self.profile.direct_reads is not None else None,
        }
        return {name: port for name, port in ports.items() if port is not None}

    @property
    def closed(self) -> bool:
        """Return True if no client may connect without encryption."""
        return self.profile.access is not None and self.profile.access.plaintext == "Close"

    @property
    def token(self) -> SecretKey | None:
        """Secret key with the token of the internal listener; None if it has none."""
        return self.profile.token(self.name)

    @property
    def authorities(self) -> list[Authority]:
        """CA certificates that the brokers need."""
        registries = (authority for each in self.registries.values() for authority in each.authorities)
        return [*self.profile.authorities, *registries]

    @property
    def secret_names(self) -> list[str]:
        """Names of the Secrets that the brokers need, sorted."""
        token = [] if self.token is None else [self.token.secret]
        registries = [reference.secret for each in self.registries.values() for reference in each.references()]
        certificate = [] if self.sources is None else [self.certificate_secret]
        return sorted({*self.profile.secret_names(), *token, *registries, *certificate})

    @property
    def schema(self) -> str:
        """Schema of the fleet in the coordinator's database."""
        return f"firn_broker_{names.table_part(self.name)}"

    @property
    def url(self) -> str:
        """URL below which the fleet's objects are stored."""
        return self.profile.object_store.place(self.name)
