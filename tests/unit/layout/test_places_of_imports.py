"""Imports name the place of a module from the repository or from one of its source roots."""

import ast
import os
import subprocess
import sys
import tomllib

from tests.unit.layout.sources import ROOT, files, relative, tree


def test_pytest_looks_for_modules_in_the_source_roots_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    paths = project["tool"]["pytest"]["ini_options"]["pythonpath"]
    assert paths == [".", "operator", "controllers", "broker", "spark_apps"]


def test_only_one_module_imports_numba() -> None:
    """``compiled.py`` sets numba's settings before it imports numba. Compiled code is not found if another module imports it first."""
    importers = set()
    for path in files("spark_apps"):
        for node in ast.walk(tree(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] in ("numba", "llvmlite") for name in names):
                importers.add(relative(path))
    assert importers == {"spark_apps/firn_spark/worker/compiled.py"}


def test_a_worker_compiles_for_every_processor() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "spark_apps")])
    program = "import firn_spark.worker_daemon, numba; assert numba.config.CPU_NAME == 'generic', numba.config.CPU_NAME"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
