"""Iceberg's Java keeps the contract that the lake in memory keeps (tests/contract/test_driver_tables.py)."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from firn.model.jobs import GroupSettings, IngestJob, TableTarget
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.java_tables import Tables
from tests.contract.driver_tables import DriverTablesContract, commit_ahead
from tests.unit.spark_driver.topic import job as job_of

_numbers = itertools.count()


class TestIceberg(DriverTablesContract):
    @pytest.fixture
    def job(self) -> IngestJob:
        name = f"contract{next(_numbers)}"
        return job_of(name, table=TableTarget(catalog="lake", namespace="contract", name=name))

    @pytest.fixture
    def tables(self, spark: object, settings: GroupSettings) -> Iterator[Tables]:
        self._catalogs = Catalogs(spark, settings)
        yield Tables(self._catalogs)
        self._catalogs.close()

    def commit_ahead(self, tables: Tables, table: Any, time_ms: int) -> None:
        commit_ahead(tables.jvm, table, time_ms)

    def drop(self, tables: Tables, job: IngestJob) -> None:
        name = tables._strings(job.table.namespace, job.table.name)
        catalog = self._catalogs.get(job.table.catalog)
        catalog.dropTable(tables.jvm.org.apache.iceberg.catalog.TableIdentifier.of(name))
