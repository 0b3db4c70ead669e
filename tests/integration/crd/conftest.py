"""Run one API server with the CRDs for all tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests import apiserver
from tests.apiserver import ApiServer

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with apiserver.running() as server:
        for path in sorted((REPOSITORY / "crds").glob("*.yaml")):
            server.install(yaml.safe_load(path.read_text()))
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": "demo"}})
        yield server
