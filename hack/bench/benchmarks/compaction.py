"""Compare Firn's compaction of a table of 1 MiB files with Spark's plain ``rewrite_data_files`` on a table of the same files.

The compactions run one after the other, each in a fresh process with one core, the same heap and the same Spark settings. The benchmark also
times queries before and after compaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from firn.model.maintenance import CompactionWork
from hack.bench.contestants.lake import NAMESPACE, Lake, lake
from hack.bench.contestants.maintenance import MIB, Outcome, fill_with_small_files, maintain, process, run_of, work
from hack.bench.measuring import commits
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options
from hack.support.progress import step

CORES = 1
HEAP = "1g"
TARGET = 128 * MIB
FILES_PER_MINUTE = 100
"""Files per minute of `Options.minutes`: ten minutes are a table of 1,000 files."""
PEER = "Spark rewrite_data_files"
BEFORE = "before"
WORK = CompactionWork(target_file_bytes=TARGET, open_grace_ms=0, rewrite_manifests="Never")


def measure(options: Options) -> Iterator[Figure]:
    """Fill both tables, compact both, and measure both."""
    count = max(20, int(FILES_PER_MINUTE * options.minutes))
    with lake(options.directory / "compaction") as stores:
        with step(f"writing two tables of {count} files of 1 MiB"):
            rows = fill_with_small_files(stores, ["ours", "theirs"], count)
        size = sum(file.bytes for file in commits.data_files(stores.catalog().load_table((NAMESPACE, "ours"))))
        with step("queries before compaction"):
            before = time_queries(stores, "look-before", "ours")["ours"]
        with step("compaction by plain Spark"):
            theirs = plain(stores, "plain", ["rewrite", "theirs", str(TARGET)])
        with step("compaction by Firn"):
            report, ours = maintain(
                stores, run_of(stores, "firn", [work(stores, "ours", WORK)], cores=CORES, heap=HEAP)
            )
        with step("queries after compaction"):
            after = time_queries(stores, "look-after", "ours,theirs")
        for name, query_seconds in after.items():
            if query_seconds["rows"] != rows or query_seconds["sum"] != before["sum"]:
                raise RuntimeError(f"table {name} has {query_seconds['rows']} rows instead of {rows}")
        plain_result = json.loads(theirs.output.splitlines()[-1])
        speed, plain_speed = (size / 1e6 / seconds / CORES for seconds in (report.seconds, plain_result["seconds"]))
        yield Figure("compaction_speed", speed, "MB/s per core", "higher", PEER, plain_speed)
        yield Figure("compaction_process", ours.seconds, "s, process start to end", "lower", PEER, theirs.seconds)
        spent, plain_spent = (outcome.usage.samples[-1].cpu / (size / 1e9) for outcome in (ours, theirs))
        yield Figure("compaction_cpu", spent, "CPU s per GB, whole process", "lower", PEER, plain_spent)
        peaks = [outcome.usage.peak_bytes / 1e6 for outcome in (ours, theirs)]
        yield Figure("compaction_peak_memory", peaks[0], "MB (PSS of all processes)", "lower", PEER, peaks[1])
        yield Figure(
            "compaction_files", after["ours"]["files"], f"files, of {count}", "lower", PEER, after["theirs"]["files"]
        )
        yield Figure("compaction_planning", after["ours"]["plan"], "s to plan a query", "lower", BEFORE, before["plan"])
        yield Figure("compaction_query", after["ours"]["query"], "s of a query", "lower", BEFORE, before["query"])
        yield Figure(
            "compaction_query_beside_plain",
            after["ours"]["query"],
            "s of a query",
            "lower",
            PEER,
            after["theirs"]["query"],
        )


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
