"""Requests to the Kubernetes API, with login, retries and a rate limit. Bodies and answers are JSON."""

import asyncio
import json
import os
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, Configuration
from prometheus_client import Counter

from firn.model.errors import AccessDeniedError, UnavailableError

Manifest = dict[str, Any]

_REQUESTS = Counter("firn_kubernetes_requests_total", "Requests to the Kubernetes API", ["method", "code"])

REQUEST_TIMEOUT = 30.0
"""Seconds for one request."""
_ATTEMPTS = 4
LONGEST_PAUSE = 10.0
"""Seconds of the longest pause between two attempts, also if the server asks for more (``Retry-After``)."""
_READS = frozenset({"GET"})
JSON = "application/json"
KEY_SET = "application/jwk-set+json"
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"


class ApiError(Exception):
    """An error response of the API server. ``status`` is the HTTP status, ``reason`` that of Kubernetes."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class RateLimit:
    """A token bucket: ``rate`` requests a second, ``burst`` at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._at = time.monotonic()

    async def wait(self) -> None:
        """Wait until the next request may be sent."""
        now = time.monotonic()
        self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._rate)
        self._at = now
        self._tokens -= 1
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._rate)


async def login() -> Configuration:
    """Load the address of the API server and the credentials.

    They are those of the pod's ServiceAccount, whose token is read again when it rotates, or for development those of
    the file in KUBECONFIG. Raises kubernetes' ConfigException.
    """
    configuration = Configuration()
    if os.environ.get("KUBECONFIG") or not os.environ.get("KUBERNETES_SERVICE_HOST"):
        await kube_config.load_kube_config(client_configuration=configuration)
    else:
        kube_config.load_incluster_config(client_configuration=configuration)
    return configuration


class Api:
    """The API server. Failed reads are retried. Failed writes are retried only if the server has certainly done nothing."""

    def __init__(self, configuration: Configuration, writes: RateLimit) -> None:
        self.configuration = configuration
        configuration.connection_pool_maxsize = 32
        # Otherwise aiohttp looks for a proxy and reads .netrc in a thread before each request. The watches use neither.
        configuration.client_session_kwargs = {"trust_env": False}
        self._client = ApiClient(configuration)
        self._writes = writes

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = JSON,
        accept: str = JSON,
        limit: RateLimit | None = None,
    ) -> Manifest:
        """Send a request and return the answer. A write waits for ``limit``, or for the common rate limit.

        Raises ApiError, AccessDeniedError (401, 403) and UnavailableError.
        """
        answer: Manifest = json.loads(await self._text(method, path, query, body, content_type, accept, limit))
        return answer

    async def read_text(self, path: str, query: Mapping[str, str]) -> str:
        """Read a text, such as a log. Raises ApiError, AccessDeniedError (401, 403) and UnavailableError."""
        return await self._text("GET", path, query, accept="*/*")

    async def _text(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = JSON,
        accept: str = JSON,
        limit: RateLimit | None = None,
    ) -> str:
        problem = ""
        for attempt in range(_ATTEMPTS):
            if method not in _READS:
                await (limit or self._writes).wait()
            pause = min(LONGEST_PAUSE, 0.25 * 2**attempt)
            try:
                status, headers, text = await self._send(method, path, query, body, content_type, accept)
            except aiohttp.ClientConnectorError as error:
                problem = str(error)
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
                if method not in _READS:
                    break  # the server may have done it
            else:
                if status < 300:
                    return text
                problem = _problem(status, text)
                if status == 429 or (status >= 500 and method in _READS) or status == 503:
                    pause = max(pause, _retry_after(headers))
                elif status >= 500:
                    break
                else:
                    raise _refusal(status, text, f"{method} {path}")
            if attempt + 1 < _ATTEMPTS:
                await asyncio.sleep(pause)
        raise UnavailableError(f"Kubernetes API, {method} {path}: {problem}")

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: object, content_type: str, accept: str
    ) -> tuple[int, Mapping[str, str], str]:
        headers: dict[str, Any] = {"Accept": accept, "Content-Type": content_type, "User-Agent": "firn-operator"}
        settings = await self.configuration.auth_settings()
        if "BearerToken" in settings:
            headers["Authorization"] = settings["BearerToken"]["value"]
        url = f"{self.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        response = await self._client.rest_client.request(
            method, url, headers=headers, body=body, _request_timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT)
        )
        data = await response.read()
        _REQUESTS.labels(method, str(response.status)).inc()
        return response.status, response.getheaders(), data.decode(errors="replace")


def _problem(status: int, text: str) -> str:
    return f"{status} {_status_object(text).get('message') or text[:200]}"


def _status_object(text: str) -> Manifest:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _refusal(status: int, text: str, request: str) -> Exception:
    status_object = _status_object(text)
    message = str(status_object.get("message") or text[:500])
    if status in (401, 403):
        return AccessDeniedError(f"Kubernetes API, {request}: {message}; check the operator's RBAC")
    return ApiError(status, str(status_object.get("reason", "")), message)


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return min(LONGEST_PAUSE, float(headers.get("Retry-After", "0")))
    except ValueError:
        return 0.0


PLURALS = {
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Pod"): "pods",
    ("v1", "Secret"): "secrets",
    ("v1", "Service"): "services",
    ("v1", "Event"): "events",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("batch/v1", "Job"): "jobs",
    ("policy/v1", "PodDisruptionBudget"): "poddisruptionbudgets",
    ("coordination.k8s.io/v1", "Lease"): "leases",
    ("cert-manager.io/v1", "Certificate"): "certificates",
    ("firn.dev/v1alpha1", "IcebergTopic"): "icebergtopics",
    ("firn.dev/v1alpha1", "CompactionPolicy"): "compactionpolicies",
    ("firn.dev/v1alpha1", "RetentionPolicy"): "retentionpolicies",
    ("firn.dev/v1alpha1", "DeadLetterReplay"): "deadletterreplays",
    ("firn.dev/v1alpha1", "TopicSet"): "topicsets",
    ("firn.dev/v1alpha1", "TopicUser"): "topicusers",
    ("firn.dev/v1alpha1", "TopicGrant"): "topicgrants",
}
"""Resource names of the kinds that the operator uses."""


def path(api_version: str, kind: str, namespace: str | None, name: str = "", subresource: str = "") -> str:
    """Return the URL path of an object, or of a collection without ``name``; ``namespace`` None: of all namespaces."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    parts = [root]
    if namespace is not None:
        parts += ["namespaces", quote(namespace)]
    parts.append(PLURALS[api_version, kind])
    parts += [quote(part) for part in (name, subresource) if part]
    return "/".join(parts)
