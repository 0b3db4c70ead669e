"""Make ingestion commits of one table as a driver does, in a process that the benchmark `commits` starts.

``COUNT WINDOW SLOT RUN`` makes ``COUNT`` commits. Every ``SLOT`` commits, one also removes all snapshots but the newest
``WINDOW`` from the metadata. The process prints the milliseconds of each commit and the bytes of the metadata, as one
line of JSON on standard output.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from firn.model.jobs import IngestJob, TableTarget
from firn.model.maintenance import MaintenanceRun
from firn_spark import session
from firn_spark.failpoints import Failpoints
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.commits import Committer, Extras, Landed
from firn_spark.tables.java_tables import Tables
from hack.bench.contestants.lake import CATALOG, NAMESPACE
from hack.bench.records.measurements import COLUMNS, SCHEMA

PARTITIONS = 1000
"""Partitions of the Kafka topic. Each commit has new offsets for all of them."""
RECORDS = 1000
"""Records of each partition in a commit."""


def main() -> None:
    """Make the commits of the command line and print their times."""
    *numbers, file = sys.argv[1:]
    count, window, slot = map(int, numbers)
    run = MaintenanceRun.model_validate_json(Path(file).read_text())
    spark = session.start(run)
    catalogs = Catalogs(spark, run)
    print(json.dumps(commit(Tables(catalogs), count, window, slot)), flush=True)
    catalogs.close()
    spark.stop()


def commit(tables: Tables, count: int, window: int, slot: int) -> dict[str, Any]:
    """Return the milliseconds of each commit and the largest number of bytes of the metadata."""
    table = tables.ensure(topic())
    committer = Committer(tables, "bench", Failpoints())
    landed: Landed | None = None
    took: list[float] = []
    times: deque[int] = deque(maxlen=window)
    largest = 0
    for number in range(1, count + 1):
        offsets = dict.fromkeys(range(PARTITIONS), number * RECORDS)
        removes = number % slot == 0
        if landed is not None and removes:
            landed = replace(landed, committed_ms=None)  # This makes the commit the first one of its five minutes.
        keep_ms = committer.now_ms() - times[0] if removes and len(times) == window else None
        began = time.perf_counter()
        landed = committer.commit(
            table, [data_file(str(table.location()))], landed, "topic", 1, offsets, Extras(keep_ms=keep_ms)
        )
        took.append(1000 * (time.perf_counter() - began))
        times.append(committer.now_ms())
        if removes:
            place = table.operations().current().metadataFileLocation()
            largest = max(largest, int(table.io().newInputFile(place).getLength()))
    return {"milliseconds": took, "bytes": largest}


def topic() -> IngestJob:
    """Return the job of a topic without a Kafka cluster."""
    return IngestJob(
        uid="bench", namespace="bench", name="commits", generation=1, group="bench", profile="none", topic="commits",
        record_schema=SCHEMA, table=TableTarget(catalog=CATALOG, namespace=NAMESPACE, name="commits"), freshness_ms=10_000,
    )  # fmt: skip


def data_file(location: str) -> str:
    """Return the descriptor of a file that is not there, because nothing reads it."""
    columns = list(range(1, len(COLUMNS) + 1))
    counts = {"keys": columns, "values": [RECORDS] * len(columns)}
    return json.dumps(
        {
            "spec-id": 0,
            "content": "data",
            "file-path": f"{location}/data/{uuid.uuid4()}.parquet",
            "file-format": "parquet",
            "partition": [],
            "file-size-in-bytes": 1 << 20,
            "record-count": PARTITIONS * RECORDS,
            "value-counts": counts,
            "null-value-counts": {"keys": columns, "values": [0] * len(columns)},
            "lower-bounds": {"keys": columns[:1], "values": ["0000000000000000"]},
            "upper-bounds": {"keys": columns[:1], "values": ["FF00000000000000"]},
        }
    )


if __name__ == "__main__":
    main()
