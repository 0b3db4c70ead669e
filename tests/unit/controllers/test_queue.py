"""The work queue: its rules with a fake clock, and then its asyncio workers."""

import asyncio

import pytest

from firn.model.clock import SystemClock
from firn.model.errors import CommitConflictError, UnavailableError
from firn_controllers.queue import (
    LONGEST_DELAY,
    LONGEST_SHARED_DELAY,
    SHARES,
    Key,
    KeySchedule,
    Lane,
    Outcome,
    ReconcileVerdict,
    WorkQueue,
)
from tests.fakes.clock import FakeClock

A, B, C = ("topic", "a"), ("topic", "b"), ("topic", "c")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def schedule(clock: FakeClock) -> KeySchedule:
    return KeySchedule(clock, lambda: 1.0)


def drained(schedule: KeySchedule) -> list[Key]:
    keys = []
    while (key := schedule.start_next()) is not None:
        keys.append(key)
        schedule.done(key, Outcome())
    return keys


def test_a_key_added_twice_waits_once(schedule: KeySchedule) -> None:
    for _ in range(3):
        schedule.add(A)
    assert drained(schedule) == [A]


def test_a_key_added_during_its_reconcile_runs_again_afterwards(schedule: KeySchedule) -> None:
    schedule.add(A)
    assert schedule.start_next() == A
    schedule.add(A)
    assert schedule.start_next() is None
    schedule.done(A, Outcome())
    assert schedule.start_next() == A


def test_a_more_urgent_lane_goes_first(schedule: KeySchedule) -> None:
    for lane in reversed(Lane):
        schedule.add((lane.name,), lane)
    assert drained(schedule) == [(lane.name,) for lane in Lane]


@pytest.mark.parametrize("lane", Lane)
def test_no_lane_starves_under_the_others(schedule: KeySchedule, lane: Lane) -> None:
    for other in Lane:
        for number in range(sum(SHARES.values())):
            schedule.add((other.name, str(number)), other)
    begun = [schedule.start_next() for _ in range(sum(SHARES.values()))]
    assert sum(key is not None and key[0] == lane.name for key in begun) == SHARES[lane]


def test_a_lane_gains_nothing_while_no_key_waits_in_it(schedule: KeySchedule) -> None:
    for number in range(100):
        schedule.add(("change", str(number)), Lane.CHANGE)
        assert schedule.start_next() is not None
    for number in range(10):
        schedule.add(("routine", str(number)), Lane.ROUTINE)
        schedule.add(("change", "again", str(number)), Lane.CHANGE)
    begun = [schedule.start_next() for _ in range(10)]
    assert sum(key is not None and key[0] == "routine" for key in begun) == 2


def test_a_waiting_key_moves_to_a_more_urgent_lane(schedule: KeySchedule) -> None:
    for key in (A, B, C):
        schedule.add(key, Lane.ROUTINE)
    schedule.add(C, Lane.CHANGE)
    assert drained(schedule) == [C, A, B]


def test_a_waiting_key_never_moves_to_a_less_urgent_lane(schedule: KeySchedule) -> None:
    schedule.add(A, Lane.CHANGE)
    schedule.add(B, Lane.DEPENDENCY)
    schedule.add(A, Lane.ROUTINE)
    assert drained(schedule) == [A, B]


def test_a_key_added_during_its_reconcile_waits_in_the_most_urgent_lane_of_these(schedule: KeySchedule) -> None:
    schedule.add(A)
    schedule.start_next()
    schedule.add(A, Lane.ROUTINE)
    schedule.add(A, Lane.NEWS)
    schedule.add(A, Lane.DEPENDENCY)
    schedule.add(B, Lane.CHANGE)
    schedule.done(A, Outcome())
    assert drained(schedule) == [A, B]


def test_a_key_that_continues_soon_precedes_new_work(schedule: KeySchedule, clock: FakeClock) -> None:
    schedule.add(A)
    schedule.start_next()
    schedule.done(A, Outcome(after=0.5, lane=Lane.NEWS))
    schedule.add(B)
    clock.advance(0.5)
    schedule.release()
    assert drained(schedule) == [A, B]


@pytest.mark.parametrize("outcome", [Outcome(after=5), Outcome(failed=True)], ids=["resync", "retry"])
def test_a_shared_key_never_waits_behind_others(clock: FakeClock, outcome: Outcome) -> None:
    schedule = KeySchedule(clock, lambda: 1.0, shared=frozenset({"group"}))
    schedule.add(("group", "default"), Lane.ROUTINE)
    schedule.start_next()
    schedule.done(("group", "default"), outcome)
    schedule.add(A, Lane.CHANGE)
    clock.advance(5)
    schedule.release()
    assert drained(schedule) == [("group", "default"), A]


def test_a_key_runs_again_at_its_time(schedule: KeySchedule, clock: FakeClock) -> None:
    schedule.add(A)
    schedule.start_next()
    schedule.done(A, Outcome(after=10))
    clock.advance(9.9)
    schedule.release()
    assert schedule.start_next() is None
    clock.advance(0.1)
    schedule.release()
    assert schedule.start_next() == A


def test_the_earlier_of_two_times_counts(schedule: KeySchedule, clock: FakeClock) -> None:
    schedule.add_after(A, 10)
    schedule.add_after(A, 5)
    schedule.add_after(A, 20)
    clock.advance(5)
    schedule.release()
    assert drained(schedule) == [A]
    clock.advance(100)
    schedule.release()
    assert schedule.start_next() is None


def test_a_reconcile_replaces_the_time_of_its_key(schedule: KeySchedule, clock: FakeClock) -> None:
    schedule.add_after(A, 10)
    schedule.add(A)
    schedule.start_next()
    schedule.done(A, Outcome(after=60))
    clock.advance(10)
    schedule.release()
    assert schedule.start_next() is None
    assert schedule.next_due == pytest.approx(clock.monotonic() + 50)


def test_failures_back_off_up_to_a_limit_and_success_forgets_them(schedule: KeySchedule, clock: FakeClock) -> None:
    waits = []
    for _ in range(12):
        schedule.add(A)
        schedule.start_next()
        schedule.done(A, Outcome(failed=True))
        due = schedule.next_due
        assert due is not None
        waits.append(due - clock.monotonic())
    assert waits[:4] == pytest.approx([1, 2, 4, 8])
    assert waits[-1] == LONGEST_DELAY
    schedule.add(A)
    schedule.start_next()
    schedule.done(A, Outcome())
    schedule.add(A)
    schedule.start_next()
    schedule.done(A, Outcome(failed=True))
    assert schedule.next_due == pytest.approx(clock.monotonic() + 1)


def test_a_failure_may_ask_for_a_lower_limit(schedule: KeySchedule, clock: FakeClock) -> None:
    for _ in range(12):
        schedule.add(A)
        schedule.start_next()
        schedule.done(A, Outcome(failed=True, longest=15))
    assert schedule.next_due == pytest.approx(clock.monotonic() + 15)


def test_a_shared_key_is_retried_soon_after_many_failures(clock: FakeClock) -> None:
    schedule = KeySchedule(clock, lambda: 1.0, shared=frozenset({"group"}))
    key = ("group", "default")
    for _ in range(12):
        schedule.add(key)
        schedule.start_next()
        schedule.done(key, Outcome(failed=True))
        due = schedule.next_due
        assert due is not None
        assert due - clock.monotonic() <= LONGEST_SHARED_DELAY


def test_half_of_a_delay_is_random(clock: FakeClock) -> None:
    assert KeySchedule(clock, lambda: 0.0).delay(3) == 2.0
    assert KeySchedule(clock, lambda: 1.0).delay(3) == 4.0


def test_the_queue_reports_the_age_of_the_oldest_key(schedule: KeySchedule, clock: FakeClock) -> None:
    assert schedule.oldest is None
    schedule.add(A, Lane.ROUTINE)
    since = clock.monotonic()
    clock.advance(3)
    schedule.add(B)
    assert schedule.oldest == since


class Meter:
    def __init__(self) -> None:
        self.verdicts: list[tuple[Key, ReconcileVerdict]] = []

    def depth(self, waiting: int) -> None:
        assert waiting >= 0

    def reconciled(self, key: Key, seconds: float, verdict: ReconcileVerdict) -> None:
        self.verdicts.append((key, verdict))


async def test_workers_run_different_keys_concurrently_up_to_the_limit() -> None:
    queue = WorkQueue(SystemClock(), lambda: 0.0)
    running, most = 0, 0
    both = asyncio.Event()

    async def reconcile(key: Key) -> Outcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            both.set()
        await both.wait()
        running -= 1
        if key == C:
            queue.stop()
        return Outcome()

    for key in (A, B, C):
        queue.add(key)
    await asyncio.wait_for(queue.run(reconcile, workers=2), 10)
    assert most == 2


async def test_an_exception_is_a_failure_of_that_key_alone() -> None:
    meter = Meter()
    queue = WorkQueue(SystemClock(), lambda: 0.0, meter)

    async def reconcile(key: Key) -> Outcome:
        if key == A:
            raise RuntimeError("broken")
        if key == C:
            queue.stop()
        return Outcome(failed=key == B)

    for key in (A, B, C):
        queue.add(key)
    await asyncio.wait_for(queue.run(reconcile, workers=1), 10)
    assert meter.verdicts == [(A, "error"), (B, "retry"), (C, "ok")]


@pytest.mark.parametrize("error", [CommitConflictError("the object changed"), UnavailableError("no answer")])
async def test_a_known_failure_is_retried_and_is_no_error_of_the_operator(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    meter = Meter()
    queue = WorkQueue(SystemClock(), lambda: 0.0, meter)

    async def reconcile(key: Key) -> Outcome:
        queue.stop()
        raise error

    queue.add(A)
    await asyncio.wait_for(queue.run(reconcile, workers=1), 10)
    assert meter.verdicts == [(A, "retry")]
    (record,) = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert str(error) in record.getMessage()


async def test_a_reconcile_that_hangs_times_out() -> None:
    meter = Meter()
    queue = WorkQueue(SystemClock(), lambda: 0.0, meter)

    async def reconcile(key: Key) -> Outcome:
        if key == A:
            await asyncio.Event().wait()
        queue.stop()
        return Outcome()

    queue.add(A)
    queue.add(B)
    await asyncio.wait_for(queue.run(reconcile, workers=1, deadline=0.01), 10)
    assert meter.verdicts == [(A, "error"), (B, "ok")]


async def test_a_stopping_queue_finishes_running_keys_and_starts_no_other() -> None:
    queue = WorkQueue(SystemClock(), lambda: 0.0)
    finished: list[Key] = []

    async def reconcile(key: Key) -> Outcome:
        queue.add(B)
        queue.stop()
        await asyncio.sleep(0)
        finished.append(key)
        return Outcome()

    queue.add(A)
    await asyncio.wait_for(queue.run(reconcile, workers=1), 10)
    assert finished == [A]
    assert queue.depth == 1


async def test_a_stopping_queue_cancels_reconciles_after_its_grace() -> None:
    queue = WorkQueue(SystemClock(), lambda: 0.0)
    cancelled = asyncio.Event()

    async def reconcile(key: Key) -> Outcome:
        queue.stop()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return Outcome()

    queue.add(A)
    await asyncio.wait_for(queue.run(reconcile, workers=1, grace=0.01), 10)
    assert cancelled.is_set()


async def test_only_a_queue_with_waiting_keys_can_be_stuck() -> None:
    clock = FakeClock()
    queue = WorkQueue(clock, lambda: 0.0)
    clock.advance(1000)
    assert queue.stuck_seconds == 0.0
    queue.add(A)
    assert queue.stuck_seconds == 0.0
    clock.advance(130)
    assert queue.stuck_seconds == 130.0


async def test_a_key_runs_again_after_its_requested_delay() -> None:
    queue = WorkQueue(SystemClock(), lambda: 0.0)
    times = 0

    async def reconcile(key: Key) -> Outcome:
        nonlocal times
        times += 1
        if times == 3:
            queue.stop()
        return Outcome(after=0.001)

    queue.add(A)
    await asyncio.wait_for(queue.run(reconcile, workers=1), 10)
    assert times == 3
