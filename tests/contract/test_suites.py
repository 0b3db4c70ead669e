"""Run the contract suites on the fakes of unit tests and on real servers."""

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from firn.model.jobs import CatalogConnection, TableTarget
from firn_operator.adapters.iceberg.tables import CatalogTables
from firn_operator.adapters.kafka.topics import Brokers, KafkaTopics
from tests.contract.suites import CATALOG, PROFILE, TablesContract, TopicsContract
from tests.fakes.lake.memory import Lake, LakeTables
from tests.fakes.tables import FakeTables
from tests.fakes.topics import FakeTopics
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"contract-{next(_numbers)}"


@pytest.fixture
def target() -> TableTarget:
    return TableTarget(catalog=CATALOG, namespace="contract", name=f"table{next(_numbers)}")


class TestFakeTopics(TopicsContract):
    @pytest.fixture
    def topics(self) -> FakeTopics:
        return FakeTopics()


class TestKafkaTopics(TopicsContract):
    @pytest.fixture
    def topics(self, broker: Kafka) -> Iterator[KafkaTopics]:
        with closing(KafkaTopics({PROFILE: Brokers(broker.connection, replication_factor=1)})) as topics:
            yield topics


class TestFakeTables(TablesContract):
    @pytest.fixture
    def tables(self) -> FakeTables:
        return FakeTables()


class TestLakeTables(TablesContract):
    @pytest.fixture
    def tables(self) -> LakeTables:
        return LakeTables(Lake())


class TestCatalogTables(TablesContract):
    @pytest.fixture
    def tables(self, database: Postgres, tmp_path: Path) -> Iterator[CatalogTables]:
        password = tmp_path / "password"
        password.write_text(database.password)
        connection = CatalogConnection(
            type="sql",
            uri=database.uri,
            warehouse=f"file://{tmp_path}/warehouse",
            properties={"user": database.user},
            secret_properties={"password": str(password)},
        )
        port = CatalogTables({CATALOG: connection})
        yield port
        port.close()
