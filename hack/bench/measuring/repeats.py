"""Repeat a benchmark, and give the medians of its figures, its duration, and the CPU that other programs used meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from hack.bench.measuring.figures import Figure
from hack.bench.measuring.process_tree import foreign_cpu, processes

Measure = Callable[[int], Iterable[Figure]]
"""A function that measures once. Its argument is the number of the run, from 0 on."""


def repeated(name: str, measure: Measure, repeats: int) -> Iterator[Figure]:
    """Yield the figures of the benchmark ``name``: those of one run as it measures them, or the medians of several.

    At the end, yield ``NAME_benchmark_seconds`` and ``NAME_benchmark_foreign_cores``, over all runs.
    """
    started, foreign = time.monotonic(), foreign_cpu(processes())
    if repeats == 1:
        yield from measure(0)
    else:
        yield from medians([list(measure(turn)) for turn in range(repeats)])
    seconds = time.monotonic() - started
    yield Figure(f"{name}_benchmark_seconds", seconds, "s, the whole benchmark", "lower")
    cores = max(0.0, foreign_cpu(processes()) - foreign) / seconds
    yield Figure(f"{name}_benchmark_foreign_cores", cores, "cores used by other processes of the machine", "lower")


def medians(runs: Sequence[Sequence[Figure]]) -> Iterator[Figure]:
    """Yield the median of each figure, and of its peer, over the runs that have the figure."""
    found: dict[tuple[str, str | None], list[Figure]] = {}
    for run in runs:
        for figure in run:
            found.setdefault((figure.name, figure.peer), []).append(figure)
    for figures in found.values():
        value, peer = (
            median([each.value for each in figures]),
            median([each.peer_value for each in figures]),
        )
        yield replace(figures[0], value=value, peer_value=peer)


def median(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are not None, None without any."""
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None
