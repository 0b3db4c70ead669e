"""The settings of the peers of ingestion, and variants that the benchmark `peers` compares with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hack.bench.contestants.lake import PLAIN_TABLE


@dataclass(frozen=True)
class Settings:
    """Settings of a peer."""

    heap: str = "2g"
    collector: tuple[str, ...] = ("-XX:+UseParallelGC",)
    """Flags of the JVM for its garbage collector."""
    consumer: Mapping[str, str] = field(
        default_factory=lambda: {"max.poll.records": "5000", "max.partition.fetch.bytes": "8388608"}
    )
    """Properties of the Kafka consumer."""
    table: Mapping[str, str] = field(default_factory=lambda: PLAIN_TABLE)
    """Properties of the table."""
    sqlite: bool = False
    """True if the catalog is in a file of SQLite in place of PostgreSQL."""
    texts: bool = False
    """True if the table has texts in place of timestamps, which the peer then does not parse."""

    @property
    def java(self) -> tuple[str, ...]:
        """Return the flags of the JVM."""
        return (f"-Xms{self.heap}", f"-Xmx{self.heap}", *self.collector)


SINK, FLINK = Settings(), Settings(heap="4g")
"""The settings with which the benchmarks compare Firn."""


def variants(chosen: Settings) -> dict[str, Settings]:
    """Return settings that differ from the chosen ones in one point, by name.

    ``small_setup`` differs in three points, as a set-up in which the sink took 5.0 CPU seconds per million rows.
    """
    heap = {"2g": "4g", "4g": "2g"}[chosen.heap]
    return {
        "gzip": replace(chosen, table={key: value for key, value in PLAIN_TABLE.items() if "compression" not in key}),
        # The collector and the pauses for which Kafka's start scripts ask.
        "g1": replace(
            chosen, collector=("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
        ),
        f"heap_{heap}": replace(chosen, heap=heap),
        "short_fetches": replace(chosen, consumer={}),
        "sqlite": replace(chosen, sqlite=True),
        "texts": replace(chosen, texts=True),
        "small_setup": replace(chosen, heap="4g", sqlite=True, texts=True),
    }
