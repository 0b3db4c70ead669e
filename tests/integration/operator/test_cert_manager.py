"""The operator requests the certificate of a profile's brokers, and the controllers of a real cert-manager issue and renew it."""

import json
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from cryptography import x509

from firn.model import names
from firn_operator.signer import certificates
from hack.localcluster.artifacts import tools
from tests import gen
from tests.apiserver import SYSTEM, ApiServer
from tests.contract.test_certificates import released_crd
from tests.integration.operator.mounts import Mount, mounted, secret_data
from tests.servers.firn_broker import FirnBroker, embedded
from tests.servers.process import await_true, free_port, running

if TYPE_CHECKING:
    from tests.integration.operator.conftest import Manifest, World

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

PROFILE, ISSUER = "waves", "lake-ca"
SECRET = names.issued_certificate(PROFILE, ISSUER)
GROUP = "cert-manager.io/v1"
CERTIFICATE = f"/apis/{GROUP}/namespaces/{SYSTEM}/certificates/{SECRET}"


@pytest.fixture
def cert_manager(world: "World", tmp_path: Path) -> Iterator[None]:
    """Run the controllers, with an Issuer whose CA another Issuer has signed."""
    for plural in ("certificates", "certificaterequests", "issuers", "clusterissuers"):
        world.api.install(released_crd(tmp_path, plural))
    command = [str(tools.build("certmanager")), "--kubeconfig", str(world.api.kubeconfig)]
    with running(command, lambda: True, tmp_path / "cert-manager.log"):
        authority = {"isCA": True, "commonName": "the CA of a test", "secretName": "lake-ca-key"}
        algorithm = {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"}
        spec = {**authority, "privateKey": algorithm, "issuerRef": {"name": "self-signed", "kind": "Issuer"}}
        create(world.api, "Issuer", "self-signed", {"selfSigned": {}})
        create(world.api, "Certificate", "lake-ca", spec)
        create(world.api, "Issuer", ISSUER, {"ca": {"secretName": "lake-ca-key"}})
        yield


def create(api: ApiServer, kind: str, name: str, spec: "Manifest") -> None:
    """Create an object of cert-manager, and wait until it is Ready."""
    place = f"/apis/{GROUP}/namespaces/{SYSTEM}/{kind.lower()}s"
    api.call("POST", place, {"apiVersion": GROUP, "kind": kind, "metadata": {"name": name}, "spec": spec})

    def ready() -> bool:
        found = api.call("GET", f"{place}/{name}").get("status", {}).get("conditions", ())
        return any((each["type"], each["status"]) == ("Ready", "True") for each in found)

    await_true(f"{kind} {name} is Ready", ready)


def profile(*hosts: str) -> "Manifest":
    """Return a diskless profile whose certificate is valid for these hosts, too."""
    source = {
        "certManager": {"name": ISSUER, "kind": "Issuer"},
        "names": list(hosts),
        "duration": "24h",
        "renewBefore": "8h",
    }
    return gen.diskless(access={"certificate": source, "issuer": "https://kubernetes.default.svc.cluster.local"})


def issued(api: ApiServer) -> str:
    """Return the certificate in the Secret of the brokers; empty if there is none."""
    return secret_data(api, SYSTEM, SECRET).get("tls.crt", "")


def renew(api: ApiServer) -> None:
    """Request another certificate, as `cmctl renew` does."""
    condition = {
        "type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "a test renews it",
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }  # fmt: skip
    live = api.call("GET", CERTIFICATE)
    live["status"]["conditions"].append(condition)
    api.call("PUT", f"{CERTIFICATE}/status", live)


def serial(port: int, authority: Path) -> int:
    """Return the serial number of a broker's certificate, after its verification."""
    context = ssl.create_default_context(cafile=str(authority))
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        encoded = wrapped.getpeercert(binary_form=True)
    assert encoded is not None
    return x509.load_der_x509_certificate(encoded).serial_number


def broker_of(directory: Path, port: int) -> dict[str, Any]:
    """Return the variables of a broker with the mounted certificate."""
    tls = {"certFile": str(directory / "tls.crt"), "keyFile": str(directory / "tls.key")}
    listener = {"bind": f"127.0.0.1:{port}", "tls": tls}
    return {"FIRN_BROKER_LISTENERS": json.dumps({"secure": listener})}


def test_brokers_use_certificates_that_cert_manager_issues_and_renews(
    world: "World", cert_manager: None, tmp_path: Path
) -> None:
    api, images = world.api, {name: {"image": f"example.com/{name}:1"} for name in ("spark", "kafka", "broker")}
    directory, port = tmp_path / "mounted", free_port()
    outside = world.configuration()["profiles"]
    with world.operator(profiles={**outside, PROFILE: profile("127.0.0.1")}, images=images) as operator:
        await_true("cert-manager has issued a certificate", lambda: bool(issued(api)))
        first = issued(api)
        hosts = {"127.0.0.1", f"*.firn-broker-{PROFILE}.{SYSTEM}.svc", f"firn-broker-{PROFILE}-bootstrap.{SYSTEM}.svc"}
        assert certificates.hosts_of(first) == hosts
        assert certificates.signed_by(first, secret_data(api, SYSTEM, "lake-ca-key")["tls.crt"])
        left = 24 * 3600
        await_true(
            "the operator reports its end",
            lambda: left - 600 < operator.metric("firn_certificate_expiry_seconds") <= left, 120,
        )  # fmt: skip
        with mounted(api, Mount(SYSTEM, SECRET, directory)):
            await_true("the Secret is mounted", (directory / "..data").exists)
            with embedded(tmp_path / "data", **broker_of(directory, port)) as broker:
                connected(port, directory)
                renew(api)
                await_true("cert-manager has renewed it", lambda: issued(api) != first)
                second = certificates.certificate(issued(api)).serial_number
                await_true("the broker uses it", lambda: serial(port, directory / "ca.crt") == second)
                unrestarted(broker)
                connected(port, directory)
    with world.operator(profiles={**outside, PROFILE: profile("127.0.0.1", "kafka.example.com")}, images=images):
        await_true(
            "the certificate has the new name",
            lambda: certificates.hosts_of(issued(api)) == hosts | {"kafka.example.com"},
        )


def connected(port: int, directory: Path) -> None:
    """Check that a client connects to the broker, with the CA in the Secret."""
    settings = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(directory / "ca.crt"),
    }
    assert Producer(settings).list_topics(timeout=30).brokers


def unrestarted(broker: FirnBroker) -> None:
    """Check that the broker is the process that has started."""
    assert broker.process is not None
    assert broker.process.poll() is None
