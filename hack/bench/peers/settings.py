"""The settings that both peers of ingestion have in common, and variants that the benchmark `peers` compares with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hack.bench.contestants.lake import PLAIN_TABLE

HEAP = ("-Xms2g", "-Xmx2g")


@dataclass(frozen=True)
class Settings:
    """Settings of a peer. The defaults are those with which the benchmarks compare Firn."""

    java: tuple[str, ...] = (*HEAP, "-XX:+UseParallelGC")
    """Flags of the JVM for heap and garbage collector."""
    consumer: Mapping[str, str] = field(
        default_factory=lambda: {"max.poll.records": "5000", "max.partition.fetch.bytes": "8388608"}
    )
    """Properties of the Kafka consumer."""
    table: Mapping[str, str] = field(default_factory=lambda: PLAIN_TABLE)
    """Properties of the table."""


CHOSEN = Settings()
VARIANTS: dict[str, Settings] = {
    "gzip": replace(CHOSEN, table={key: value for key, value in PLAIN_TABLE.items() if "compression" not in key}),
    # The collector and the pauses for which Kafka's start scripts ask.
    "g1": replace(
        CHOSEN,
        java=(*HEAP, "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
    ),
    "heap_4g": replace(CHOSEN, java=("-Xms4g", "-Xmx4g", "-XX:+UseParallelGC")),
    "short_fetches": replace(CHOSEN, consumer={}),
}
"""Settings that differ from the chosen ones in one point, by name."""
