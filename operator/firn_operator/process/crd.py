"""Check that the CustomResourceDefinitions in the cluster are those that this version needs."""

from collections.abc import Iterator, Mapping
from typing import Any

from firn.api import crds
from firn.model import names
from firn.model.errors import AccessDeniedError, NotReadyError
from firn_operator.adapters.kube.api_client import Api, ApiError

_NEXT_STEP = "apply the CRDs of this version, which the chart installs with crds.enabled=true"


async def check(api: Api) -> None:
    """Check that the live CRDs have every field that this version reads or writes.

    Raises NotReadyError that names the next step.
    """
    for needed in crds.all_crds():
        await _check(api, needed)


async def _check(api: Api, needed: Mapping[str, Any]) -> None:
    name = needed["metadata"]["name"]
    try:
        live = await api.call("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    except ApiError as error:
        if error.status == 404:
            raise NotReadyError(f"the CustomResourceDefinition {name} does not exist: {_NEXT_STEP}") from error
        raise
    except AccessDeniedError:
        # Without the right to read CRDs, the operator can only check whether the version is served.
        await _check_served(api, needed["spec"]["names"]["plural"])
        return
    version = next((version for version in live["spec"]["versions"] if version["name"] == names.VERSION), None)
    if version is None or not version.get("served"):
        raise NotReadyError(f"the CustomResourceDefinition {name} does not serve {names.VERSION}: {_NEXT_STEP}")
    missing = list(missing_fields(_schema(needed["spec"]["versions"][0]), _schema(version)))
    if missing:
        raise NotReadyError(
            f"the CustomResourceDefinition {name} belongs to another version and lacks the fields {', '.join(missing[:5])}; {_NEXT_STEP}"
        )
    conditions = live.get("status", {}).get("conditions", [])
    if not any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions):
        raise NotReadyError(f"the CustomResourceDefinition {name} is not established yet; wait for the API server")


async def _check_served(api: Api, plural: str) -> None:
    try:
        served = await api.call("GET", f"/apis/{names.API_VERSION}")
    except ApiError as error:
        raise NotReadyError(f"{names.API_VERSION} is not served: {_NEXT_STEP}") from error
    if not any(resource["name"] == plural for resource in served["resources"]):
        raise NotReadyError(f"{names.API_VERSION} does not serve {plural}: {_NEXT_STEP}")


def _schema(version: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def missing_fields(needed: Mapping[str, Any], live: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of fields that ``live`` lacks or has with another type. The API server would drop them."""
    if live.get("x-kubernetes-preserve-unknown-fields"):
        return
    if path and needed.get("type") != live.get("type"):
        yield path
        return
    properties = live.get("properties", {})
    for name, schema in needed.get("properties", {}).items():
        below = f"{path}.{name}".lstrip(".")
        if name not in properties:
            yield below
        else:
            yield from missing_fields(schema, properties[name], below)
    for key in ("items", "additionalProperties"):
        if isinstance(needed.get(key), Mapping) and isinstance(live.get(key), Mapping):
            yield from missing_fields(needed[key], live[key], f"{path}[]")
