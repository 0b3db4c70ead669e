"""Measure what the operator spends to measure each table's maintenance debt: after a start, after a commit to each table, and without commits.

The tables have only metadata, because the operator reads no data file when it measures debt. Each table has 20 commits of 10 files. The
catalog is in PostgreSQL, and the metadata files are on an S3 server.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from sqlalchemy import insert, update

from firn.model.clock import SystemClock
from firn.model.jobs import CatalogConnection, TableTarget
from firn.model.maintenance import CompactionWork
from firn_operator.adapters.iceberg import catalogs, file_io
from firn_operator.adapters.iceberg import debt as debt_module
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.adapters.iceberg.debt import CatalogDebts
from firn_operator.adapters.iceberg.evolution import new_schema
from hack.bench.contestants.lake import CATALOG, NAMESPACE
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options
from hack.bench.records.measurements import COLUMNS
from hack.support.progress import step
from tests.servers.postgres import postgres
from tests.servers.s3 import s3

COMMITS = 20
FILES = 10
ROWS = 50_000
MIB = 1024 * 1024
PEER_TABLES = 50
PEER = "PyIceberg plan_files, 50 of the tables, scaled"
AGE_MS = 3_600_000


@dataclass
class Table:
    """A table that has only metadata, and the data for its next commit."""

    name: str
    location: str
    metadata: dict[str, Any]
    manifests: list[ManifestFile] = field(default_factory=list)
    commits: int = 0
    place: str = ""


def measure(options: Options) -> Iterator[Figure]:
    """Create the tables and measure them three times."""
    directory = options.directory / "debt"
    directory.mkdir(parents=True)
    with postgres(directory / "postgres") as database, s3(directory / "s3") as storage:
        secret = directory / "password"
        secret.write_text(database.password)
        connection = CatalogConnection(
            type="sql",
            uri=database.uri,
            warehouse=f"s3://{storage.bucket}/bench",
            properties={"user": database.user, **storage.properties},
            secret_properties={"password": str(secret), **storage.secret_properties},
        )
        catalog = open_catalog(CATALOG, connection)
        assert isinstance(catalog, SqlCatalog)
        catalog.create_namespace(NAMESPACE)
        count = options.resources
        with step(f"making the metadata of {count} tables, {COMMITS} commits of {FILES} files each"):
            tables = write(catalog, [new(catalog, f"debt_{number:04d}") for number in range(count)], COMMITS)
        yield from asyncio.run(rounds(connection, catalog, tables))


async def rounds(connection: CatalogConnection, catalog: SqlCatalog, tables: Sequence[Table]) -> list[Figure]:
    """Return the figures of the first round, of one after a commit to each table, and of one without commits."""
    targets = [TableTarget(catalog=CATALOG, namespace=NAMESPACE, name=table.name) for table in tables]
    debts = CatalogDebts({CATALOG: connection}, SystemClock())
    figures: list[Figure] = []
    try:
        memory = resident()
        for name, situation in (
            ("first", "after a start"),
            ("busy", "a commit to each"),
            ("idle", "nothing committed"),
        ):
            if name == "busy":
                with step("a commit to each table"):
                    await asyncio.to_thread(write, catalog, tables, 1)
            with step(f"measuring {len(tables)} tables: {situation}"), counted() as work:
                cpu, began = time.process_time(), time.monotonic()
                measured = await asyncio.gather(*(debts.measure(target, CompactionWork()) for target in targets))
                seconds, spent = time.monotonic() - began, time.process_time() - cpu
            commits = COMMITS + (name != "first")
            for debt in measured:
                assert debt is not None
                assert (debt.data_files, debt.small_files) == (commits * FILES, commits * FILES)
            peer = await asyncio.to_thread(planned, catalog, tables) if name == "first" else None
            scale = f"of {len(tables)} tables"
            figures += [
                Figure(f"debt_{name}", seconds, f"s {scale}", "lower", PEER if peer else None, peer),
                Figure(f"debt_{name}_waiting", work.seconds, f"s of catalog and S3 work {scale}", "lower"),
                Figure(f"debt_{name}_cpu", spent, f"CPU s {scale}", "lower"),
                Figure(f"debt_{name}_reads", work.reads, f"objects read {scale}", "lower"),
                Figure(f"debt_{name}_queries", work.queries, f"catalog queries {scale}", "lower"),
            ]
        figures.append(Figure("debt_memory", (resident() - memory) / 1e6, f"MB more resident {scale}", "lower"))
    finally:
        debts.close()
    return figures


@dataclass
class Work:
    """Requests to the catalog and the object store, of all threads together."""

    reads: int = 0
    queries: int = 0
    seconds: float = 0.0


@contextmanager
def counted() -> Iterator[Work]:
    """Count requests inside the with block."""
    work = Work()
    real_open, real_places = file_io.ObjectFile.open, catalogs.places

    def opened(self: file_io.ObjectFile, seekable: bool = True) -> Any:
        began = time.monotonic()
        try:
            return real_open(self, seekable)
        finally:
            work.reads += 1
            work.seconds += time.monotonic() - began

    def asked(*arguments: Any) -> Any:
        began = time.monotonic()
        try:
            return real_places(*arguments)
        finally:
            work.queries += 1
            work.seconds += time.monotonic() - began

    with patch.object(file_io.ObjectFile, "open", opened), patch.object(debt_module, "places", asked):
        yield work


def planned(catalog: SqlCatalog, tables: Sequence[Table]) -> float:
    """Return the seconds of PyIceberg's own scan planning for all tables, in as many threads. Measures some and scales."""
    some = tables[:PEER_TABLES]

    def plan_table(table: Table) -> int:
        files = list(catalog.load_table((NAMESPACE, table.name)).scan().plan_files())
        return sum(task.file.file_size_in_bytes < 384 * MIB for task in files)

    began = time.monotonic()
    with ThreadPoolExecutor(debt_module.THREADS) as pool:
        assert all(count == COMMITS * FILES for count in pool.map(plan_table, some))
    return (time.monotonic() - began) / len(some) * len(tables)


def resident() -> int:
    """Return the resident bytes of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


# Tables without data

_snapshots = itertools.count(1)


def new(catalog: SqlCatalog, name: str) -> Table:
    """Return a table without commits that is in no catalog yet."""
    schema = new_schema(COLUMNS)
    location = f"{catalog.properties['warehouse']}/{NAMESPACE}/{name}"
    at = schema.find_field("at").field_id
    spec = PartitionSpec(PartitionField(at, 1000, DayTransform(), "at_day"))
    metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, location, {"format-version": "2"})
    return Table(name, location, json.loads(metadata.model_dump_json()))


def write(catalog: SqlCatalog, tables: Sequence[Table], commits: int) -> list[Table]:
    """Add so many commits to each table."""
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda table: commit(catalog, table, commits), tables))
    with catalog.engine.begin() as session:
        for table, fresh in written:
            if fresh:
                row = catalog._create_table_row(NAMESPACE, table.name, table.place)
                session.execute(insert(IcebergTables).values(**row))
            else:
                session.execute(
                    update(IcebergTables)
                    .where(IcebergTables.table_namespace == NAMESPACE, IcebergTables.table_name == table.name)
                    .values(metadata_location=table.place)
                )
    return [table for table, _ in written]


def commit(catalog: SqlCatalog, table: Table, commits: int) -> tuple[Table, bool]:
    """Write commits to one table: manifests, the newest manifest list, metadata. Returns the table, and True if the catalog lacks it."""
    io = file_io.ObjectFileIO(catalog.properties)
    fresh = table.commits == 0
    schema = new_schema(COLUMNS)
    at = schema.find_field("at").field_id
    spec = PartitionSpec(PartitionField(at, 1000, DayTransform(), "at_day"))
    now = int(time.time() * 1000) - AGE_MS
    for _ in range(commits):
        table.commits += 1
        sequence, snapshot = table.commits, next(_snapshots)
        path = f"{table.location}/metadata/{uuid.uuid4()}-m0.avro"
        with write_manifest(2, spec, schema, io.new_output(path), snapshot, "deflate") as writer:
            for number in range(FILES):
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=snapshot,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=data_file(f"{table.location}/data/{snapshot}-{number}.parquet"),
                    )
                )
        manifest = writer.to_manifest_file()
        manifest.sequence_number = manifest.min_sequence_number = sequence
        table.manifests.append(manifest)
        table.metadata["snapshots"].append(
            {
                "snapshot-id": snapshot,
                "sequence-number": sequence,
                "timestamp-ms": now + sequence,
                "manifest-list": f"{table.location}/metadata/snap-{snapshot}.avro",
                "summary": {"operation": "append", "added-records": str(FILES * ROWS)},
                "schema-id": 0,
            }
        )
    newest = table.metadata["snapshots"][-1]
    with write_manifest_list(
        2, io.new_output(newest["manifest-list"]), newest["snapshot-id"], None, table.commits, "deflate"
    ) as listed:
        listed.add_manifests(table.manifests)
    table.metadata |= {
        "current-snapshot-id": newest["snapshot-id"],
        "last-sequence-number": table.commits,
        "refs": {"main": {"snapshot-id": newest["snapshot-id"], "type": "branch"}},
    }
    table.place = f"{table.location}/metadata/{table.commits:05d}-{uuid.uuid4()}.metadata.json"
    with io.new_output(table.place).create(overwrite=True) as output:
        output.write(json.dumps(table.metadata).encode())
    return table, fresh


def data_file(path: str) -> DataFile:
    """Return a file of 1 MiB with statistics for every column, as Firn writes them."""
    columns = range(1, len(COLUMNS) + 1)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(20_000),
        record_count=ROWS,
        file_size_in_bytes=MIB,
        column_sizes=dict.fromkeys(columns, MIB // len(COLUMNS)),
        value_counts=dict.fromkeys(columns, ROWS),
        null_value_counts=dict.fromkeys(columns, 0),
        nan_value_counts={},
        lower_bounds=dict.fromkeys(columns, b"\0" * 8),
        upper_bounds=dict.fromkeys(columns, b"\x7f" * 8),
        key_metadata=None,
        split_offsets=[4],
        equality_ids=None,
        sort_order_id=None,
    )
