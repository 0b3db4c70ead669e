"""The health script for Argo CD, run by Lua 5.1 as Argo CD does."""

from typing import Any

import pytest
import yaml
from lupa import lua51

from firn.model.conditions import ConditionType, Reason
from tests.chart import CHART, ROOT

SCRIPT = (CHART / "argocd" / "health.lua").read_text()


def condition(
    kind: str, status: str, reason: str = "Because", message: str = "", generation: int = 3
) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "observedGeneration": generation}


def topic(*conditions: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "flights", "generation": 3, **metadata},
        "spec": {},
        "status": {"observedGeneration": 3, "conditions": list(conditions)},
    }


def health(obj: dict[str, Any]) -> tuple[str, str]:
    """Return (status, message) of the script."""
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    for module in ("os", "io", "package", "require", "debug", "loadfile", "dofile"):
        lua.globals()[module] = None
    lua.globals()["obj"] = lua.table_from(obj, recursive=True)
    result = lua.execute(SCRIPT)
    return result["status"], result["message"]


READY = condition("Ready", "True", Reason.ALL_READY, "All is well")


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        ({"metadata": {"generation": 1}, "spec": {}}, ("Progressing", "Waiting for the operator")),
        ({"metadata": {"generation": 1}, "spec": {}, "status": {}}, ("Progressing", "Waiting for the operator")),
        (
            topic(condition("Ready", "Unknown", Reason.PENDING, "Waiting", generation=-1)),
            ("Progressing", "Waiting for the operator to look at this generation"),
        ),
        (
            topic(condition("Ready", "True", Reason.ALL_READY, generation=2)),
            ("Progressing", "Waiting for the operator to look at this generation"),
        ),
        (
            topic(condition("Ready", "False", Reason.INVALID_SPEC, "no such column", generation=2)),
            ("Progressing", "Waiting for the operator to look at this generation"),
        ),
        (topic(condition("Ready", "Unknown", Reason.PENDING, "Pending")), ("Progressing", "Pending")),
        (
            topic(condition("Ready", "False", Reason.BROKER_STARTING, "no brokers yet")),
            ("Progressing", "no brokers yet"),
        ),
        (topic(READY), ("Healthy", "All is well")),
        (topic(READY, condition("Fresh", "False", Reason.BEHIND)), ("Healthy", "All is well")),
        (topic(READY, condition("RecordsAccepted", "False", Reason.MOST_REJECTED)), ("Healthy", "All is well")),
        (topic(READY, condition("Complete", "False", Reason.RECORDS_LOST)), ("Healthy", "All is well")),
        (
            topic(
                condition("Ready", "False", Reason.BACKING_OFF),
                condition("Stalled", "True", Reason.FAST_FAILURES, "exit 2"),
            ),
            ("Degraded", "exit 2"),
        ),
        (
            topic(
                condition("Ready", "False", Reason.UNKNOWN_COLUMN, "no column x"),
                condition("Stalled", "True", Reason.INVALID_SPEC, "no column x"),
            ),
            ("Degraded", "no column x"),
        ),
        (
            topic(
                condition("Ready", "False", Reason.BAD_RECORD_HALT),
                condition("IngestionReady", "False", Reason.BAD_RECORD_HALT, "partition 2, offset 900"),
            ),
            ("Degraded", "partition 2, offset 900"),
        ),
        (topic(condition("Ready", "False", Reason.SUSPENDED, "Suspended by spec")), ("Suspended", "Suspended by spec")),
        (topic(READY, condition("Paused", "True", Reason.PAUSED_BY_ANNOTATION, "Paused")), ("Suspended", "Paused")),
        (
            topic(READY, condition("Paused", "True", Reason.PAUSED_BY_ANNOTATION, "Paused"), generation=4),
            ("Suspended", "Paused"),
        ),
        (topic(READY, condition("Stalled", "False", Reason.INVALID_SPEC)), ("Healthy", "All is well")),
        (topic(READY, deletionTimestamp="2026-01-01T00:00:00Z"), ("Progressing", "Deleting")),
        (
            topic(
                condition("Ready", "False", Reason.DELETING),
                condition("DeletionBlocked", "True", Reason.BROKER_UNREACHABLE, "no broker answers"),
                deletionTimestamp="2026-01-01T00:00:00Z",
            ),
            ("Progressing", "Deletion is blocked: no broker answers"),
        ),
    ],
)
def test_a_condition_maps_to_the_health_of_a_topic(obj: dict[str, Any], expected: tuple[str, str]) -> None:
    assert health(obj) == expected


FAILED = condition("MaintenanceHealthy", "False", Reason.RUN_FAILED, "topic demo/flights: no")


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (topic(READY, condition("MaintenanceHealthy", "True", Reason.SUCCEEDED)), ("Healthy", "All is well")),
        (topic(READY, FAILED), ("Degraded", "topic demo/flights: no")),
        (
            topic(
                condition("Ready", "False", Reason.INVALID_SPEC, "spec.schedule.cron: no"),
                condition("Stalled", "True", Reason.INVALID_SPEC, "spec.schedule.cron: no"),
            ),
            ("Degraded", "spec.schedule.cron: no"),
        ),
        (topic(condition("Ready", "False", Reason.SUSPENDED, "suspended"), FAILED), ("Suspended", "suspended")),
    ],
)
@pytest.mark.parametrize("kind", ["CompactionPolicy", "RetentionPolicy"])
def test_a_condition_maps_to_the_health_of_a_policy(kind: str, obj: dict[str, Any], expected: tuple[str, str]) -> None:
    assert health({**obj, "kind": kind}) == expected


def test_a_failed_run_does_not_change_the_health_of_its_topic() -> None:
    assert health({**topic(READY, FAILED), "kind": "IcebergTopic"}) == ("Healthy", "All is well")


def test_the_script_names_only_existing_conditions_and_reasons() -> None:
    vocabulary = {*ConditionType, *Reason}
    used = {"DeletionBlocked", "Ready", "Stalled", "IngestionReady"}
    used |= {"BadRecordHalt", "Paused", "Suspended", "MaintenanceHealthy"}
    assert all(f'"{word}"' in SCRIPT for word in used)
    assert used <= vocabulary


def test_the_documented_snippet_contains_the_script() -> None:
    text = (ROOT / "docs/how-to/gitops.md").read_text()
    block = text.split("<!-- argocd-cm -->\n```yaml\n")[1].split("```")[0]
    data = yaml.safe_load(block)["data"]
    for kind in ("IcebergTopic", "CompactionPolicy", "RetentionPolicy", "TopicSet", "TopicUser", "DeadLetterReplay"):
        assert data[f"resource.customizations.health.firn.dev_{kind}"].strip() == SCRIPT.strip()
