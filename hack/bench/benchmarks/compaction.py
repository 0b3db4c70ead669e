"""Compare Firn's compaction of tables of 1 MiB and of 16 MiB files with Spark's plain ``rewrite_data_files`` on tables of the same files.

The compactions run one after the other, each in a fresh process with one core, the same heap and the same Spark settings. Speeds are those of
the work on the table. The time from the start of the process to this work is a figure of its own. Both write zstd.
The benchmark also times queries before and after the compaction of the 1 MiB files.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from firn.model.maintenance import CompactionWork, TableReport
from hack.bench.contestants.lake import NAMESPACE, Lake, lake
from hack.bench.contestants.maintenance import MIB, Outcome, fill_with_small_files, maintain, process, run_of, work
from hack.bench.measuring import commits
from hack.bench.measuring.figures import Better, Figure
from hack.bench.options import Options
from hack.support.progress import step

CORES = 1
HEAP = "1g"
TARGET = 128 * MIB
LARGER = 16 * MIB
MANY = 100_000
MANIFEST = 10_000
"""Files of a manifest of the table with `MANY` files."""
FILES_PER_MINUTE = 100
"""Files per minute of `Options.minutes`: ten minutes are a table of 1,000 files."""
PEER = "Spark rewrite_data_files"
BEFORE = "before"
WORK = CompactionWork(target_file_bytes=TARGET, open_grace_ms=0, rewrite_manifests="Never")


@dataclass(frozen=True)
class Pair:
    """Both compactions of one repeat. ``megabytes`` is the size of each table."""

    megabytes: float
    report: TableReport
    ours: Outcome
    plain_seconds: float
    theirs: Outcome


def measure(options: Options) -> Iterator[Figure]:
    """Compact tables of both sizes of files, `Options.repeats` times, and give medians."""
    count = max(20, int(FILES_PER_MINUTE * options.minutes))
    with lake(options.directory / "compaction") as stores:
        small = [compact(stores, f"small{turn}", count, MIB) for turn in range(options.repeats)]
        yield from figures(small, "")
        yield from queries(stores, count)
        larger = [compact(stores, f"larger{turn}", max(10, count // 10), LARGER) for turn in range(options.repeats)]
        yield from figures(larger, "_16mib")
        yield Figure("compaction_plan", plan(stores), f"s to plan a table of {MANY} files", "lower")


def compact(stores: Lake, name: str, count: int, size: int) -> Pair:
    """Fill two tables with files of ``size`` bytes and compact them. Raises RuntimeError if rows are missing."""
    ours, theirs = f"{name}_ours", f"{name}_theirs"
    with step(f"writing two tables of {count} files of {size // MIB} MiB"):
        rows = fill_with_small_files(stores, [ours, theirs], count, size)
    files = commits.data_files(stores.catalog().load_table((NAMESPACE, ours)))
    megabytes = sum(file.bytes for file in files) / 1e6
    if name == "small0":
        with step("queries before compaction"):
            before = time_queries(stores, "look-before", ours)[ours]
        (stores.directory / "before.json").write_text(json.dumps(before))
    with step("compaction by plain Spark"):
        other = plain(stores, f"{name}-plain", ["rewrite", theirs, str(TARGET)])
    with step("compaction by Firn"):
        run = run_of(stores, f"{name}-firn", [work(stores, ours, WORK)], cores=CORES, heap=HEAP)
        report, outcome = maintain(stores, run)
    for table in (ours, theirs):
        records = sum(file.rows for file in commits.data_files(stores.catalog().load_table((NAMESPACE, table))))
        if records != rows:
            raise RuntimeError(f"table {table} has {records} rows instead of {rows}")
    return Pair(megabytes, report, outcome, json.loads(other.output.splitlines()[-1])["seconds"], other)


def figures(pairs: Sequence[Pair], suffix: str) -> Iterator[Figure]:
    """Give the medians of all repeats."""

    def figure(name: str, unit: str, better: Better, values: Iterable[tuple[float, float]]) -> Figure:
        ours, theirs = (statistics.median(side) for side in zip(*values, strict=True))
        return Figure(f"compaction_{name}{suffix}", ours, unit, better, PEER, theirs)

    yield figure(
        "speed",
        "MB/s per core",
        "higher",
        ((each.megabytes / each.report.seconds / CORES, each.megabytes / each.plain_seconds / CORES) for each in pairs),
    )
    yield figure(
        "start",
        "s, process start and end without the work on the table",
        "lower",
        ((each.ours.seconds - each.report.seconds, each.theirs.seconds - each.plain_seconds) for each in pairs),
    )
    yield figure(
        "process", "s, process start to end", "lower", ((each.ours.seconds, each.theirs.seconds) for each in pairs)
    )
    yield figure(
        "cpu",
        "CPU s per GB, whole process",
        "lower",
        (
            (cpu_seconds(each.ours) / each.megabytes * 1000, cpu_seconds(each.theirs) / each.megabytes * 1000)
            for each in pairs
        ),
    )
    yield figure(
        "peak_memory",
        "MB (PSS of all processes)",
        "lower",
        ((each.ours.usage.peak_bytes / 1e6, each.theirs.usage.peak_bytes / 1e6) for each in pairs),
    )


def plan(stores: Lake) -> float:
    """Return the seconds that a run needs to find that a table of `MANY` files has nothing to do. The files exist in metadata only."""
    catalog = stores.catalog()
    # Full sizes leave nothing to rewrite.
    with step(f"writing the metadata of a table of {MANY} files"):
        stores.create_plain_table("many")
        table = catalog.load_table((NAMESPACE, "many"))
        with table.update_spec() as update:
            update.add_identity("region")
        for part in range(MANY // MANIFEST):
            with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
                for number in range(part * MANIFEST, (part + 1) * MANIFEST):
                    append.append_data_file(_file(table, number))
    with step("planning by Firn"):
        report, _ = maintain(stores, run_of(stores, "plan", [work(stores, "many", WORK)], cores=CORES, heap=HEAP))
    if report.outcome != "Nothing" or report.files_before != MANY:
        raise RuntimeError(f"the run on {report.files_before} files ended with {report.outcome}: {report.message}")
    return report.seconds


def _file(table: Any, number: int) -> DataFile:
    """Describe a file with the metrics of all columns."""
    fields = [field.field_id for field in table.schema().fields]
    region = f"region-{number % 100}"
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/region={region}/00000-{number}-0123456789abcdef.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(region),
        record_count=1_000_000,
        file_size_in_bytes=TARGET,
        column_sizes=dict.fromkeys(fields, TARGET // len(fields)),
        value_counts=dict.fromkeys(fields, 1_000_000),
        null_value_counts=dict.fromkeys(fields, 0),
        nan_value_counts={},
        lower_bounds=dict.fromkeys(fields, bytes(8)),
        upper_bounds=dict.fromkeys(fields, bytes(8)),
        split_offsets=[4],
        sort_order_id=0,
        equality_ids=None,
        key_metadata=None,
        spec_id=table.spec().spec_id,
    )


def cpu_seconds(outcome: Outcome) -> float:
    """Return the CPU time of a process tree."""
    return outcome.usage.samples[-1].cpu


def queries(stores: Lake, count: int) -> Iterator[Figure]:
    """Time queries over the tables of the first repeat. Raises RuntimeError if the tables differ."""
    before = json.loads((stores.directory / "before.json").read_text())
    with step("queries after compaction"):
        after = time_queries(stores, "look-after", "small0_ours,small0_theirs")
    for name, result in after.items():
        if (result["rows"], result["sum"]) != (before["rows"], before["sum"]):
            raise RuntimeError(f"table {name} has other rows than before its compaction")
    ours, theirs = after["small0_ours"], after["small0_theirs"]
    yield Figure("compaction_files", ours["files"], f"files, of {count}", "lower", PEER, theirs["files"])
    yield Figure("compaction_planning", ours["plan"], "s to plan a query", "lower", BEFORE, before["plan"])
    yield Figure("compaction_query", ours["query"], "s of a query", "lower", BEFORE, before["query"])
    yield Figure("compaction_query_beside_plain", ours["query"], "s of a query", "lower", PEER, theirs["query"])


def plain(stores: Lake, name: str, arguments: list[str]) -> Outcome:
    """Run `hack.bench.contestants.plain_spark` and return its result."""
    directory = stores.directory / name
    directory.mkdir()
    command = ["-m", "hack.bench.contestants.plain_spark", *arguments]
    return process(directory, run_of(stores, name, [], cores=CORES, heap=HEAP), command, directory / "message")


def time_queries(stores: Lake, name: str, tables: str) -> dict[str, dict[str, float]]:
    """Time queries over the tables in a separate process."""
    seconds: dict[str, dict[str, float]] = json.loads(plain(stores, name, ["query", tables]).output.splitlines()[-1])
    return seconds
