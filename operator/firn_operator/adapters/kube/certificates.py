"""Certificates of cert-manager (port `BrokerCertificates`). The rights to create and to patch them by name are enough."""

from datetime import datetime
from typing import Any

from firn.model import names
from firn.model.errors import InvalidSpecError, NotReadyError
from firn_controllers.ports import CertificateState, Manifest
from firn_operator.adapters.kube.api_client import APPLY, Api, ApiError, path


class KubeCertificates:
    """Port `BrokerCertificates` over a real API server."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def apply(self, manifest: Manifest) -> CertificateState:
        """Apply a Certificate server-side, and return its state."""
        metadata = manifest["metadata"]
        name = metadata["name"]
        place = path(manifest["apiVersion"], manifest["kind"], metadata["namespace"], name)
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        try:
            live = await self._api.call("PATCH", place, query, manifest, APPLY)
        except ApiError as error:
            if error.status == 404:
                raise NotReadyError(
                    f"Certificate {name}: the cluster has no CRD certificates.cert-manager.io; install cert-manager, or choose another"
                    " access.certificate"
                ) from error
            if error.status in (400, 422):
                raise InvalidSpecError(f"Certificate {name}: the API server refuses it: {error.message}") from error
            raise
        return _state(live)


def _state(live: Manifest) -> CertificateState:
    status: dict[str, Any] = live.get("status") or {}
    ready: dict[str, Any] = next((item for item in status.get("conditions") or () if item.get("type") == "Ready"), {})
    # The condition of an earlier spec says nothing about the present one.
    newest = ready.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
    ends = status.get("notAfter")
    return CertificateState(
        ready=newest and ready.get("status") == "True",
        message=str(ready.get("message") or "") if newest else "",
        ends=datetime.fromisoformat(ends) if ends else None,
    )
