"""Share the API server of the test process. The tests of this folder create only objects of their own."""

from pathlib import Path

import pytest

from tests.apiserver import ApiServer

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def api(api_server: ApiServer) -> ApiServer:
    return api_server
