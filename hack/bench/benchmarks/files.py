"""Compare the data files of Firn and of the Iceberg sink of Kafka Connect after minutes of a steady 1,000 records a second.

Firn and the sink read the same topic at the same time. The sink commits as often as Firn's freshness requires.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from hack.bench.contestants.contestant import Contestant
from hack.bench.contestants.ingestion import ingestion, job
from hack.bench.contestants.lake import NAMESPACE, lake
from hack.bench.measuring import commits
from hack.bench.measuring.commits import DataFile
from hack.bench.measuring.figures import Better, Figure
from hack.bench.measuring.process_tree import Sampler
from hack.bench.options import Options
from hack.bench.peers.sink import NAME, jars, sink
from hack.bench.records.measurements import create_topics, produce_paced
from hack.support.progress import step
from tests.servers.process import await_true

TOPIC = "steady"
PARTITIONS = 4
PER_SECOND = 1000.0
FRESHNESS_SECONDS = 30.0
LONGEST_WAIT = 180.0


def measure(options: Options) -> Iterator[Figure]:
    """Start both, produce, wait until both tables have all records, and measure their files."""
    jars()
    with lake(options.directory / "files") as stores:
        create_topics(stores.kafka.bootstrap, [TOPIC], PARTITIONS)
        stores.create_plain_table("sink")
        (target,) = stores.create_topic_tables(["firn"])
        contracts = [job(TOPIC, target, FRESHNESS_SECONDS)]
        with (
            sink(stores.directory / "sink", stores, TOPIC, "sink", FRESHNESS_SECONDS) as theirs,
            ingestion(stores.directory / "firn", stores, contracts, cores=1, heap="768m") as ours,
            Sampler(theirs.pid).sampling() as their_usage,
            Sampler(ours.pid).sampling() as our_usage,
        ):
            spent = [usage.samples[0].cpu for usage in (our_usage, their_usage)]
            with step(f"producing {PER_SECOND:.0f} records a second for {options.minutes:g} minutes"):
                places = [(TOPIC, partition) for partition in range(PARTITIONS)]
                written = produce_paced(stores.kafka.bootstrap, places, PER_SECOND, 60 * options.minutes)
            rows = sum(map(len, written.values()))
            catalog = stores.catalog()
            tables: list[Any] = []
            for table_name, contestant in (("firn", ours), ("sink", theirs)):
                await_rows(table_name, contestant, catalog, rows)
                tables.append(catalog.load_table((NAMESPACE, table_name)))
        firn, peer = (numbers(commits.data_files(table)) for table in tables)
        used = [usage.samples[-1].cpu - before for usage, before in zip((our_usage, their_usage), spent, strict=True)]
        for name, (unit, better) in FIGURES.items():
            yield Figure(f"files_{name}", firn[name], unit, better, NAME, peer[name])
        yield Figure(
            "files_commits", len(commits.history(tables[0])), "commits", "lower", NAME, len(commits.history(tables[1]))
        )
        yield Figure(
            "files_cpu", used[0] / options.minutes, "CPU s per minute", "lower", NAME, used[1] / options.minutes
        )
        history = commits.history(tables[0])
        late = [
            delay
            for (_, part), moments in written.items()
            for delay in commits.delays(moments, history, history[-1].time, part)
        ]
        yield Figure("files_delay_p99", commits.percentile(late, 0.99), "s from produced to committed", "lower")


FIGURES: dict[str, tuple[str, Better]] = {
    "count": ("data files", "lower"),
    "median_size": ("MB", "higher"),
    "smallest_size": ("MB", "higher"),
    "bytes_per_row": ("bytes", "lower"),
}


def numbers(files: Sequence[DataFile]) -> dict[str, float]:
    """Return the figures of a table's files by name."""
    sizes = [file.bytes for file in files]
    return {
        "count": len(files),
        "median_size": statistics.median(sizes) / 1e6,
        "smallest_size": min(sizes) / 1e6,
        "bytes_per_row": sum(sizes) / sum(file.rows for file in files),
    }


def await_rows(table_name: str, contestant: Contestant, catalog: Any, rows: int) -> None:
    """Wait until the table has exactly ``rows`` rows."""

    def complete() -> bool:
        contestant.assert_alive()
        return commits.landed(catalog.load_table((NAMESPACE, table_name))) >= rows

    await_true(f"{table_name}: {rows} rows", complete, LONGEST_WAIT)
    assert commits.landed(catalog.load_table((NAMESPACE, table_name))) == rows, (
        f"{table_name} has more rows than the {rows} produced"
    )
