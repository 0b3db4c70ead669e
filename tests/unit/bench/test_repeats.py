"""Repeated benchmarks give medians, their duration, and the CPU of other programs."""

from collections.abc import Iterator

from hack.bench.measuring.figures import Figure
from hack.bench.measuring.repeats import medians, repeated


def figure(name: str, value: float | None, peer: str | None = None, peer_value: float | None = None) -> Figure:
    return Figure(name, value, "s", "lower", peer, peer_value)


def test_a_figure_and_its_peer_have_medians_of_their_own() -> None:
    runs = [[figure("a", value, "kafka", peer)] for value, peer in ((3.0, 1.0), (1.0, 9.0), (2.0, 5.0))]
    assert list(medians(runs)) == [figure("a", 2.0, "kafka", 5.0)]


def test_figures_with_different_peers_stay_apart() -> None:
    run = [figure("a", 1.0, "sink", 2.0), figure("a", 1.0, "flink", 3.0)]
    assert list(medians([run, run])) == run


def test_runs_without_a_value_do_not_count() -> None:
    runs = [[figure("a", None)], [figure("a", 4.0)], [figure("a", 2.0), figure("b", 7.0)]]
    assert list(medians(runs)) == [figure("a", 3.0), figure("b", 7.0)]
    assert list(medians([[figure("a", None)]])) == [figure("a", None)]


def test_one_run_gives_each_figure_before_the_next_is_measured() -> None:
    measured = []

    def measure(turn: int) -> Iterator[Figure]:
        for name in ("a", "b"):
            measured.append(name)
            yield figure(name, float(turn))

    figures = repeated("bench", measure, 1)
    assert (next(figures).name, measured) == ("a", ["a"])
    assert [each.name for each in figures] == ["b", "bench_benchmark_seconds", "bench_benchmark_foreign_cores"]


def test_each_run_of_a_repeated_benchmark_has_its_number() -> None:
    by_name = {each.name: each.value for each in repeated("bench", lambda turn: [figure("a", turn * 10.0)], 3)}
    assert by_name["a"] == 10.0
    assert by_name.keys() == {"a", "bench_benchmark_seconds", "bench_benchmark_foreign_cores"}
    assert all((value or 0.0) >= 0.0 for value in by_name.values())
