"""The Kubernetes API with the rights of a person: kubeconfig, contexts, and errors that name the missing right.

Plain requests instead of the client's classes keep the answers of the API server whole, with the causes of a refusal.
"""

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

import firn
from firn.model import names
from firn.model.errors import AccessDeniedError, FirnError, InvalidSpecError, UnavailableError

Manifest = dict[str, Any]
TIMEOUT = 20
PAGE = "500"
"""Objects of one answer of a list."""
_KUBECONFIG = "~/.kube/config"
_SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Collection:
    """The objects of one kind in a namespace; in all namespaces if it is None."""

    plural: str
    namespace: str | None
    group: str = names.GROUP

    def path(self, name: str = "") -> str:
        """Return the URL path of the collection, or of one of its objects."""
        root = f"/apis/{self.group}/{names.VERSION}" if self.group else "/api/v1"
        scope = f"/namespaces/{quote(self.namespace, safe='')}" if self.namespace is not None else ""
        return f"{root}{scope}/{self.plural}" + (f"/{quote(name, safe='')}" if name else "")

    @property
    def resource(self) -> str:
        """Name of the resource as RBAC writes it, with its group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def place(self) -> str:
        """Namespace as a text."""
        return f"in namespace {self.namespace}" if self.namespace is not None else "in all namespaces"


def topics(namespace: str | None) -> Collection:
    """Return the IcebergTopics of a namespace."""
    return Collection("icebergtopics", namespace)


def topic_sets(namespace: str | None) -> Collection:
    """Return the TopicSets of a namespace."""
    return Collection("topicsets", namespace)


def replays(namespace: str) -> Collection:
    """Return the DeadLetterReplays of a namespace."""
    return Collection("deadletterreplays", namespace)


def config_maps(namespace: str) -> Collection:
    """Return the ConfigMaps of a namespace."""
    return Collection("configmaps", namespace, "")


def events(namespace: str) -> Collection:
    """Return the Events of a namespace."""
    return Collection("events", namespace, "")


class RefusedError(FirnError):
    """The API server refuses an object. ``causes`` are field and message of each problem."""

    def __init__(self, code: int, status: Manifest) -> None:
        message = str(status.get("message") or code)
        super().__init__(message, reason=str(status.get("reason") or code))
        self.code = code
        details = status.get("details") or {}
        self.kind = str(details.get("kind") or "")
        found = [(str(each.get("field") or ""), str(each.get("message") or "")) for each in details.get("causes") or ()]
        self.causes = found or [("", message)]


@dataclass(frozen=True, slots=True)
class Login:
    """Address and credentials. ``name`` names their source in messages, such as context prod."""

    settings: client.Configuration
    namespace: str
    name: str
    chosen: bool = False
    """True if a person chose the namespace with --namespace."""

    def place(self, named: str) -> tuple[str, str]:
        """Return namespace and name of NAME or NAMESPACE/NAME. Raises InvalidSpecError if a person chose another namespace."""
        namespace, _, name = named.rpartition("/")
        if self.chosen and namespace not in ("", self.namespace):
            raise InvalidSpecError(
                f"{named} is in namespace {namespace}, and --namespace is {self.namespace}; leave out one of them"
            )
        return namespace or self.namespace, name


def log_in(context: str | None = None, namespace: str | None = None) -> Login:
    """Load KUBECONFIG, or ~/.kube/config, or the ServiceAccount of a pod. Raises InvalidSpecError with the next step."""
    settings = client.Configuration()
    given = os.environ.get("KUBECONFIG")
    # The client reads KUBECONFIG once, when it is imported.
    files = given or str(Path(_KUBECONFIG).expanduser())
    has_file = bool(given) or Path(files).exists()
    try:
        if context is None and not has_file and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=settings)
            return Login(settings, namespace or _pod_namespace(), "the pod's ServiceAccount", chosen=bool(namespace))
        if not has_file:
            raise InvalidSpecError(
                f"there is no kubeconfig: {_KUBECONFIG} does not exist, and KUBECONFIG is not set; set KUBECONFIG to the file for your cluster"
            )
        contexts, active = config.list_kube_config_contexts(files)
        chosen = _chosen(contexts, active, context)
        config.load_kube_config(files, context=chosen["name"], client_configuration=settings)
    except (ConfigException, OSError, yaml.YAMLError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise InvalidSpecError(
            f"kubeconfig {given or _KUBECONFIG} cannot be used: {' '.join(str(error).split())}; correct the file, or set KUBECONFIG to"
            " another one"
        ) from error
    place = namespace or (chosen.get("context") or {}).get("namespace") or "default"
    return Login(settings, place, f"context {chosen['name']}", chosen=bool(namespace))


def _chosen(contexts: list[Manifest], active: Manifest, context: str | None) -> Manifest:
    if context is None:
        return active
    for each in contexts:
        if each["name"] == context:
            return each
    known = [str(each["name"]) for each in contexts]
    raise InvalidSpecError(f"the kubeconfig has no context {context}; {near(context, known, 'contexts')}")


def _pod_namespace() -> str:
    return _SERVICE_ACCOUNT_NAMESPACE.read_text().strip() if _SERVICE_ACCOUNT_NAMESPACE.exists() else "default"


def near(name: str, known: list[str], what: str) -> str:
    """Return a hint with the known names that are close to ``name``, or the first ones."""
    if not known:
        return f"there are no {what}"
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"{what} are {', '.join(sorted(known)[:10])}"


class Connection:
    """Requests to the API server. Close it after use."""

    def __init__(self, login: Login) -> None:
        self.login = login
        # Idle requests would otherwise be repeated three times with the full timeout.
        login.settings.retries = urllib3.Retry(connect=1, read=0, other=0, redirect=0, total=3, status_forcelist=(429,))
        self._client = client.ApiClient(login.settings)

    @property
    def namespace(self) -> str:
        """Namespace of the context, or the one that the person chose."""
        return self.login.namespace

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.rest_client.close()

    def read(self, collection: Collection, name: str) -> Manifest | None:
        """Return an object; None if it does not exist.

        Raises AccessDeniedError that names verb and resource, InvalidSpecError without the CRD, UnavailableError.
        """
        code, answer = self._send("GET", collection.path(name))
        if code == 404 and (answer.get("details") or {}).get("name"):
            return None
        return self._checked(code, answer, "get", collection)

    def list(self, collection: Collection, **query: str) -> list[Manifest]:
        """Return all objects of a collection. Raises the errors of `read`."""
        found: list[Manifest] = []
        token = ""
        while True:
            code, answer = self._send("GET", collection.path(), {**query, "limit": PAGE, "continue": token})
            page = self._checked(code, answer, "list", collection)
            found += page.get("items") or []
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return found

    def create(self, collection: Collection, body: Manifest) -> Manifest:
        """Create an object, and return it. Raises RefusedError with the causes, and the errors of `read`."""
        code, answer = self._send("POST", collection.path(), {"fieldValidation": "Strict"}, body)
        if code in (400, 409, 422) and answer.get("kind") == "Status":
            raise RefusedError(code, answer)
        return self._checked(code, answer, "create", collection)

    def dry_run(self, verb: str, collection: Collection, name: str, body: Manifest, **query: str) -> Manifest:
        """Return the object as the API server would store it, without storing it.

        ``verb`` is create, apply or patch. Raises RefusedError with the causes, and the errors of `read`.
        """
        query = {"dryRun": "All", "fieldValidation": "Strict", **query}
        kind = {"apply": APPLY, "patch": MERGE}.get(verb, JSON)
        method, place = ("POST", "") if verb == "create" else ("PATCH", name)
        code, answer = self._send(method, collection.path(place), query, body, kind)
        if code in (400, 404, 409, 422) and answer.get("kind") == "Status":
            raise RefusedError(code, answer)
        return self._checked(code, answer, "create" if verb == "create" else "patch", collection)

    def may(self, verb: str, collection: Collection, name: str = "") -> bool:
        """Return False if this person lacks a right to all objects, or to the one of this name. Raises UnavailableError.

        If the API server does not say, return True.

        The name of the collection can have a subresource, such as ``pods/exec``.
        """
        plural, _, subresource = collection.plural.partition("/")
        attributes = {
            "verb": verb,
            "group": collection.group,
            "resource": plural,
            "subresource": subresource,
            "namespace": collection.namespace or "",
            "name": name,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        code, answer = self._send("POST", _REVIEWS, None, body)
        return code >= 300 or (answer.get("status") or {}).get("allowed") is not False

    def _checked(self, code: int, answer: Manifest, verb: str, collection: Collection) -> Manifest:
        """Return a successful answer, or raise the error that it stands for."""
        if code < 300:
            return answer
        if code == 401:
            raise AccessDeniedError(
                f"the API server rejects the credentials of {self.login.name}; log in to the cluster again"
            )
        missing = code == 404 or (code == 403 and collection.group and self._send("GET", self._group())[0] == 404)
        if missing:
            raise InvalidSpecError(
                f"the cluster of {self.login.name} has no resource {collection.resource}; install Firn's chart there, or choose"
                " another context with --context"
            )
        if code == 403:
            roles = ", which the roles view and edit of the namespace have" if collection.group else ""
            raise AccessDeniedError(
                f"you may not {verb} {collection.resource} {collection.place}; ask an administrator for this right{roles}"
            )
        problem = answer.get("message") or code
        raise UnavailableError(f"the API server cannot {verb} {collection.resource}: {problem}; try again later")

    @staticmethod
    def _group() -> str:
        return f"/apis/{names.API_VERSION}"

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = JSON,
    ) -> tuple[int, Manifest]:
        """Send a request and return status and document. Raises UnavailableError if there is no answer."""
        headers = {"Accept": JSON, "Content-Type": content_type, "User-Agent": f"firn/{firn.__version__}"}
        parameters = [(key, value) for key, value in (query or {}).items() if value]
        self._client.update_params_for_auth(headers, parameters, ["BearerToken"], path, method, body)
        url = f"{self.login.settings.host}{path}" + (f"?{urlencode(parameters)}" if parameters else "")
        try:
            answer = self._client.call_api(method, url, headers, body, _request_timeout=TIMEOUT)
            text = answer.read()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnavailableError(
                f"the API server {self.login.settings.host} of {self.login.name} does not answer: {_cause(error)}; check the"
                " network, or choose another context with --context"
            ) from error
        return answer.status, _document(text)


def right(error: AccessDeniedError) -> str:
    """Return the missing right of an error, without the next step."""
    return str(error).partition(";")[0]


def _cause(error: Exception) -> str:
    """Return the last cause of a failed request, without the objects in urllib3's texts."""
    reason = getattr(error, "reason", None)
    text = str(reason if reason is not None else error)
    return text.rpartition(">: ")[2] or type(error).__name__


def _document(text: bytes | str | None) -> Manifest:
    try:
        document = json.loads(text or "{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
