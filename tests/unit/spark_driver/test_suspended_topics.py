"""A suspended topic changes nothing, and its report has its lag and the losses of its table."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.model import names
from firn.model.errors import ConflictError
from firn.model.jobs import GroupSettings
from firn.model.progress import Cause, Gap, Losses
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.loop import Loop
from firn_spark.ingestion.rounds import preparation
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import TopicInfo
from firn_spark.tables.commits import Landed
from tests.unit.spark_driver.topic import job

LIVE = TopicInfo("id-1", (0,))
LOST = Losses().plus([Gap(partition=0, start=3, end=5, cause=Cause.DELETED)], "id-1", "3fa9c1d2", 0.0)


def suspended() -> Topic:
    made = Topic(job(suspended=True))
    made.log.live = LIVE
    return made


def preparing(monkeypatch: pytest.MonkeyPatch, table: Any | None, landed: Landed | None = None) -> Preparation:
    """Return the preparation of a driver. Every access but loading the table fails."""
    monkeypatch.setattr(preparation, "read_landed", lambda *_: landed)
    tables = SimpleNamespace(load=lambda *_: table)
    nothing: Any = None
    return Preparation(nothing, cast(Any, tables), nothing, nothing, Failpoints())


def test_a_suspended_topic_reports_its_lag_and_its_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = suspended()
    properties = {names.TABLE_LOST: LOST.model_dump_json()}
    table = SimpleNamespace(uuid=lambda: "uuid", location=lambda: "s3://lake/orders", properties=lambda: properties)
    preparing(monkeypatch, table, Landed("id-1", 1, {0: 5})).prepare(topic)
    topic.observe(time.monotonic(), {0: 9})
    topic.log.checked_at = time.monotonic()
    report = progress_of(topic, time.monotonic(), time.time())
    assert (report.state, report.lag_records, report.table_ready) == ("Suspended", 4, True)
    assert report.losses == LOST
    assert topic.due(1) is None


def test_a_suspended_topic_creates_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = suspended()
    preparing(monkeypatch, None).prepare(topic)
    assert not topic.prepared
    assert topic.attempts.error is None
    assert topic.attempts.next_at > time.monotonic()


def test_an_error_of_the_table_of_a_suspended_topic_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = suspended()

    def load(*_: object) -> None:
        raise ConflictError("the catalog denies it")

    prepared = preparing(monkeypatch, None)
    monkeypatch.setattr(prepared._tables, "load", load)
    prepared.prepare(topic)
    report = progress_of(topic, time.monotonic(), time.time())
    assert (report.state, report.table_message) == ("Suspended", "the catalog denies it")


def test_the_loop_prepares_a_suspended_topic() -> None:
    nothing: Any = None
    asked: list[Topic] = []
    rounds: Any = SimpleNamespace(prepare=asked.append)
    loop = Loop(GroupSettings(group="g"), nothing, lambda _: rounds, nothing, nothing, lambda: None)
    loop._topics["uid"] = topic = suspended()
    loop._decide()
    loop._workers.shutdown(wait=True)
    assert asked == [topic]
