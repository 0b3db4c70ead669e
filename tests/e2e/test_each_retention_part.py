"""Each part of a RetentionPolicy on the cluster: the report of a dry run, and the deletion when the policy is
enforced."""

import pytest

from hack.quickstart import SYSTEM, apply, await_until, kubectl
from tests.e2e.policies import RETENTION, await_run, policy, run_now
from tests.e2e.topics import Produce, await_ready, await_rows, numbered, rows, topic_manifest

PARTS = {
    "log": {"maxAge": "9d"},
    "rows": {"column": "at", "maxAge": "30d"},
    "snapshots": {"maxAge": "1s"},
    "orphanFiles": {"minAge": "1s"},
    "metadataFiles": {"keep": 1},
}


def storage(command: str) -> str:
    """Run a shell command in the pod of the S3 server and return its output."""
    return kubectl("-n", SYSTEM, "exec", "firn-s3-0", "--", "sh", "-c", command)


@pytest.mark.long  # test_policies.py proves the same order of events with fewer parts
def test_each_part_reports_in_a_dry_run_and_then_deletes(namespace: str, produce: Produce) -> None:
    apply(topic_manifest("parts", namespace, partitions=1))
    topic = await_ready("parts", namespace)
    table = topic["status"]["table"]["identifier"]
    place = "/data/buckets/" + topic["status"]["table"]["location"].removeprefix("s3://")
    for number in range(3):
        records = numbered(number * 10, 10)
        for record in records[::2]:
            record["value"] = record["value"].replace("}", ', "at": "2020-01-01T00:00:00Z"}')
        produce(topic, records)
        await_rows(table, (number + 1) * 10)
    stray = f"{place}/data/stray 1%20.parquet"
    storage(f"echo nothing > '{stray}'")

    def metadata_files() -> int:
        return int(storage(f"ls {place}/metadata/*.metadata.json | wc -l"))

    def has_event(reason: str) -> bool:
        text = kubectl("-n", namespace, "get", "events", "-o", "jsonpath={.items[*].reason}")
        return reason in text.split()

    def configs() -> str:
        tool = "/opt/kafka/bin/kafka-configs.sh --bootstrap-server localhost:9092 --describe --entity-type topics"
        asked = [*tool.split(), "--entity-name", f"{namespace}.parts"]
        return kubectl("-n", SYSTEM, "exec", "firn-broker-classic-0", "--", *asked)

    before = metadata_files()
    apply(policy(RETENTION, "parts", namespace, selector={}, **PARTS))
    run_now("retentionpolicy", "parts", namespace, "1")
    dry = await_run("parts", namespace, RETENTION)
    assert (dry["result"], dry["mode"]) == ("Succeeded", "DryRun"), dry
    assert dry["rows"]["items"] == 15
    assert dry["snapshots"]["items"] >= 2
    assert dry["orphanFiles"]["files"] == 1
    assert "stray" in dry["orphanFiles"]["sample"][0]
    assert dry["metadataFiles"]["files"] >= 1
    await_until("an Event reports the planned deletion", lambda: has_event("WouldDelete"))
    assert rows(f"select count(*) as n from {table}") == [{"n": 30}]
    assert storage(f"cat '{stray}'") == "nothing\n"
    assert metadata_files() >= before
    assert "retention.ms=" not in configs()

    apply(policy(RETENTION, "parts", namespace, selector={}, mode="Enforce", **PARTS))
    run_now("icebergtopic", "parts", namespace, "2")
    done = await_run("parts", namespace, RETENTION, lambda last: last["name"] != dry["name"])
    assert (done["result"], done["mode"]) == ("Succeeded", "Enforce"), done
    assert done["rows"]["items"] == 15
    assert done["orphanFiles"]["files"] >= 1
    assert rows(f"select id from {table} order by id") == [{"id": number} for number in range(1, 30, 2)]
    assert not storage(f"ls {place}/data | grep stray || true").strip()
    assert metadata_files() < before
    assert f"retention.ms={9 * 86_400_000} " in configs()

    # Ingestion continues at its offsets.
    produce(topic, numbered(30, 10))
    await_rows(table, 25)
