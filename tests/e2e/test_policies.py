"""Policies on the cluster: compaction merges small files, and retention deletes old rows only in mode Enforce."""

import math
from concurrent.futures import ThreadPoolExecutor

from hack.quickstart import apply, await_until, get, kubectl
from tests.e2e.policies import AT_ONCE, COMPACTION, RETENTION, await_run, last_run, policy, run_now, runs_of
from tests.e2e.topics import LONG, Produce, await_condition, await_ready, await_rows, numbered, rows, topic_manifest

TABLES_PER_RUN = 4
"""As values.yaml sets it."""


def test_a_trigger_merges_small_files_and_every_row_stays(namespace: str, produce: Produce) -> None:
    apply(topic_manifest("flights", namespace, partitions=1))
    topic = await_ready("flights", namespace)
    table = topic["status"]["table"]["identifier"]
    for number in range(6):
        produce(topic, numbered(number * 100, 100))
        await_rows(table, (number + 1) * 100)
    apply(
        policy(COMPACTION, "merge", namespace, selector={}, triggers={"smallFiles": 4, "minInterval": "1s"}, **AT_ONCE)
    )
    run = await_run("flights", namespace, COMPACTION, lambda last: bool(last.get("commits")))
    assert run["result"] == "Succeeded"
    assert run["filesBefore"] >= 6
    assert run["filesAfter"] < run["filesBefore"]
    assert rows(f"select count(*) as n, count(distinct id) as ids from {table}") == [{"n": 600, "ids": 600}]
    await_condition("flights", namespace, "MaintenanceHealthy", "True", "Succeeded")
    produce(topic, numbered(600, 100))
    await_rows(table, 700)
    wide = kubectl("-n", namespace, "get", "icebergtopics", "-o", "wide")
    assert {"SMALL-FILES", "DUE-FILES", "LAG", "SNAPSHOTS"} <= set(wide.splitlines()[0].split())
    events = kubectl("-n", namespace, "get", "events", "-o", "jsonpath={.items[*].reason}").split()
    assert {"RunStarted", "Compacted"} <= set(events)


def test_retention_reports_in_a_dry_run_and_deletes_when_enforced(namespace: str, produce: Produce) -> None:
    apply(topic_manifest("logs", namespace, partitions=1))
    topic = await_ready("logs", namespace)
    table = topic["status"]["table"]["identifier"]
    produce(topic, numbered(0, 200))
    await_rows(table, 200)
    old = {"rows": {"column": "_kafka.timestamp", "maxAge": "1s"}, "snapshots": {"maxAge": "1s"}}
    apply(policy(RETENTION, "legal", namespace, selector={}, **old))
    run_now("retentionpolicy", "legal", namespace, "1")
    dry = await_run("logs", namespace, RETENTION)
    assert (dry["result"], dry["mode"]) == ("Succeeded", "DryRun")
    assert dry["rows"]["items"] == 200
    assert rows(f"select count(*) as n from {table}") == [{"n": 200}]
    apply(policy(RETENTION, "legal", namespace, selector={}, mode="Enforce", **old))
    run_now("icebergtopic", "logs", namespace, "2")
    done = await_run("logs", namespace, RETENTION, lambda last: last["name"] != dry["name"])
    assert (done["result"], done["mode"]) == ("Succeeded", "Enforce")
    assert rows(f"select count(*) as n from {table}") == [{"n": 0}]
    kubectl("-n", namespace, "delete", "retentionpolicy", "legal")
    produce(topic, numbered(200, 50))
    await_rows(table, 50)
    assert rows(f"select min(_kafka.offset) as first from {table}") == [{"first": 200}]


def test_many_topics_under_one_policy_share_a_few_runs(namespace: str) -> None:
    names = [f"t{number:02}" for number in range(50 if LONG else 9)]
    for name in names:
        apply(topic_manifest(name, namespace, partitions=1))
    with ThreadPoolExecutor(4) as waiters:
        list(waiters.map(lambda name: await_ready(name, namespace, timeout=400), names))
    apply(policy(RETENTION, "all", namespace, selector={}, snapshots={"maxAge": "1d"}))
    run_now("retentionpolicy", "all", namespace, "1")
    for name in names:
        assert await_run(name, namespace, RETENTION)["result"] == "Succeeded"
    assert len(runs_of("all", namespace)) == math.ceil(len(names) / TABLES_PER_RUN)
    retention_policy = get("retentionpolicy", "all", namespace)
    assert retention_policy is not None
    assert retention_policy["status"]["topics"] == len(names)


def test_statuses_name_the_policy_and_only_a_valid_one_starts_runs(namespace: str) -> None:
    apply(topic_manifest("ships", namespace, partitions=1))
    snapshots = {"snapshots": {"maxAge": "1d"}}
    apply(policy(RETENTION, "everyone", namespace, selector={}, suspend=True, **snapshots))
    apply(policy(RETENTION, "first", namespace, selector={}, priority=1, suspend=True, **snapshots))
    await_ready("ships", namespace)

    def governor() -> tuple[str, str] | None:
        section = (get("icebergtopic", "ships", namespace) or {})["status"].get("maintenance", {}).get("retention")
        return (section["policy"], section["because"]) if section else None

    await_until("the policy of higher priority governs", lambda: governor() == ("first", "Selected"))
    apply(topic_manifest("ships", namespace, partitions=1, retentionPolicyRef={"name": "missing"}))
    await_condition("ships", namespace, "PoliciesResolved", "False", "PolicyNotFound")
    apply(topic_manifest("ships", namespace, partitions=1, retentionPolicyRef={"name": "everyone"}))
    await_until("the named policy governs", lambda: governor() == ("everyone", "NamedByTopic"))
    await_condition("ships", namespace, "PoliciesResolved", "True", "Resolved")
    run_now("icebergtopic", "ships", namespace, "1")
    bad = {"cron": "0 25 * * *"}
    apply(policy(RETENTION, "everyone", namespace, selector={}, schedule=bad, **snapshots))
    await_condition("ships", namespace, "PoliciesResolved", "False", "PolicyInvalid")
    assert last_run("ships", namespace, RETENTION) is None
    apply(policy(RETENTION, "everyone", namespace, selector={}, schedule={"cron": "0 2 * * *"}, **snapshots))
    assert await_run("ships", namespace, RETENTION)["result"] == "Succeeded"
    assert len(runs_of("everyone", namespace)) == 1
    assert runs_of("first", namespace) == []
