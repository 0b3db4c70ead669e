"""A new topic whose brokers refuse to describe it has its table, and reports the newest error of the brokers."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.model.errors import AccessDeniedError, FirnError, UnavailableError
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds import preparation
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import TopicInfo
from firn_spark.tables import dead_letters
from tests.unit.spark_driver.topic import job


@pytest.fixture
def preparing(monkeypatch: pytest.MonkeyPatch) -> Preparation:
    monkeypatch.setattr(preparation, "read_landed", lambda _: None)
    monkeypatch.setattr(dead_letters, "load", lambda *_: None)
    metadata = SimpleNamespace(currentSchemaId=lambda: 1, defaultSpecId=lambda: 1, defaultSortOrderId=lambda: 1)
    table = SimpleNamespace(
        uuid=lambda: "uuid", location=lambda: "s3://lake", properties=lambda: {},
        operations=lambda: SimpleNamespace(current=lambda: metadata),
    )  # fmt: skip
    tables = SimpleNamespace(ensure=lambda _: table, spec=lambda _: None)
    kafka = SimpleNamespace(ends=lambda topics: {"orders": {0: 0}})
    nothing: Any = None
    return Preparation(nothing, cast(Any, tables), cast(Any, lambda _: kafka), nothing, Failpoints())


@pytest.mark.parametrize("error", [UnavailableError("no answer"), AccessDeniedError("no right")])
def test_the_table_is_ready_without_brokers(preparing: Preparation, error: FirnError) -> None:
    new = Topic(job())
    new.log.error = error
    preparing.prepare(new)
    assert new.table.uuid == "uuid"
    assert not new.prepared
    assert (new.attempts.failures, new.attempts.total) == (0, 0)


def test_a_later_error_of_the_brokers_replaces_an_earlier_one(preparing: Preparation) -> None:
    new = Topic(job())
    new.log.error = UnavailableError("no answer")
    preparing.prepare(new)
    new.log.error = AccessDeniedError("no right to describe the topic")
    assert "no right" in progress_of(new, 0.0, 0.0).message


def test_the_topic_is_prepared_at_once_when_the_brokers_answer(preparing: Preparation) -> None:
    new = Topic(job())
    new.log.error = UnavailableError("no answer")
    preparing.prepare(new)
    new.log.error, new.log.live = None, TopicInfo("id-1", (0,))
    assert new.attempts.next_at == 0.0
    preparing.prepare(new)
    assert new.prepared
