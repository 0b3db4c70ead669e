"""A round belongs to the topic that its positions were made from, whatever the brokers say by the time it ends."""

from typing import Any

import pytest

from firn.model.errors import NotReadyError
from firn_spark.ingestion.rounds.rounds import Rounds
from firn_spark.kafka.sources import TopicInfo
from tests.unit.spark_driver.topic import topic

READ = TopicInfo("id-1", (0, 1))


def rounds() -> Any:
    nothing: Any = None
    return Rounds(nothing, nothing, nothing, nothing, nothing, nothing, tasks=1, round_bytes=lambda: 1, buffer_bytes=1)


def test_a_topic_that_was_recreated_before_its_round_is_prepared_anew() -> None:
    found = topic(live=TopicInfo("id-2", (0, 1)), reading=READ, claimed=True, prepared=True)
    with pytest.raises(NotReadyError, match="read anew"):
        rounds()._begin(found)


def test_the_topic_that_a_round_read_is_the_one_it_commits_for() -> None:
    found = topic(live=READ, reading=READ, claimed=True, prepared=True)
    rounds()._begin(found)
    found.live = TopicInfo("id-2", (0, 1))
    assert found.topic_id == "id-1"
