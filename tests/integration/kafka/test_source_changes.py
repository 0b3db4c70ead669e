"""Change the source of the certificate of three running brokers of Apache Kafka, stage by stage, under a producer."""

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from firn.model import names
from firn_controllers.children import Owner
from firn_controllers.fleet import certificate, kinds
from firn_controllers.fleet.kafka.layout import KafkaFleet
from firn_controllers.ports import Manifest
from firn_controllers.trust.sources import Held, Sources
from tests import gen
from tests.authority import Authority
from tests.integration.kafka.fleets import ISSUER, NAMESPACE, Brokers
from tests.integration.kafka.test_closing_fleet import TOPIC, Sender
from tests.servers.process import await_true

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
    access = {"certificate": {"secret": NEW, "previous": {"secret": OLD}}, "issuer": ISSUER}
    configured = gen.config(profiles={"classic": {"replicas": 3, "heap": "512m", "access": access}})
    managed = kinds.managed_fleet(configured, "classic", Owner(NAMESPACE, "u"), None)
    assert isinstance(managed, KafkaFleet)
    trust = certificate.wanted(managed, configured.closed_profiles["classic"].certificate, texts)
    running: dict[int, ExitStack] = {}

    def start(ordinal: int, held: Held) -> None:
        running.pop(ordinal, ExitStack()).close()
        running[ordinal] = ExitStack()
        running[ordinal].enter_context(brokers.broker(replace(managed, sources=Sources((held,))), ordinal))

    def in_sync() -> bool:
        metadata = AdminClient(client).list_topics(timeout=30)
        partitions = [part for topic in metadata.topics.values() for part in topic.partitions.values()]
        return len(metadata.brokers) == 3 and all(len(part.isrs) == 3 for part in partitions)

    def roll(held: Held) -> None:
        publish(brokers, certificate.bundle(replace(managed, sources=Sources((held,))), texts))
        for ordinal in (2, 1, 0):
            start(ordinal, held)
            await_true("all replicas are in sync", in_sync)

    def stop() -> None:
        for each in running.values():
            each.close()

    with ExitStack() as all_:
        all_.callback(stop)
        starts = [threading.Thread(target=start, args=(ordinal, Held(OLD, (OLD,)))) for ordinal in range(3)]
        for thread in starts:
            thread.start()
        for thread in starts:
            thread.join()
        await_true("all brokers have joined", in_sync)
        admin = AdminClient(client)
        for future in admin.create_topics([NewTopic(TOPIC, 3, 3)], operation_timeout=60).values():
            future.result(60)
        await_true("all replicas are in sync", in_sync)
        sender = Sender(client, "secure")
        roll(trust)
        roll(replace(trust, presents=NEW))
        roll(Held(NEW, (NEW,)))
        sender.end()
        only = AdminClient(client | {"ssl.ca.location": str(authorities[NEW].file)})
        assert len(only.list_topics(timeout=30).brokers) == 3
