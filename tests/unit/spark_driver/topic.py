"""Topics for tests of decisions: no Kafka, no tables."""

from typing import Any

from firn.model.jobs import Column, IngestJob, RecordSchema, TableTarget
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import TopicInfo


def job(name: str = "orders", **changes: Any) -> IngestJob:
    return IngestJob(
        **{
            "uid": f"uid-{name}",
            "namespace": "shop",
            "name": name,
            "generation": 1,
            "group": "default",
            "profile": "classic",
            "topic": name,
            "record_schema": RecordSchema(format="Json", fields=(Column(name="id", type="long"),)),
            "table": TableTarget(catalog="lake", namespace="shop", name=name),
            "freshness_ms": 60_000,
            **changes,
        }
    )


PARTS = {
    "live": "log", "ends": "log", "spark_source": "reading", "record_bytes": "reading", "round_seconds": "reading",
    "failures": "attempts", "table_uuid": "table", "claimed": "letters",
}  # fmt: skip
"""The part of a topic to which a keyword of `topic` belongs. Other keywords belong to the topic itself."""


def topic(name: str = "orders", lag: int = 0, **state: Any) -> Topic:
    of_job = (
        "freshness_ms", "on_bad_record", "quality_rules", "record_schema", "resume", "retention_bytes", "retention_ms", "suspended",
    )  # fmt: skip
    changes = {key: state.pop(key) for key in of_job if key in state}
    made = Topic(job(name, **changes))
    made.prepared, made.reading.position, made.log.ends = True, {0: 0}, {0: lag}
    made.log.live = made.reading.topic = TopicInfo("id-1", (0,))
    if "waiting_since" in state:
        since = made.log.seen_since = state.pop("waiting_since")
        made.log.seen = ((since, {0: 0}),)
    if "reading" in state:
        made.reading.topic = state.pop("reading")
    for key, value in state.items():
        setattr(getattr(made, PARTS[key]) if key in PARTS else made, key.removeprefix("table_"), value)
    return made
