"""Whether the CustomResourceDefinition in the cluster is the one that this version needs."""

from collections.abc import Iterator, Mapping
from typing import Any

from firn.api import crds
from firn.model import names
from firn.model.errors import AccessDeniedError, NotReadyError
from firn_operator.api_client import Api, ApiError

NAME = f"icebergtopics.{names.GROUP}"
_PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}"
_WAY_OUT = "apply the CRDs of this version (they come with the chart: crds.enabled=true)"


async def check(api: Api) -> None:
    """Return when the live CRD has every field that this version reads or writes. Raises NotReadyError with the way out."""
    try:
        live = await api.call("GET", _PATH)
    except ApiError as error:
        if error.status == 404:
            raise NotReadyError(f"the CustomResourceDefinition {NAME} is missing: {_WAY_OUT}") from error
        raise
    except AccessDeniedError:
        # Not allowed to read CRDs: all that can be known is whether the version is served.
        await _check_served(api)
        return
    version = next((found for found in live["spec"]["versions"] if found["name"] == names.VERSION), None)
    if version is None or not version.get("served"):
        raise NotReadyError(f"the CustomResourceDefinition {NAME} does not serve {names.VERSION}: {_WAY_OUT}")
    missing = list(missing_fields(_schema(crds.iceberg_topics()["spec"]["versions"][0]), _schema(version)))
    if missing:
        raise NotReadyError(
            f"the CustomResourceDefinition {NAME} is of another version: it lacks {', '.join(missing[:5])}; {_WAY_OUT}"
        )
    conditions = {found["type"]: found["status"] for found in live.get("status", {}).get("conditions", [])}
    if conditions.get("Established") != "True":
        raise NotReadyError(f"the CustomResourceDefinition {NAME} is not established yet")


async def _check_served(api: Api) -> None:
    try:
        served = await api.call("GET", f"/apis/{names.API_VERSION}")
    except ApiError as error:
        raise NotReadyError(f"{names.API_VERSION} is not served: {_WAY_OUT}") from error
    if not any(resource["name"] == "icebergtopics" for resource in served["resources"]):
        raise NotReadyError(f"{names.API_VERSION} does not serve icebergtopics: {_WAY_OUT}")


def _schema(version: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def missing_fields(needed: Mapping[str, Any], live: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Fields that ``needed`` has and ``live`` lacks or has with another type, as dotted paths; the API server would drop them."""
    if live.get("x-kubernetes-preserve-unknown-fields"):
        return
    if path and needed.get("type") != live.get("type"):
        yield path
        return
    found = live.get("properties", {})
    for name, schema in needed.get("properties", {}).items():
        below = f"{path}.{name}".lstrip(".")
        if name not in found:
            yield below
        else:
            yield from missing_fields(schema, found[name], below)
    for key in ("items", "additionalProperties"):
        if isinstance(needed.get(key), Mapping) and isinstance(live.get(key), Mapping):
            yield from missing_fields(needed[key], live[key], f"{path}[]")
