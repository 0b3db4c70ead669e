"""Start maintenance runs as processes on this machine, as their Jobs do, and fill tables of small files for them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io.pyarrow import schema_to_pyarrow

from firn.model.jobs import TableTarget
from firn.model.maintenance import CompactionWork, MaintenanceRun, TableReport, TableWork, unpack
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.cli.lake import ARROW_IO
from hack.bench.contestants.lake import CATALOG, NAMESPACE, Lake
from hack.bench.measuring.process_tree import Sampler, Usage
from hack.bench.records.measurements import Generator
from hack.support.places import REPOSITORY
from tests.servers.process import cache, tail

MIB = 1024 * 1024
_LONGEST = 1800.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of a process: ``seconds`` from start to end, and ``usage`` of its process tree."""

    seconds: float
    usage: Usage
    output: str


def run_of(stores: Lake, name: str, works: Sequence[TableWork], *, cores: int, heap: str) -> MaintenanceRun:
    """Return the contract of a run without Kubernetes."""
    jars = sorted(str(jar) for jar in (cache() / "jars" / "spark").glob("*.jar"))
    return MaintenanceRun(
        name=name,
        leases_directory=str(stores.directory / "leases"),
        tables=tuple(works),
        catalogs={CATALOG: stores.connection},
        cores=cores,
        heap=heap,
        spark_conf={"spark.jars": ",".join(jars)},
    )


def work(stores: Lake, name: str, compaction: CompactionWork) -> TableWork:
    """Return the work of compacting one table."""
    table = stores.catalog().load_table((NAMESPACE, name))
    target = TableTarget(catalog=CATALOG, namespace=NAMESPACE, name=name)
    return TableWork(
        uid=name,
        namespace=NAMESPACE,
        name=name,
        table=target,
        table_uuid=str(table.metadata.table_uuid),
        dead_letters=False,
        compaction=compaction,
    )


def maintain(stores: Lake, run: MaintenanceRun) -> tuple[TableReport, Outcome]:
    """Carry out a run and return the report of its first table. Raises RuntimeError if it fails."""
    directory = stores.directory / run.name
    directory.mkdir()
    message = directory / "message"
    outcome = process(directory, run, [str(REPOSITORY / "spark_apps" / "maintain.py")], message)
    report = unpack(message.read_text()).tables[0]
    if report.outcome not in ("Done", "Nothing"):
        raise RuntimeError(f"run {run.name}: {report.outcome}: {report.message}")
    return report, outcome


def process(directory: Path, run: MaintenanceRun, command: Sequence[str], message: Path) -> Outcome:
    """Run ``command`` (of Python) to its end, with the run's file as argument. Raises RuntimeError if it fails."""
    file = directory / "run.json"
    file.write_text(run.model_dump_json())
    scratch = directory / "tmp"
    scratch.mkdir()
    roots = [str(REPOSITORY), str(REPOSITORY / "spark_apps")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(roots),
        "FIRN_TERMINATION_LOG": str(message),
        "TMPDIR": str(scratch),
        "SPARK_LOCAL_DIRS": str(scratch),
    }
    log = directory / "log"
    began = time.monotonic()
    with log.open("ab") as errors:
        started = subprocess.Popen(
            [sys.executable, *command, str(file)],
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        try:
            with Sampler(started.pid, memory_interval=0.5).sampling() as usage:
                output, _ = started.communicate(timeout=_LONGEST)
        finally:
            if started.poll() is None:
                started.kill()
                started.wait()
    if started.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with exit code {started.returncode}: {tail(log)}")
    return Outcome(time.monotonic() - began, usage, output.decode())


def fill_with_small_files(stores: Lake, names: Sequence[str], files: int, size: int = MIB) -> int:
    """Fill plain tables with the same files of about ``size`` bytes, 20 per commit. Returns the number of rows."""
    properties = {**stores.connection.properties, PY_IO_IMPL: ARROW_IO}
    catalog = open_catalog(CATALOG, stores.connection.model_copy(update={"properties": properties}))
    for name in names:
        stores.create_plain_table(name)
    tables = [catalog.load_table((NAMESPACE, name)) for name in names]
    schema = schema_to_pyarrow(tables[0].schema())
    rows = int(20_000 * size / _parquet_bytes(_rows(schema, 0, 20_000)))
    for start in range(0, files, 20):
        batches = [_rows(schema, number * rows, rows) for number in range(start, min(files, start + 20))]
        for table in tables:
            paths = []
            for number, batch in enumerate(batches, start):
                path = f"{table.location()}/data/small-{number:05d}.parquet"
                local = Path(path.removeprefix("file://"))
                local.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(batch, local, compression="zstd")
                paths.append(path)
            table.add_files(paths)
    return rows * files


def _rows(schema: Any, first: int, count: int) -> pa.Table:
    """Return rows like the records of the other benchmarks."""
    pick = np.random.default_rng(first)
    notes = np.array(_NOTES)
    columns = {
        "id": np.arange(first, first + count),
        "at": pa.array(1_767_225_600_000_000 + (np.arange(first, first + count) * 1000), pa.timestamp("us", "UTC")),
        "device": pa.array([f"sensor-{number:06d}" for number in pick.integers(0, 50_000, count)]),
        "region": pa.array(
            np.array(["eu-central-1", "eu-west-1", "us-east-1", "us-west-2"])[pick.integers(0, 4, count)]
        ),
        "temperature": pick.normal(20.0, 6.0, count).round(3),
        "count": pa.array(pick.integers(0, 100_000, count), pa.int32()),
        "active": pick.random(count) < 0.8,
        "note": pa.array(notes[pick.integers(0, len(notes), count)]),
    }
    arrays = [
        pa.array(columns[field.name]) if not isinstance(columns[field.name], pa.Array) else columns[field.name]
        for field in schema
    ]
    fields = [field.remove_metadata() for field in schema]
    return pa.table(
        [array.cast(field.type) for array, field in zip(arrays, fields, strict=True)], schema=pa.schema(fields)
    )


def _parquet_bytes(table: pa.Table) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return int(sink.getvalue().size)


_NOTES = Generator()._notes
