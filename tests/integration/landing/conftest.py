"""Run a Spark session with Iceberg in this process, with tables under a temporary directory."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.servers.spark import spark_conf

CATALOG = "landing_lake"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    root = str(Path(__file__).parents[3])
    roots = [root, f"{root}/spark_apps"]
    os.environ["PYTHONPATH"] = os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])
    builder = SparkSession.builder.master("local[1]")
    for key, value in spark_conf().items():
        builder = builder.config(key, value)
    session = (
        builder.config("spark.driver.memory", "1g")
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
