"""How large and how long the benchmarks are."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """Options of `hack/bench/run`. ``directory`` is a temporary directory of this run."""

    directory: Path
    rows: int = 12_000_000
    """Records of `ingest`."""
    minutes: float = 10.0
    """How long `files` and `trickle` produce."""
    topics: int = 200
    """Topics of `trickle`."""
    resources: int = 1000
    """IcebergTopics of `scale`."""
    repeats: int = 1
    """Runs of `ingest`, ours and the peer's in turn; figures are medians."""
    megabytes: int = 2000
    """Megabytes that `broker` moves in each direction on each contestant."""
