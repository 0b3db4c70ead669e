"""Run one broker for all tests of a process. Tests use different names of topics and groups."""

import itertools
from collections.abc import Iterator

import pytest

from tests.integration.broker import admins
from tests.servers.firn_broker import FirnBroker, embedded

_numbers = itertools.count()


@pytest.fixture(scope="session")
def firn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirnBroker]:
    with embedded(tmp_path_factory.mktemp("firn") / "data", FIRN_BROKER_GROUPS__INITIAL_REBALANCE_MS="300") as server:
        yield server


@pytest.fixture
def name() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture(autouse=True)
def clients_of_this_test() -> Iterator[None]:
    """Close the admin clients of the test."""
    yield
    admins.close_all()
