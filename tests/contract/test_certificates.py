"""Port `BrokerCertificates`: the fake and the adapter pass the same suite. The API server has the CRD of a released cert-manager."""

import itertools
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration

from firn.model.errors import InvalidSpecError, NotReadyError
from firn_controllers.children import Owner
from firn_controllers.fleet import certificate, kinds
from firn_controllers.ports import BrokerCertificates, CertificateState, Manifest
from firn_operator.adapters.kube.api_client import Api, RateLimit, path
from firn_operator.adapters.kube.certificates import KubeCertificates
from tests import gen
from tests.apiserver import DEMO, ApiServer
from tests.fakes.users.certificates import FakeCertificates

MODULE = "github.com/cert-manager/cert-manager"
VERSION, SUM = "v1.18.2", "h1:H2P75ycGcTMauV3gvpkDqLdS3RSXonWF2S49QGA1PZE="
ENDS = datetime(2027, 2, 1, 12, tzinfo=UTC)
_numbers = itertools.count()


def released_crd(directory: Path, plural: str = "certificates") -> Manifest:
    """Return a CRD in a release of cert-manager."""
    command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
    found = json.loads(subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout)
    assert found["Sum"] == SUM, found
    text = (Path(found["Dir"]) / "deploy" / "crds" / f"crd-{plural}.yaml").read_text()
    # The lines between START and END, and labels with templates, are for the chart of cert-manager.
    crd: Manifest = yaml.safe_load("\n".join(line for line in text.splitlines() if "{{" not in line))
    crd["metadata"] = {"name": crd["metadata"]["name"]}
    return crd


@dataclass(frozen=True)
class Subject:
    port: BrokerCertificates
    report: Callable[[str, CertificateState], Any]
    """Reports as the controller of cert-manager does, about the present spec."""
    spec: Callable[[str], Manifest]
    missing: BrokerCertificates
    """The port over a cluster without cert-manager."""


def manifest(name: str, **terms: Any) -> Manifest:
    """Return the Certificate of a profile, in the namespace of the tests."""
    access = {"certificate": {"certManager": {"name": "lake-ca"}, **terms}}
    profiles = {"classic": {}, name: gen.diskless(access=access)}
    config = gen.config(namespace=DEMO, profiles=profiles)
    fleet = kinds.managed_fleet(config, name, Owner(DEMO, "3f0c1d0e-6f2b-4d5e-9c64-0123456789ab"), None)
    return certificate.build(fleet, config.closed_profiles[name].certificate)


@pytest_asyncio.fixture(params=["fake", "kubernetes"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    if request.param == "fake":
        fake, missing = FakeCertificates(), FakeCertificates()
        missing.installed = False
        yield Subject(fake, fake.states.__setitem__, lambda name: fake.applied[name]["spec"], missing)
        return
    server: ApiServer = request.getfixturevalue("api_server")
    server.install(released_crd(tmp_path))
    configuration = Configuration()
    await kube_config.load_kube_config(str(server.kubeconfig), client_configuration=configuration)
    api = Api(configuration, RateLimit(1000, 1000))
    elsewhere = Api(configuration, RateLimit(1000, 1000))

    def place(name: str) -> str:
        return path("cert-manager.io/v1", "Certificate", DEMO, name)

    def report(name: str, state: CertificateState) -> None:
        condition = {
            "type": "Ready",
            "status": str(state.ready),
            "message": state.message,
            "reason": "Tested",
            "lastTransitionTime": "2026-11-29T12:00:00Z",
            "observedGeneration": server.call("GET", place(name))["metadata"]["generation"],
        }
        status: Manifest = {"conditions": [condition]}
        if state.ends is not None:
            status["notAfter"] = state.ends.strftime("%Y-%m-%dT%H:%M:%SZ")
        server.call("PATCH", f"{place(name)}/status", {"status": status}, "application/merge-patch+json")

    async def absent(*arguments: Any, **named: Any) -> Manifest:
        method, where, *others = arguments
        return await api.call(method, where.replace("cert-manager.io/v1", "absent.example.com/v1"), *others, **named)

    elsewhere.call = absent  # type: ignore[method-assign]
    yield Subject(
        KubeCertificates(api), report, lambda name: server.call("GET", place(name))["spec"], KubeCertificates(elsewhere)
    )
    await api.close()
    await elsewhere.close()


@pytest.fixture
def profile() -> str:
    return f"waves{next(_numbers)}"


async def test_a_certificate_is_applied_and_its_state_is_reported(subject: Subject, profile: str) -> None:
    wanted = manifest(profile, names=["kafka.example.com", "192.0.2.7"])
    name = wanted["metadata"]["name"]
    assert await subject.port.apply(wanted) == CertificateState(ready=False)
    assert subject.spec(name) == wanted["spec"], "the schema of cert-manager has every field"
    subject.report(name, CertificateState(ready=False, message="Issuer lake-ca not found"))
    assert await subject.port.apply(wanted) == CertificateState(ready=False, message="Issuer lake-ca not found")
    subject.report(name, CertificateState(ready=True, ends=ENDS))
    assert await subject.port.apply(wanted) == CertificateState(ready=True, ends=ENDS)


async def test_a_report_about_an_earlier_spec_does_not_count(subject: Subject, profile: str) -> None:
    wanted = manifest(profile)
    await subject.port.apply(wanted)
    subject.report(wanted["metadata"]["name"], CertificateState(ready=True, ends=ENDS))
    changed = manifest(profile, names=["kafka.example.com"])
    assert await subject.port.apply(changed) == CertificateState(ready=False, ends=ENDS)


async def test_a_cluster_without_cert_manager_is_reported(subject: Subject, profile: str) -> None:
    with pytest.raises(
        NotReadyError, match=f"Certificate firn-broker-{profile}-tls-lake-ca: .*no CRD.*install cert-manager"
    ):
        await subject.missing.apply(manifest(profile))


async def test_a_refused_certificate_is_the_fault_of_its_spec(subject: Subject, profile: str) -> None:
    wanted = manifest(profile)
    del wanted["spec"]["secretName"]
    with pytest.raises(
        InvalidSpecError,
        match=f"Certificate firn-broker-{profile}-tls-lake-ca: the API server refuses it: .*secretName",
    ):
        await subject.port.apply(wanted)
