"""A Spark session with Iceberg, in this process, and tables under a temporary directory."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

CATALOG = "landing_lake"


def jars(kind: str) -> str:
    """The jars that set-up fetched into the cache, as Spark takes them."""
    directory = Path(os.environ.get("FIRN_CACHE", Path.home() / ".cache/firn")) / "jars" / kind
    found = sorted(str(jar) for jar in directory.glob("*.jar"))
    assert found, f"no jars in {directory}: run `make setup`"
    return ",".join(found)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    root = str(Path(__file__).parents[3])
    roots = [root, f"{root}/spark_apps"]
    os.environ["PYTHONPATH"] = os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars("spark"))
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.python.daemon.module", "firn_spark.worker_daemon")
        .getOrCreate()
    )
    session.conf.set("spark.sql.session.timeZone", "UTC")
    prefix = f"spark.sql.catalog.{CATALOG}"
    session.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set(f"{prefix}.type", "hadoop")
    session.conf.set(f"{prefix}.warehouse", tmp_path_factory.mktemp("warehouse").as_uri())
    session.conf.set(f"{prefix}.cache-enabled", "false")
    yield session
    session.stop()
