"""What an image build compiles is used, from a read-only place, by processes that may only write their temporary directory."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
USE = """
import pyarrow as pa
from firn.model.jobs import Column
from firn_spark import json_blocks, json_kernel
columns, vouched = json_blocks.BlockDecoder([Column(name="a", type="int")], refuse_unknown=False).decode(pa.array([b'{"a": 1}']))
assert columns[0].to_pylist() == [1]
stats = json_kernel.read_records.stats
assert sum(stats.cache_misses.values()) == 0 and sum(stats.cache_hits.values()) == 1, stats
"""


def python(*arguments, **environment):
    base = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "FIRN"))}
    path = os.pathsep.join([str(ROOT), str(ROOT / "spark_apps")])
    subprocess.run([sys.executable, *arguments], env=base | {"PYTHONPATH": path} | environment, check=True, timeout=300)


def test_a_prebuilt_directory_is_used(tmp_path):
    prebuilt, scratch, home = tmp_path / "prebuilt", tmp_path / "scratch", tmp_path / "home"
    for directory in (prebuilt, scratch, home):
        directory.mkdir()
    python("-m", "firn_spark.compiled", str(prebuilt), TMPDIR=str(scratch), HOME=str(home))
    before = {path: path.stat().st_mtime_ns for path in prebuilt.rglob("*")}
    assert before
    for _ in range(2):
        python("-c", USE, FIRN_COMPILED=str(prebuilt), TMPDIR=str(scratch), HOME=str(home))
    assert {path: path.stat().st_mtime_ns for path in prebuilt.rglob("*")} == before
    assert not any(home.iterdir())
