"""A new topic whose brokers refuse to describe it has its table, and reports the newest error of the brokers."""

import pytest

from firn.model.errors import AccessDeniedError, FirnError, UnavailableError
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import TopicInfo
from tests.unit.spark_driver.preparing import preparing
from tests.unit.spark_driver.topic import job


@pytest.mark.parametrize("error", [UnavailableError("no answer"), AccessDeniedError("no right")])
def test_the_table_is_ready_without_brokers(monkeypatch: pytest.MonkeyPatch, error: FirnError) -> None:
    new = Topic(job())
    new.log.error = error
    preparing(monkeypatch).prepare(new)
    assert new.table.uuid == "uuid"
    assert not new.prepared
    assert (new.attempts.failures, new.attempts.total) == (0, 0)


def test_a_later_error_of_the_brokers_replaces_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Topic(job())
    new.log.error = UnavailableError("no answer")
    preparing(monkeypatch).prepare(new)
    new.log.error = AccessDeniedError("no right to describe the topic")
    assert "no right" in progress_of(new, 0.0, 0.0).message


def test_the_topic_is_prepared_at_once_when_the_brokers_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Topic(job())
    new.log.error = UnavailableError("no answer")
    preparing(monkeypatch).prepare(new)
    new.log.error, new.log.live = None, TopicInfo("id-1", (0,))
    assert new.attempts.next_at == 0.0
    preparing(monkeypatch).prepare(new)
    assert new.prepared
