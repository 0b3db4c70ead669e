"""The driver publishes in time, keeps its verdicts in the report, and counts failures by check."""

import math
import time
from typing import Any
from unittest.mock import Mock

import pytest

from firn.model.errors import InvalidSpecError, UnavailableError
from firn.model.jobs import Publish, PublishCheck
from firn.model.progress import CheckResult, PublishProgress
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.progress import Metrics
from firn_spark.ingestion.publishing.checks import Checks
from firn_spark.ingestion.rounds.rounds import Rounds
from firn_spark.ingestion.topics.report import ReportLines, progress_of
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.tables.branches.statistics import Figures, of_files
from tests.unit.spark_driver.topic import topic

PUBLISH = Publish(branch="staging", every_ms=60_000, checks=(PublishCheck(name="nulls", check="count(id) > 0"),))
SCHEMA = (
    '{"type": "struct", "schema-id": 0, "fields": [{"id": 7, "name": "id", "required": false, "type": "long"},'
    ' {"id": 8, "name": "any", "required": false, "type": "variant"}, {"id": 9, "name": "place", "required": false,'
    ' "type": {"type": "struct", "fields": [{"id": 10, "name": "depth", "required": false, "type": "double"}]}},'
    ' {"id": 11, "name": "at", "required": false, "type": "timestamptz"}]}'
)


def publishing(state: str, **more: object) -> PublishProgress:
    return PublishProgress.model_validate({"branch": "staging", "state": state, **more})


def published(**state: Any) -> Topic:
    made = topic(**state)
    made.job = made.job.model_copy(update={"publish": PUBLISH})
    return made


def test_a_topic_looks_at_once_and_after_its_interval() -> None:
    made = published()
    assert made.publish_due(0.0)
    made.publishing.next_at = math.inf
    assert not made.publish_due(1e9)
    made.publishing.landed(5, 60_000, now=100.0)
    assert not made.publish_due(159.0)
    made.publishing.landed(5, 60_000, now=150.0)
    assert made.publish_due(160.0)


def test_publishing_that_always_fails_leaves_time_for_rounds() -> None:
    made, failing, nothing = published(), Mock(), Mock()
    failing.publish.side_effect = UnavailableError("the object store does not answer")
    rounds = Rounds(nothing, nothing, nothing, nothing, Failpoints(), nothing, failing)
    pauses = []
    for _ in range(8):
        rounds.publish(made)
        made.was_prepared()
        pauses.append(made.publishing.backoff.next_at - time.monotonic())
    for pause, about in zip(pauses, [1, 2, 4, 8, 16, 32, 60, 60], strict=True):
        assert pause == pytest.approx(about, rel=0.3)
    assert made.prepared
    assert not made.publish_due(time.monotonic())
    failing.publish.side_effect = None
    rounds.publish(made)
    assert made.publish_due(time.monotonic())


@pytest.mark.parametrize("state", ["suspended", "fenced", "removed", "unprepared", "without"])
def test_a_topic_that_does_not_work_publishes_nothing(state: str) -> None:
    made = published(**({state: True} if state in ("suspended", "fenced", "removed") else {}))
    if state == "suspended":
        made.job = made.job.model_copy(update={"suspended": True})
    elif state == "without":
        made.job = made.job.model_copy(update={"publish": None})
    made.prepared = state != "unprepared"
    assert not made.publish_due(1e9)


def test_landed_rows_wait_and_a_hold_stays() -> None:
    made = published()
    made.publishing.report = publishing("Published")
    made.publishing.landed(5, 60_000, 0.0)
    assert made.publishing.report == publishing("Waiting", rows=5)
    made.publishing.report = publishing("Held", rows=5)
    made.publishing.landed(2, 60_000, 0.0)
    assert made.publishing.report == publishing("Held", rows=7)


def test_failures_count_by_check_until_the_checks_change() -> None:
    made, metrics = published(), Metrics()
    labels = {"namespace": "shop", "topic": "orders"}

    def value(name: str, **more: str) -> float | None:
        return metrics.registry.get_sample_value(name, {**labels, **more})

    def report() -> None:
        metrics.reported(made, progress_of(made, 0.0, 100.0), 100.0)

    made.publishing.report = publishing("Held", rows=9, since=30.0, failures={"nulls": 2})
    report()
    assert value("firn_ingest_publish_check_failures_total", check="nulls") == 2
    assert value("firn_ingest_unpublished_rows") == 9
    assert value("firn_ingest_unpublished_seconds") == 70
    assert value("firn_ingest_publish_every_seconds") == 60
    made.accept(made.job.model_copy(update={"publish": None}))
    report()
    assert value("firn_ingest_publish_check_failures_total", check="nulls") is None
    assert value("firn_ingest_unpublished_rows") is None
    assert value("firn_ingest_publish_every_seconds") is None


def test_a_verdict_changes_the_line_of_an_idle_topic() -> None:
    made, lines = published(), ReportLines()
    (before,) = lines.of([made], 0.0, 0.0)
    made.publishing.report = publishing("Held", checks=(CheckResult(name="nulls", passed=False),))
    assert lines.of([made], 0.0, 0.0) != [before]
    assert '"publish"' not in lines.of([topic()], 0.0, 0.0)[0]


def checks(*texts: str) -> Checks:
    return Checks([PublishCheck(name=f"c{n}", check=text) for n, text in enumerate(texts)], SCHEMA)


def test_metrics_of_files_answer_checks() -> None:
    made = checks("count(id) = 5 and null_share(id) < 0.5", "min(id) = -1 and max(id) = 4", "null_share(any) = 1")

    def file(rows: int, nulls: dict[int, int], low: int | None = None, high: int | None = None) -> dict[str, object]:
        def pairs(values: dict[int, object]) -> dict[str, list[object]]:
            return {"keys": list(values), "values": list(values.values())}

        bounds = {
            key: pairs({7: value.to_bytes(8, "little", signed=True).hex().upper()})
            for key, value in (("lower-bounds", low), ("upper-bounds", high))
            if value is not None
        }
        return {"record-count": rows, "null-value-counts": pairs(dict(nulls)), **bounds}

    one = of_files([file(4, {7: 1, 8: 4}, -1, 3)], made.fields)
    both = one.plus(of_files([file(2, {7: 0, 8: 2}, 0, 4), file(1, {7: 1, 8: 1})], made.fields))
    values = made.values(both)
    assert values is not None
    assert [result.passed for result in made.judge(values)] == [True, True, True]
    assert made.judge(values)[0].values == "count(id) = 5, null_share(id) = 0.285714"


def test_checks_may_use_former_names_of_columns() -> None:
    former = {7: ("number", "any"), 9: ("at_place",), 10: ("level",)}
    texts = ("count(number) > 0", "max(at_place.level) < 5", "count(any) >= 0", "min(place.depth) > 0", "count(*) > 0")
    made = Checks([PublishCheck(name=f"c{n}", check=text) for n, text in enumerate(texts)], SCHEMA, former)
    assert sorted(made.fields) == [7, 8, 10]
    assert [each.partition(" AS ")[0] for each in made.sql()] == [
        "count(*)",
        "count(`id`)",
        "count(`place`.`depth`)",
        "min(if(isnan(`place`.`depth`), null, `place`.`depth`))",
        "max(if(isnan(`place`.`depth`), null, `place`.`depth`))",
        "count(`any`)",
    ]
    with pytest.raises(InvalidSpecError, match="number"):
        checks("count(number) > 0")


def test_missing_metrics_are_no_answer() -> None:
    made = checks("max(place.depth) > 1")
    assert made.values(of_files([{"record-count": 1}], made.fields)) is None
    assert made.values(Figures()) == {"max(place.depth)": None}


def test_times_after_the_year_9999_have_a_verdict() -> None:
    (result,) = checks("max(at) < timestamp '2030-01-01 00:00:00Z'").judge({"max(at)": 10**18})
    assert (result.passed, result.values) == (False, "max(at) = 1000000000000000000")


def test_a_check_that_is_null_passes() -> None:
    (result,) = checks("max(id) > 1").judge({"max(id)": None})
    assert (result.passed, result.values) == (True, "max(id) = null")
