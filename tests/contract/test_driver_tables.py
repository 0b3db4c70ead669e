"""The lake in memory behaves like Iceberg's Java. tests/integration/ingestion/test_driver_tables.py has the real one."""

import itertools
from typing import Any

import pytest

from firn.model.jobs import CatalogConnection, GroupSettings, IngestJob
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.java_tables import Tables
from tests.contract.driver_tables import DriverTablesContract
from tests.fakes.lake.java import DirectGateway, spark
from tests.fakes.lake.memory import Lake, Snapshot
from tests.unit.spark_driver.topic import job as job_of

_numbers = itertools.count()


@pytest.fixture
def job() -> IngestJob:
    return job_of(f"orders{next(_numbers)}")


class TestLake(DriverTablesContract):
    @pytest.fixture
    def lake(self) -> Lake:
        return Lake()

    @pytest.fixture
    def tables(self, lake: Lake) -> Tables:
        self._lake = lake
        connection = CatalogConnection(type="sql", uri="postgresql://db/lake", warehouse="s3://firn/lake")
        settings = GroupSettings(group="test", catalogs={"lake": connection})
        return Tables(Catalogs(spark(lake, DirectGateway()), settings))

    def commit_ahead(self, tables: Tables, table: Any, time_ms: int, branch: str) -> None:
        name = table.name().partition(".")[2]
        live = self._lake.tables[name]
        head = live.landing.id if live.landing is not None else None
        later = live.with_snapshot(Snapshot(self._lake.number(), head, time_ms, "append", {}, ()), branch)
        self._lake.commit(name, live, later)

    def drop(self, tables: Tables, job: IngestJob) -> None:
        self._lake.drop(f"{job.table.namespace}.{job.table.name}")
