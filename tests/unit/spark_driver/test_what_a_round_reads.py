"""A round belongs to the topic that its positions were made from, whatever the brokers say by the time it ends."""

from typing import Any

import pytest

from firn.model.errors import NotReadyError
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.kafka.admin import TopicInfo
from tests.unit.spark_driver.topic import topic

READ = TopicInfo("id-1", (0, 1))


def preparation() -> Preparation:
    nothing: Any = None
    return Preparation(nothing, nothing, nothing, nothing)


def test_a_topic_that_was_recreated_before_its_round_is_prepared_anew() -> None:
    found = topic(live=TopicInfo("id-2", (0, 1)), reading=READ, claimed=True, prepared=True)
    with pytest.raises(NotReadyError, match="reloading its offsets"):
        preparation().begin(found)


def test_the_topic_that_a_round_read_is_the_one_it_commits_for() -> None:
    found = topic(live=READ, reading=READ, claimed=True, prepared=True)
    preparation().begin(found)
    found.log.live = TopicInfo("id-2", (0, 1))
    assert found.topic_id == "id-1"
