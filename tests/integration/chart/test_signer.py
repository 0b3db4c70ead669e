"""The process firn-signer with the chart's configuration and rights, against a real API server."""

import base64
import os
import signal
import sys
from pathlib import Path

import httpx
import yaml

from firn_operator.signer import certificates
from tests.apiserver import ApiServer, Refused
from tests.chart import find_object, manifests, render
from tests.integration.chart.conftest import VALUES
from tests.servers.process import await_true, free_port, running, tail

REPOSITORY = Path(__file__).resolve().parents[3]
SECRETS = "/api/v1/namespaces/firn-system/secrets"


def data(api: ApiServer, name: str) -> dict[str, str]:
    """Return the content of a Secret; empty if it does not exist."""
    try:
        found = api.call("GET", f"{SECRETS}/{name}").get("data") or {}
    except Refused:
        return {}
    return {key: base64.b64decode(value).decode() for key, value in found.items()}


def kubeconfig(api: ApiServer, directory: Path) -> Path:
    """Write a kubeconfig with a token of the signer's ServiceAccount."""
    place = "/api/v1/namespaces/firn-system/serviceaccounts/firn-signer/token"
    token = api.call("POST", place, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    document = yaml.safe_load(api.kubeconfig.read_text())
    for user in document["users"]:
        user["user"] = {"token": token}
    file = directory / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    return file


def test_the_process_issues_a_certificate_reports_its_end_and_keeps_the_ca_over_restarts(
    api: ApiServer, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(
        find_object(manifests(render(VALUES)), "ConfigMap", "firn-config")["data"]["config.yaml"]
    )
    port = free_port()
    address, log = f"http://127.0.0.1:{port}", tmp_path / "log"
    environment = {
        "KUBECONFIG": str(kubeconfig(api, tmp_path)),
        "FIRN_CONFIG": str(tmp_path / "config.yaml"),
        "FIRN_METRICS_LISTEN": f"127.0.0.1:{port}",
        "PYTHONPATH": os.pathsep.join(str(REPOSITORY / part) for part in (".", "operator", "controllers")),
    }

    def answers() -> bool:
        try:
            return httpx.get(f"{address}/livez").status_code == 200
        except httpx.TransportError:
            return False

    command = [sys.executable, "-m", "firn_operator.signer", "--store", "postgres"]
    found = []
    for _ in range(2):
        with running(command, answers, log, environment=environment) as process:
            await_true("the certificate", lambda: bool(data(api, "firn-broker-waves-tls")))
            await_true(
                "its end", lambda: 'certificate="brokers",profile="waves"' in httpx.get(f"{address}/metrics").text
            )
            await_true(
                "the end of a store's",
                lambda: 'certificate="server",store="postgres"' in httpx.get(f"{address}/metrics").text,
            )
            assert httpx.get(f"{address}/other").status_code == 404
            found.append((data(api, "firn-signer-waves"), data(api, "firn-broker-waves-tls")))
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, tail(log)
        api.call("DELETE", f"{SECRETS}/firn-broker-waves-tls")
    (first, leaf), (second, other) = found
    assert first == second, "the CA outlives the process"
    assert leaf["tls.crt"] != other["tls.crt"]
    assert certificates.signed_by(other["tls.crt"], first["ca.crt"])
    assert "PRIVATE KEY" not in log.read_text()
    secret = next(line for line in first["ca.key"].splitlines() if not line.startswith("-"))
    assert secret not in log.read_text()
    api.call("DELETE", f"{SECRETS}/firn-signer-waves")
