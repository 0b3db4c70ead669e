"""Sizes and durations of the benchmarks."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """Options of `hack/bench/run`. ``directory`` is a temporary directory of this run."""

    directory: Path
    rows: int = 12_000_000
    """Number of records of `ingest`, `registry`, `peers` and `direct`."""
    trips: int = 20_000_000
    """Number of records of `trips`."""
    peers: tuple[str, ...] = ("sink", "flink")
    """Peers of `ingest`, `trips` and `peers`: the sink of Kafka Connect, and Flink. `registry` has only the former."""
    minutes: float = 10.0
    """Minutes for which `files`, `freshness` and `trickle` produce."""
    topics: int = 200
    """Number of topics of `trickle`, which also serves five times as many."""
    resources: int = 1000
    """Number of IcebergTopics of `scale`."""
    repeats: int = 1
    """Number of runs. Figures are medians."""
    megabytes: int = 2000
    """Megabytes that `broker` moves in each direction on each contestant."""
    hours: float = 8.0
    """Hours whose commits `commits` makes, one after the other without waiting."""
