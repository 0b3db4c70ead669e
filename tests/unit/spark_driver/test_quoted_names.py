"""Names in SQL statements for Spark's parser."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from firn.model import names
from firn.model.jobs import TableTarget
from firn_spark.tables import dead_letters
from firn_spark.tables.commits import INGEST, Landed
from firn_spark.tables.java_tables import quoted
from tests.unit.spark_driver.topic import job


def test_every_part_of_a_name_is_quoted() -> None:
    assert quoted("eu-west", "2026", "a`b") == "`eu-west`.`2026`.`a``b`"


def test_dead_letters_are_read_by_a_quoted_name() -> None:
    spark: Any = MagicMock()
    summary = {names.SUMMARY_KIND: INGEST, names.SUMMARY_TOPIC_ID: "id-1", names.SUMMARY_OFFSETS: '{"0": 20}'}
    snapshot = SimpleNamespace(snapshotId=lambda: 1, parentId=lambda: None, summary=lambda: summary)
    table = SimpleNamespace(name=lambda: "eu-west.2026.orders__dlq", currentSnapshot=lambda: snapshot)
    orders = job(table=TableTarget(catalog="eu-west", namespace="2026", name="orders"))
    dead_letters.records_between(spark, orders, table, Landed("id-1", 1, {0: 20}), {}, {0: 20})
    spark.read.format("iceberg").load.assert_called_once_with("`eu-west`.`2026`.`orders__dlq`")
