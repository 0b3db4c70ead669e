"""One API server with the CRDs for all tests of this folder."""

from pathlib import Path

import pytest

from tests.apiserver import ApiServer

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def api(api_server: ApiServer) -> ApiServer:
    return api_server
