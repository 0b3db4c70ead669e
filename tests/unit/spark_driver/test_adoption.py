"""A table with the records of another Kafka cluster is continued only where the spec says so."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.model import names
from firn.model.errors import ConflictError, NotReadyError
from firn.model.jobs import Adoption
from firn.model.progress import Offsets
from firn_spark.ingestion.rounds import adoption
from firn_spark.kafka.admin import TopicInfo
from firn_spark.tables.commits import Landed
from tests.unit.spark_driver.topic import job

LANDED = Landed("id-old", 3, {0: 500}, commit_id="last")
LIVE = TopicInfo("id-new", (0, 1))


def first(
    adopt: Adoption | None = None, recorded: str | None = "kafka-old", present: str = "kafka-new"
) -> Offsets | None:
    table = SimpleNamespace(properties=lambda: {names.TABLE_KAFKA_CLUSTER: recorded})
    brokers = SimpleNamespace(
        cluster_id=lambda: present,
        starts=lambda parts: {"orders": {0: 10, 1: 20}},
        ends=lambda parts: {"orders": {0: 1000, 1: 1000}},
    )
    return adoption.first_offsets(job(adopt=adopt), table, LANDED, LIVE, cast(Any, brokers))


def test_a_topic_of_another_cluster_does_not_take_the_table() -> None:
    with pytest.raises(
        ConflictError, match="topic id-old in Kafka cluster kafka-old, and profile classic is Kafka cluster kafka-new"
    ):
        first()


def test_a_topic_does_not_take_a_table_that_names_no_cluster() -> None:
    with pytest.raises(ConflictError, match="topic id-old in an unknown Kafka cluster, and profile classic"):
        first(recorded=None)
    assert first(Adoption(topic_id="id-old"), recorded=None) == {0: 10, 1: 20}


def test_an_adoption_of_another_topic_is_no_approval() -> None:
    with pytest.raises(ConflictError):
        first(Adoption(topic_id="id-older", offsets={0: 400, 1: 400}))


def test_a_topic_whose_cluster_is_unknown_does_not_take_a_table_that_names_one() -> None:
    with pytest.raises(ConflictError, match="does not report its cluster id; grant the driver's user Describe on"):
        first(recorded="kafka-1", present="")
    assert first(Adoption(topic_id="id-old"), recorded="kafka-1", present="") == {0: 10, 1: 20}


@pytest.mark.parametrize(("recorded", "present"), [("kafka-1", "kafka-1"), (None, ""), ("", "")])
def test_a_topic_that_was_recreated_begins_at_its_start(recorded: str | None, present: str) -> None:
    assert first(recorded=recorded, present=present) is None


def test_an_adoption_begins_at_its_offsets_and_other_partitions_at_their_start() -> None:
    assert first(Adoption(topic_id="id-old", offsets={0: 400})) == {0: 400, 1: 20}
    assert first(Adoption(topic_id="id-old", offsets={0: 1000})) == {0: 1000, 1: 20}
    assert first(Adoption(topic_id="id-old")) == {0: 10, 1: 20}


def test_adopted_offsets_that_the_log_has_deleted_are_not_passed_over() -> None:
    assert first(Adoption(topic_id="id-old", offsets={1: 5})) == {0: 10, 1: 5}


def test_an_adoption_waits_until_the_log_reaches_its_offsets() -> None:
    with pytest.raises(
        NotReadyError, match="partition 1 ends at offset 1000, before offset 1001 of spec.ingestion.adopt"
    ):
        first(Adoption(topic_id="id-old", offsets={1: 1001}))
