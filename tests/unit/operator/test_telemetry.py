"""Metrics show the board at the time of the scrape, and stalls of the event loop."""

import asyncio
import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import aiohttp
import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from firn.model.conditions import Reason
from firn_controllers.board import Board
from firn_controllers.cache.topics import topic_entry
from firn_controllers.fleet.health import FleetHealth
from firn_controllers.ingestion_group.health import UNSEEN, GroupHealth
from firn_operator.process import telemetry
from tests import gen


@pytest.mark.parametrize(
    ("health", "available", "rolling", "degraded"),
    [
        (None, 0, 0, 0),
        (FleetHealth(), 1, 0, 0),
        (FleetHealth(rolling=True, degraded="pod firn-broker-a-2 keeps terminating"), 1, 1, 1),
        (FleetHealth(Reason.BROKER_UNREACHABLE, "gone"), 0, 0, 0),
    ],
    ids=["not checked yet", "healthy", "a roll that waits", "down"],
)
def test_a_fleet_has_metrics(health: FleetHealth | None, available: int, rolling: int, degraded: int) -> None:
    board = Board()
    telemetry.watch_fleets(["a"], board)
    if health is not None:
        board.fleets["a"] = health
    lines = generate_latest().decode().splitlines()
    for name, value in (("available", available), ("rolling", rolling), ("degraded", degraded)):
        assert f'firn_fleet_{name}{{profile="a"}} {float(value)}' in lines


def test_run_counters_start_at_zero_before_the_first_failure() -> None:
    def counted() -> list[str]:
        lines = generate_latest().decode().splitlines()
        return [line for line in lines if "firn_maintenance_runs_total{" in line and 'policy="first"' in line]

    meter = telemetry.RunMeter()
    meter.register("CompactionPolicy", "demo", "first")
    assert len(counted()) == 4
    assert all(line.endswith(" 0.0") for line in counted())
    run = {"result": "Failed", "startTime": "2026-03-01T00:00:00Z", "finishTime": "2026-03-01T00:01:00Z"}
    meter.ended("CompactionPolicy", "demo", "first", run)
    meter.register("CompactionPolicy", "demo", "first")
    assert [line for line in counted() if line.endswith(" 1.0")] == [line for line in counted() if "Failed" in line]


def test_a_deleted_policy_leaves_no_series() -> None:
    meter = telemetry.RunMeter()
    run = {
        "result": "Succeeded", "mode": "Enforce", "startTime": "2026-03-01T00:00:00Z", "finishTime": "2026-03-01T00:01:00Z",
        "tables": 1, "bytesRewritten": 1, "rows": {"files": 1, "bytes": 1},
    }  # fmt: skip
    for policy in ("gone", "kept"):
        meter.register("RetentionPolicy", "demo", policy)
        meter.ended("RetentionPolicy", "demo", policy, run)
    meter.forget("RetentionPolicy", "demo", "gone")
    meter.forget("RetentionPolicy", "demo", "never seen")
    text = generate_latest().decode()
    assert 'policy="gone"' not in text
    assert 'policy="kept"' in text


def values(collector: Collector) -> dict[str, list[float]]:
    registry = CollectorRegistry()
    registry.register(collector)
    families = text_string_to_metric_families(telemetry.exposition(registry).decode())
    return {family.name: [sample.value for sample in family.samples] for family in families}


def test_the_age_of_an_audit_counts_from_the_last_run_that_compared_offsets() -> None:
    ended, earlier = ((gen.NOW - timedelta(hours=hours)).isoformat() for hours in (1, 25))
    table = {"table": {"uuid": "u"}, "topicId": "id-1"}
    failed = {"run": "run-1", "time": earlier, "topicId": "id-1", "missing": 2, "doubled": 1, "stray": 0}
    statuses: list[Any] = [
        {**table, "audit": {"time": ended, "lastRun": {"result": "Succeeded", "finishTime": ended}}},
        {**table, "audit": {"time": earlier, "lastRun": {"result": "Failed", "finishTime": ended}, "failed": failed}},
        {**table, "audit": {"time": earlier, "lastRun": {"result": "Succeeded", "finishTime": ended}}},
        {**table, "audit": {"lastScheduleTime": earlier}},
        table,
        {**table, "audit": {"excluded": "column at has type time", "lastScheduleTime": earlier, "failed": failed}},
    ]
    config = gen.config()
    topics = [topic_entry(gen.topic(f"t{n}", gen.with_status(status)), config) for n, status in enumerate(statuses)]
    acknowledged = gen.topic("t", gen.with_status(statuses[1]), gen.annotated("firn.dev/acknowledge-audit", "run-1"))
    paused = gen.topic("p", gen.with_status(statuses[1]), gen.annotated("firn.dev/pause-reconciliation", "true"))
    topics += [topic_entry(manifest, config) for manifest in (acknowledged, paused)]
    assert values(telemetry.AuditMetrics(lambda: topics, lambda: gen.NOW)) == {
        "firn_audit_age_seconds": [3600.0, 90_000.0, 90_000.0, 90_000.0, 90_000.0],
        "firn_audit_wrong_offsets": [0.0, 3.0, 0.0, 0.0, 3.0, 0.0],
    }


def test_the_retention_of_a_log_has_metrics_while_it_deletes_records() -> None:
    configs: list[Any] = [
        {"retention.ms": "604800000"},
        {},
        {"retention.ms": "-1", "retention.bytes": "1000"},
        {"cleanup.policy": "compact"},
        None,
    ]
    known = {f"uid-demo-t{number}": config for number, config in enumerate(configs)}
    topics = [topic_entry(gen.topic(f"t{number}"), gen.config()) for number in range(len(configs))]
    assert values(telemetry.LogMetrics(lambda: topics, known.get)) == {
        "firn_log_retention_seconds": [604_800.0],
        "firn_log_retention_bytes": [1000.0],
    }


def test_suspended_topics_are_not_counted_as_not_ready() -> None:
    tally = telemetry.TopicTally()
    for name, status, reason in (("a", "False", "Suspended"), ("b", "False", "NotReady"), ("c", "True", "AllReady")):
        ready = {"type": "Ready", "status": status, "reason": reason}
        tally.seen({"metadata": {"namespace": "demo", "name": name}, "status": {"conditions": [ready]}})
    tally.seen({"metadata": {"namespace": "demo", "name": "d"}})
    lines = generate_latest().decode().splitlines()
    for label in ("True", "False", "Unknown", "Suspended"):
        assert f'firn_topics{{ready="{label}"}} 1.0' in lines


class Waiting(Collector):
    """Metrics that are complete only after the event loop has run."""

    def __init__(self) -> None:
        self.loop_ran = threading.Event()
        self.begun = threading.Event()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        self.begun.set()
        yield GaugeMetricFamily("test_loop_ran", "", value=self.loop_ran.wait(5))


async def test_the_event_loop_runs_during_a_scrape() -> None:
    metrics, probes = ("127.0.0.1", 0), ("127.0.0.1", 0)
    runners = await telemetry.serve(telemetry.Health(), metrics, probes)
    host, port = runners[0].addresses[0]
    waiting = Waiting()

    async def beside() -> None:
        while not waiting.begun.is_set():
            await asyncio.sleep(0.001)
        waiting.loop_ran.set()

    task = asyncio.create_task(beside())
    # The registry asks once for the names of the metrics.
    waiting.loop_ran.set()
    REGISTRY.register(waiting)
    waiting.loop_ran.clear()
    waiting.begun.clear()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{host}:{port}/metrics") as answer,
        ):
            assert "test_loop_ran 1.0" in await answer.text()
        await task
    finally:
        REGISTRY.unregister(waiting)
        for runner in runners:
            await runner.cleanup()


async def test_a_stall_of_the_event_loop_is_measured() -> None:
    def count() -> float:
        return REGISTRY.get_sample_value("firn_event_loop_stall_seconds_count") or 0.0

    before = count()
    measuring = asyncio.create_task(telemetry.measure_stalls())
    await asyncio.sleep(0)
    threading.Event().wait(2 * telemetry.LEAST_STALL)  # the stall
    while count() == before:
        await asyncio.sleep(0.001)
    measuring.cancel()
    assert REGISTRY.get_sample_value("firn_event_loop_stall_seconds_sum")


def test_each_topic_that_is_not_ready_has_a_metric() -> None:
    def told() -> set[str]:
        lines = generate_latest().decode().splitlines()
        return {line.split('topic="')[1].split('"')[0] for line in lines if 'not_ready{namespace="told"' in line}

    def manifest(name: str, status: str, reason: str = "AllReady") -> dict[str, Any]:
        conditions = [{"type": "Ready", "status": status, "reason": reason}]
        return {"metadata": {"namespace": "told", "name": name}, "status": {"conditions": conditions}}

    tally = telemetry.TopicTally()
    tally.seen(manifest("a", "False"))
    tally.seen(manifest("b", "Unknown"))
    tally.seen(manifest("c", "True"))
    tally.seen(manifest("d", "False", "Suspended"))
    assert told() == {"a", "b"}
    tally.seen(manifest("a", "True"))
    tally.gone(manifest("b", "Unknown"))
    tally.seen(manifest("c", "False"))
    assert told() == {"c"}


def test_each_topic_with_an_unacknowledged_loss_has_a_metric() -> None:
    def incomplete() -> set[str]:
        lines = generate_latest().decode().splitlines()
        return {line.split('topic="')[1].split('"')[0] for line in lines if 'incomplete{namespace="lost"' in line}

    def manifest(name: str, *status: str) -> dict[str, Any]:
        reasons = {"False": "RecordsLost", "True": "EveryOffset", "audit": "AuditFailed"}
        conditions = [{"type": "Complete", "reason": reasons.get(value, "Unknown")} for value in status]
        return {"metadata": {"namespace": "lost", "name": name}, "status": {"conditions": conditions}}

    tally = telemetry.TopicTally()
    for name, status in (("a", "False"), ("b", "False"), ("c", "True"), ("d", "Unknown"), ("f", "audit")):
        tally.seen(manifest(name, status))
    tally.seen(manifest("e"))
    assert incomplete() == {"a", "b"}
    tally.seen(manifest("a", "True"))
    tally.gone(manifest("b", "False"))
    assert incomplete() == set()


@pytest.mark.parametrize(
    ("health", "available"),
    [
        (None, 1),
        (UNSEEN, 1),
        (GroupHealth(), 1),
        (GroupHealth(Reason.STARTING, "no executor runs", executors=True), 1),
        (GroupHealth(Reason.UNSCHEDULABLE, "no node has enough memory"), 0),
    ],
    ids=["not checked yet", "without topics", "healthy", "without executors", "unschedulable"],
)
def test_a_driver_that_does_not_answer_has_a_metric(health: GroupHealth | None, available: int) -> None:
    board = Board()
    telemetry.watch_groups(["g"], board)
    if health is not None:
        board.groups["g"] = health
    assert f'firn_group_available{{group="g"}} {float(available)}' in generate_latest().decode().splitlines()
