"""Apache Kafka brokers with TLS, authentication and ACLs: operator and drivers use them, and a tenant reaches only its own topic.

The brokers of the release have ``plaintext: Keep``, because most tests use clients without encryption."""

import json

import pytest

from hack import quickstart
from hack.quickstart import SYSTEM, kubectl
from tests.e2e import intrusions
from tests.e2e.brokers import PATIENCE
from tests.e2e.topics import Produce, await_ready, await_rows, numbered, topic_manifest

pytestmark = pytest.mark.timeout(900)

PROFILE, BROKER = "classic", "firn-broker-classic-0"


def test_a_tenant_with_a_password_reaches_only_its_own_topic(namespace: str, client: str, produce: Produce) -> None:
    quickstart.apply(topic_manifest("owned", namespace, profile=PROFILE))
    topic = await_ready("owned", namespace, timeout=PATIENCE)
    group = quickstart.get("configmap", "firn-ingest-default")
    assert group is not None
    driver = json.loads(group["data"]["group.json"])["kafka"][PROFILE]["bootstrap_servers"]
    assert driver == f"firn-broker-{PROFILE}-bootstrap.{SYSTEM}.svc:9096", "the driver uses TLS and a token"

    intrusions.user("checkout", namespace, PROFILE, {"topics": [{"name": "owned"}], "roles": ["Produce"]})
    produce(topic, numbered(0, 100), **intrusions.settings("checkout", namespace))
    await_rows(topic["status"]["table"]["identifier"], 100, timeout=PATIENCE)

    intrusions.check_requests(client, PROFILE, topic, (BROKER,))
    intrusions.clean(client)
    kubectl("-n", namespace, "delete", "topicuser", "checkout", "--timeout=120s")
