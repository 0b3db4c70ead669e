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


def topic(name: str = "orders", lag: int = 0, **state: Any) -> Topic:
    changes = {key: state.pop(key) for key in ("freshness_ms", "on_bad_record", "resume", "suspended") if key in state}
    found = Topic(job(name, **changes))
    found.prepared, found.position, found.ends = True, {0: 0}, {0: lag}
    found.live = found.reading = TopicInfo("id-1", (0,))
    if "waiting_since" in state:
        found.seen_since = state.pop("waiting_since")
        found.seen = ((found.seen_since, {0: 0}),)
    for key, value in state.items():
        setattr(found, key, value)
    return found
