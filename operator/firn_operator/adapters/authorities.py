"""Certificates of the authorities of brokers (port `Authorities`), from the mounted Secrets of the configuration."""

from collections.abc import Mapping

from firn.kafka_clients import authorities
from firn.model.errors import NotReadyError
from firn.model.jobs import KafkaConnection
from firn_operator.adapters import secret_files


class MountedAuthorities:
    """Port `Authorities` over mounted Secrets. The kubelet replaces their files when a Secret changes."""

    def __init__(self, profiles: Mapping[str, KafkaConnection]) -> None:
        self._profiles = profiles

    async def certificates(self, profile: str) -> str:
        """Return the certificates as PEM; empty if the profile names none."""
        found = authorities(self._profiles[profile], lambda path: secret_files.read(path, _purpose(profile)))
        return f"{found}\n" if found is not None else ""

    async def of_sources(self, profile: str) -> list[str]:
        """Return the certificates of each source, the present one first. The text of a source without certificates is empty."""
        found = []
        for path in self._profiles[profile].ca_paths:
            try:
                found.append(secret_files.read(path, _purpose(profile)))
            except NotReadyError:
                found.append("")
        return found


def _purpose(profile: str) -> str:
    return f"certificates of profile {profile}"
