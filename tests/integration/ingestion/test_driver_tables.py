"""Iceberg's Java keeps the contract that the lake in memory keeps (tests/contract/test_driver_tables.py)."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from firn.model.jobs import GroupSettings, IngestJob, TableTarget
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.java_tables import Tables
from tests.contract.driver_tables import DriverTablesContract
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
        iceberg = tables.jvm.org.apache.iceberg
        made, base = table.newAppend().apply(), table.operations().current()
        fields = {**json.loads(iceberg.SnapshotParser.toJson(made)), "timestamp-ms": time_ms}
        builder = iceberg.TableMetadata.buildFrom(base)
        # What System.currentTimeMillis() sets under such a clock.
        field = builder.getClass().getDeclaredField("lastUpdatedMillis")
        field.setAccessible(True)
        field.set(builder, time_ms)
        snapshot = iceberg.SnapshotParser.fromJson(json.dumps(fields))
        table.operations().commit(base, builder.setBranchSnapshot(snapshot, "main").build())

    def drop(self, tables: Tables, job: IngestJob) -> None:
        name = tables._strings(job.table.namespace, job.table.name)
        catalog = self._catalogs.get(job.table.catalog)
        catalog.dropTable(tables.jvm.org.apache.iceberg.catalog.TableIdentifier.of(name))
