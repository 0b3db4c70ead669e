"""Certificates of the authorities of brokers (port `Authorities`), from the mounted Secrets of the configuration."""

from collections.abc import Mapping

from firn.model.jobs import KafkaConnection
from firn_operator.adapters import secret_files


class MountedAuthorities:
    """Port `Authorities` over mounted Secrets. The kubelet replaces their files when a Secret changes."""

    def __init__(self, profiles: Mapping[str, KafkaConnection]) -> None:
        self._profiles = profiles

    async def certificates(self, profile: str) -> str:
        """Return the certificates as PEM; empty if the profile names none."""
        path = self._profiles[profile].ca_path
        return secret_files.read(path, f"certificates of profile {profile}") + "\n" if path is not None else ""
