"""Real servers for the contract suites, one of each for a session."""

from collections.abc import Iterator

import pytest

from tests.servers.kafka import Kafka, kafka
from tests.servers.nessie import Nessie, nessie
from tests.servers.postgres import Postgres, directory_for_postgres, postgres
from tests.servers.s3 import S3, s3


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka(tmp_path_factory.mktemp("kafka") / "broker", secure=True) as server:
        yield server


@pytest.fixture(scope="session")
def database() -> Iterator[Postgres]:
    with directory_for_postgres() as directory, postgres(directory) as server:
        yield server


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def rest_catalog(tmp_path_factory: pytest.TempPathFactory, storage: S3) -> Iterator[Nessie]:
    with nessie(tmp_path_factory.mktemp("nessie"), storage) as server:
        yield server
