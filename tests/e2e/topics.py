"""Manifests of IcebergTopics, records, and waiting for conditions and rows."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hack import quickstart
from hack.quickstart import Manifest, await_until, conditions, get
from tests.e2e.commands import firn

VALUES = Path(__file__).with_name("values.yaml")
Produce = Callable[..., None]
LONG = "FIRN_LONG" in os.environ
"""True in `make test-long`: stories repeat their faults and have more topics."""


def topic_manifest(name: str, namespace: str, **spec: Any) -> Manifest:
    """Return an IcebergTopic of three plain columns, with names unique to the namespace. ``spec`` overrides fields."""
    base: dict[str, Any] = {
        "topicName": f"{namespace}.{name}",
        "partitions": 2,
        "schema": {
            "format": "Json",
            "fields": [
                {"name": "id", "type": "long", "required": True},
                {"name": "note", "type": "string"},
                {"name": "at", "type": "timestamptz"},
            ],
        },
        "ingestion": {"freshness": "5s"},
    }
    return {
        "apiVersion": "firn.dev/v1alpha1",
        "kind": "IcebergTopic",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**base, **spec},
    }


def await_condition(
    name: str, namespace: str, type_: str, status: str, reason: str | None = None, timeout: float = 120
) -> Manifest:
    """Return the topic after its condition has this status for the current generation. Fails with all its
    conditions."""

    def matching_topic() -> Manifest | None:
        topic = get("icebergtopic", name, namespace)
        condition = conditions(topic).get(type_)
        if (
            topic is None
            or condition is None
            or condition["status"] != status
            or reason not in (None, condition["reason"])
        ):
            return None
        return topic if condition["observedGeneration"] == topic["metadata"]["generation"] else None

    try:
        return await_until(f"{namespace}/{name}: {type_}={status}/{reason}", matching_topic, timeout)
    except TimeoutError as error:
        seen = {
            kind: (item["status"], item["reason"], item["message"])
            for kind, item in conditions(get("icebergtopic", name, namespace)).items()
        }
        raise AssertionError(f"{error}; conditions: {json.dumps(seen, indent=1)}") from None


def await_ready(name: str, namespace: str, timeout: float = 240) -> Manifest:
    """Return the topic after it is Ready."""
    return await_condition(name, namespace, "Ready", "True", timeout=timeout)


def numbered(start: int, count: int) -> list[dict[str, Any]]:
    """Return valid records with ids from ``start``."""
    return [
        {"key": str(number), "value": json.dumps({"id": number, "note": f"n{number}"})}
        for number in range(start, start + count)
    ]


def rows(sql: str) -> list[dict[str, Any]]:
    """Return the rows of a query by ``firn sql``."""
    return list(json.loads(firn("sql", "--output", "json", sql)))


def landing(table: str) -> bool:
    """Return True while the driver still lands records into the table or its dead letters, or does not answer.

    This question costs less than a query."""
    for topic in json.loads(quickstart.read("/apis/firn.dev/v1alpha1/icebergtopics")[1])["items"]:
        status = topic.get("status") or {}
        if (status.get("table") or {}).get("identifier") == table.removesuffix("__dlq"):
            group = (status.get("ingestion") or {}).get("group") or "default"
            progress = quickstart.topic_progress(topic["metadata"]["uid"], group)
            return progress is None or progress["state"] in ("Starting", "Running")
    return False


def await_rows(table: str, count: int, timeout: float = 120) -> None:
    """Wait until the table has exactly ``count`` rows. Fail at once if it has more."""

    def has_rows() -> bool:
        if landing(table):
            return False
        actual = rows(f"select count(*) as n from {table}")[0]["n"]
        assert actual <= count, f"{table} has {actual} rows, more than the {count} produced"
        return bool(actual == count)

    await_until(f"{table} has {count} rows", has_rows, timeout, every=1)
