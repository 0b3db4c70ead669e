"""The driver counts records that fail quality rules, by rule."""

from firn.model.jobs import QualityRule
from firn_spark.ingestion.progress import Metrics
from firn_spark.ingestion.rounds.landing_job import TopicResult
from firn_spark.ingestion.rounds.planning import slices
from firn_spark.ingestion.topics.report import ReportLines, progress_of
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.worker.landing import Kind
from tests.unit.spark_driver.topic import topic

LOW, HIGH = QualityRule(name="low", check="id > 0"), QualityRule(name="high", check="id < 9", on_fail="Count")


def value(metrics: Metrics, rule: str) -> float | None:
    labels = {"namespace": "shop", "topic": "orders", "rule": rule}
    return metrics.registry.get_sample_value("firn_ingest_quality_failures_total", labels)


def report(metrics: Metrics, made: Topic) -> dict[str, int]:
    progress = progress_of(made, 0.0, 0.0)
    metrics.reported(made, progress, 0.0)
    return progress.failed_rules


def test_every_rule_has_a_count_that_survives_other_changes_of_the_contract() -> None:
    made, metrics = topic(quality_rules=(LOW, HIGH)), Metrics()
    assert report(metrics, made) == {"low": 0, "high": 0}
    assert value(metrics, "high") == 0
    made.count_failed({"low": 2})
    made.count_failed({"low": 1, "high": 4})
    assert report(metrics, made) == {"low": 3, "high": 4}
    stricter = LOW.model_copy(update={"check": "id > 1"})
    made.accept(made.job.model_copy(update={"generation": 2, "quality_rules": (stricter, HIGH)}))
    assert report(metrics, made) == {"low": 0, "high": 4}
    assert (value(metrics, "low"), value(metrics, "high")) == (0, 4)
    made.accept(made.job.model_copy(update={"generation": 3, "quality_rules": (HIGH,)}))
    assert report(metrics, made) == {"high": 4}
    assert value(metrics, "low") is None
    metrics.forget(made)
    assert value(metrics, "high") is None


def test_a_count_changes_the_line_of_an_idle_topic() -> None:
    made, lines = topic(quality_rules=(LOW,)), ReportLines()
    (before,) = lines.of([made], 0.0, 0.0)
    assert lines.of([made], 0.0, 0.0) == [before]
    made.count_failed({"low": 1})
    (after,) = lines.of([made], 0.0, 0.0)
    assert '"failed_rules":{"low":1}' in after
    assert '"failed_rules"' not in lines.of([topic()], 0.0, 0.0)[0]


def test_the_counts_of_tasks_add_up() -> None:
    result = TopicResult()
    counts = '"rows":1,"dead":0,"skipped":0,"excluded":0,"unrouted":0,"bytes":1,"filtered":{}'
    stats = '{%s,"code":"","path":"","times":{},"partitions":{},"rules":{"a":%d}}'
    for count in (1, 2):
        result.add(Kind.STATS, stats % (counts, count))
    assert result.rules == {"a": 3}


def test_a_rule_that_halts_keeps_a_partition_in_one_task() -> None:
    halting = topic(quality_rules=(HIGH, LOW.model_copy(update={"on_fail": "Halt"})))
    for made, tasks in ((halting, 1), (topic(quality_rules=(LOW, HIGH)), 2)):
        made.reading.record_bytes = 1000.0
        groups = slices({made: {0: (0, 200_000)}}, 2)
        assert len([part for group in groups for part in group]) == tasks
