"""Three brokers of Apache Kafka get certificates of another source while records are produced and land."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from firn.model import names
from hack import quickstart
from hack.quickstart import SYSTEM, apply, get, kubectl, say
from tests.authority import Authority
from tests.e2e.brokers import PATIENCE, Partitions, Pods, Producing, await_rolled, delete_fleet, events
from tests.e2e.commands import firn
from tests.e2e.topics import VALUES, await_ready, await_rows, topic_manifest

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]

PROFILE, OWN = "sourced", "e2e-own-certificate"
BROKERS = names.fleet(PROFILE)
BOOTSTRAP = f"{BROKERS}-bootstrap.{SYSTEM}.svc:9092"
AGE = 1800
"""Time limit in seconds for a stage that begins 15 minutes after the stage before."""


class Release:
    """The release, with the sources of the certificate of the profile."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "values.yaml"

    def install(self, **certificate: Any) -> None:
        """Install the release with this certificate. Clients of the test use the port without encryption."""
        profile = {
            "replicas": 3,
            "heap": "256m",
            "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
            "storage": {"size": "2Gi"},
            "access": {"certificate": certificate, "plaintext": "Keep"},
        }
        self._file.write_text(yaml.safe_dump({"profiles": {PROFILE: profile}}))
        say(f"helm upgrade: {certificate}")
        quickstart.install(VALUES, self._file)


@pytest.fixture
def installed(release: None, tmp_path: Path) -> Iterator[Release]:
    """Run three brokers with a certificate of the signer, and delete everything of the profile afterwards."""
    authority = Authority(tmp_path, "own")
    hosts = (f"*.{BROKERS}.{SYSTEM}.svc", f"{names.bootstrap(PROFILE)}.{SYSTEM}.svc")
    pair = authority.issue("brokers", *hosts, days=2)
    files = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.file}
    data = {name: file.read_text() for name, file in files.items()}
    apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": OWN, "namespace": SYSTEM}, "stringData": data})
    found = Release(tmp_path)
    found.install(selfSigned={})
    await_rolled(BROKERS, 3)
    yield found
    quickstart.install(VALUES)
    delete_fleet(PROFILE)
    kubectl("-n", SYSTEM, "delete", "secret", OWN)


def await_stage(text: str, timeout: float = PATIENCE) -> None:
    """Wait until an Event says that all brokers have a stage."""
    found = f"profile {PROFILE}: all brokers"
    quickstart.await_until(
        text, lambda: [each for each in events("CertificateStage") if each.startswith(found) and text in each], timeout
    )
    await_rolled(BROKERS, 3)


def presented() -> str:
    """Return the Secret of the certificate that the template of the brokers has."""
    live = get("statefulset", BROKERS)
    assert live is not None
    volumes = live["spec"]["template"]["spec"]["volumes"]
    return next(str(volume["secret"]["secretName"]) for volume in volumes if volume["name"] == "tls")


def test_records_flow_while_the_source_of_the_certificate_changes(
    installed: Release, namespace: str, client: str
) -> None:
    apply(topic_manifest("numbers", namespace, profile=PROFILE, partitions=3))
    topic = await_ready("numbers", namespace, timeout=PATIENCE)
    selector = f"{names.LABEL_PROFILE}={PROFILE},app.kubernetes.io/component=broker"
    with Producing(topic, client) as producing, Partitions(BOOTSTRAP, client) as partitions, Pods(selector, 3) as pods:
        pods.await_all_seen()
        partitions.await_in_sync()
        producing.await_more(500)
        installed.install(secret=OWN, previous={"selfSigned": {}}, stage="Trust")
        await_stage("set access.certificate.stage to Issue")
        assert presented() == names.brokers_certificate(PROFILE)
        producing.await_more(500)
        installed.install(secret=OWN, previous={"selfSigned": {}}, stage="Issue")
        await_stage("remove access.certificate.previous", AGE)
        assert presented() == OWN
        producing.await_more(500)
        installed.install(secret=OWN)
        await_stage("is complete")
        partitions.await_in_sync()
        producing.await_more(500)
        count = producing.finish()
        partitions.assert_always_available()
        assert (len(pods.replaced), pods.most_down) == (9, 1)
    await_rows(topic["status"]["table"]["identifier"], count, timeout=PATIENCE)
    firn("audit", f"{namespace}/numbers")
    await_ready("numbers", namespace, timeout=PATIENCE)
