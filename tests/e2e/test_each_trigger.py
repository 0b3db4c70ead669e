"""Each trigger alone makes a table due on the cluster, within its window."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hack.quickstart import apply
from tests.e2e.policies import AT_ONCE, COMPACTION, await_run, last_run, policy, runs_of
from tests.e2e.topics import Produce, await_ready, await_rows, numbered, rows, topic_manifest

NEVER = 10**6
ALONE: dict[str, dict[str, Any]] = {
    "count": {"triggers": {"smallFiles": 5, "minInterval": "1s"}},
    "bytes": {"triggers": {"smallBytes": "1Ki", "minInterval": "1s"}},
    "age": {"triggers": {"maxAge": "30s", "minInterval": "1s"}},
    "clock": {"schedule": {"cron": "* * * * *"}},
    "window": {"triggers": {"smallFiles": 2, "minInterval": "1s"}},
    "enough": {"triggers": {"smallFiles": NEVER, "smallBytes": "1Ti", "maxAge": "30d", "minInterval": "1s"}},
    "suspended": {"triggers": {"smallFiles": 2, "minInterval": "1s"}, "suspend": True},
}
AT_WORK = [name for name in ALONE if name not in ("enough", "suspended")]


@pytest.mark.long
def test_each_trigger_makes_a_table_due(namespace: str, produce: Produce) -> None:
    for name in ALONE:
        apply(topic_manifest(name, namespace, partitions=1))
    tables = {name: await_ready(name, namespace)["status"]["table"]["identifier"] for name in ALONE}
    topics = {name: await_ready(name, namespace) for name in ALONE}
    for number in range(5):
        for name in ALONE:
            produce(topics[name], numbered(number * 10, 10))
        for name in ALONE:
            await_rows(tables[name], (number + 1) * 10)
    opens = (datetime.now(UTC) + timedelta(minutes=3)).replace(second=0, microsecond=0)
    window = {"cron": f"{opens.minute} {opens.hour} * * *", "duration": "1h"}
    for name, spec in ALONE.items():
        more: dict[str, Any] = {"windows": [window]} if name == "window" else {}
        apply(policy(COMPACTION, name, namespace, **AT_ONCE, **spec, **more))
        apply(topic_manifest(name, namespace, partitions=1, compactionPolicyRef={"name": name}))
    with ThreadPoolExecutor(len(AT_WORK)) as waiters:
        runs = dict(
            zip(
                AT_WORK,
                waiters.map(lambda name: await_run(name, namespace, COMPACTION, timeout=400), AT_WORK),
                strict=True,
            )
        )
    for name in AT_WORK:
        assert runs[name]["result"] == "Succeeded", runs[name]
        assert runs[name]["filesAfter"] < runs[name]["filesBefore"], runs[name]
        assert rows(f"select count(*) as n, count(distinct id) as ids from {tables[name]}") == [{"n": 50, "ids": 50}]
    assert datetime.fromisoformat(runs["window"]["startTime"]) >= opens
    for name in ("enough", "suspended"):
        assert last_run(name, namespace, COMPACTION) is None
        assert runs_of(name, namespace) == []
