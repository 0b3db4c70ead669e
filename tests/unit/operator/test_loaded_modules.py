"""Modules that the operator must not import, because they take memory or are not in its image."""

import subprocess
import sys

HEAVY = ("pyarrow", "pandas", "numpy", "duckdb", "fsspec", "pyspark")


def test_the_process_imports_no_heavy_module() -> None:
    program = f"import sys, firn_operator.__main__; print([name for name in {HEAVY!r} if name in sys.modules])"
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {program}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_no_command_imports_numpy() -> None:
    """The image of the operator does not have it."""
    program = (
        f"import importlib, pkgutil, sys; sys.path[:0] = {sys.path!r}; sys.modules['numpy'] = None; import firn_operator.cli as cli; "
        "print(len([importlib.import_module(each.name) for each in pkgutil.walk_packages(cli.__path__, 'firn_operator.cli.')]))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) > 10
