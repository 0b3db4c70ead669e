"""Creation of the quick-start passwords and certificates with the rights of the chart, against a real API server."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from firn.model.errors import AccessDeniedError, ExitCode, UnavailableError
from firn_controllers.children import Owner
from firn_controllers.fleet import kinds
from firn_operator.cli import quickstart_secrets
from firn_operator.signer import __main__ as signer
from firn_operator.signer import certificates
from tests import gen
from tests.apiserver import ApiServer

NAMESPACE = "firn-system"
PATH = f"/api/v1/namespaces/{NAMESPACE}/secrets"
ARGUMENTS = [
    "--namespace",
    NAMESPACE,
    "--secret",
    "firn-postgres=password",
    "--secret",
    "firn-s3=access-key,secret-key",
]
CERTIFY = ["--create", NAMESPACE, "--store", "postgres", "--store", "s3"]
KEYS = {"classic": "quickStart.profile", "diskless": "quickStart.diskless.profile"}
CLOSE = [part for profile, key in KEYS.items() for part in ("--closes", f"{profile}={key}")]
SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"


@pytest.fixture
def kubeconfig(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Connect as the ServiceAccount of the hook. No Secret exists before and after."""
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/firn-quickstart-secrets/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api.call("POST", account, request)["status"]["token"]
    document = json.loads(api.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": token}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document))
    monkeypatch.setenv("KUBECONFIG", str(path))
    # The client of the signer reads the variable at its import.
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    api.call("DELETE", PATH)
    yield path
    api.call("DELETE", PATH)
    api.call("DELETE", SETS)


def values(api: ApiServer, name: str) -> dict[str, str]:
    data = api.call("GET", f"{PATH}/{name}")["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def test_secrets_are_created_once_and_never_overwritten(
    api: ApiServer, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quickstart_secrets.main(ARGUMENTS) == ExitCode.DONE
    first = {name: values(api, name) for name in ("firn-postgres", "firn-s3")}
    assert {name: set(data) for name, data in first.items()} == {
        "firn-postgres": {"password"},
        "firn-s3": {"access-key", "secret-key"},
    }
    every = [value for data in first.values() for value in data.values()]
    assert len(set(every)) == 3
    assert all(len(value) == 32 and value.isalnum() for value in every)

    assert quickstart_secrets.main(ARGUMENTS) == ExitCode.DONE
    assert {name: values(api, name) for name in first} == first
    printed = capsys.readouterr().out
    assert printed.split("\n")[:4] == [
        "secret/firn-postgres created",
        "secret/firn-s3 created",
        "secret/firn-postgres unchanged",
        "secret/firn-s3 unchanged",
    ]
    assert not any(value in printed for value in every)


def test_new_stores_get_certificates_before_passwords_and_keep_them(api: ApiServer, kubeconfig: Path) -> None:
    assert signer.main(CERTIFY) == ExitCode.DONE
    assert quickstart_secrets.main(ARGUMENTS) == ExitCode.DONE
    found = {name: values(api, name) for name in ("firn-postgres-tls", "firn-s3-tls", "firn-s3-signer")}
    assert "firn-s3.firn-system.svc" in certificates.hosts_of(found["firn-s3-tls"]["tls.crt"])
    assert certificates.signed_by(found["firn-s3-tls"]["tls.crt"], found["firn-s3-signer"]["ca.crt"])
    assert found["firn-postgres-tls"].keys() >= {"ca.crt", "tls.crt", "tls.key"}
    assert signer.main(CERTIFY) == ExitCode.DONE, "the next upgrade"
    assert {name: values(api, name) for name in found} == found


def test_an_upgrade_of_stores_without_tls_waits_for_a_decision(
    api: ApiServer, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quickstart_secrets.main(ARGUMENTS) == ExitCode.DONE
    assert signer.main(CERTIFY) == ExitCode.CONFIGURATION
    message = capsys.readouterr().err
    assert "quickStart.tls=true" in message
    assert "quickStart.tls=false" in message
    created = {item["metadata"]["name"] for item in api.call("GET", PATH)["items"]}
    assert created == {"firn-postgres", "firn-s3"}, "nothing has changed"
    assert signer.main([*CERTIFY, "--also-existing"]) == ExitCode.DONE
    assert signer.main(CERTIFY) == ExitCode.DONE, "the decision is needed once"


def apply_brokers(api: ApiServer, profile: str, access: dict[str, Any] | None) -> None:
    """Apply the StatefulSet of a profile, as its operator does. Without ``access``, it has the ports of version 0.2.0."""
    kind = gen.diskless() if profile == "diskless" else {}
    given = {} if access is None else {"access": {"certificate": {"selfSigned": {}}, "issuer": "https://i", **access}}
    configured = gen.config(profiles={profile: kind | given}, defaultProfile=profile)
    fleet = kinds.managed_fleet(configured, profile, Owner(NAMESPACE, "u"), None)
    place = f"{SETS}/firn-broker-{profile}?fieldManager=test&force=true"
    api.call("PATCH", place, kinds.stateful_set(fleet, 0), "application/apply-patch+yaml")


@pytest.mark.parametrize("profile", KEYS)
def test_an_upgrade_that_would_close_brokers_waits_for_a_decision(
    api: ApiServer, kubeconfig: Path, capsys: pytest.CaptureFixture[str], profile: str
) -> None:
    for open_access in (None, {"plaintext": "Keep"}):
        apply_brokers(api, profile, open_access)
        assert signer.main([*CERTIFY, *CLOSE]) == ExitCode.CONFIGURATION
        message, key = capsys.readouterr().err, KEYS[profile]
        assert f"{key}.access: the brokers of StatefulSet {NAMESPACE}/firn-broker-{profile} accept clients" in message
        assert all(
            f"{key}.{way}" in message for way in ("access.plaintext=Keep", "access.plaintext=Close", "access=null")
        )
        assert message.count(".access:") == 1, "the other profile has no brokers"
        assert api.call("GET", PATH)["items"] == [], "nothing has changed"
    assert signer.main(CERTIFY) == ExitCode.DONE, "the values of each decision have no --closes"
    apply_brokers(api, profile, {})
    assert signer.main([*CERTIFY, *CLOSE]) == ExitCode.DONE, "the decision is needed once"


def test_all_decisions_of_an_upgrade_are_in_one_message(
    api: ApiServer, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quickstart_secrets.main(ARGUMENTS) == ExitCode.DONE
    for profile in KEYS:
        apply_brokers(api, profile, None)
    assert signer.main([*CERTIFY, *CLOSE]) == ExitCode.CONFIGURATION
    message = capsys.readouterr().err
    assert all(key in message for key in ("quickStart.tls=", *(f"{key}.access:" for key in KEYS.values())))


def test_a_secret_without_a_key_is_rejected_and_not_changed(
    api: ApiServer, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"metadata": {"name": "firn-s3"}, "stringData": {"access-key": "mine"}}
    api.call("POST", PATH, own)
    assert quickstart_secrets.main(ARGUMENTS) == ExitCode.CONFIGURATION
    assert "secret firn-system/firn-s3 exists without secret-key" in capsys.readouterr().err
    assert values(api, "firn-s3") == {"access-key": "mine"}


def test_the_hook_may_not_read_other_secrets(api: ApiServer, kubeconfig: Path) -> None:
    api.call("POST", PATH, {"metadata": {"name": "other"}, "stringData": {"key": "value"}})
    config.load_kube_config(str(kubeconfig))
    with client.ApiClient() as connection, pytest.raises(AccessDeniedError, match="firn-system/other"):
        quickstart_secrets.ensure(client.CoreV1Api(connection), NAMESPACE, "other", ["key"])


def test_the_hook_may_create_only_its_own_secrets(api: ApiServer, kubeconfig: Path) -> None:
    config.load_kube_config(str(kubeconfig))
    other = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "other"}}
    with client.ApiClient() as connection:
        core = client.CoreV1Api(connection)
        with pytest.raises(client.ApiException, match="Forbidden"):
            core.create_namespaced_secret(NAMESPACE, client.V1Secret(metadata=client.V1ObjectMeta(name="firn-s3")))
        with pytest.raises(client.ApiException, match="Forbidden"):
            core.patch_namespaced_secret(
                "other", NAMESPACE, other, field_manager="hook", _content_type="application/apply-patch+yaml"
            )


def test_a_silent_api_server_is_unavailable() -> None:
    settings = client.Configuration(host="http://127.0.0.1:1")
    settings.retries = False
    with client.ApiClient(settings) as connection, pytest.raises(UnavailableError, match="firn-system/firn-s3"):
        quickstart_secrets.ensure(client.CoreV1Api(connection), NAMESPACE, "firn-s3", ["access-key"])


@pytest.mark.parametrize("text", ["firn-s3", "=key", "firn-s3=", "firn-s3=a,,b"])
def test_a_malformed_secret_argument_is_a_usage_error(text: str) -> None:
    with pytest.raises(SystemExit):
        quickstart_secrets.main(["--namespace", NAMESPACE, "--secret", text])
