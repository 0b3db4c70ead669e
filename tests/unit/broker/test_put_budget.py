"""The budget of uploads that begin before the interval of an object ends."""

import math

import pytest

from firn_broker.storage.put_budget import PutBudget


def test_the_tokens_of_one_second_are_there_at_the_start() -> None:
    budget = PutBudget(5)
    for _ in range(5):
        assert budget.wait(10.0) == 0
        budget.take(10.0)
    assert budget.wait(10.0) == pytest.approx(0.2)


def test_a_token_comes_back_after_its_share_of_a_second() -> None:
    budget = PutBudget(4)
    for _ in range(4):
        budget.take(0.0)
    assert budget.wait(0.125) == pytest.approx(0.125)
    assert budget.wait(0.25) == 0


def test_a_long_pause_saves_no_more_than_one_second() -> None:
    budget = PutBudget(3)
    budget.take(0.0)
    for _ in range(3):
        assert budget.wait(1e6) == 0
        budget.take(1e6)
    assert budget.wait(1e6) > 0


def test_uploads_beyond_the_budget_leave_no_debt() -> None:
    budget = PutBudget(2)
    for _ in range(100):
        budget.take(0.0)
    assert budget.wait(0.0) == pytest.approx(0.5)


def test_a_rate_below_one_allows_one_upload_at_a_time() -> None:
    budget = PutBudget(0.5)
    assert budget.wait(0.0) == 0
    budget.take(0.0)
    assert budget.wait(0.0) == pytest.approx(2)


def test_an_unlimited_budget_never_waits_and_a_budget_of_zero_always_does() -> None:
    unlimited, never = PutBudget(math.inf), PutBudget(0)
    for _ in range(1000):
        unlimited.take(0.0)
    assert unlimited.wait(0.0) == 0
    assert never.wait(0.0) == never.wait(1e9) == math.inf


@pytest.mark.parametrize("now", [0.1, 1234.5, 1e7])
def test_there_is_a_token_after_the_announced_wait(now: float) -> None:
    for rate in (3.0, 7.0, 20.0, 97.0):
        budget = PutBudget(rate)
        for _ in range(100):
            while not budget.wait(now):
                budget.take(now)
            now += budget.wait(now)
            assert budget.wait(now) == 0
            budget.take(now)
