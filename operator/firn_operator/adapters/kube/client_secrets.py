"""Secrets of TopicUsers (port `ClientSecrets`): the operator creates and updates them, and never reads their content."""

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from firn.model import names
from firn.model.errors import ConflictError
from firn_controllers.ports import ClientSecret, UserRef
from firn_operator.adapters.kube.api_client import APPLY, JSON, MERGE_PATCH, Api, ApiError, Manifest, path

_METADATA_ONLY = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""All answers have only the metadata, so no content of a Secret reaches this process."""
_PROBE_MANAGER = "firn-operator-probe"
"""Field manager without fields. An apply of no field by it changes nothing, also in an immutable Secret."""


class KubeClientSecrets:
    """Port `ClientSecrets` over a real API server. It needs the rights to create and to patch Secrets."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def look(self, namespace: str, name: str, owner: UserRef) -> ClientSecret | None:
        """Return the metadata of the Secret; None if it does not exist. Raises ConflictError if ``owner`` does not own it."""
        metadata = await self._metadata(namespace, name)
        if "resourceVersion" not in metadata:
            return None  # the dry run would have created it
        owners = [reference.get("uid") for reference in metadata.get("ownerReferences") or ()]
        if owner.uid not in owners:
            raise ConflictError(
                f"Secret {namespace}/{name} exists, and TopicUser {owner.name} does not own it; delete the Secret, or choose another"
                " spec.authentication.secretName"
            )
        return ClientSecret(str(metadata["uid"]), (metadata.get("annotations") or {}).get(names.CREDENTIAL, ""))

    async def write(
        self,
        namespace: str,
        name: str,
        owner: UserRef,
        data: Mapping[str, str],
        revision: str,
        expected_uid: str | None,
    ) -> str:
        """Create or update the Secret, and return its uid."""
        manifest = _manifest(namespace, name, owner, data, revision)
        updated = None if expected_uid is None else await self._apply(manifest, expected_uid)
        if updated is not None:
            return updated
        created = await self._create(manifest)
        if created is not None:
            return created
        found = await self.look(namespace, name, owner)
        updated = None if found is None else await self._apply(manifest, found.uid)
        if updated is None:
            raise ConflictError(f"Secret {namespace}/{name} was replaced by another client; the operator tries again")
        return updated

    async def _apply(self, manifest: Manifest, uid: str) -> str | None:
        """Update the Secret if it has the uid. Return its uid, or None if another Secret or none has the name."""
        metadata = manifest["metadata"]
        place = path("v1", "Secret", metadata["namespace"], metadata["name"])
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        body = {**manifest, "metadata": {**metadata, "uid": uid}}
        try:
            answer = await self._api.call("PATCH", place, query, body, APPLY, _METADATA_ONLY)
        except ApiError as error:
            # An object with another uid is a conflict, or a change of an immutable field, depending on whether it exists.
            if error.status == 409 or (error.status == 422 and "metadata.uid:" in error.message):
                return None
            raise
        await self._remove(_unwanted(answer, manifest), answer, place)
        return _uid(answer)

    async def _remove(self, keys: Iterable[str], live: Manifest, place: str) -> None:
        """Remove keys of the content that the Secret had when this operator created it."""
        content = dict.fromkeys(keys)
        if content:
            body = {"metadata": {"uid": _uid(live)}, "data": content}
            query = {"fieldManager": names.FIELD_MANAGER}
            await self._api.call("PATCH", place, query, body, MERGE_PATCH, _METADATA_ONLY)

    async def _create(self, manifest: Manifest) -> str | None:
        """Create the Secret. Return its uid, or None if a Secret has the name."""
        place = path("v1", "Secret", manifest["metadata"]["namespace"])
        query = {"fieldManager": names.FIELD_MANAGER}
        try:
            answer = await self._api.call("POST", place, query, manifest, accept=_METADATA_ONLY)
        except ApiError as error:
            if error.status == 409:
                return None
            raise
        return _uid(answer)

    async def _metadata(self, namespace: str, name: str) -> Manifest:
        """Return the metadata of a Secret, or those that a new one would have."""
        identity = {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": namespace, "name": name}}
        query = {"fieldManager": _PROBE_MANAGER, "dryRun": "All"}
        place = path("v1", "Secret", namespace, name)
        answer = await self._api.call("PATCH", place, query, identity, APPLY, _METADATA_ONLY)
        metadata: Manifest = answer["metadata"]
        return metadata


def _manifest(namespace: str, name: str, owner: UserRef, data: Mapping[str, str], revision: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY},
            "annotations": {names.CREDENTIAL: revision},
            "ownerReferences": [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": "TopicUser",
                    "name": owner.name,
                    "uid": owner.uid,
                    "controller": True,
                }
            ],
        },
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


def _unwanted(live: Manifest, manifest: Manifest) -> list[str]:
    """Return keys from the creation that ``manifest`` lacks. An apply leaves them, because another operation made them."""
    entries = live["metadata"].get("managedFields") or ()
    made = (
        entry.get("fieldsV1", {}).get("f:data", {})
        for entry in entries
        if (entry.get("manager"), entry.get("operation")) == (names.FIELD_MANAGER, "Update")
    )
    keys = {field.removeprefix("f:") for fields in made for field in fields if field.startswith("f:")}
    return sorted(keys - set(manifest["data"]))


def _uid(answer: Manifest) -> str:
    return str(answer["metadata"]["uid"])
