"""The archive of Java classes that `make setup` writes for the Spark sessions of tests."""

from pathlib import Path
from typing import Any

from pyspark import SparkContext

from tests.servers.spark import ARCHIVE


def test_a_session_maps_the_class_archive(spark: Any) -> None:
    assert ARCHIVE.exists(), f"{ARCHIVE} is missing: run make setup"
    gateway: Any = SparkContext._gateway
    assert str(ARCHIVE) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()
