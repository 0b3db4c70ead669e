"""Change the source of the certificate of three running brokers of Apache Kafka, stage by stage, under a producer."""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from firn.model import names
from firn_controllers.children import Owner
from firn_controllers.fleet import certificate, kinds
from firn_controllers.fleet.kafka.layout import KafkaFleet
from firn_controllers.ports import Manifest
from firn_controllers.trust.sources import Held, Sources
from tests import gen
from tests.authority import Authority
from tests.integration.kafka.fleets import CERTIFICATES, ISSUER, NAMESPACE, Brokers, Running
from tests.integration.kafka.test_closing_fleet import TOPIC, Sender

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

OLD, NEW = "old", "new"


def mount(brokers: Brokers, authorities: Mapping[str, Authority]) -> None:
    """Write the Secret of each source."""
    hosts = [*(brokers.address(ordinal) for ordinal in range(3)), "localhost"]
    for name, authority in authorities.items():
        pair, place = authority.issue(name, *hosts), brokers.files / name
        place.mkdir()
        for file, source in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", authority.file)):
            (place / file).write_text(source.read_text())


def publish(brokers: Brokers, bundle: Manifest | None) -> None:
    """Write the ConfigMap with the CAs of both sources, if brokers mount it."""
    if bundle is not None:
        path = names.trust_file("configmap", bundle["metadata"]["name"], "ca.crt")
        file = brokers.files / "trust" / Path(path).relative_to(names.TRUST_PATH)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(bundle["data"]["ca.crt"])


def test_a_running_fleet_gets_certificates_of_another_source_without_an_interruption(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    authorities = {OLD: Authority(tmp_path / "old", "CA old"), NEW: Authority(tmp_path, "CA new")}
    brokers = Brokers(tmp_path, authorities[OLD])
    mount(brokers, authorities)
    texts = [authorities[name].file.read_text() for name in (NEW, OLD)]
    both = tmp_path / "both.crt"
    both.write_text("\n".join(texts))
    token = brokers.issuer.token(NAMESPACE, "firn-operator")
    client: dict[str, Any] = {
        "bootstrap.servers": brokers.bootstrap(9096, 3), "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER",
        "ssl.ca.location": str(both), "oauth_cb": lambda _: (token, time.time() + 3600),
    }  # fmt: skip
    access = {"certificate": {"secret": NEW, "previous": {"secret": OLD}}, "issuer": ISSUER, **CERTIFICATES}
    configured = gen.config(profiles={"classic": {"replicas": 3, "heap": "512m", "access": access}})
    managed = kinds.managed_fleet(configured, "classic", Owner(NAMESPACE, "u"), None)
    assert isinstance(managed, KafkaFleet)
    trust = certificate.wanted(managed, configured.closed_profiles["classic"].certificate, texts)

    def fleet(held: Held) -> KafkaFleet:
        found = replace(managed, sources=Sources((held,)))
        publish(brokers, certificate.bundle(found, texts))
        return found

    with closing(Running(brokers)) as running:
        running.start(fleet(Held(OLD, (OLD,))), client, TOPIC)
        sender = Sender(client, "secure")
        running.roll(fleet(trust), client)
        running.roll(fleet(replace(trust, presents=NEW)), client)
        running.roll(fleet(Held(NEW, (NEW,))), client)
        sender.end()
        only = AdminClient(client | {"ssl.ca.location": str(authorities[NEW].file)})
        assert len(only.list_topics(timeout=30).brokers) == 3
