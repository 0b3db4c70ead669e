"""A backfill lands records that were in the log before the driver first prepared the table. A later backlog is none."""

from typing import Any, cast

import pytest

from firn.model.errors import UnavailableError
from firn_spark.ingestion.rounds.planning import plan
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import TopicInfo
from firn_spark.tables.commits import Landed
from tests.unit.spark_driver.losing import Brokers, landed_to
from tests.unit.spark_driver.preparing import preparing
from tests.unit.spark_driver.topic import job


def prepared(
    monkeypatch: pytest.MonkeyPatch,
    end: int,
    landed: Landed | None = None,
    *,
    seen: int | None = None,
    out: bool = False,
) -> Topic:
    """Return a topic after its first preparation, when its log ends at ``end``.

    The driver has ``seen`` an end before. With ``out``, the brokers did not answer its last request.
    """
    made = Topic(job())
    made.log.live = TopicInfo("id-1", (0,))
    if seen is not None:
        made.observe(0.0, {0: seen})
    if out:
        made.log.error = UnavailableError("no answer")
    preparing(monkeypatch, end, landed).prepare(made)
    assert made.prepared, made.attempts.error
    return made


def backfilling(topic: Topic) -> bool:
    return progress_of(topic, 0.0, 0.0).backfilling


def test_records_from_before_the_table_are_a_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    new = prepared(monkeypatch, 1000)
    assert backfilling(new)
    new.reading.position = {0: 999}
    assert backfilling(new)
    new.reading.position = {0: 1000}
    assert not backfilling(new)


def test_records_after_the_first_ends_are_no_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    new = prepared(monkeypatch, 1000, seen=900)
    assert new.reading.older == {0: 900}


def test_ends_from_before_an_outage_are_not_the_first_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    new = prepared(monkeypatch, 1000, seen=900, out=True)
    assert new.reading.older == {0: 1000}


def test_the_first_records_of_a_new_topic_are_no_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    new = prepared(monkeypatch, 0)
    new.observe(1.0, {0: 10**9})
    assert not backfilling(new)


def test_a_backlog_after_an_outage_is_no_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    restarted = prepared(monkeypatch, 10**9, Landed("id-1", 1, {0: 5}))
    assert not backfilling(restarted)
    behind = landed_to(10)
    assert plan([behind], cast(Any, Brokers(0, 10**9)), 2**20)
    assert not backfilling(behind)
