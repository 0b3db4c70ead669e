"""Compare a table with a policy and a table without one under a steady load: small files, query time and freshness over time.

Each table has a lake of its own. Both lakes run on the same machine at the same time, so the policy is the only difference. The benchmark
follows the policy as the operator does: it measures debt, and starts a run in its own process when enough files are due.

Afterwards the benchmark lands the same backlog twice: alone, and while a compaction of another table uses the same cores. The difference
is the effect of a running compaction on ingestion.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import PY_IO_IMPL

from firn.model.clock import SystemClock
from firn.model.jobs import TableTarget
from firn.model.maintenance import CompactionWork
from firn_controllers.ports import TableDebt
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.adapters.iceberg.debt import CatalogDebts
from firn_operator.cli.lake import ARROW_IO, scan
from hack.bench.contestants.ingestion import Ingestion, compiled, ingestion, job
from hack.bench.contestants.lake import CATALOG, NAMESPACE, Lake, lake
from hack.bench.contestants.maintenance import MIB, fill_with_small_files, maintain, run_of, work
from hack.bench.measuring import commits
from hack.bench.measuring.commits import percentile
from hack.bench.measuring.figures import Figure
from hack.bench.measuring.process_tree import Sampler
from hack.bench.options import Options
from hack.bench.records.measurements import create_topics, fill, produce_paced
from hack.support.progress import say, step
from tests.servers.process import await_true

TOPIC = "steady"
PARTITIONS = 4
PER_SECOND = 5000.0
FRESHNESS_SECONDS = 10.0
CORES = 1
HEAP = "768m"
WORK = CompactionWork(open_grace_ms=30_000)
DUE_FILES = 20
"""The policy's ``triggers.smallFiles``."""
MIN_INTERVAL = 60.0
LOOK_SECONDS = 15.0
SETTLING_SECONDS = 300.0
"""Time until the number of small files of a table with a policy is steady. Of a short run, the first half."""
BACKLOG_PER_MINUTE = 400_000
LONGEST_WAIT = 900.0
WITHOUT = "the same load without a policy"
ALONE = "the same backlog without a compaction"


@dataclass
class Seen:
    """Observations of a table during writes. Times are seconds since the start."""

    at: list[float] = field(default_factory=list)
    small: list[int] = field(default_factory=list)
    query: list[float] = field(default_factory=list)
    """Seconds per million rows, because the table grows."""
    runs: int = 0
    late: list[float] = field(default_factory=list)
    cpu: float = 0.0

    def most(self, values: Sequence[float], settled: float) -> float | None:
        """Return the largest value once settled, None without values."""
        return max((value for at, value in zip(self.at, values, strict=True) if at >= settled), default=None)

    def slope(self, values: Sequence[float], settled: float) -> float | None:
        """Return the growth of a value per minute, once settled (least squares). None with too few observations."""
        pairs = [(at, value) for at, value in zip(self.at, values, strict=True) if at >= settled]
        if len(pairs) < 3:
            return None
        return statistics.linear_regression(*zip(*pairs, strict=True)).slope * 60


def measure(options: Options) -> Iterator[Figure]:
    """Measure the steady load on both lakes, then both phases of the backlog."""
    compiled()
    seconds = 60 * options.minutes
    settled = min(SETTLING_SECONDS, seconds / 2)
    with ThreadPoolExecutor(2) as phases:
        without, under = phases.map(lambda policy: steady(options, policy, seconds), (False, True))
    for name, values, unit in (
        ("small_files", "small", "small files"),
        ("query", "query", "s per million rows of a query over the whole table"),
    ):
        ours, theirs = getattr(under, values), getattr(without, values)
        yield Figure(f"sustained_{name}_end", ours[-1], f"{unit} at the end", "lower", WITHOUT, theirs[-1])
        most = [seen.most(getattr(seen, values), settled) for seen in (under, without)]
        yield Figure(f"sustained_{name}_most", most[0], f"{unit} at most, once settled", "lower", WITHOUT, most[1])
        slopes = [seen.slope(getattr(seen, values), settled) for seen in (under, without)]
        yield Figure(
            f"sustained_{name}_slope", slopes[0], f"{unit}, growth per minute once settled", "lower", WITHOUT, slopes[1]
        )
    delays = [percentile(seen.late, 0.99) for seen in (under, without)]
    yield Figure("sustained_delay_p99", delays[0], "s from produced to committed", "lower", WITHOUT, delays[1])
    cpu = [seen.cpu / options.minutes for seen in (under, without)]
    yield Figure("sustained_ingestion_cpu", cpu[0], "CPU s per minute of ingestion", "lower", WITHOUT, cpu[1])
    yield Figure("sustained_runs", under.runs, "compaction runs", "lower")
    yield from backlog(options)


def steady(options: Options, policy: bool, seconds: float) -> Seen:
    """Run the load on a fresh lake with a fresh driver, with or without a policy."""
    seen = Seen()
    variant = "with a policy" if policy else "without a policy"
    with lake(options.directory / f"sustained-{'with' if policy else 'without'}") as stores:
        create_topics(stores.kafka.bootstrap, [TOPIC], PARTITIONS)
        (target,) = stores.create_topic_tables([TOPIC])
        contracts = [job(TOPIC, target, FRESHNESS_SECONDS)]
        with (
            ingestion(stores.directory / "firn", stores, contracts, cores=CORES, heap=HEAP) as firn,
            Sampler(firn.pid, interval=1.0).sampling() as usage,
            ThreadPoolExecutor(1) as producer,
            step(f"{PER_SECOND:.0f} records a second for {options.minutes:g} minutes, {variant}"),
        ):
            began, spent = time.monotonic(), usage.samples[-1].cpu
            places = [(TOPIC, partition) for partition in range(PARTITIONS)]
            producing = producer.submit(produce_paced, stores.kafka.bootstrap, places, PER_SECOND, seconds)
            with carried_out(stores, target, seen) if policy else nothing():
                while not producing.done():
                    firn.assert_alive()
                    inspect(stores, target, seen, began)
                    time.sleep(LOOK_SECONDS)
            written = producing.result()
            await_landed(firn, stores, sum(map(len, written.values())))
            seen.cpu = usage.samples[-1].cpu - spent
        table = stores.catalog().load_table((NAMESPACE, TOPIC))
        history = commits.history(table)
        seen.late = [
            delay
            for (_, part), moments in written.items()
            for delay in commits.delays(
                moments, [commit for commit in history if commit.offsets], history[-1].time, part
            )
        ]
    return seen


@contextmanager
def nothing() -> Iterator[None]:
    """Follow no policy inside the with block."""
    yield


@contextmanager
def carried_out(stores: Lake, target: TableTarget, seen: Seen) -> Iterator[None]:
    """Follow the policy inside the with block. Raises the error of a failed run."""
    stop = threading.Event()

    def follow() -> None:
        last = -MIN_INTERVAL
        while not stop.wait(2.0):
            debt = owed(stores, target)
            if debt.due_files < DUE_FILES or time.monotonic() < last + MIN_INTERVAL:
                continue
            last = time.monotonic()
            seen.runs += 1
            run = run_of(stores, f"run-{seen.runs}", [work(stores, target.name, WORK)], cores=1, heap="1g")
            report, outcome = maintain(stores, run)
            say(
                f"run {seen.runs}: {report.files_before} files became {report.files_after}, "
                f"{report.bytes_rewritten / 1e6:.0f} MB, {outcome.seconds:.0f} s"
            )

    with ThreadPoolExecutor(1) as follower:
        following = follower.submit(follow)
        try:
            yield
        finally:
            stop.set()
        following.result()


def owed(stores: Lake, target: TableTarget) -> TableDebt:
    """Return the table's debt, as the operator measures it."""
    debts = CatalogDebts({CATALOG: stores.connection}, SystemClock())
    try:
        debt = asyncio.run(debts.measure(target, WORK))
    finally:
        debts.close()
    assert debt is not None
    return debt


def inspect(stores: Lake, target: TableTarget, seen: Seen, began: float) -> None:
    """Count small files and time a query."""
    at = time.monotonic() - began
    small = owed(stores, target).small_files
    table = arrow_catalog(stores).load_table((target.namespace, target.name))
    started, rows = time.monotonic(), 0
    for batch in scan(table, ["temperature"]):
        rows += len(batch.column(0))
    seen.at.append(at)
    seen.small.append(small)
    seen.query.append((time.monotonic() - started) / max(rows, 1) * 1e6)


def arrow_catalog(stores: Lake) -> Any:
    """Open the catalog as queries do."""
    properties = {**stores.connection.properties, PY_IO_IMPL: ARROW_IO}
    return open_catalog(CATALOG, stores.connection.model_copy(update={"properties": properties}))


def await_landed(firn: Ingestion, stores: Lake, rows: int) -> None:
    """Wait until the table has exactly ``rows`` rows."""
    catalog = stores.catalog()

    def landed() -> bool:
        firn.assert_alive()
        return commits.landed(catalog.load_table((NAMESPACE, TOPIC))) >= rows

    await_true(f"{rows} rows landed", landed, LONGEST_WAIT)
    rows_landed = commits.landed(catalog.load_table((NAMESPACE, TOPIC)))
    if rows_landed != rows:
        raise RuntimeError(f"the table has {rows_landed} rows, but {rows} were produced")


# Effect of a running compaction on ingestion


def backlog(options: Options) -> Iterator[Figure]:
    """Land the same backlog twice: alone, and while runs always rewrite another table."""
    rows = min(options.rows, int(BACKLOG_PER_MINUTE * options.minutes))
    rates = []
    with lake(options.directory / "sustained-backlog") as stores:
        with step(f"producing {rows:,} records, and a table to rewrite"):
            create_topics(stores.kafka.bootstrap, [TOPIC], PARTITIONS)
            fill(stores.kafka.bootstrap, TOPIC, rows, PARTITIONS)
            fill_with_small_files(stores, ["beside"], 100)
        for name, busy in (("alone", False), ("beside_compaction", True)):
            (target,) = stores.create_topic_tables([name])
            with (
                step(f"landing {rows:,} records, {'while files are rewritten' if busy else 'alone'}"),
                rewriting(stores) if busy else nothing(),
                ingestion(
                    stores.directory / name, stores, [job(TOPIC, target, FRESHNESS_SECONDS)], cores=CORES, heap=HEAP
                ) as firn,
            ):
                catalog = stores.catalog()

                def landed(firn: Ingestion = firn, catalog: Any = catalog, name: str = name) -> bool:
                    firn.assert_alive()
                    return commits.landed(catalog.load_table((NAMESPACE, name))) >= rows

                await_true(f"{rows} rows landed", landed, LONGEST_WAIT)
            history = commits.history(stores.catalog().load_table((NAMESPACE, name)))
            waiting = commits.backlogged(history)
            rates.append(commits.rate(*waiting) if waiting else None)
    yield Figure(
        "sustained_ingest_beside_compaction",
        rates[1],
        "rows/s, first commit to last but one",
        "higher",
        ALONE,
        rates[0],
    )


@contextmanager
def rewriting(stores: Lake) -> Iterator[None]:
    """Compact inside the with block: sort the same table by one column, then by another. Raises the error of a failed run."""
    stop, begun = threading.Event(), threading.Event()

    def go_on() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            compaction = CompactionWork(
                strategy="Sort",
                columns=(("id", "temperature")[number % 2],),
                target_file_bytes=16 * MIB,
                open_grace_ms=0,
                everything=True,
            )
            run = run_of(stores, f"beside-{number}", [work(stores, "beside", compaction)], cores=1, heap="1g")
            begun.set()
            maintain(stores, run)

    with ThreadPoolExecutor(1) as worker:
        working = worker.submit(go_on)
        begun.wait(60)
        try:
            yield
        finally:
            stop.set()
        working.result()
