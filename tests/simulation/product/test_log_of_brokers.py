"""The final log of simulated brokers lands in the table, under the faults of the product.

The brokers tell their story first, and the product gets the log that they have at the end. Both at once would take
seconds for each seed.
"""

import os
from dataclasses import replace

import pytest

from tests.simulation.broker.story import KEPT_TOPIC, PARTITIONS, run_story
from tests.simulation.product.story import CHAOS_SECONDS, Step, Story, story_of
from tests.simulation.product.test_product import check

LOG_FAULTS = ("produce", "cut_back", "recreate_topic", "retention", "grow")
"""Steps that would change the log of the brokers."""
BEGIN_SECONDS = 5.0
SEEDS = range(1, 41 if os.environ.get("FIRN_LONG") else 3)


def story_on_log_of_brokers(seed: int) -> Story:
    """Return the story of a seed whose records are those that the brokers have after theirs."""
    logs = run_story(seed).history.logs
    story = story_of(seed)
    steps = [step for step in story.steps if step.action not in LOG_FAULTS]
    for partition in range(PARTITIONS[KEPT_TOPIC]):
        batches = logs[KEPT_TOPIC, partition][1]
        pause = (CHAOS_SECONDS - 2 * BEGIN_SECONDS) / len(batches)
        steps += [
            Step(round(BEGIN_SECONDS + number * pause, 2), "written", (partition, batch.offset, batch.records))
            for number, batch in enumerate(batches)
        ]
    options = replace(story.options, partitions=PARTITIONS[KEPT_TOPIC])
    return Story(options, tuple(sorted(steps, key=lambda step: step.at)))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_log_of_brokers_lands(seed: int) -> None:
    story = story_on_log_of_brokers(seed)
    records = sum(step.values[2] for step in story.steps if step.action == "written")
    assert records > 30
    assert check(story).landed >= records
