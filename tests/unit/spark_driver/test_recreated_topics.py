"""A round belongs to the topic of its positions, also if the brokers report another topic at its end."""

from typing import Any

import pytest

from firn.model.errors import NotReadyError
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.kafka.admin import TopicInfo
from tests.unit.spark_driver.topic import topic

READ = TopicInfo("id-1", (0, 1))


def preparation() -> Preparation:
    nothing: Any = None
    return Preparation(nothing, nothing, nothing, nothing, nothing)


def test_a_topic_recreated_before_its_round_is_prepared_again() -> None:
    recreated = topic(live=TopicInfo("id-2", (0, 1)), reading=READ, claimed=True, prepared=True)
    with pytest.raises(NotReadyError, match="reloading its offsets"):
        preparation().begin(recreated)


def test_a_round_commits_for_the_topic_that_it_read() -> None:
    read = topic(live=READ, reading=READ, claimed=True, prepared=True)
    preparation().begin(read)
    read.log.live = TopicInfo("id-2", (0, 1))
    assert read.topic_id == "id-1"
