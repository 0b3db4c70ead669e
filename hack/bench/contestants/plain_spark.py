"""Run plain Spark with the configuration of a maintenance run, in a process that the benchmark `compaction` starts.

``rewrite TABLE BYTES RUN`` calls Iceberg's ``rewrite_data_files``. ``query TABLES RUN`` times queries over each of the tables
(comma-separated). The process prints its result as one line of JSON on standard output.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firn.model.maintenance import MaintenanceRun
from firn_spark import session
from hack.bench.contestants.lake import CATALOG, NAMESPACE

REPEATS = 7


def main() -> None:
    """Run the command of the command line and print its result."""
    command, names, *more, file = sys.argv[1:]
    spark = session.start(MaintenanceRun.model_validate_json(Path(file).read_text()))
    if command == "rewrite":
        result = rewrite(spark, names, int(more[0]))
    else:
        result = {name: time_query(spark, f"{CATALOG}.{NAMESPACE}.{name}") for name in names.split(",")}
    print(json.dumps(result), flush=True)
    spark.stop()


def rewrite(spark: Any, name: str, target: int) -> dict[str, Any]:
    """Run Iceberg's own bin-packing of one table."""
    began = time.monotonic()
    options = f"map('target-file-size-bytes', '{target}')"
    (row,) = spark.sql(
        f"CALL {CATALOG}.system.rewrite_data_files(table => '{NAMESPACE}.{name}', options => {options})"
    ).collect()
    return {
        "seconds": time.monotonic() - began,
        "bytes": row["rewritten_bytes_count"],
        "files": row["added_data_files_count"],
    }


def time_query(spark: Any, table: str) -> dict[str, float]:
    """Return the seconds to plan and to run a query over the whole table, and the counts of the table."""
    frame = spark.read.format("iceberg").load(table)
    rows, total = frame.selectExpr("count(*)", "sum(id)").first()
    return {
        "plan": timed(
            lambda: spark.read.format("iceberg").load(table).where("temperature > 20").rdd.getNumPartitions()
        ),
        "query": timed(lambda: spark.read.format("iceberg").load(table).groupBy("region").avg("temperature").collect()),
        "rows": rows,
        "sum": total,
        "files": spark.read.format("iceberg").load(f"{table}.data_files").count(),
    }


def timed(act: Callable[[], object]) -> float:
    """Return the median of some runs, after two runs for warm-up."""
    seconds = []
    for _ in range(2 + REPEATS):
        began = time.monotonic()
        act()
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds[2:])


if __name__ == "__main__":
    main()
