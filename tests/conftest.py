"""Settings of every test: Hypothesis never judges by time, and tries more where there is time for it (make test-long); what shares
servers shares a process where tests run in several (pytest -n)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.kafka import Kafka, kafka
from tests.servers.nessie import Nessie, nessie
from tests.servers.postgres import Postgres, directory_for_postgres, postgres
from tests.servers.s3 import S3, s3

settings.register_profile(
    "firn",
    deadline=None,
    max_examples=2000 if os.environ.get("FIRN_LONG") else 100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("firn")

TESTS = Path(__file__).parent
GROUPS = {
    "e2e/cluster": "a cluster of its own",
    "e2e/test_second_release.py": "a cluster of its own",
    "e2e": "the release",
    "integration/ingestion": "Spark",
    "integration/landing": "Spark",
    "integration": "servers",
    "contract": "servers",
}
"""Folder or module -> what its tests share; the first that fits counts. Tests of one group run in one process, one after the other."""
LONGEST_FIRST = ("the release", "Spark", "servers", "a cluster of its own")


def _group(item: pytest.Item) -> str:
    place = item.path.relative_to(TESTS)
    return next((group for path, group in GROUPS.items() if place.is_relative_to(path)), str(place))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    order = {group: number for number, group in enumerate(LONGEST_FIRST)}
    # Where one process runs everything, this only changes the order: what needs the cluster comes first.
    items.sort(key=lambda item: order.get(_group(item), len(order)))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One for all tests of a process; names of topics are theirs to keep apart."""
    directory = tmp_path_factory.mktemp("kafka") / "broker"
    with kafka(directory, secure=True, message__max__bytes="2000000", log__cleaner__backoff__ms="500") as server:
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
