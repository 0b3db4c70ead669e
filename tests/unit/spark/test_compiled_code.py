"""Processes use the code that an image build compiled, from a read-only directory, and write temporary files only."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hack.localcluster.images.build import image

ROOT = Path(__file__).parents[3]
USE = """
import firn_spark.worker_daemon  # first, as in a worker
import json
import numpy as np
import pyarrow as pa
from firn.model.jobs import Column
from firn.schemas import avro, protobuf
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Places
from firn_spark.worker.formats.avro import kernel as avro_kernel
from firn_spark.worker.formats.avro.rows import fields_of
from firn_spark.worker.fetching import kernel as fetching
from firn_spark.worker.formats.json import blocks, kernel, variant_kernel
from firn_spark.worker.formats.protobuf import kernel as protobuf_kernel
from firn_spark.worker.formats.protobuf.rows import Rows
from tests.unit.fetching import log, reading
nested = "struct<x: list<struct<y: map<string, int>>>, z: list<string>>"
for fields in (
    [Column(name="a", type="string")],
    [Column(name="a", type="string"), Column(name="b", type="int", required=True)],
    [Column(name="a", type="string"), Column(name="c", type=nested), Column(name="d", type="list<decimal(9, 2)>")],
    [Column(name="a", type="string"), Column(name="c", type="variant")],
):
    decoder = blocks.BlockDecoder(fields, refuse_unknown=len(fields) == 1, keep_unknown=len(fields) == 2)
    record = b'{"a": "x", "b": 1, "c": {"x": [{"y": {"k": 1}}, null], "z": ["t"]}, "d": [1.5]}'
    for values in ([], [None], [record, b"garbage"]):
        whole = pa.array(values, pa.binary())
        for records in (whole, whole.slice(1)):
            decoder.decode(Places.from_arrow(records))
for codec in (0, 4):
    one = log.Batch(0, [log.Record(n, headers=((b"n", b"v"),)) for n in range(9)], codec=codec)
    for start, end in ((0, 9), (3, 5)):
        reading.blocks_of(one.encode(), start, end)
        reading.blocks_of(log.marker(0, 1, aborts=True).encode(), 0, 1, [(1, 0)])
fields = [("a", ["null", "string"]), ("b", {"type": "map", "values": "int"}), ("c", ["int", "string"])]
declared = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}
schema = avro.parse(json.dumps(declared))
types = {"a": pa.string(), "b": pa.map_(pa.string(), pa.int32()), "c": pa.struct([("int", pa.int32()), ("string", pa.string())])}
rows, _ = fields_of(schema.fields, types)
for values in ([], [None], [bytes([2, 2, 120, 2, 2, 107, 2, 0, 0, 2]), b"garbage"]):
    places = Places.from_arrow(pa.array(values, pa.binary()))
    rows.read(places.data, places.firsts, places.ends, places.present)
def entry_of(key, value, key_default, value_default):
    fields = protobuf.Field(1, "key", key, key_default), protobuf.Field(2, "value", value, value_default)
    return protobuf.Message("E", fields)
scalar = protobuf.Scalar
entry = entry_of(scalar("string"), scalar("int32"), "", 0)
kinds = [scalar("string"), scalar("int32"), protobuf.Repeated(scalar("int32")), protobuf.Repeated(scalar("string")), protobuf.Map(entry)]
keys = protobuf.Map(entry_of(scalar("int64"), entry, 0, b""))
fields = [protobuf.Field(number, f"f{number}", kind) for number, kind in enumerate([*kinds, keys], 1)]
types = arrow_types.arrow_schema(protobuf.columns(protobuf.Message("M", tuple(fields)))).types
for chosen in (slice(0, 1), slice(0, 6), slice(4, 6)):
    rows = Rows(fields[chosen], types[chosen])
    for values in ([], [None], [bytes([10, 1, 120, 24, 1, 34, 1, 121, 42, 3, 10, 1, 107, 50, 2, 8, 1]), b"garbage"]):
        places = Places.from_arrow(pa.array(values, pa.binary()))
        rows.read(places.data, places.firsts, places.ends, places.present)
        outputs = np.empty(len(places), np.int64), np.empty(len(places), bool)
        protobuf_kernel.skip_indexes(places.data, places.firsts, places.ends, places.present, np.arange(len(fields) % 2), *outputs)
used = [getattr(avro_kernel, name) for name in ("read_rows", "find_items", "find_branches", "copy_texts")]
used += [getattr(kernel, name) for name in ("read_records", "read_values", "find_elements", "find_entries", "copy_texts")]
used.append(variant_kernel.encode)
protobuf_names = ("read_rows", "find_items", "read_items", "doubt_repeated_keys", "copy_texts", "skip_indexes")
used += [getattr(protobuf_kernel, name) for name in protobuf_names]
used += [fetching.walk, fetching.read, fetching.read_headers]
for function in used:
    assert not function.stats.cache_misses, function.stats
    assert sum(function.stats.cache_hits.values()) == 1, function.stats
"""


def python(*arguments: Any, **environment: Any) -> None:
    base = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "FIRN"))}
    path = os.pathsep.join([str(ROOT), str(ROOT / "spark_apps")])
    subprocess.run([sys.executable, *arguments], env=base | {"PYTHONPATH": path} | environment, check=True, timeout=300)


@pytest.mark.long  # It compiles everything, as an image build does.
def test_code_compiled_in_the_image_build_is_used(tmp_path: Path) -> None:
    """The code is compiled from the files that hack/images copies into the build, and from no others."""
    copied, prebuilt, built_in, used_in = (tmp_path / name for name in ("copied", "prebuilt", "one", "other"))
    for directory in (copied, built_in, used_in):
        directory.mkdir()
    files = {name: source for name, source in image("firn-spark").files.items() if name.startswith("kernel/")}
    for name, source in files.items():
        target = copied / name.removeprefix("kernel/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((ROOT / source).read_text())
    python(
        "-m",
        "firn_spark.worker.build",
        str(prebuilt),
        PYTHONPATH=str(copied),
        TMPDIR=str(built_in),
        HOME=str(tmp_path),
    )
    before = {path: path.stat().st_mtime_ns for path in prebuilt.rglob("*")}
    assert before
    for _ in range(2):
        python("-c", USE, FIRN_COMPILED=str(prebuilt), TMPDIR=str(used_in), HOME=str(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in prebuilt.rglob("*")} == before
