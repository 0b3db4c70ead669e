"""Settings for all tests.

Hypothesis has no deadline. It tries the same examples in each run, and `make test-long` tries more and random ones. Tests
that share servers run in one process under `pytest -n`."""

import functools
import os
from collections.abc import Generator, Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests import apiserver, skips
from tests.apiserver import ApiServer
from tests.progress import Progress
from tests.servers.iceberg_rest import ACCOUNTS, IcebergRest, behind_proxies, iceberg_rest
from tests.servers.kafka import Kafka, kafka
from tests.servers.nessie import Nessie, nessie
from tests.servers.postgres import Postgres, directory_for_postgres, postgres
from tests.servers.s3 import S3, s3

LONG = "FIRN_LONG" in os.environ
settings.register_profile(
    "firn",
    deadline=None,
    max_examples=2000 if LONG else 100,
    derandomize=not LONG,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("firn")

GROUPS = {
    "tests/e2e/cluster": "a cluster of its own",
    "tests/e2e/test_second_release.py": "a second release",
    "tests/e2e": "the release",
    "tests/integration/ingestion/test_exactly_once.py": "Spark under faults",
    "tests/integration/ingestion/test_faults_of_direct_reads.py": "Spark under faults",
    "tests/integration/ingestion": "Spark",
    "tests/integration/landing": "Spark",
    "tests/integration/maintenance": "Spark for maintenance",
    "tests/integration/broker/test_java_clients.py": "clients of the broker",
    "tests/integration/broker/test_franz_go.py": "clients of the broker",
    "tests/integration": "servers",
    "tests/contract": "servers of the ports",
}
"""Folder or module -> the servers that its tests share. The first match counts. Any other module shares nothing.

Spark and the other servers have several groups, so that no group takes longer than the release, and none is the last one for long."""
LONGEST_FIRST = (
    "the release",
    "Spark",
    "Spark under faults",
    "Spark for maintenance",
    "servers",
    "servers of the ports",
    "clients of the broker",
    "a cluster of its own",
    "a second release",
    "tests/unit/spark/test_compiled_code.py",
    "tests/unit/controllers/test_any_policy_history.py",
    "tests/unit/broker/test_many_elements.py",
)
"""Groups, and modules of tests that share nothing, whose tests take long. A process that starts one of them last keeps
the others waiting."""

LAST = "tests/e2e/test_credentials_stay_secret.py"
"""The module that looks at what the other tests of its group have left."""


def group(nodeid: str) -> str:
    """Return the name of the servers that a test shares with other tests."""
    return _group_of_module(nodeid.partition("::")[0])


@functools.cache
def _group_of_module(module: str) -> str:
    return next((name for path, name in GROUPS.items() if PurePosixPath(module).is_relative_to(path)), module)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: (order.get(group(item.nodeid), len(order)), item.nodeid.startswith(LAST)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    skips.check(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    skips.check(report)
    return report


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """With ``pytest -n`` all tests of a group run one after the other in one process. Groups start in the order of
    collection."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(terminal))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False
    return Groups(config, log)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Run one Kafka for all tests of a process. Each test uses topic names of its own."""
    directory = tmp_path_factory.mktemp("kafka") / "broker"
    with kafka(directory, secure=True, message__max__bytes="2000000", log__cleaner__backoff__ms="500") as server:
        yield server


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """Run one API server per test process, for tests that change only their own objects."""
    with apiserver.prepared() as server:
        yield server


@pytest.fixture(scope="session")
def database() -> Iterator[Postgres]:
    with directory_for_postgres() as directory, postgres(directory) as server:
        yield server


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3(tmp_path_factory.mktemp("s3"), ACCOUNTS) as server:
        yield server


@pytest.fixture(scope="session")
def rest_catalog(tmp_path_factory: pytest.TempPathFactory, storage: S3) -> Iterator[Nessie]:
    with nessie(tmp_path_factory.mktemp("nessie"), storage) as server:
        yield server


@pytest.fixture(scope="session")
def iceberg_catalog(tmp_path_factory: pytest.TempPathFactory, storage: S3) -> Iterator[IcebergRest]:
    """Run Iceberg's own REST catalog, with the rules of its proxies."""
    with iceberg_rest(tmp_path_factory.mktemp("iceberg-rest"), storage) as running:
        yield running


@pytest.fixture(scope="session")
def proxied_nessie(
    tmp_path_factory: pytest.TempPathFactory, storage: S3, rest_catalog: Nessie
) -> Iterator[IcebergRest]:
    """Run Nessie behind the same proxies."""
    with behind_proxies(tmp_path_factory.mktemp("nessie-proxies"), storage, rest_catalog.connection) as running:
        yield running
