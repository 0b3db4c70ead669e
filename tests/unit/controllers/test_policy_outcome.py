"""The part of a topic's status about its maintenance."""

from datetime import timedelta
from typing import Any

from firn.model.conditions import Reason
from firn_controllers.cache.policies import PolicyCache, Resolution
from firn_controllers.cache.policies import policy_entry as policy_entry
from firn_controllers.conditions.render import Verdict
from firn_controllers.policies.outcome import (
    PolicyBinding,
    PolicyOutcome,
    TopicMaintenance,
    awaits_policy,
    maintenance_healthy,
    maintenance_section,
    significant_section,
)
from firn_controllers.policies.runs import RunHistory
from firn_controllers.ports import Manifest, TableDebt
from tests import gen

RUN: Manifest = {"name": "r", "result": "Succeeded", "finishTime": "2026-03-01T11:00:00Z"}
SECTION: Manifest = {
    "policy": "policy",
    "because": "Selected",
    "lastRun": RUN,
    "lastScheduleTime": "2026-03-01T03:00:00Z",
    "lastRequest": {"topic": "1"},
    "nextRunTime": "2026-03-02T03:00:00Z",
}
FIGURES: Manifest = {"smallFiles": 3, "dueFiles": 2, "snapshots": 9, "oldestUncompactedTime": "2026-03-01T00:00:00Z"}


def maintenance(
    name: str = "policy", looked_at: PolicyOutcome | None = None, debt: TableDebt | None = None, **spec: Any
) -> TopicMaintenance:
    policy = policy_entry(gen.policy(name, **spec), gen.config())
    bound = PolicyBinding(Resolution(policy, "Selected"), looked_at)
    return TopicMaintenance({"CompactionPolicy": bound, "RetentionPolicy": PolicyBinding()}, debt)


def test_a_status_stays_until_the_policy_was_read() -> None:
    before = {**FIGURES, "compaction": SECTION}
    assert maintenance_section(maintenance(), before) == before
    assert awaits_policy(maintenance())
    assert maintenance_healthy(maintenance()) is None


def test_another_policy_inherits_the_last_run_but_no_due_time() -> None:
    section = maintenance_section(maintenance("other"), {"compaction": SECTION})["compaction"]
    assert section == {**{key: item for key, item in SECTION.items() if key != "nextRunTime"}, "policy": "other"}


def test_a_topic_without_a_policy_has_no_section() -> None:
    nobody = TopicMaintenance({"CompactionPolicy": PolicyBinding(), "RetentionPolicy": PolicyBinding()})
    assert maintenance_section(nobody, {**FIGURES, "compaction": SECTION, "retention": SECTION}) == FIGURES
    assert not awaits_policy(nobody)
    assert maintenance_healthy(nobody) is None


def test_the_history_reads_back_from_the_status() -> None:
    kept = {key: item for key, item in SECTION.items() if key in ("lastRun", "lastScheduleTime", "lastRequest")}
    assert RunHistory.from_status(SECTION).to_status() == kept
    whole: Manifest = {"policyUid": "uid-1", "schedule": "0 3 * * * Etc/UTC", "failures": 3, "failedGeneration": 7}
    whole["failedRequest"] = {"topic": "2"}
    assert RunHistory.from_status({**SECTION, **whole}).to_status() == kept | whole
    assert RunHistory.from_status({}).to_status() == {}


def test_figures_follow_the_debt_and_the_lag_needs_a_policy() -> None:
    debt = TableDebt(table_uuid="t", small_files=7, due_files=4, snapshots=2, oldest_due=gen.NOW)
    section = maintenance_section(maintenance(debt=debt), FIGURES)
    assert (section["smallFiles"], section["dueFiles"], section["snapshots"]) == (7, 4, 2)
    assert section["oldestUncompactedTime"] == "2026-03-01T12:00:00Z"
    nobody = TopicMaintenance({"CompactionPolicy": PolicyBinding(), "RetentionPolicy": PolicyBinding()}, debt)
    assert "oldestUncompactedTime" not in maintenance_section(nobody, FIGURES)
    paid = TableDebt(table_uuid="t")
    assert "oldestUncompactedTime" not in maintenance_section(maintenance(debt=paid), FIGURES)


def test_figures_and_future_times_cause_no_immediate_write() -> None:
    before = {**FIGURES, "compaction": SECTION}
    after = {"smallFiles": 9, "dueFiles": 0, "compaction": {**SECTION, "nextRunTime": "2026-03-03T03:00:00Z"}}
    assert significant_section(before) == significant_section(after)
    changes: tuple[dict[str, Any], ...] = (
        {"lastRun": {**RUN, "name": "s"}},
        {"policy": "other"},
        {"failures": 1},
        {"lastRequest": {}},
    )
    for change in changes:
        assert significant_section({"compaction": {**SECTION, **change}}) != significant_section(before)


def test_the_next_run_time_is_rounded_to_minutes() -> None:
    for seconds, rounded in ((0, "12:00:00"), (1, "12:01:00"), (59, "12:01:00"), (60, "12:01:00")):
        looked_at = PolicyOutcome("policy", next=gen.NOW + timedelta(seconds=seconds))
        section = maintenance_section(maintenance(looked_at=looked_at), {})["compaction"]
        assert section["nextRunTime"] == f"2026-03-01T{rounded}Z"


def test_a_failure_is_reported_before_an_overdue_run() -> None:
    failed = PolicyOutcome("policy", RunHistory({**RUN, "result": "Failed", "message": "no"}, 2), overdue="waits")
    assert maintenance_healthy(maintenance(looked_at=failed)) == Verdict(
        "False", Reason.RUN_FAILED, "compaction by policy policy failed: no"
    )
    late = PolicyOutcome("policy", RunHistory(RUN), overdue="waits")
    assert maintenance_healthy(maintenance(looked_at=late)) == Verdict(
        "False", Reason.RUN_OVERDUE, "compaction by policy policy: waits"
    )


def test_a_policy_of_the_same_name_in_another_namespace_is_ignored() -> None:
    policies = PolicyCache()
    here, there = gen.policy("p", selector={}), gen.policy("p", selector={})
    there["metadata"]["namespace"] = "other"
    for manifest in (here, there):
        policies.put(policy_entry(manifest, gen.config()))
    policy = policies.resolve("CompactionPolicy", gen.observed().entry).policy
    assert policy is not None
    assert policy.name == ("demo", "p")
