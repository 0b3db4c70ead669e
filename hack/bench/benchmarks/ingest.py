"""Compare the ingestion of a filled topic by Firn and by the Apache Iceberg sink of Kafka Connect.

Both read the same topic, and use the same catalog and the same disk, one after the other. Each contestant is a fresh process that starts at
the topic's beginning. The figures separate its start (until it serves), its warm-up (until its first commit) and the rest. The sink's
table has only the columns of the record. Firn's table also has the partition and offset of each record. At the end, Firn alone lands
the same records from topics whose batches are compressed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from hack.bench.contestants.contestant import Contestant
from hack.bench.contestants.ingestion import class_archive, compiled, ingestion, job
from hack.bench.contestants.lake import NAMESPACE, Lake, lake
from hack.bench.contestants.records import create_topics, fill, read_through
from hack.bench.contestants.sink import NAME, jars, sink
from hack.bench.measuring import commits
from hack.bench.measuring.commits import Commit, DataFile
from hack.bench.measuring.figures import Better, Figure
from hack.bench.measuring.process_tree import Sampler, Usage
from hack.bench.options import Options
from hack.support.progress import say, step
from tests.servers.process import await_true

TOPIC = "measurements"
PARTITIONS = 4
CORES = 2
HEAP = "384m"
CODECS = ("lz4", "zstd")
COMMIT_SECONDS = 10.0
"""The sink's commit interval, and Firn's freshness."""
LONGEST_SECONDS = 900.0


@dataclass(frozen=True)
class Run:
    """The run of a contestant. Times are Unix seconds."""

    started: float
    serving: float
    visible: float
    """Time at which the table had the last row."""
    history: Sequence[Commit]
    files: Sequence[DataFile]
    usage: Usage

    @property
    def rows(self) -> int:
        """Return the number of rows in the table at the end."""
        return self.history[-1].rows

    def values(self) -> dict[str, float | None]:
        """Return the values of `FIGURES` by name."""
        first, last = self.history[0], self.history[-1]
        waiting = commits.backlogged(self.history)
        later = last.rows - first.rows
        spent = self.usage.cpu_between(first.time, self.visible)
        return {
            "rows_per_second": self.rows / (self.visible - self.started),
            "rows_per_second_backlogged": commits.rate(*waiting) if waiting else None,
            "rows_per_second_best_10_s": commits.best_rate(self.history, 0.95 * COMMIT_SECONDS),
            "cpu_seconds_per_million_rows": self.usage.cpu_at(self.visible) / self.rows * 1e6,
            "cpu_seconds_per_million_rows_after_first_commit": spent / later * 1e6 if later else None,
            "seconds_until_serving": self.serving - self.started,
            "seconds_until_first_commit": first.time - self.started,
            "seconds_until_all_visible": self.visible - self.started,
            "peak_memory": self.usage.peak_bytes / 1e6,
            "table_size": sum(file.bytes for file in self.files) / 1e6,
            "data_files": len(self.files),
        }

    def parts(self) -> dict[str, float]:
        """Return the CPU seconds per million rows after the first commit, by part of the process tree."""
        first, later = self.history[0], self.rows - self.history[0].rows
        return (
            {part: self.usage.cpu_between(first.time, self.visible, part) / later * 1e6 for part in self.usage.parts}
            if later
            else {}
        )


FIGURES: dict[str, tuple[str, Better]] = {
    "rows_per_second": ("rows/s, start to last row visible", "higher"),
    "rows_per_second_backlogged": ("rows/s, first commit to last but one", "higher"),
    "rows_per_second_best_10_s": ("rows/s, best stretch of commits of 10 s or more", "higher"),
    "cpu_seconds_per_million_rows": ("CPU s per million rows, whole run", "lower"),
    "cpu_seconds_per_million_rows_after_first_commit": ("CPU s per million rows", "lower"),
    "seconds_until_serving": ("s", "lower"),
    "seconds_until_first_commit": ("s", "lower"),
    "seconds_until_all_visible": ("s", "lower"),
    "peak_memory": ("MB (PSS of all processes)", "lower"),
    "table_size": ("MB", "lower"),
    "data_files": ("files", "lower"),
}


_RATE = "rows_per_second_backlogged"
_LATER = "cpu_seconds_per_million_rows_after_first_commit"


def measure(options: Options) -> Iterator[Figure]:
    """Fill the topic, let both contestants land it in turn, and compare them."""
    jars()
    compiled()
    class_archive()
    with lake(options.directory / "ingest") as stores:
        with step(f"producing {options.rows:,} records"):
            create_topics(stores.kafka.bootstrap, [TOPIC], PARTITIONS)
            size = fill(stores.kafka.bootstrap, TOPIC, options.rows, PARTITIONS)
        say(
            f"{size / options.rows:.0f} bytes per record; read once in {read_through(stores.kafka.bootstrap, TOPIC, PARTITIONS):.1f} s"
        )
        theirs, ours = [], []
        for number in range(options.repeats):
            theirs.append(_run_sink(stores, options.rows, number))
            ours.append(_run_firn(stores, options.rows, number))
        yield from compared(ours, theirs)
        for codec in CODECS:
            topic = f"{TOPIC}-{codec}"
            with step(f"producing {options.rows:,} records with {codec}"):
                create_topics(stores.kafka.bootstrap, [topic], PARTITIONS)
                fill(stores.kafka.bootstrap, topic, options.rows, PARTITIONS, codec)
            runs = [_run_firn(stores, options.rows, number, topic) for number in range(options.repeats)]
            yield from _compressed(codec, runs, ours)


def _compressed(codec: str, runs: Sequence[Run], plain: Sequence[Run]) -> Iterator[Figure]:
    """Yield the medians of runs on a compressed topic, beside those without compression."""
    values, others = [run.values() for run in runs], [run.values() for run in plain]
    for name in (_RATE, _LATER):
        unit, better = FIGURES[name]
        value, other = _median([run[name] for run in values]), _median([run[name] for run in others])
        yield Figure(f"ingest_{codec}_{name}", value, unit, better, "Firn without compression", other)


def compared(ours: Sequence[Run], theirs: Sequence[Run]) -> Iterator[Figure]:
    """Yield the medians of both contestants' runs as figures."""
    mine, peers = [run.values() for run in ours], [run.values() for run in theirs]
    for name, (unit, better) in FIGURES.items():
        value, peer_value = _median([run[name] for run in mine]), _median([run[name] for run in peers])
        yield Figure(f"ingest_{name}", value, unit, better, NAME, peer_value)
    for part in ours[0].parts():
        name = "driver" if part == "root" else "workers" if part.startswith("python") else part
        value = _median([run.parts().get(part) for run in ours])
        yield Figure(
            f"ingest_cpu_seconds_per_million_rows_after_first_commit_{name}", value, FIGURES[_LATER][0], "lower"
        )


def _median(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


def _run_sink(stores: Lake, rows: int, number: int) -> Run:
    name = f"sink_{number}"
    stores.create_plain_table(name)
    directory = stores.directory / name
    return _run(NAME, stores, name, rows, lambda: sink(directory, stores, TOPIC, name, COMMIT_SECONDS))


def _run_firn(stores: Lake, rows: int, number: int, topic: str = TOPIC) -> Run:
    name = f"firn_{topic}_{number}".replace("-", "_")
    (target,) = stores.create_topic_tables([name])
    contracts = [job(topic, target, COMMIT_SECONDS)]
    return _run(
        "Firn",
        stores,
        name,
        rows,
        lambda: ingestion(stores.directory / name, stores, contracts, cores=CORES, heap=HEAP),
    )


def _run(
    contestant_name: str, stores: Lake, table: str, rows: int, start: Callable[[], AbstractContextManager[Contestant]]
) -> Run:
    catalog = stores.catalog()
    identifier = (NAMESPACE, table)
    started = time.time()
    with step(f"{contestant_name} lands {rows:,} records"), start() as contestant:
        serving = time.time()
        with Sampler(contestant.pid).sampling() as usage:

            def all_visible() -> bool:
                contestant.assert_alive()
                return commits.landed(catalog.load_table(identifier)) >= rows

            await_true(f"{contestant_name}: {rows} rows in {table}", all_visible, LONGEST_SECONDS)
            visible = time.time()
            usage.sample()
    final = catalog.load_table(identifier)
    if commits.landed(final) != rows:
        raise RuntimeError(
            f"{contestant_name}: table {table} has {commits.landed(final)} rows, but the topic has {rows} records"
        )
    return Run(started, serving, visible, commits.history(final), commits.data_files(final), usage)
