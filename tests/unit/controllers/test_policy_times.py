"""Slots of schedules, windows, and due tables."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn.api.v1alpha1 import CompactionPolicy, RetentionPolicy
from firn.api.v1alpha1.policy import Schedule, Window
from firn.model.errors import InvalidSpecError
from firn_controllers.policies import due
from firn_controllers.policies.due import TableDecision
from firn_controllers.policies.runs import RunHistory
from firn_controllers.ports import TableDebt
from firn_controllers.reconcilers.policy.reconciler import BLOCKED
from firn_controllers.specs import terms
from firn_controllers.specs.calendar import CronExpression, Slots, Windows
from firn_controllers.specs.terms import PolicyTerms
from tests import gen
from tests.fakes.cluster import time_text

NOW = gen.NOW
LONG_AGO = NOW - timedelta(days=30)


def at(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


# Slots


def slots(cron: str = "0 3 * * *", zone: str = "Etc/UTC", jitter: str | None = None, seed: str = "uid") -> Slots:
    return Slots.parse(Schedule(cron=cron, time_zone=zone, jitter=jitter), seed)


def test_a_slot_is_due_at_its_very_minute() -> None:
    assert slots().last(at("2026-03-02T03:00:00")) == at("2026-03-02T03:00:00")
    assert slots().last(at("2026-03-02T02:59:59.999999")) == at("2026-03-01T03:00:00")
    assert slots().next(at("2026-03-02T03:00:00")) == at("2026-03-03T03:00:00")
    assert slots().next(at("2026-03-02T02:59:59")) == at("2026-03-02T03:00:00")


def test_a_slot_keeps_its_local_time_across_a_change_of_clocks() -> None:
    berlin = slots(zone="Europe/Berlin")
    assert berlin.last(at("2026-03-28T12:00:00")) == at("2026-03-28T02:00:00")
    assert berlin.last(at("2026-03-30T12:00:00")) == at("2026-03-30T01:00:00")


def test_a_skipped_slot_runs_late_and_a_repeated_one_once() -> None:
    berlin = slots("30 2 * * *", "Europe/Berlin")
    assert berlin.last(at("2026-03-29T12:00:00")) == at("2026-03-29T03:00:00", "Europe/Berlin")
    moments, moment = set(), at("2026-10-24T12:00:00")
    while moment < at("2026-10-26T00:00:00"):
        moment = berlin.next(moment)
        moments.add(moment)
    assert moments == {at("2026-10-25T00:30:00"), at("2026-10-26T01:30:00")}


def test_jitter_delays_each_slot_by_a_stable_share() -> None:
    jittered = slots(jitter="1h")
    offsets = set()
    for day in range(1, 29):
        slot = at(f"2026-02-{day:02}T03:00:00")
        offset = jittered.due(slot) - slot
        assert timedelta() <= offset < timedelta(hours=1)
        assert jittered.due(slot) == slots(jitter="1h").due(slot)
        offsets.add(offset)
        assert jittered.last(slot + offset) == slot
        if offset:
            assert jittered.last(slot + offset - timedelta(seconds=1)) == slot - timedelta(days=1)
            assert jittered.next(slot) == slot + offset
    assert len(offsets) > 20
    assert slots(jitter="1h", seed="another").due(slot) != jittered.due(slot)


@given(
    st.sampled_from(["*/7 * * * *", "0 3 * * *", "15 2 1 * *", "0 0 29 2 *", "30 2 * * 0", "0 12 * 6 MON-FRI"]),
    st.sampled_from(["Etc/UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)).map(lambda naive: naive.replace(tzinfo=UTC)),
    st.sampled_from([None, "30s", "5m"]),
)
def test_last_and_next_enclose_every_moment(cron: str, zone: str, moment: datetime, jitter: str | None) -> None:
    times = slots(cron, zone, jitter)
    assert times.due(times.last(moment)) <= moment < times.next(moment)


@pytest.mark.parametrize(
    ("cron", "zone", "message"),
    [
        (
            "0 25 * * *",
            "Etc/UTC",
            r"spec.schedule.cron: '0 25 \* \* \*': Bad hour; write minute \(0-59\), hour \(0-23\)",
        ),
        ("0 3 31 2 *", "Etc/UTC", "spec.schedule.cron: .*Bad day"),
        ("0 3 * * *", "Europe/Atlantis", "spec.schedule.timeZone: 'Europe/Atlantis'"),
        ("0 3 * * *", "../etc/passwd", "spec.schedule.timeZone"),
    ],
)
def test_an_error_names_the_field_of_an_invalid_schedule(cron: str, zone: str, message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        CronExpression.parse(cron, zone, "spec.schedule")


# Windows


def windows(*given: tuple[str, str]) -> Windows:
    return Windows.parse(tuple(Window(cron=cron, duration=duration) for cron, duration in given))


def test_windows_open_and_close() -> None:
    night = windows(("0 22 * * *", "6h"))
    assert night.opened(at("2026-03-01T21:59:59")) is None
    assert night.opened(at("2026-03-01T22:00:00")) == at("2026-03-01T22:00:00")
    assert night.opened(at("2026-03-02T03:59:59")) == at("2026-03-01T22:00:00")
    assert night.opened(at("2026-03-02T04:00:00")) is None
    assert night.first(at("2026-03-02T04:00:00")) == at("2026-03-02T22:00:00")
    assert night.first(at("2026-03-02T23:00:00")) == at("2026-03-02T23:00:00")


def test_one_open_window_suffices_and_no_window_is_always_open() -> None:
    two = windows(("0 22 * * *", "1h"), ("0 12 * * *", "1h"))
    assert two.opened(at("2026-03-01T12:30:00")) is not None
    assert two.first(at("2026-03-01T13:00:00")) == at("2026-03-01T22:00:00")
    assert windows().opened(NOW) is not None
    assert windows().first(NOW) == NOW


# Due


def compaction(**spec: Any) -> PolicyTerms:
    manifest = gen.policy(**spec)
    return terms.read_terms(CompactionPolicy.model_validate(manifest), "uid", gen.config())


def retention(**spec: Any) -> PolicyTerms:
    manifest = gen.policy(kind="RetentionPolicy", **{"snapshots": {"maxAge": "7d"}, **spec})
    return terms.read_terms(RetentionPolicy.model_validate(manifest), "uid", gen.config())


def debt(**changes: Any) -> TableDebt:
    return TableDebt(table_uuid="t", **{"due_files": 1, "due_bytes": 1, "oldest_due": NOW, **changes})


def ran(ago: timedelta, result: str = "Succeeded", failures: int = 0, **more: Any) -> RunHistory:
    last = {"name": "r", "finishTime": time_text(NOW - ago), "result": result}
    return RunHistory(last, failures, **{"generation": 1, "slot": LONG_AGO, **more})


def decide(
    policy_terms: PolicyTerms,
    history: RunHistory | None = None,
    owed: TableDebt | None = None,
    *,
    requests: Mapping[str, str] | None = None,
    generation: int = 1,
    now: datetime = NOW,
) -> TableDecision:
    found_history = history or RunHistory(slot=LONG_AGO)
    return due.decide_table(
        policy_terms, now, history=found_history, generation=generation, debt=owed, requests=requests or {}
    )


@pytest.mark.parametrize(
    ("trigger", "below", "reached"),
    [
        ({"smallFiles": 100}, {"due_files": 99}, {"due_files": 100}),
        ({"smallBytes": "1Gi"}, {"due_bytes": 2**30 - 1}, {"due_bytes": 2**30}),
        ({"deleteFileRatio": "0.3"}, {"due_for_deletes": 0}, {"due_for_deletes": 1}),
        (
            {"maxAge": "1h"},
            {"oldest_due": NOW - timedelta(minutes=59, seconds=59)},
            {"oldest_due": NOW - timedelta(hours=1)},
        ),
    ],
)
def test_each_trigger_alone_makes_a_table_due_at_its_value(
    trigger: dict[str, Any], below: dict[str, Any], reached: dict[str, Any]
) -> None:
    policy_terms = compaction(triggers=trigger)
    assert decide(policy_terms, owed=debt(**below)).due is None
    decision = decide(policy_terms, owed=debt(**reached))
    assert decision.due is not None
    assert next(iter(trigger)) in decision.due.why
    assert not decision.due.everything
    everything_else = {"due_files": 10**6, "due_bytes": 2**50, "due_for_deletes": 9, "oldest_due": LONG_AGO}
    for key in reached:
        everything_else[key] = below[key]
    assert decide(policy_terms, owed=debt(**everything_else)).due is None, "a trigger that is not set has no effect"


def test_default_triggers_apply_without_a_schedule() -> None:
    assert decide(compaction(), owed=debt(due_files=100)).due is not None
    assert decide(compaction(triggers={"minInterval": "1m"}), owed=debt(due_files=100)).due is not None
    nightly = compaction(schedule={"cron": "0 3 * * *"})
    assert decide(nightly, ran(timedelta(hours=1), slot=at("2026-03-01T03:00:00")), debt(due_files=10**6)).due is None


def test_no_trigger_fires_without_files_to_rewrite() -> None:
    nothing = TableDebt(table_uuid="t", small_files=10**6, delete_files=10**6)
    assert decide(compaction(), owed=nothing) == TableDecision()
    assert decide(compaction(), owed=None) == TableDecision()


def test_a_trigger_waits_for_min_interval_from_the_end_of_the_last_run() -> None:
    policy_terms = compaction(triggers={"smallFiles": 2, "minInterval": "10m"})
    owed = debt(due_files=50)
    decision = decide(policy_terms, ran(timedelta(minutes=9)), owed)
    assert decision == TableDecision(next=NOW + timedelta(minutes=1))
    assert decide(policy_terms, ran(timedelta(minutes=10)), owed).due is not None


def test_the_age_trigger_returns_its_next_time() -> None:
    policy_terms = compaction(triggers={"maxAge": "1h"})
    assert decide(policy_terms, owed=debt(oldest_due=NOW - timedelta(minutes=20))).next == NOW + timedelta(minutes=40)


def test_a_slot_is_due_until_a_run_has_answered_it() -> None:
    policy_terms = retention(schedule={"cron": "0 3 * * *"})
    first = decide(policy_terms)
    assert first.due is not None
    assert (first.due.slot, first.due.everything) == (at("2026-03-01T03:00:00"), True)
    answered = ran(timedelta(hours=1), slot=at("2026-03-01T03:00:00"))
    assert decide(policy_terms, answered) == TableDecision(next=at("2026-03-02T03:00:00"))
    assert decide(policy_terms, answered, now=at("2026-03-02T03:00:00")).due is not None


def test_slots_before_a_policy_governed_the_topic_are_ignored() -> None:
    assert decide(retention(), RunHistory()).due is None
    past = at("2026-03-01T03:15:00")
    begun = RunHistory().governed_by("uid-1", "15 3 * * * Etc/UTC", past, None)
    assert decide(retention(), begun).due is None
    assert decide(retention(), begun, now=at("2026-03-02T03:15:00")).due is not None
    assert begun.governed_by("uid-1", "15 3 * * * Etc/UTC", NOW, None) == begun, "an answered slot is remembered"


def test_a_changed_schedule_and_another_policy_start_without_slots() -> None:
    night = at("2026-02-27T03:15:00")
    history = RunHistory(policy="uid-1", schedule="15 3 * * * Etc/UTC", slot=night, failures=3, generation=2)
    late = at("2026-03-01T11:00:00")
    changed = history.governed_by("uid-1", "0 11 * * * Etc/UTC", late, None)
    assert (changed.slot, changed.failures) == (late, 3)
    assert decide(retention(schedule={"cron": "0 11 * * *"}), changed, generation=9).due is None
    moved = history.governed_by("uid-2", "15 3 * * * Etc/UTC", at("2026-03-01T03:15:00"), None)
    assert (moved.slot, moved.failures) == (at("2026-03-01T03:15:00"), 0)
    assert history.governed_by("uid-1", "", None, None).slot is None


def test_earlier_requests_are_ignored_for_a_new_topic() -> None:
    history = RunHistory(policy="uid-1", requests={"topic": "t", "policy": "1"})
    assert history.governed_by("uid-2", "", None, None).requests == {"topic": "t"}, (
        "the request of this policy is not answered yet"
    )
    assert history.governed_by("uid-2", "", None, "7").requests == {"topic": "t", "policy": "7"}
    assert history.governed_by("uid-1", "", None, "7").requests == {"topic": "t", "policy": "1"}, (
        "the policy governed the topic already"
    )


def test_outside_its_windows_a_table_waits_for_the_next() -> None:
    closed = [{"cron": "0 22 * * *", "duration": "1h"}]
    policy_terms = compaction(triggers={"smallFiles": 2}, windows=closed)
    assert decide(policy_terms, owed=debt(due_files=9)) == TableDecision(next=at("2026-03-01T22:00:00"))
    assert decide(policy_terms, owed=debt(due_files=9), now=at("2026-03-01T22:30:00")).due is not None
    slot = compaction(schedule={"cron": "0 3 * * *"}, windows=closed)
    assert decide(slot) == TableDecision(next=at("2026-03-01T22:00:00"))
    opened = decide(slot, now=at("2026-03-01T22:00:00")).due
    assert opened is not None
    assert opened.since == at("2026-03-01T22:00:00"), "the slot could not have run before"


@pytest.mark.parametrize("source", ["topic", "policy"])
def test_a_request_is_due_at_once_and_once(source: str) -> None:
    policy_terms = compaction(triggers={"smallFiles": 2}, windows=[{"cron": "0 22 * * *", "duration": "1h"}])
    failed = ran(timedelta(seconds=1), "Failed", 5)
    decision = decide(policy_terms, failed, requests={source: "1"})
    assert decision.due is not None, "windows and failures do not delay a request"
    assert decision.due.requests == {source: "1"}
    assert decision.due.everything
    answered = ran(timedelta(seconds=1), requests={source: "1"})
    assert decide(policy_terms, answered, requests={source: "1"}).due is None
    assert decide(policy_terms, answered, requests={}).due is None, "a removed annotation requests nothing"
    assert decide(policy_terms, answered, requests={source: "2"}).due is not None


def test_a_failed_request_is_retried_later_and_a_new_one_at_once() -> None:
    policy_terms = compaction(triggers={"smallFiles": 2}, windows=[{"cron": "0 22 * * *", "duration": "1h"}])
    failed = ran(timedelta(), "Failed", 2, failed={"topic": "1"})
    assert decide(policy_terms, failed, requests={"topic": "1"}) == TableDecision(next=NOW + timedelta(minutes=2))
    again = decide(policy_terms, failed, requests={"topic": "1"}, now=NOW + timedelta(minutes=2)).due
    assert again is not None, "a request waits for no window"
    assert again.requests == {"topic": "1"}
    assert decide(policy_terms, failed, requests={"topic": "2"}).due is not None
    assert decide(policy_terms, failed, requests={"topic": "1", "policy": "1"}).due is not None
    assert decide(policy_terms, failed, requests={"topic": "1"}, generation=2).due is not None, (
        "the policy has changed since"
    )
    assert decide(policy_terms, failed).due is None, "a removed annotation requests nothing"


def test_nothing_is_due_while_the_policy_is_suspended() -> None:
    policy_terms = compaction(suspend=True, schedule={"cron": "0 3 * * *"}, triggers={"smallFiles": 2})
    assert decide(policy_terms, owed=debt(due_files=9), requests={"policy": "1"}) == TableDecision()


def test_a_policy_of_the_log_alone_needs_no_run() -> None:
    manifest = gen.policy(kind="RetentionPolicy", log={"maxAge": "1d"})
    policy_terms = terms.read_terms(RetentionPolicy.model_validate(manifest), "uid", gen.config())
    assert decide(policy_terms, requests={"policy": "1"}) == TableDecision()


def test_failures_delay_slots_and_triggers_up_to_a_limit() -> None:
    policy_terms = retention()
    waits = []
    for failures in range(1, 40):
        decision = decide(policy_terms, ran(timedelta(), "Failed", failures))
        assert decision.due is None
        assert decision.next is not None
        waits.append(decision.next - NOW)
    assert waits[:3] == [timedelta(minutes=1), timedelta(minutes=2), timedelta(minutes=4)]
    assert waits == sorted(waits)
    assert waits[-1] == timedelta(hours=6)
    assert decide(policy_terms, ran(timedelta(minutes=1), "Failed", 1)).due is not None
    triggered = compaction(triggers={"smallFiles": 2, "minInterval": "1s"})
    assert decide(triggered, ran(timedelta(seconds=30), "Failed", 1), debt(due_files=9)).due is None


def test_a_changed_policy_is_retried_at_once() -> None:
    failed = ran(timedelta(), "Failed", 5, generation=3)
    assert decide(retention(), failed, generation=3).due is None
    assert decide(retention(), failed, generation=4).due is not None


def test_unfinished_work_is_due_after_a_turn_of_the_others() -> None:
    assert due.TURN.total_seconds() > 2 * BLOCKED, "runs that wait for the table retry within a turn"
    policy_terms = compaction(triggers={"smallFiles": 2, "minInterval": "10m"})
    owed, asked = debt(due_files=9), {"policy": "1"}
    left, rested = ran(timedelta(), "Unfinished"), ran(due.TURN, "Unfinished")
    assert decide(retention(), left).next == NOW + due.TURN
    assert decide(retention(), rested).due is not None
    assert decide(retention(), ran(due.TURN, "Unfinished", 3)).due is not None, "earlier failures do not count now"
    assert decide(policy_terms, left, owed).next == NOW + due.TURN
    assert decide(policy_terms, rested, owed).due is not None
    assert decide(policy_terms, left, requests=asked).next == NOW + due.TURN
    assert decide(policy_terms, rested, requests=asked).due is not None


def test_a_busy_table_is_retried_soon() -> None:
    policy_terms = retention()
    assert decide(policy_terms, ran(timedelta(), "Busy")).next == NOW + due.BUSY_RETRY
    assert decide(policy_terms, ran(due.BUSY_RETRY, "Busy")).due is not None
    assert decide(policy_terms, ran(timedelta(), "Busy"), requests={"topic": "1"}).due is None
    assert decide(policy_terms, ran(due.BUSY_RETRY, "Busy"), requests={"topic": "1"}).due is not None


@given(
    st.integers(0, 300),
    st.integers(0, 20),
    st.sampled_from(["Succeeded", "Failed", "Busy", "Unfinished"]),
    st.timedeltas(timedelta(), timedelta(days=2)),
    st.booleans(),
    st.booleans(),
)
def test_the_next_time_is_in_the_future_and_due_then(
    files: int, failures: int, result: str, ago: timedelta, scheduled: bool, windowed: bool
) -> None:
    spec: dict[str, Any] = {"triggers": {"smallFiles": 100, "maxAge": "3h"}}
    if scheduled:
        spec["schedule"] = {"cron": "20 */5 * * *", "timeZone": "Asia/Kathmandu", "jitter": "5m"}
    if windowed:
        spec["windows"] = [{"cron": "0 7 * * *", "duration": "2h"}]
    policy_terms = compaction(**spec)
    history = ran(ago, result, failures if result == "Failed" else 0)
    owed = debt(due_files=files, oldest_due=NOW - timedelta(hours=1) if files else None)
    decision = decide(policy_terms, history, owed)
    if decision.next is not None:
        assert decision.next > NOW
        assert decide(policy_terms, history, owed, now=decision.next).due is not None
    elif decision.due is None:
        assert files == 0
        assert not scheduled
