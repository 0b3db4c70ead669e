"""The arithmetic behind `make bench`: ratios, rates, freshness, CPU over time."""

import io
import json
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from firn.api.v1alpha1 import CompactionPolicy, IcebergTopic, RetentionPolicy
from firn_broker.wire import fetch, produce
from firn_broker.wire.produce import ProduceResult
from hack.bench.benchmarks.broker import long_stalls
from hack.bench.benchmarks.files import numbers
from hack.bench.benchmarks.scale import Edits, Reading, policies, reading, topic
from hack.bench.benchmarks.sustained import Seen
from hack.bench.benchmarks.trickle import share_fresh
from hack.bench.contestants import wire_client
from hack.bench.measuring.commits import (
    Commit,
    DataFile,
    backlogged,
    best_rate,
    delays,
    history,
    landed,
    percentile,
    rate,
)
from hack.bench.measuring.figures import Figure, Results, rounded
from hack.bench.measuring.process_tree import Sample, Usage
from hack.bench.peers.race import FIGURES, PEERS, Run, compared


def test_a_ratio_above_one_means_that_firn_is_better() -> None:
    assert Figure("throughput", 600.0, "rows/s", "higher", "peer", 300.0).ratio == 2.0
    assert Figure("cost", 2.5, "CPU s", "lower", "peer", 5.0).ratio == 2.0
    assert Figure("cost", 10.0, "CPU s", "lower", "peer", 5.0).ratio == 0.5


@pytest.mark.parametrize(("value", "peer_value"), [(None, 5.0), (5.0, None), (0.0, 5.0)])
def test_there_is_no_ratio_without_two_values_to_compare(value: float | None, peer_value: float | None) -> None:
    assert Figure("cost", value, "CPU s", "lower", "peer", peer_value).ratio is None


def test_results_are_printed_and_kept_as_lines_with_the_promised_keys(tmp_path: Path) -> None:
    printed = io.StringIO()
    kept = tmp_path / "bench" / "results.jsonl"
    for value in (1234.56, 0.123456):
        Results(kept, printed).add([Figure("a", value, "u", "higher")])
    assert kept.read_text() == printed.getvalue()
    first, second = (json.loads(line) for line in kept.read_text().splitlines())
    assert list(first) == ["name", "value", "unit", "peer", "peer_value", "ratio", "machine"]
    assert (first["value"], second["value"]) == (1235, 0.1235)
    assert first["peer"] is first["peer_value"] is first["ratio"] is None
    assert " x " in first["machine"]
    assert f"Python {platform.python_version()}" in first["machine"]


def test_figures_are_rounded_to_four_digits() -> None:
    assert [rounded(value) for value in (123456.7, 123.456, 0.00012345, None)] == [123457, 123.5, 0.0001234, None]


def commits(*pairs: tuple[float, int]) -> list[Commit]:
    return [Commit(time, rows) for time, rows in pairs]


def test_the_backlogged_part_ends_before_the_last_commit() -> None:
    history = commits((20.0, 1_000_000), (30.0, 5_000_000), (40.0, 9_000_000), (50.0, 10_000_000))
    part = backlogged(history)
    assert part == (history[0], history[2])
    assert rate(*part) == 400_000.0
    assert backlogged(history[:2]) is None


def test_the_best_rate_is_over_stretches_that_are_long_enough() -> None:
    history = commits((0.0, 0), (1.0, 900), (2.0, 1000), (4.0, 1200))
    assert best_rate(history, 0.5) == 900.0
    assert best_rate(history, 2.0) == 500.0
    assert best_rate(history, 5.0) is None


def test_a_record_waits_until_the_first_commit_whose_offsets_reach_past_it() -> None:
    written = [0.0, 1.0, 2.0, 3.0]
    landed = [Commit(5.0, 2, offsets={0: 2}), Commit(6.0, 2, offsets={0: 2}), Commit(9.0, 3, offsets={0: 3})]
    assert delays(written, landed, until=20.0) == [5.0, 4.0, 7.0, 17.0]


def test_cpu_is_interpolated_between_samples_and_never_beyond() -> None:
    usage = Usage([Sample(10.0, 1.0), Sample(20.0, 3.0), Sample(30.0, 3.0)], peak_bytes=0)
    assert [usage.cpu_at(moment) for moment in (0.0, 10.0, 15.0, 25.0, 99.0)] == [1.0, 1.0, 2.0, 3.0, 3.0]
    assert usage.cpu_between(15.0, 30.0) == 1.0


def test_cpu_is_split_by_parts_that_may_appear_later() -> None:
    usage = Usage([Sample(10.0, 1.0, {"root": 1.0}), Sample(20.0, 5.0, {"root": 2.0, "java": 3.0})], peak_bytes=0)
    assert usage.parts == ["java", "root"]
    assert [usage.cpu_between(10.0, 15.0, part) for part in (None, "root", "java")] == [2.0, 0.5, 1.5]


def run(seconds: float, cpu: float) -> Run:
    half = Commit(100.0 + seconds / 2, 500_000)
    return Run(
        started=100.0,
        serving=101.0,
        visible=100.0 + seconds,
        history=[half, Commit(100.0 + seconds, 1_000_000)],
        files=[],
        usage=Usage([Sample(100.0, 0.0), Sample(100.0 + seconds, cpu, foreign=0.3 * seconds)], peak_bytes=10**9),
    )


def test_ingestion_is_compared_by_the_medians_of_all_runs() -> None:
    figures = {
        figure.name: figure
        for figure in compared("ingest", [run(10.0, 4.0), run(20.0, 5.0), run(90.0, 9.0)], {"sink": [run(40.0, 10.0)]})
    }
    assert figures.keys() == {f"ingest_{name}" for name in FIGURES}
    assert figures["ingest_rows_per_second"].value == 50_000.0
    assert figures["ingest_rows_per_second"].ratio == 2.0
    assert figures["ingest_cpu_seconds_per_million_rows"].value == 5.0
    assert figures["ingest_cpu_seconds_per_million_rows"].ratio == 2.0
    # Half of the time after the first commit, so half of the CPU, for half of the rows.
    assert figures["ingest_cpu_seconds_per_million_rows_after_first_commit"].value == pytest.approx(5.0)
    assert figures["ingest_rows_per_cpu_second"].value == 200_000.0
    assert figures["ingest_rows_per_second_backlogged"].value is None
    assert figures["ingest_foreign_cores"].value == 0.3


def test_firn_is_compared_with_each_peer() -> None:
    mine, sink, flink = run(10.0, 4.0), run(40.0, 10.0), run(20.0, 6.0)
    figures = [
        each
        for each in compared("trips", [mine], {"sink": [sink], "flink": [flink]})
        if each.name == "trips_rows_per_second"
    ]
    assert [(each.peer, each.ratio) for each in figures] == [(PEERS["sink"], 4.0), (PEERS["flink"], 2.0)]
    assert [each.ratio for each in compared("trips", [mine], {}) if each.name == "trips_rows_per_second"] == [None]


class Snapshot:
    def __init__(self, milliseconds: int, summary: dict[str, str] | None) -> None:
        self.timestamp_ms, self.summary = milliseconds, summary


class Table:
    """The part of a PyIceberg table that `history` reads."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self.metadata = self
        self.snapshots = snapshots


def test_the_history_has_the_snapshots_that_added_rows() -> None:
    table = Table(
        Snapshot(
            2500, {"added-records": "5", "total-records": "8", "added-data-files": "2", "firn.offsets": '{"0":8}'}
        ),
        Snapshot(1500, {"added-records": "3", "total-records": "3"}),
        Snapshot(3500, {"total-records": "8"}),
        Snapshot(4500, None),
    )
    assert history(table) == [Commit(1.5, 3), Commit(2.5, 8, 2, {0: 8})]


def test_rows_of_a_table_are_those_of_its_current_snapshot() -> None:
    class Current:
        def __init__(self, snapshot: Snapshot | None) -> None:
            self._snapshot = snapshot

        def current_snapshot(self) -> Snapshot | None:
            return self._snapshot

    assert landed(Current(Snapshot(1, {"total-records": "7"}))) == 7
    assert landed(Current(Snapshot(1, None))) == landed(Current(None)) == 0


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]


def test_a_topic_is_fresh_only_if_every_record_was() -> None:
    assert share_fresh({"a": [59.0, 60.0], "b": [1.0, 60.1], "c": [], "d": [2.0]}, bound=60.0) == 0.75


def test_data_files_have_counts_and_sizes() -> None:
    figures = numbers([DataFile(10, 1_000_000), DataFile(10, 3_000_000), DataFile(20, 4_000_000)])
    assert figures == {"count": 3, "median_size": 3.0, "smallest_size": 1.0, "bytes_per_row": 200_000.0}


def test_writes_of_the_operator_are_counted_apart_from_reads() -> None:
    text = """
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 12.5
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 2.0e+08
# TYPE firn_kubernetes_requests_total counter
firn_kubernetes_requests_total{code="200",method="GET"} 50.0
firn_kubernetes_requests_total{code="200",method="PATCH"} 20.0
firn_kubernetes_requests_total{code="409",method="POST"} 3.0
# TYPE firn_event_loop_stall_seconds histogram
firn_event_loop_stall_seconds_bucket{le="0.15"} 1.0
firn_event_loop_stall_seconds_bucket{le="+Inf"} 2.0
firn_event_loop_stall_seconds_sum 0.4
firn_event_loop_stall_seconds_count 2.0
"""
    assert reading(text, 7.0) == Reading(time=7.0, cpu=12.5, resident_bytes=2e8, writes=23.0, stalls=2.0)


def test_stalls_of_a_broker_count_from_100_ms() -> None:
    stall = Histogram("firn_broker_loop_stall_seconds", "", buckets=(0.05, 0.1, 0.25), registry=CollectorRegistry())
    for seconds in (0.01, 0.1, 0.11, 0.2, 7):
        stall.observe(seconds)
    registry = CollectorRegistry()
    registry.register(stall)
    assert long_stalls(generate_latest(registry).decode()) == 3


def test_publishes_are_answered_one_for_one() -> None:
    """The bench's own client reads the error of each answer."""
    body = wire_client.produce("t", 3, b"x" * 10)
    assert produce.read(memoryview(body), 0, 7).topics[0][1][0].records == memoryview(b"x" * 10)
    answer = produce.write(7, [("t", [ProduceResult(3, ErrorCode.message_too_large)])])
    assert wire_client.produce_error(b"\0\0\0\0" + answer) == ErrorCode.message_too_large
    read = fetch.read(memoryview(wire_client.fetch("t", 3, 5, 1000)), 0, 11)
    (name, (partition,)) = read.topics[0]
    assert (name, partition.index, partition.offset, read.max_bytes) == ("t", 3, 5, 1000)


def test_growth_is_measured_after_the_settling_time() -> None:
    seen = Seen(at=[0, 15, 30, 45, 60], small=[100, 0, 2, 4, 6])
    assert seen.slope(seen.small, 15) == 8
    assert seen.slope(seen.small, 45) is None


def test_the_resources_of_scale_are_valid_and_govern_its_topics() -> None:
    manifests = [manifest for _, manifest in policies()]
    assert [manifest["kind"] for manifest in manifests] == ["CompactionPolicy", "CompactionPolicy", "RetentionPolicy"]
    for manifest in manifests:
        parsed = (CompactionPolicy if manifest["kind"] == "CompactionPolicy" else RetentionPolicy).model_validate(
            manifest
        )
        assert parsed.metadata.name == manifest["metadata"]["name"]
    assert IcebergTopic.parse(topic("edited0", bench="edited")).metadata.labels == {"bench": "edited"}


def test_an_edit_is_ready_with_its_generation_or_a_later_one() -> None:
    edits = Edits(cast(Any, None))
    edits.made = [("a", 2, 10.0), ("a", 3, 20.0), ("b", 2, 30.0)]
    ready: Any = SimpleNamespace(generations={("a", 1): 1.0, ("a", 3): 24.0, ("b", 1): 40.0})
    assert edits.waits(ready) == [14.0, 4.0, None]
