"""The report of ``firn status`` on one IcebergTopic, computed from the resource and its Events. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from firn.model.conditions import ConditionType
from firn.model.jobs import SchemaFormat

Manifest = Mapping[str, Any]
EVENTS_SHOWN = 5
BAD_WHEN_TRUE = frozenset(
    {
        ConditionType.LIMIT_REACHED,
        ConditionType.RECONCILING,
        ConditionType.STALLED,
        ConditionType.PAUSED,
        ConditionType.DELETION_BLOCKED,
    }
)
BY_GRAVITY = (
    ConditionType.DELETION_BLOCKED,
    ConditionType.STALLED,
    ConditionType.READY,
    ConditionType.SPEC_VALID,
    ConditionType.TOPICS_LISTED,
    ConditionType.LIMIT_REACHED,
    ConditionType.CREDENTIALS_READY,
    ConditionType.GRANTS_APPLIED,
    ConditionType.QUOTAS_APPLIED,
    ConditionType.TOPIC_READY,
    ConditionType.TABLE_READY,
    ConditionType.SCHEMA_COMPATIBLE,
    ConditionType.INGESTION_READY,
    ConditionType.ROUTES_READY,
    ConditionType.COMPLETE,
    ConditionType.PUBLISHED,
    ConditionType.HISTORY_READABLE,
    ConditionType.SINGLE_COPY,
    ConditionType.RECORDS_ACCEPTED,
    ConditionType.FRESH,
    ConditionType.PAUSED,
    ConditionType.MAINTENANCE_HEALTHY,
    ConditionType.FINISHED,
    ConditionType.POLICIES_RESOLVED,
    ConditionType.RECONCILING,
)
"""Bad conditions, the most important first."""
FIGURES = (
    "dataFiles",
    "dataBytes",
    "smallFiles",
    "dueFiles",
    "deleteFiles",
    "manifests",
    "snapshots",
    "metadataBytes",
    "oldestUncompactedTime",
)
_NOT_READ = (
    "the operator has not read the resource yet; check that it runs: kubectl get pods -A -l"
    " app.kubernetes.io/name=firn,app.kubernetes.io/component=operator"
)


def report(topic: Manifest, events: Sequence[Manifest] | None, now: datetime) -> dict[str, Any]:
    """Return the whole report as a JSON document. ``events`` None: the person may not read them."""
    metadata, spec, status = topic["metadata"], topic.get("spec") or {}, topic.get("status") or {}
    listed = conditions(status, now)
    ingestion = status.get("ingestion") or {}
    settings = spec.get("ingestion") or {}
    table = status.get("table") or {}
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "ready": ready(topic),
        "generation": metadata.get("generation"),
        "observedGeneration": status.get("observedGeneration"),
        "deleting": "deletionTimestamp" in metadata,
        "nextStep": next_step(topic, listed),
        "conditions": listed,
        "topic": _topic(status),
        "table": {key: value for key, value in table.items() if key != "deadLetters"},
        "schema": schema(spec, status.get("topicName") or metadata["name"]),
        "ingestion": {
            **{key: value for key, value in ingestion.items() if key != "deadLetters"},
            "freshness": settings.get("freshness", "60s"),
            "suspended": bool(spec.get("suspend")),
            "lastCommitAgeSeconds": age(ingestion.get("lastCommitTime"), now),
            "lagAgeSeconds": age((ingestion.get("lag") or {}).get("time"), now),
        },
        "deadLetters": {
            "records": ingestion.get("deadLetters"),
            "table": table.get("deadLetters"),
            "onBadRecord": settings.get("onBadRecord", "DeadLetter"),
        },
        "tables": status.get("tables") or [],
        "quality": _quality(spec, status),
        "publish": status.get("publish") or {},
        "losses": status.get("losses") or [],
        "maintenance": status.get("maintenance") or {},
        "audit": status.get("audit") or {},
        "events": None if events is None else recent(events, now),
    }


def set_report(
    topic_set: Manifest, made: Iterable[Manifest], events: Sequence[Manifest] | None, now: datetime
) -> dict[str, Any]:
    """Return the report on a TopicSet. ``made`` are its IcebergTopics."""
    metadata, status = topic_set["metadata"], topic_set.get("status") or {}
    listed = conditions(status, now)
    counts = ("matched", "made", "kept", "topicsRefused", "clusterId")
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "ready": ready(topic_set),
        "generation": metadata.get("generation"),
        "observedGeneration": status.get("observedGeneration"),
        "deleting": "deletionTimestamp" in metadata,
        "nextStep": next_step(topic_set, listed),
        "conditions": listed,
        "spec": {key: topic_set["spec"].get(key) for key in ("profile", "match", "exclude", "removal")},
        **{key: status.get(key) for key in counts},
        "refused": status.get("refused") or [],
        "notReady": sorted(each["metadata"]["name"] for each in made if ready(each) != "True"),
        "events": None if events is None else recent(events, now),
    }


def ready(topic: Manifest) -> str:
    """Return the status of the condition Ready; Unknown without one, and if it is about an older generation of the spec."""
    status = topic.get("status") or {}
    found = next((each for each in status.get("conditions") or [] if each["type"] == ConditionType.READY), None)
    if found is None or status.get("observedGeneration", -1) < topic["metadata"].get("generation", 0):
        return "Unknown"
    return str(found["status"])


def conditions(status: Manifest, now: datetime) -> list[dict[str, Any]]:
    """Return the conditions with their age: the bad ones by gravity, then the unknown ones, then the good ones."""
    gravity = {str(kind): number for number, kind in enumerate(BY_GRAVITY)}
    found = [
        {
            "type": each["type"],
            "status": each["status"],
            "reason": each.get("reason", ""),
            "message": each.get("message", ""),
            "ageSeconds": age(each.get("lastTransitionTime"), now),
            "bad": is_bad(each),
        }
        for each in status.get("conditions") or []
    ]
    ranks = [(not each["bad"], each["status"] != "Unknown", gravity.get(each["type"], len(gravity))) for each in found]
    return [each for _, each in sorted(zip(ranks, found, strict=True), key=lambda pair: pair[0])]


def is_bad(condition: Manifest) -> bool:
    """Return whether a condition needs attention. Unknown is not bad."""
    return bool(condition["status"] == ("True" if condition["type"] in BAD_WHEN_TRUE else "False"))


def next_step(topic: Manifest, listed: Sequence[Manifest]) -> str:
    """Return the message of the most important condition; empty if nothing is to be done."""
    status = topic.get("status") or {}
    observed, generation = status.get("observedGeneration", -1), topic["metadata"].get("generation", 0)
    if observed < 0 and "deletionTimestamp" not in topic["metadata"]:
        return _NOT_READ
    bad = [each for each in listed if each["bad"]]
    if bad and (bad[0]["type"] != ConditionType.RECONCILING or observed >= generation):
        return str(bad[0]["message"])
    if observed < generation:
        return f"the operator has not followed generation {generation} of the spec yet; this status is about generation {observed}"
    waiting = next(
        (each for each in listed if each["type"] == ConditionType.READY and each["status"] == "Unknown"), None
    )
    return str(waiting["message"]) if waiting is not None else ""


def schema(spec: Manifest, topic: str) -> dict[str, Any]:
    """Return format and source of the record schema."""
    given = spec.get("schema") or {}
    if given.get("format") is None:
        return {"format": str(SchemaFormat.RAW), "as": given.get("raw") or "Binary"}
    section: dict[str, Any] = {"format": given["format"]}
    if "fields" in given:
        section["fields"] = len(given["fields"])
    registry = given.get("registry")
    if registry is not None:
        section["registry"] = registry["name"]
        section["subject"] = registry.get("subject") or f"{topic}-value"
    return section


def recent(events: Iterable[Manifest], now: datetime) -> list[dict[str, Any]]:
    """Return the newest Events: warnings first, each kind with the newest first."""
    found = [
        {
            "type": each.get("type", "Normal"),
            "reason": each.get("reason", ""),
            "message": each.get("message", ""),
            "ageSeconds": age(each.get("lastTimestamp") or each.get("eventTime") or each.get("firstTimestamp"), now),
        }
        for each in events
    ]
    newest = sorted(found, key=lambda each: each["ageSeconds"] if each["ageSeconds"] is not None else float("inf"))
    return sorted(newest[:EVENTS_SHOWN], key=lambda each: each["type"] != "Warning")


def age(moment: str | None, now: datetime) -> int | None:
    """Return the seconds since a time of Kubernetes; None without a time, and for times before 1971, which mean none."""
    if not moment:
        return None
    then = datetime.fromisoformat(moment)
    if then.year <= 1970:
        return None
    return max(0, int((now - then.astimezone(UTC)).total_seconds()))


def _quality(spec: Manifest, status: Manifest) -> list[dict[str, Any]]:
    """Return the quality rules of the spec, with the number of records that failed each."""
    failed = {each["rule"]: each["failed"] for each in status.get("quality") or []}
    return [
        {
            "rule": rule["name"],
            "check": rule["check"],
            "onFail": rule.get("onFail", "DeadLetter"),
            "failed": failed.get(rule["name"]),
        }
        for rule in (spec.get("quality") or {}).get("rules") or []
    ]


def _topic(status: Manifest) -> dict[str, Any]:
    keys = {"topicName": "name", "profile": "profile", "topicId": "id", "partitions": "partitions"}
    section = {name: status[key] for key, name in keys.items() if key in status}
    return section | ({"bootstrapServers": status["bootstrapServers"]} if "bootstrapServers" in status else {})
