"""`firn quickstart-secrets`: create the passwords of the quick start's stores.

The chart runs it in a hook Job before every installation and upgrade. Existing Secrets stay unchanged.
"""

import argparse
import base64
import os
import secrets
import string
import sys
from collections.abc import Sequence

import urllib3.exceptions
from kubernetes import client, config

from firn.model import names
from firn.model.errors import AccessDeniedError, ConflictError, ExitCode, FirnError, UnavailableError

_ALPHABET = string.ascii_letters + string.digits
_LENGTH = 32
_TIMEOUT = 20
LABELS = {
    names.LABEL_MANAGED_BY: names.MANAGED_BY,
    "app.kubernetes.io/name": "firn",
    "app.kubernetes.io/part-of": "firn",
    "app.kubernetes.io/component": "quickstart-secrets",
}


def ensure(api: client.CoreV1Api, namespace: str, name: str, keys: Sequence[str]) -> bool:
    """Create the Secret ``name`` with a random value of letters and digits for each key, unless it exists.

    Returns True if the call created it. Raises ConflictError if it exists without one of the keys, AccessDeniedError, and
    UnavailableError.
    """
    try:
        secret = _read(api, namespace, name)
        if secret is None:
            if _create(api, namespace, name, keys):
                return True
            secret = api.read_namespaced_secret(name, namespace, _request_timeout=_TIMEOUT)
    except client.ApiException as error:
        if error.status in (401, 403):
            raise AccessDeniedError(f"secret {namespace}/{name}: {error.reason}: {error.body}") from error
        raise UnavailableError(f"secret {namespace}/{name}: {error.status} {error.reason}") from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise UnavailableError(f"secret {namespace}/{name}: the API server does not answer: {error}") from error
    missing = [key for key in keys if not (secret.data or {}).get(key)]
    if missing:
        raise ConflictError(
            f"secret {namespace}/{name} exists without {', '.join(missing)}: add the values with which the stores were created, "
            "or delete the Secret together with the stores' volumes"
        )
    return False


def _read(api: client.CoreV1Api, namespace: str, name: str) -> client.V1Secret | None:
    """Return the Secret; None if it does not exist."""
    try:
        return api.read_namespaced_secret(name, namespace, _request_timeout=_TIMEOUT)
    except client.ApiException as error:
        if error.status == 404:
            return None
        raise


def _create(api: client.CoreV1Api, namespace: str, name: str, keys: Sequence[str]) -> bool:
    """Create the Secret; return False if another client has created it.

    It is an apply, because the name in its path lets RBAC limit the right to create. Each call applies as its own field
    manager, so that the API server refuses to replace values of another process.
    """
    values = {key: "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH)) for key in keys}
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": LABELS},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()},
    }
    try:
        api.patch_namespaced_secret(
            name,
            namespace,
            body,
            field_manager=f"firn-quickstart-secrets-{secrets.token_hex(8)}",
            _content_type="application/apply-patch+yaml",
            _request_timeout=_TIMEOUT,
        )
    except client.ApiException as error:
        if error.status == 409:
            return False
        raise
    return True


def _wanted(text: str) -> tuple[str, list[str]]:
    name, separator, keys = text.partition("=")
    if not (name and separator and all(keys.split(","))):
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form NAME=KEY[,KEY...]")
    return name, keys.split(",")


def _connection() -> client.Configuration:
    """Return the connection to the API server, of the pod's ServiceAccount or of the file in KUBECONFIG."""
    settings = client.Configuration()
    path = os.environ.get("KUBECONFIG")
    if path:
        config.load_kube_config(path, client_configuration=settings)
    else:
        config.load_incluster_config(client_configuration=settings)
    return settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (`firn.model.errors.ExitCode`)."""
    parser = argparse.ArgumentParser(
        prog="firn quickstart-secrets", description="Create Secrets with random values, unless they exist."
    )
    parser.add_argument("--namespace", required=True, help="namespace of the Secrets")
    parser.add_argument(
        "--secret",
        action="append",
        required=True,
        type=_wanted,
        metavar="NAME=KEY[,KEY...]",
        help="a Secret and its keys; may be repeated",
    )
    given = parser.parse_args(arguments)
    with client.ApiClient(_connection()) as connection:
        api = client.CoreV1Api(connection)
        for name, keys in given.secret:
            try:
                made = ensure(api, given.namespace, name, keys)
            except FirnError as error:
                print(f"firn quickstart-secrets: {error}", file=sys.stderr)
                temporary = isinstance(error, UnavailableError)
                return ExitCode.TEMPORARY if temporary else ExitCode.CONFIGURATION
            print(f"secret/{name} {'created' if made else 'unchanged'}")
    return ExitCode.DONE
