"""A fleet of three brokers is drained, killed, changed, broken and upgraded while records are produced and land.

Two brokers are never down together, every partition keeps a leader, and every acknowledged record is in the table
exactly once."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack import quickstart
from hack.quickstart import SYSTEM, Manifest, apply, conditions, get, kubectl, say
from tests.e2e.brokers import (
    PATIENCE,
    Partitions,
    Pods,
    Producing,
    await_rolled,
    await_until,
    delete_fleet,
    events,
    metric,
    uids,
)
from tests.e2e.commands import firn
from tests.e2e.topics import VALUES, await_ready, await_rows, rows, topic_manifest

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

PROFILE = "three"
BROKERS = "firn-broker-three"
SELECTOR = f"firn.dev/profile={PROFILE},app.kubernetes.io/component=broker"
BOOTSTRAP = f"{BROKERS}-bootstrap.{SYSTEM}.svc:9092"
OLDER = "4.1.1"
DEGRADED = f'firn_fleet_degraded{{profile="{PROFILE}"}}'
HELD = "held"
"""A topic of the test, one replica of which the test keeps from catching up."""


class Fleet:
    """The profile, which the tests change by `helm upgrade`."""

    def __init__(self, directory: Path, image: str) -> None:
        self._file = directory / "values.yaml"
        self.profile: dict[str, Any] = {
            "replicas": 3,
            "heap": "256m",
            "image": {"image": image},
            "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
            "storage": {"size": "2Gi"},
        }

    def upgrade(self, **changes: Any) -> None:
        """Install the release with these keys of the profile."""
        self.profile |= changes
        self._file.write_text(yaml.safe_dump({"profiles": {PROFILE: self.profile}}))
        say(f"helm upgrade: {changes}")
        quickstart.install(VALUES, self._file)


@pytest.fixture(scope="module")
def fleet(release: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Run three brokers of the older Kafka, and delete profile, brokers and volumes afterwards."""
    build = quickstart.ROOT / "hack" / "images" / "build"
    subprocess.run([build, "--load", f"firn-kafka@{OLDER}"], check=True, env=quickstart.environment())
    three = Fleet(tmp_path_factory.mktemp("three"), quickstart.images()[f"firn-kafka@{OLDER}"])
    three.upgrade()
    await_rolled(BROKERS, 3)
    yield three
    quickstart.install(VALUES)
    delete_fleet(PROFILE)


@pytest.fixture
def topic(fleet: Fleet, namespace: str) -> Manifest:
    """Create a topic on the three brokers and wait until it is ready."""
    apply(topic_manifest("numbers", namespace, profile=PROFILE, partitions=3))
    return await_ready("numbers", namespace, timeout=PATIENCE)


@contextmanager
def traffic(topic: Manifest, client: str) -> Iterator[tuple[Producing, Partitions, Pods]]:
    """Run a producer, and watch Kafka and the pods.

    At the end every acknowledged record is in the table exactly once."""
    driver = uids("firn.dev/group=default")
    with Producing(topic, client) as producing, Partitions(BOOTSTRAP, client) as partitions, Pods(SELECTOR, 3) as pods:
        pods.await_all_seen()
        partitions.await_in_sync()
        producing.await_more(500)
        yield producing, partitions, pods
        partitions.await_in_sync()
        producing.await_more(500)
        count = producing.finish()
    meta = topic["metadata"]
    table = topic["status"]["table"]["identifier"]
    await_rows(table, count, timeout=PATIENCE)
    expected = [{"n": count, "low": 0, "high": count - 1}]
    assert rows(f"select count(distinct id) as n, min(id) as low, max(id) as high from {table}") == expected
    firn("audit", f"{meta['namespace']}/{meta['name']}")
    await_ready(meta["name"], meta["namespace"], timeout=PATIENCE)
    assert uids("firn.dev/group=default") == driver, "ingestion continued in the same pod"


def in_broker(number: int, *command: str) -> str:
    """Run a command in a broker's pod and return its output."""
    return kubectl("-n", SYSTEM, "exec", f"{BROKERS}-{number}", "--", *command)


def features() -> dict[str, str]:
    """Return the finalized level of each feature."""
    tool = ["/opt/kafka/bin/kafka-features.sh", "--bootstrap-server", "localhost:9092", "describe"]
    lines = [line.split("\t") for line in in_broker(0, *tool).splitlines() if line.startswith("Feature:")]
    return {line[0].split()[1]: line[3].split()[1] for line in lines}


def evict(pod: str) -> None:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": SYSTEM}}
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod}/eviction"
    kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


def allowed() -> int:
    budget = get("poddisruptionbudget", BROKERS)
    return int(budget["status"].get("disruptionsAllowed", -1)) if budget else -1


@contextmanager
def no_room() -> Iterator[None]:
    """Let no node take a new pod."""
    nodes = kubectl("get", "nodes", "-o", "name").split()
    for node in nodes:
        kubectl("cordon", node)
    try:
        yield
    finally:
        for node in nodes:
            kubectl("uncordon", node)


def test_topics_have_three_replicas_and_one_broker_may_drain(
    fleet: Fleet, topic: Manifest, namespace: str, client: str
) -> None:
    described = in_broker(
        1, "/opt/kafka/bin/kafka-topics.sh", "--bootstrap-server", "localhost:9092", "--describe", "--topic",
        topic["status"]["topicName"],
    )  # fmt: skip
    assert "ReplicationFactor: 3" in described
    assert "min.insync.replicas=2" in described
    await_until("the budget allows one disruption", lambda: allowed() == 1)
    with traffic(topic, client) as (producing, partitions, pods):
        with no_room():
            evict(f"{BROKERS}-2")
            with pytest.raises(RuntimeError, match="disruption budget"):
                evict(f"{BROKERS}-1")
            cause = f"no node can take pod {BROKERS}-2"
            await_until(
                "a condition reports that no node accepts the pod",
                lambda: any(cause in message for message in events("Degraded")),
            )
            assert metric(DEGRADED) == 1
            with pytest.raises(RuntimeError, match="disruption budget"):
                evict(f"{BROKERS}-0")
            producing.await_more(2000)
            assert conditions(get("icebergtopic", "numbers", namespace))["Ready"]["status"] == "True"
        await_rolled(BROKERS, 3)
        await_until("the budget allows one disruption again", lambda: allowed() == 1)
        await_until("the topic is healthy again", lambda: metric(DEGRADED) == 0)
        partitions.await_in_sync()
    assert (pods.replaced, pods.most_down) == ([f"{BROKERS}-2"], 1)
    partitions.assert_always_available()


def test_a_killed_broker_loses_no_record(fleet: Fleet, topic: Manifest, client: str) -> None:
    with traffic(topic, client) as (producing, partitions, pods):
        for number in (0, 1, 2):
            old = uids(SELECTOR)[f"{BROKERS}-{number}"]
            kubectl("-n", SYSTEM, "delete", "pod", f"{BROKERS}-{number}", "--grace-period=0", "--force")
            await_until(
                "the pod is replaced",
                lambda n=number, u=old: uids(SELECTOR).get(f"{BROKERS}-{n}", u) != u,  # type: ignore[misc]
                every=1,
            )
            await_rolled(BROKERS, 3)
            producing.await_more()
            partitions.await_in_sync()
    assert pods.most_down == 1
    partitions.assert_always_available()


@contextmanager
def a_replica_that_cannot_catch_up(client: str) -> Iterator[None]:
    """Give broker 2 a third replica of a topic, which it may read with one byte a second only."""
    make = """
import os, sys
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
bootstrap, topic = sys.argv[1:]
admin = AdminClient({"bootstrap.servers": bootstrap})
made = admin.create_topics(
    [NewTopic(topic, num_partitions=1, replica_assignment=[[0, 1]], config={"compression.type": "uncompressed"})])
made[topic].result()
producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
for _ in range(60):
    producer.produce(topic, os.urandom(900_000))
    producer.poll(0)
assert producer.flush(120) == 0
"""
    kubectl("-n", client, "exec", "client", "--", "python", "-c", make, BOOTSTRAP, HELD)
    plan = json.dumps({"version": 1, "partitions": [{"topic": HELD, "partition": 0, "replicas": [0, 1, 2]}]})
    tool = "/opt/kafka/bin/kafka-reassign-partitions.sh --bootstrap-server localhost:9092 --execute --throttle 1"
    in_broker(0, "sh", "-c", f"echo '{plan}' > /tmp/plan.json && {tool} --reassignment-json-file /tmp/plan.json")
    yield
    delete = f"/opt/kafka/bin/kafka-topics.sh --bootstrap-server localhost:9092 --delete --topic {HELD}"
    in_broker(0, *delete.split())


def test_a_changed_setting_rolls_brokers_only_while_replicas_are_in_sync(
    fleet: Fleet, topic: Manifest, client: str
) -> None:
    with traffic(topic, client) as (producing, partitions, pods):
        before = uids(SELECTOR)
        with a_replica_that_cannot_catch_up(client):
            partitions.await_newest("a replica lags", brokers=3, lagging=1)
            fleet.upgrade(config={"num.io.threads": "5"})
            waits = f"profile {PROFILE}: the operator waits until the replicas of "
            await_until("the operator waits for the replica", lambda: waits in operator_log(), every=2)
            producing.await_more()
            assert uids(SELECTOR) == before
            assert metric(f'firn_fleet_rolling{{profile="{PROFILE}"}}') == 1
        await_rolled(BROKERS, 3)
    assert pods.replaced == [f"{BROKERS}-{number}" for number in (2, 1, 0)]
    assert pods.most_down == 1
    partitions.assert_always_available()
    for number in range(3):
        assert setting("num.io.threads", number) == "5"
    await_until("only the current configuration is left", lambda: len(configurations()) == 1)
    await_until("the roll is complete", lambda: metric(f'firn_fleet_rolling{{profile="{PROFILE}"}}') == 0)


def operator_log() -> str:
    return kubectl("-n", SYSTEM, "logs", "deploy/firn-operator", "--tail=-1")


def setting(key: str, number: int) -> str:
    """Return the value of a setting that a broker started with."""
    return in_broker(number, "sh", "-c", f"sed -n 's/^{key}=//p' /tmp/server.properties").strip()


def configurations() -> list[str]:
    return kubectl("-n", SYSTEM, "get", "configmaps", "-l", SELECTOR, "-o", "name").split()


def test_a_rejected_setting_stops_the_roll_until_it_is_corrected(
    fleet: Fleet, topic: Manifest, namespace: str, client: str
) -> None:
    with traffic(topic, client) as (producing, partitions, pods):
        before, threads = uids(SELECTOR), setting("num.io.threads", 0)
        fleet.upgrade(config={"num.io.threads": "6", "num.network.threads": "none"})

        def waiting_message() -> str | None:
            by_type = conditions(get("icebergtopic", "numbers", namespace))
            message = str(by_type.get("Reconciling", {}).get("message", ""))
            return (
                message
                if f"pod {BROKERS}-2 keeps terminating" in message and by_type["Ready"]["status"] == "True"
                else None
            )

        message = await_until("the topic is Ready and reports why the roll waits", waiting_message)
        assert message in events("Degraded")
        assert metric(DEGRADED) == 1
        producing.await_more(2000)
        now = uids(SELECTOR)
        assert {name for name in before if before[name] != now[name]} == {f"{BROKERS}-2"}
        assert pods.most_down == 1
        partitions.assert_always_available()

        # Another broker restarts meanwhile. It starts with its old setting, not with the invalid one.
        kubectl("-n", SYSTEM, "delete", "pod", f"{BROKERS}-0", "--grace-period=0", "--force")
        await_until(
            "the pod is replaced",
            lambda: uids(SELECTOR).get(f"{BROKERS}-0", before[f"{BROKERS}-0"]) != before[f"{BROKERS}-0"],
        )
        kubectl("-n", SYSTEM, "wait", "--for=condition=Ready", f"pod/{BROKERS}-0", "--timeout=480s")
        assert setting("num.io.threads", 0) == threads
        producing.await_more()

        pods.replaced.clear()
        fleet.upgrade(config={"num.io.threads": "6"})
        await_rolled(BROKERS, 3)
    assert pods.replaced == [f"{BROKERS}-{number}" for number in (2, 1, 0)]
    assert [setting("num.io.threads", number) for number in range(3)] == ["6"] * 3
    topic = await_ready("numbers", namespace, timeout=PATIENCE)
    await_until(
        "the roll continues", lambda: "Reconciling" not in conditions(get("icebergtopic", "numbers", namespace))
    )
    await_until("the topic is healthy again", lambda: metric(DEGRADED) == 0)


def test_an_upgrade_rolls_the_brokers_and_then_finalizes_the_version(
    fleet: Fleet, topic: Manifest, client: str
) -> None:
    assert features()["metadata.version"].startswith("4.1")
    newer = quickstart.images()["firn-kafka"]
    with traffic(topic, client) as (_, partitions, pods):
        fleet.upgrade(image={"image": newer}, metadataVersion="4.2")
        await_rolled(BROKERS, 3)
        assert pods.replaced == [f"{BROKERS}-{number}" for number in (2, 1, 0)]
        live = await_until("the metadata version is finalized", finalized("4.2"))
    assert (len(pods.replaced), pods.most_down) == (3, 1), "finalizing restarts no broker"
    partitions.assert_always_available()
    levels = features()
    assert levels["metadata.version"].startswith("4.2")
    assert levels["share.version"] == "1"
    assert levels["kraft.version"] == "0"
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == newer
    (job,) = json.loads(kubectl("-n", SYSTEM, "get", "jobs", "-l", f"firn.dev/profile={PROFILE}", "-o", "json"))[
        "items"
    ]
    ready = [
        condition["lastTransitionTime"]
        for pod in json.loads(kubectl("-n", SYSTEM, "get", "pods", "-l", SELECTOR, "-o", "json"))["items"]
        for condition in pod["status"]["conditions"]
        if condition["type"] == "Ready"
    ]
    assert job["metadata"]["creationTimestamp"] >= max(ready), "not before all brokers were new"
    assert any("metadata version 4.2" in message for message in events("MetadataVersionFinalised"))


def finalized(version: str) -> Any:
    def stateful_set() -> Manifest | None:
        live = get("statefulset", BROKERS)
        assert live is not None
        return live if live["metadata"]["annotations"].get("firn.dev/metadata-version") == version else None

    return stateful_set


def test_an_unknown_metadata_version_is_reported_and_changes_nothing(
    fleet: Fleet, topic: Manifest, namespace: str
) -> None:
    version = fleet.profile.get("metadataVersion")
    before = uids(SELECTOR)
    fleet.upgrade(metadataVersion="9.9")
    await_until("the failure is reported", lambda: metric(DEGRADED) == 1, every=2)
    # Events of an earlier run stay for an hour.
    jobs = {text.partition("logs job/")[2].partition(",")[0] for text in events("Degraded") if "version 9.9" in text}
    logs = [kubectl("-n", SYSTEM, "logs", f"job/{name}", check=False) for name in jobs]
    assert any("9.9" in text for text in logs)
    assert conditions(get("icebergtopic", "numbers", namespace))["Ready"]["status"] == "True"
    fleet.upgrade(metadataVersion=version)
    await_until("the topic is healthy again", lambda: metric(DEGRADED) == 0)
    assert uids(SELECTOR) == before
