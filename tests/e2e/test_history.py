"""A topic keeps its history in its table alone, and clients read the same records from the data files as from the log before."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml

from firn.model.conditions import ConditionType
from hack import quickstart
from hack.quickstart import SYSTEM, apply, kubectl
from tests.e2e.brokers import PATIENCE, await_rolled, await_until, kill
from tests.e2e.commands import firn
from tests.e2e.coordinators import move_to_new_cluster, replace_coordinator
from tests.e2e.policies import AT_ONCE, COMPACTION, await_run, policy
from tests.e2e.test_diskless import install
from tests.e2e.topics import LONG, await_condition, await_ready, await_rows, topic_manifest
from tests.integration.ingestion import other_clients
from tests.log_records import LogRecord, digests, read_log

pytestmark = pytest.mark.timeout(1200)

BROKERS = "firn-broker-diskless"
BROKER = f"{BROKERS}-0"
DRIVER = "firn-ingest-default-0"
OUTSIDE = "127.0.0.1:30020"
"""The listener of the brokers for clients outside of the cluster."""
PARTITIONS = 6
FLIGHTS = 20_000


TYPED_FLIGHTS = 5_000
SAMPLE = quickstart.ROOT / "crds" / "samples" / "flights.yaml"


def read(topic: str) -> list[LogRecord]:
    """Return all records of a topic as a client outside of the cluster gets them."""
    return read_log(OUTSIDE, topic, PARTITIONS, patience=PATIENCE, retries=True)


def moved(topics: int = 1) -> bool:
    """Return whether the broker has moved batches of so many topics since its start. Fails if it left any."""
    lines = kubectl("-n", SYSTEM, "logs", BROKER).splitlines()
    stories = [json.loads(line) for line in lines if '"indexed offsets of a topic"' in line]
    for story in stories:
        assert (story["problems"], story["left"]) == ({}, 0), story
    return len({story["topic"] for story in stories}) >= topics


def filled(manifest: dict[str, Any], flights: int) -> tuple[str, str, list[LogRecord]]:
    """Produce flights to a topic. Return its name, its table, and its records once the table has them."""
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    status = await_ready(name, namespace, timeout=PATIENCE)["status"]
    topic, table = status["topicName"], status["table"]["identifier"]
    produced = quickstart.produce_flights(topic, status["bootstrapServers"], namespace=namespace, limit=flights)
    await_rows(table, produced.count, timeout=PATIENCE)
    records = read(topic)
    assert len(records) == produced.count
    return topic, table, records


def move_to_tables(*manifests: dict[str, Any]) -> None:
    """Let the brokers keep the records of topics in their tables only, and wait until they have moved batches of each."""
    for manifest in manifests:
        manifest["spec"]["storage"] = {"history": "Single"}
        apply(manifest)
    await_until("the broker has moved batches to the tables", lambda: moved(len(manifests)))
    for manifest in manifests:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        await_ready(name, namespace, timeout=PATIENCE)
        for kind in (ConditionType.SINGLE_COPY, ConditionType.HISTORY_READABLE):
            await_condition(name, namespace, kind, "True", timeout=PATIENCE)


def assert_read_from_table(expected: Mapping[str, Sequence[LogRecord]], in_table: Sequence[LogRecord]) -> None:
    """Replace the broker, so that no record is in its memory, and read all records of topics. It rebuilds those ``in_table``."""
    kill(BROKER)
    kubectl("-n", SYSTEM, "wait", "--for=condition=Ready", f"pod/{BROKER}", f"--timeout={PATIENCE}s")
    for topic, records in expected.items():
        assert read(topic) == records
    script = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9090/metrics').read().decode())"
    lines = kubectl("-n", SYSTEM, "exec", BROKER, "--", "python", "-c", script).splitlines()
    (rebuilt,) = [float(line.split()[-1]) for line in lines if line.startswith("firn_broker_rebuilt_bytes_total ")]
    assert rebuilt > sum(len(record.value) for record in in_table)


def assert_survives_the_loss_of_the_coordinator(topic: str, namespace: str, before: Sequence[LogRecord]) -> None:
    """Drop the coordinator's database, make a new coordinator, and read all records from one broker and from three."""
    report = replace_coordinator()
    changed = [*report["gaps"], *report["recovered"]["again"]]
    assert not [partition for partition in changed if partition.startswith(f"{topic}/")], report
    # Records of topics that earlier tests deleted may still be in the bucket.
    assert set(report["recovered"]["rejected"]) <= {"unknown_topic_or_partition"}, report
    assert report["recovered"]["skipped"] == [], report
    await_ready("flights", namespace, timeout=PATIENCE)
    assert read(topic) == before
    firn("audit", f"{namespace}/flights")
    for brokers in (3, 1):
        install(replicas=brokers)
        await_rolled(BROKERS, brokers)
        assert read(topic) == before
        assert other_clients.by_java(OUTSIDE, topic) == digests(before)


def assert_moves_to_a_new_cluster(manifest: dict[str, Any], topic: str, before: Sequence[LogRecord]) -> None:
    """Make the log from the table in an empty cluster, and read all records. The brokers move them to the table again."""
    report = move_to_new_cluster(manifest)
    assert [topic in report["topics"], *(gap for gap in report["gaps"] if gap.startswith(f"{topic}/"))] == [True], (
        report
    )
    # Records of topics that earlier tests deleted may still be in the bucket.
    assert set(report["recovered"]["rejected"]) <= {"unknown_topic_or_partition"}, report
    assert report["recovered"]["skipped"] == [], report
    namespace = manifest["metadata"]["namespace"]
    await_ready("flights", namespace, timeout=PATIENCE)
    assert read(topic) == before
    assert other_clients.by_java(OUTSIDE, topic) == digests(before)
    firn("audit", f"{namespace}/flights")
    await_until("the broker has moved batches of the new log", moved)
    assert_read_from_table({topic: before}, before)


def test_flights_stay_readable_after_they_moved_to_the_table(namespace: str) -> None:
    manifest = topic_manifest(
        "flights",
        namespace,
        profile="diskless",
        partitions=PARTITIONS,
        schema={"raw": "Binary"},
        config={"retention.ms": "-1"},
        table={"partitionBy": ["month(_kafka.timestamp)", "bucket(2, key)"]},
    )
    # The table of this topic has no values, but a column for each of their members.
    typed = topic_manifest(
        "typed-flights",
        namespace,
        profile="diskless",
        partitions=PARTITIONS,
        schema=yaml.safe_load(SAMPLE.read_text())["spec"]["schema"],
        config={"retention.ms": "-1"},
    )
    manifests = (manifest, typed)
    for each in manifests:
        apply(each)
    topic, table, before = filled(manifest, FLIGHTS)
    typed_topic, _, typed_before = filled(typed, TYPED_FLIGHTS)
    servers = await_ready("flights", namespace, timeout=PATIENCE)["status"]["bootstrapServers"]

    move_to_tables(*manifests)
    assert_read_from_table({topic: before, typed_topic: typed_before}, [*before, *typed_before])
    assert other_clients.by_java(OUTSIDE, typed_topic) == digests(typed_before)
    for each in manifests:
        firn("audit", f"{namespace}/{each['metadata']['name']}")
    if LONG:
        count = len(before)
        for _ in range(5):
            count += quickstart.produce_flights(topic, servers, namespace=namespace, limit=200).count
            await_rows(table, count, timeout=PATIENCE)
        first, before = before, read(topic)
        triggers = {"smallFiles": 4, "minInterval": "1s"}
        apply(policy(COMPACTION, "merge", namespace, selector={}, triggers=triggers, **AT_ONCE))
        await_run("flights", namespace, COMPACTION, lambda last: bool(last.get("commits")))
        assert_read_from_table({topic: before, typed_topic: typed_before}, [*first, *typed_before])
        # The driver names new data files once in an hour, and after a restart.
        kill(DRIVER)
        await_until("the broker has moved batches to the new files", moved)
        assert_read_from_table({topic: before, typed_topic: typed_before}, [*before, *typed_before])

        assert_survives_the_loss_of_the_coordinator(topic, namespace, before)
        assert read(typed_topic) == typed_before
        # A log is not made from the columns of values.
        kubectl("-n", namespace, "delete", "icebergtopic", "typed-flights", "--wait")
        assert_moves_to_a_new_cluster(manifest, topic, before)

    manifest["spec"]["storage"] = {"history": "Copy"}
    apply(manifest)
    await_ready("flights", namespace, timeout=PATIENCE)
    more = quickstart.produce_flights(topic, servers, namespace=namespace, limit=300)
    await_rows(table, len(before) + more.count, timeout=PATIENCE)
    after = read(topic)
    assert len(after) == len(before) + more.count
    assert set(before) < set(after)
