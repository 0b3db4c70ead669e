"""Secrets of the signer (port `CertificateSecrets`). The rights to get, create and patch are enough, for the names of its Secrets."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from firn.model import names
from firn.model.errors import ConflictError
from firn_controllers.children import COMPONENT
from firn_controllers.ports import CertificateSecret
from firn_operator.adapters.kube.api_client import APPLY, MERGE_PATCH, Api, ApiError, path

_SIGNER = {COMPONENT: "signer"}
"""Label of the Secrets that a signer has created."""


class KubeCertificateSecrets:
    """Port `CertificateSecrets` over a real API server. ``instance`` is the name of the process."""

    def __init__(self, api: Api, namespace: str, instance: str) -> None:
        self._api = api
        self._namespace = namespace
        self._instance = instance

    async def read(self, name: str) -> CertificateSecret | None:
        """Return the Secret; None if it does not exist."""
        try:
            found = await self._api.call("GET", self._place(name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        metadata = found["metadata"]
        own = _SIGNER.items() <= (metadata.get("labels") or {}).items()
        return CertificateSecret(_decoded(found.get("data") or {}), str(metadata["resourceVersion"]), own)

    async def create(self, name: str, profile: str | None, data: Mapping[str, str]) -> None:
        """Create the Secret; of a store, without a profile. Raises ConflictError if another client has created one with other values.

        It is an apply, because the name in its path lets RBAC limit the right to create. Each process applies as its own field
        manager, so that the API server refuses to replace values of another process.
        """
        of_profile = {} if profile is None else {names.LABEL_PROFILE: profile}
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, **of_profile, **_SIGNER},
            },
            "type": "kubernetes.io/tls" if "tls.crt" in data else "Opaque",
            "data": _encoded(data),
        }
        await self._write(name, {"fieldManager": f"{names.SIGNER}-{self._instance}"[:128]}, manifest, APPLY)

    async def update(self, name: str, data: Mapping[str, str | None], version: str) -> None:
        """Set keys, and remove those whose value is None. Raises ConflictError if the Secret has another version, or is deleted."""
        body = {"metadata": {"resourceVersion": version}, "data": _encoded(data)}
        await self._write(name, {"fieldManager": names.SIGNER}, body, MERGE_PATCH)

    async def _write(self, name: str, query: Mapping[str, str], body: object, content_type: str) -> None:
        try:
            await self._api.call("PATCH", self._place(name), query, body, content_type)
        except ApiError as error:
            if error.status in (404, 409, 422):
                raise ConflictError(
                    f"Secret {self._namespace}/{name}: another client has changed it; the signer reads it and tries again"
                ) from error
            raise

    def _place(self, name: str) -> str:
        return path("v1", "Secret", self._namespace, name)


def _encoded(data: Mapping[str, str | None]) -> dict[str, Any]:
    return {key: None if value is None else base64.b64encode(value.encode()).decode() for key, value in data.items()}


def _decoded(data: Mapping[str, str]) -> dict[str, str]:
    """Return the texts. A value that is no text is left out, because no certificate or key has such a value."""
    texts = {}
    for key, value in data.items():
        try:
            texts[key] = base64.b64decode(value).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
    return texts
