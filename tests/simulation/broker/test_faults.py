"""Whole brokers in a world that fails by a seed: nothing acknowledged is lost, doubled or out of order, no offset is used twice, and groups
keep what they committed."""

import os

import pytest

from tests.simulation.broker.story import ACKNOWLEDGED, FAULTS, OPERATIONS, tell

KEPT = (1, 2, 5, 9, 18, 24, 62, 72, 83, 168)
"""Seeds that once failed, and always run. What each found has a unit test of its own, as a story is another when brokers work otherwise."""
SEEDS = [*range(1000 if os.environ.get("FIRN_LONG") else 200)]


@pytest.mark.parametrize("seed", [*SEEDS, *(it for it in KEPT if it not in SEEDS)])
def test_what_is_acknowledged_stays(seed: int) -> None:
    told = tell(seed)
    assert not told.wrong, "\n".join(told.wrong[:20])
    assert told.operations >= OPERATIONS
    assert sum(told.faults.values()) >= FAULTS
    assert sum(it.offset is not None for it in told.history.sent) >= ACKNOWLEDGED


def test_a_seed_always_runs_the_same_way() -> None:
    one, other = tell(3), tell(3)
    assert (one.operations, one.faults) == (other.operations, other.faults)
    assert one.history == other.history
