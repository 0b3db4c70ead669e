"""Topics on diskless brokers become tables. Brokers that are killed, replaced, added and removed lose and duplicate
no record."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from hack import quickstart
from hack.quickstart import SYSTEM, Manifest, apply, get, kubectl, say
from tests.e2e.brokers import PATIENCE, Consuming, Producing, await_rolled, await_until, kill, uids
from tests.e2e.commands import firn
from tests.e2e.topics import (
    LONG,
    VALUES,
    Produce,
    await_condition,
    await_ready,
    await_rows,
    numbered,
    rows,
    topic_manifest,
)

pytestmark = pytest.mark.timeout(1200)

PROFILE = "diskless"
BROKERS = "firn-broker-diskless"
SELECTOR = f"firn.dev/profile={PROFILE},app.kubernetes.io/component=broker"


@pytest.fixture
def topic(namespace: str) -> Manifest:
    """Create a topic on diskless brokers and wait until it is ready."""
    apply(topic_manifest("numbers", namespace, profile=PROFILE, partitions=3))
    return await_ready("numbers", namespace, timeout=PATIENCE)


@contextmanager
def traffic(topic: Manifest, client: str) -> Iterator[tuple[Producing, Consuming]]:
    """Run an idempotent producer and a consumer group.

    At the end every acknowledged record was consumed, and is in the table exactly once."""
    with Consuming(topic, client) as consuming:
        with Producing(topic, client) as producing:
            producing.await_more(500)
            yield producing, consuming
            producing.await_more(500)
            count = producing.finish()
        consuming.await_distinct(count)
    meta = topic["metadata"]
    table = topic["status"]["table"]["identifier"]
    await_rows(table, count, timeout=PATIENCE)
    expected = [{"n": count, "low": 0, "high": count - 1}]
    assert rows(f"select count(distinct id) as n, min(id) as low, max(id) as high from {table}") == expected
    firn("audit", f"{meta['namespace']}/{meta['name']}")
    await_ready(meta["name"], meta["namespace"], timeout=PATIENCE)


def install(**profile: Any) -> None:
    """Install the release with these keys of the profile."""
    say(f"helm upgrade: {profile}")
    quickstart.install(
        VALUES, overrides={f"quickStart.diskless.profile.{key}": str(value) for key, value in profile.items()}
    )


def assert_uninterrupted(producing: Producing) -> None:
    """Check that no request timed out, and that acknowledgements never stopped for long.

    A busy machine stops them for seconds. A client that waits for a broker that is gone waits for its time limit."""
    assert producing.end["request_timeouts"] == 0, producing.end
    assert producing.end["longest_silence_seconds"] < 60, producing.end


@pytest.fixture(scope="module")
def two_brokers(release: None) -> Iterator[None]:
    """Run two brokers for the following tests, and one again afterwards."""
    install(replicas=2)
    await_rolled(BROKERS, 2)
    yield
    install(replicas=1)
    await_rolled(BROKERS, 1)


def test_flights_on_diskless_brokers_become_rows_and_pass_the_audit(release: None) -> None:
    quickstart.apply_sample("diskless")
    topic = await_ready("departures", "demo", timeout=PATIENCE)
    assert topic["status"]["bootstrapServers"] == f"{BROKERS}-bootstrap.{SYSTEM}.svc:9092"
    table = topic["status"]["table"]["identifier"]
    before = rows(f"select count(*) as n from {table}")[0]["n"]
    produced = quickstart.produce_flights("departures", topic["status"]["bootstrapServers"], limit=20_000)
    await_rows(table, before + produced.count, timeout=PATIENCE)
    firn("audit", "demo/departures")


def test_kafka_and_diskless_profiles_run_side_by_side(namespace: str, produce: Produce) -> None:
    for name, profile in (("with-disks", "classic"), ("without", PROFILE)):
        apply(topic_manifest(name, namespace, profile=profile))
    for name in ("with-disks", "without"):
        topic = await_ready(name, namespace, timeout=PATIENCE)
        produce(topic, numbered(0, 300))
        await_rows(topic["status"]["table"]["identifier"], 300, timeout=PATIENCE)


def test_a_topic_is_grown_configured_and_deleted_with_its_data(namespace: str, produce: Produce) -> None:
    deletion = {"topic": "Delete", "table": "Delete"}
    manifest = topic_manifest("changing", namespace, profile=PROFILE, partitions=2, deletionPolicy=deletion)
    apply(manifest)
    produce(await_ready("changing", namespace, timeout=PATIENCE), numbered(0, 10))
    manifest["spec"] |= {"partitions": 4, "config": {"retention.ms": "3600000"}}
    apply(manifest)
    topic = await_ready("changing", namespace)
    assert topic["status"]["partitions"] == 4
    manifest["spec"]["config"] = {"no.such.config": "1"}
    apply(manifest)
    await_condition("changing", namespace, "SpecValid", "False", "BadTopicConfig")
    kubectl("-n", namespace, "delete", "icebergtopic", "changing", "--timeout=120s")


def test_a_diskless_broker_has_no_volume_claim(release: None) -> None:
    await_rolled(BROKERS, 1)
    pod = get("pod", f"{BROKERS}-0")
    assert pod is not None
    assert not [volume for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume]


def test_killing_each_store_and_the_only_broker_loses_and_duplicates_no_record(topic: Manifest, client: str) -> None:
    with traffic(topic, client) as (producing, consuming):
        for pod in ("firn-postgres-0", "firn-s3-0", f"{BROKERS}-0") * (2 if LONG else 1):
            kill(pod)
            kubectl("-n", SYSTEM, "wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=300s")
            producing.await_more()
            consuming.await_more(500)


@pytest.mark.usefixtures("two_brokers")
def test_clients_outside_the_cluster_reach_every_broker(topic: Manifest) -> None:
    outside: dict[str, str | int | float | bool] = {"bootstrap.servers": "127.0.0.1:30020"}
    seen = AdminClient(outside).list_topics(timeout=60).brokers.values()
    assert sorted((str(broker.host), broker.port) for broker in seen) == [("127.0.0.1", 30021), ("127.0.0.1", 30022)]
    name, count = topic["status"]["topicName"], 300
    producer = Producer(outside)
    for record in numbered(0, count):
        producer.produce(name, **record)
    assert producer.flush(240) == 0
    consumer = Consumer({**outside, "group.id": name, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([name])
        values: list[bytes] = []

        def all_read() -> bool:
            values.extend(message.value() or b"" for message in consumer.consume(count, 1) if message.error() is None)
            return len(values) >= count

        await_until("all records are consumed", all_read)
    finally:
        consumer.close()
    assert sorted(json.loads(value)["id"] for value in values) == list(range(count))


@pytest.mark.long
@pytest.mark.usefixtures("two_brokers")
def test_killed_brokers_lose_and_duplicate_no_record(topic: Manifest, client: str) -> None:
    with traffic(topic, client) as (producing, _):
        for number in (0, 1, 1, 0) if LONG else (0, 1):
            kill(f"{BROKERS}-{number}")
            await_rolled(BROKERS, 2)
            producing.await_more()


@pytest.mark.usefixtures("two_brokers")
def test_rolling_and_scaling_interrupt_no_connected_client(topic: Manifest, client: str) -> None:
    before = uids(SELECTOR)
    with traffic(topic, client) as (producing, consuming):
        install(replicas=2, flushInterval="200ms")
        await_until("all brokers are replaced", lambda: not before.items() & uids(SELECTOR).items())
        await_rolled(BROKERS, 2)
        producing.await_more(1000)
        consuming.await_more(1000)
        if LONG:
            first = uids(SELECTOR)[f"{BROKERS}-0"]
            install(replicas=1, flushInterval="200ms")
            await_until("the first broker is left", lambda: uids(SELECTOR) == {f"{BROKERS}-0": first})
            await_rolled(BROKERS, 1)
            producing.await_more(1000)
            consuming.await_more(1000)
            install(replicas=2, flushInterval="200ms")
            await_rolled(BROKERS, 2)
            assert uids(SELECTOR)[f"{BROKERS}-0"] == first
            producing.await_more(1000)
        consuming.await_more(1000)
        await_condition(topic["metadata"]["name"], topic["metadata"]["namespace"], "Ready", "True")
    assert_uninterrupted(producing)
