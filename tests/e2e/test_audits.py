"""Audits run by themselves, and the status of a topic shows their result."""

from pathlib import Path

import pytest

from hack import quickstart
from hack.quickstart import Manifest, apply, await_until, get, kubectl
from tests.e2e.topics import VALUES, Produce, await_condition, await_ready, await_rows, numbered, topic_manifest


@pytest.mark.long  # tests/unit/controllers/test_audits.py tests the schedule, and tests/integration/ingestion/test_audits.py the audit
def test_a_topic_without_a_policy_is_audited_on_schedule(namespace: str, produce: Produce, tmp_path: Path) -> None:
    apply(topic_manifest("flights", namespace))
    topic = await_ready("flights", namespace)
    produce(topic, numbered(0, 100))
    await_rows(topic["status"]["table"]["identifier"], 100)
    scheduled = tmp_path / "values.yaml"
    scheduled.write_text("maintenance: {audit: {schedule: '* * * * *', spread: 1s}}")

    def audited() -> Manifest | None:
        audit = ((get("icebergtopic", "flights", namespace) or {}).get("status") or {}).get("audit") or {}
        return audit if "result" in audit else None

    try:
        quickstart.install(VALUES, scheduled)
        audit = await_until("an audit of the topic", audited, timeout=300, every=2)
    finally:
        quickstart.install(VALUES)
    assert (audit["result"], audit["offsets"], audit["lastRun"]["result"]) == ("Exact", 100, "Succeeded")
    await_condition("flights", namespace, "Complete", "True", "EveryOffset")
    jobs = kubectl("-n", quickstart.SYSTEM, "get", "jobs", "-l", "firn.dev/policy-kind=Audit", "-o", "name").split()
    assert jobs
