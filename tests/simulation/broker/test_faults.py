"""Whole brokers in a world that fails by a seed.

No acknowledged batch is lost, duplicated or out of order, no offset is used twice, and groups keep their commits.
"""

import os

import pytest

from tests.simulation.broker.story import ACKNOWLEDGED, FAULTS, OPERATIONS, tell

KEPT = (1, 2, 5, 9, 18, 24, 62, 72, 83, 168)
"""Seeds that failed once and always run.

Each bug also has a unit test, because a seed tells another story after every change of the broker.
"""
SEEDS = [*range(1000 if os.environ.get("FIRN_LONG") else 200)]


@pytest.mark.parametrize("seed", [*SEEDS, *(it for it in KEPT if it not in SEEDS)])
def test_acknowledged_records_stay(seed: int) -> None:
    told = tell(seed)
    assert not told.wrong, "\n".join(told.wrong[:20])
    assert told.operations >= OPERATIONS
    assert sum(told.faults.values()) >= FAULTS
    assert sum(it.offset is not None for it in told.history.sent) >= ACKNOWLEDGED


def test_a_seed_always_runs_the_same_way() -> None:
    first, second = tell(3), tell(3)
    assert (first.operations, first.faults) == (second.operations, second.faults)
    assert first.history == second.history
