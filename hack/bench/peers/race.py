"""Let contestants land the same topic, one after the other, and compare their runs.

Each contestant is a fresh process that starts at the topic's beginning. The figures separate its start (until it serves), its
warm-up (until its first commit) and the rest. The tables of the peers have only the columns of the record. Firn's table
also has the partition and offset of each record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from firn.model.jobs import Column, RecordSchema, RegistryConnection
from hack.bench.contestants.contestant import Contestant
from hack.bench.contestants.ingestion import ingestion, job
from hack.bench.contestants.lake import NAMESPACE, Lake
from hack.bench.measuring import commits
from hack.bench.measuring.commits import Commit, DataFile
from hack.bench.measuring.figures import Better, Figure
from hack.bench.measuring.process_tree import Sampler, Usage
from hack.bench.measuring.repeats import median
from hack.bench.peers import flink, sink
from hack.bench.peers.settings import FLINK, SINK, Settings
from hack.support.progress import step
from tests.servers.process import await_true

CORES = 2
HEAP = "384m"
COMMIT_SECONDS = 10.0
"""Firn's freshness, the sink's commit interval, and Flink's checkpoint interval."""
LONGEST_SECONDS = 1800.0


@dataclass(frozen=True)
class Workload:
    """A filled topic, and the columns of the tables that get its records."""

    topic: str
    rows: int
    columns: tuple[Column, ...]
    schema: RecordSchema | None = None
    """How Firn reads the values. Without it, they are JSON."""
    registries: Mapping[str, RegistryConnection] = field(default_factory=dict)
    """Schema registries of Firn."""
    converter: Mapping[str, str] = field(default_factory=lambda: sink.JSON)
    """Properties of the sink's worker for its converter of values."""


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
            "rows_per_cpu_second": self.rows / self.usage.cpu_at(self.visible),
            "rows_per_cpu_second_after_first_commit": later / spent if later and spent else None,
            "cpu_seconds_per_million_rows": self.usage.cpu_at(self.visible) / self.rows * 1e6,
            "cpu_seconds_per_million_rows_after_first_commit": spent / later * 1e6 if later else None,
            "seconds_until_serving": self.serving - self.started,
            "seconds_until_first_commit": first.time - self.started,
            "seconds_until_all_visible": self.visible - self.started,
            "peak_memory": self.usage.peak_bytes / 1e6,
            "table_size": sum(file.bytes for file in self.files) / 1e6,
            "data_files": len(self.files),
            "foreign_cores": self.usage.foreign_cores,
        }

    def parts(self) -> dict[str, float]:
        """Return the CPU seconds per million rows after the first commit, by part of the process tree."""
        first, later = self.history[0], self.rows - self.history[0].rows
        return (
            {part: self.usage.cpu_between(first.time, self.visible, part) / later * 1e6 for part in self.usage.parts}
            if later
            else {}
        )


LATER = "cpu_seconds_per_million_rows_after_first_commit"
BACKLOGGED = "rows_per_second_backlogged"
FIGURES: dict[str, tuple[str, Better]] = {
    "rows_per_second": ("rows/s, start to last row visible", "higher"),
    BACKLOGGED: ("rows/s, first commit to last but one", "higher"),
    "rows_per_second_best_10_s": ("rows/s, best stretch of commits of 10 s or more", "higher"),
    "rows_per_cpu_second": ("rows per CPU s, whole run", "higher"),
    "rows_per_cpu_second_after_first_commit": ("rows per CPU s", "higher"),
    "cpu_seconds_per_million_rows": ("CPU s per million rows, whole run", "lower"),
    LATER: ("CPU s per million rows", "lower"),
    "seconds_until_serving": ("s", "lower"),
    "seconds_until_first_commit": ("s", "lower"),
    "seconds_until_all_visible": ("s", "lower"),
    "peak_memory": ("MB (PSS of all processes)", "lower"),
    "table_size": ("MB", "lower"),
    "data_files": ("files", "lower"),
    "foreign_cores": ("cores used by other processes of the machine", "lower"),
}


def race(
    stores: Lake, workload: Workload, names: Sequence[str], repeats: int
) -> tuple[list[Run], dict[str, list[Run]]]:
    """Let the peers ``names`` and Firn land the workload in turn, ``repeats`` times. Return Firn's runs and the peers'."""
    ours: list[Run] = []
    theirs: dict[str, list[Run]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            theirs[name].append(run(stores, workload, name))
        ours.append(run(stores, workload, FIRN))
    return ours, theirs


def compared(prefix: str, ours: Sequence[Run], theirs: Mapping[str, Sequence[Run]]) -> Iterator[Figure]:
    """Yield the medians of all contestants' runs as figures, one for each peer. Their names begin with ``prefix``."""
    mine = [each.values() for each in ours]
    peers = {name: [each.values() for each in runs] for name, runs in theirs.items()}
    for name, (unit, better) in FIGURES.items():
        value = median([values[name] for values in mine])
        for peer, runs in peers.items():
            yield Figure(
                f"{prefix}_{name}", value, unit, better, PEERS[peer], median([values[name] for values in runs])
            )
        if not peers:
            yield Figure(f"{prefix}_{name}", value, unit, better)
    for part in ours[0].parts():
        name = "driver" if part == "root" else "workers" if part.startswith("python") else part
        yield Figure(
            f"{prefix}_{LATER}_{name}", median([each.parts().get(part) for each in ours]), FIGURES[LATER][0], "lower"
        )


FIRN = "firn"
PEERS = {"sink": sink.NAME, "flink": flink.NAME}
"""The names of the peers with their versions."""
CHOSEN = {"sink": SINK, "flink": FLINK}
"""The settings of the peers."""


def prepare(names: Sequence[str]) -> None:
    """Fetch the jars of the peers. Raises ValueError for a name that is not in `PEERS`."""
    if unknown := set(names) - set(PEERS):
        raise ValueError(f"there is no peer {', '.join(sorted(unknown))}; choose from {', '.join(PEERS)}")
    for name in names:
        {"sink": sink.jars, "flink": flink.jars}[name]()


def run(stores: Lake, workload: Workload, name: str, settings: Settings | None = None) -> Run:
    """Let a contestant land the workload in a new table. ``settings`` replace those of a peer."""
    existing = sum(1 for each in stores.directory.iterdir() if each.name.startswith(f"{name}_"))
    table = f"{name}_{existing}"
    directory = stores.directory / table
    if name == FIRN:
        schema = workload.schema or RecordSchema(format="Json", fields=workload.columns)
        (target,) = stores.create_topic_tables([table], schema)
        contracts = [job(workload.topic, target, COMMIT_SECONDS, schema)]
        return _run(
            "Firn",
            stores,
            table,
            workload.rows,
            lambda: ingestion(directory, stores, contracts, cores=CORES, heap=HEAP, registries=workload.registries),
        )
    chosen = settings or CHOSEN[name]
    stores = stores.on_sqlite(directory) if chosen.sqlite else stores
    stores.create_plain_table(table, workload.columns, chosen.table)
    start: dict[str, Callable[[], AbstractContextManager[Contestant]]] = {
        "sink": lambda: sink.sink(directory, stores, workload.topic, table, COMMIT_SECONDS, chosen, workload.converter),
        "flink": lambda: flink.flink(
            directory, stores, workload.topic, table, workload.columns, COMMIT_SECONDS, CORES, chosen
        ),
    }
    return _run(PEERS[name], stores, table, workload.rows, start[name])


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
