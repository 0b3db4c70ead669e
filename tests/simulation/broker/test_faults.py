"""Whole brokers in a world that fails by a seed.

No acknowledged batch is lost, duplicated or out of order, no offset is used twice, and groups keep their commits.
"""

import os

import pytest

from tests.simulation.broker.story import ACKNOWLEDGED, FAULTS, OPERATIONS, run_story

KEPT = (1, 2, 5, 9, 18, 24, 62, 72, 83, 150, 168, 223, 268, 387, 592)
"""Seeds that failed once and always run.

Each bug also has a unit test, because a seed tells another story after every change of the broker.
"""
SEEDS = [*range(1000 if os.environ.get("FIRN_LONG") else 24)]


@pytest.mark.parametrize("seed", [*SEEDS, *(seed for seed in KEPT if seed not in SEEDS)])
def test_acknowledged_records_stay(seed: int) -> None:
    outcome = run_story(seed)
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
    if outcome.history.recovered:
        # The story ends when brokers stop.
        return
    assert outcome.operations >= OPERATIONS
    assert sum(outcome.faults.values()) >= FAULTS
    assert sum(record.offset is not None for record in outcome.history.sent) >= ACKNOWLEDGED


def test_a_seed_always_runs_the_same_way() -> None:
    first, second = run_story(3), run_story(3)
    assert (first.operations, first.faults) == (second.operations, second.faults)
    assert first.history == second.history
    assert first.repeated == second.repeated > 0
