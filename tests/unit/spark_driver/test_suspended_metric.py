"""The metric that keeps alerts about waiting records silent for a suspended topic."""

import pytest

from firn_spark.ingestion.progress import Metrics
from firn_spark.ingestion.topics.report import progress_of
from tests.unit.spark_driver.topic import job, topic


@pytest.mark.parametrize("suspended", [True, False])
def test_a_topic_says_whether_it_is_suspended(suspended: bool) -> None:
    metrics, mine = Metrics(), topic(suspended=suspended)
    labels = {"namespace": mine.job.namespace, "topic": mine.job.name}

    def value() -> float | None:
        return metrics.registry.get_sample_value("firn_ingest_suspended", labels)

    metrics.reported(mine, progress_of(mine, 0.0, 0.0), 0.0)
    assert value() == float(suspended)
    mine.accept(job(suspended=not suspended))
    metrics.reported(mine, progress_of(mine, 0.0, 0.0), 0.0)
    assert value() == float(not suspended)
    metrics.forget(mine)
    assert value() is None
