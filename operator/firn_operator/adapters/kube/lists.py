"""Lists of the Kubernetes API, page by page or whole."""

from collections.abc import AsyncIterator, Mapping

from firn.model.errors import UnavailableError
from firn_operator.adapters.kube.api_client import Api, ApiError, Manifest, path

PAGE_OBJECTS = 200
"""Number of objects on a page of a list."""
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


async def pages(
    api: Api,
    api_version: str,
    kind: str,
    namespace: str | None,
    labels: Mapping[str, str],
    *,
    metadata_only: bool = False,
) -> AsyncIterator[tuple[list[Manifest], int]]:
    """Yield all objects with these labels, page by page, with the resource version of the whole list.

    Raises UnavailableError if the list expires before it is complete (410): begin again.
    """
    query = {"limit": str(PAGE_OBJECTS)}
    if labels:
        query["labelSelector"] = ",".join(f"{key}={value}" for key, value in labels.items())
    while True:
        try:
            page = await api.call(
                "GET",
                path(api_version, kind, namespace),
                query,
                accept=_METADATA_ONLY if metadata_only else "application/json",
            )
        except ApiError as error:
            if error.status == 410:
                raise UnavailableError(
                    f"Kubernetes API: the list of {kind} expired before it was complete; the operator lists again"
                ) from error
            raise
        items = [{**item, "apiVersion": api_version, "kind": kind} for item in page["items"] or ()]
        yield items, int(page["metadata"]["resourceVersion"])
        token = page["metadata"].get("continue")
        if not token:
            return
        query["continue"] = token


async def list_all(
    api: Api,
    api_version: str,
    kind: str,
    namespace: str | None,
    labels: Mapping[str, str],
    *,
    metadata_only: bool = False,
) -> tuple[list[Manifest], int]:
    """Return all items of `pages` at once. Use it for kinds with few objects."""
    manifests: list[Manifest] = []
    version = 0
    async for items, shown in pages(api, api_version, kind, namespace, labels, metadata_only=metadata_only):
        version = shown
        manifests += items
    return manifests, version
