"""Imports name the place of a module from the repository or from one of its source roots."""

import tomllib

from tests.unit.layout.sources import ROOT


def test_pytest_looks_for_modules_in_the_source_roots_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    paths = project["tool"]["pytest"]["ini_options"]["pythonpath"]
    assert paths == [".", "operator", "controllers", "broker", "spark_apps"]
