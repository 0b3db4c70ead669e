"""Modules that the operator must not import, to save memory."""

import subprocess
import sys

HEAVY = ("pyarrow", "pandas", "numpy", "duckdb", "fsspec", "pyspark")


def test_the_process_imports_no_heavy_module() -> None:
    program = f"import sys, firn_operator.__main__; print([name for name in {HEAVY!r} if name in sys.modules])"
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {program}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"
