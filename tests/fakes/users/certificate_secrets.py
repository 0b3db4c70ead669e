"""Port `CertificateSecrets` in memory. It passes tests/contract/test_certificate_secrets.py like the adapter."""

from collections.abc import Mapping
from dataclasses import dataclass

from firn.model.errors import ConflictError, UnavailableError
from firn_controllers.ports import CertificateSecret


@dataclass(frozen=True)
class FakeSecret:
    data: Mapping[str, str]
    version: int
    own: bool = True


class FakeCertificateSecrets:
    def __init__(self) -> None:
        self.secrets: dict[str, FakeSecret] = {}
        self.writes = 0
        self.lost_after: int | None = None
        """Number of writes after which the process cannot write any more."""
        self._versions = 0

    def put(self, name: str, data: Mapping[str, str], *, own: bool) -> None:
        """Write as any client."""
        self._versions += 1
        self.secrets[name] = FakeSecret(dict(data), self._versions, own)

    async def read(self, name: str) -> CertificateSecret | None:
        live = self.secrets.get(name)
        return None if live is None else CertificateSecret(live.data, str(live.version), live.own)

    async def create(self, name: str, profile: str | None, data: Mapping[str, str]) -> None:
        if name in self.secrets:
            raise ConflictError(f"Secret {name} exists")
        self._write()
        self.put(name, data, own=True)

    async def update(self, name: str, data: Mapping[str, str | None], version: str) -> None:
        live = self.secrets.get(name)
        if live is None or str(live.version) != version:
            raise ConflictError(f"Secret {name} has another version")
        self._write()
        merged = {**live.data, **data}
        self.put(name, {key: value for key, value in merged.items() if value is not None}, own=live.own)

    def _write(self) -> None:
        if self.lost_after is not None and self.writes >= self.lost_after:
            raise UnavailableError("the process has ended")
        self.writes += 1
