"""Share the API server of the test process. The tests of this folder create only objects of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver import ApiServer

REPOSITORY = Path(__file__).resolve().parents[3]
PLURALS = (
    "icebergtopics",
    "compactionpolicies",
    "retentionpolicies",
    "deadletterreplays",
    "topicsets",
    "topicusers",
    "topicgrants",
)


@pytest.fixture
def api(api_server: ApiServer) -> ApiServer:
    return api_server


@pytest.fixture(scope="module", autouse=True)
def created(api_server: ApiServer) -> Iterator[None]:
    """Delete the objects that the tests of a file leave. Operators of other tests would work on them."""
    before = _places(api_server)
    yield
    for place in _places(api_server) - before:
        api_server.call("DELETE", place)


def _places(api: ApiServer) -> set[str]:
    """Return the paths of all objects in the namespace of these tests."""
    kinds = [f"/apis/firn.dev/v1alpha1/namespaces/demo/{plural}" for plural in PLURALS]
    return {f"{kind}/{item['metadata']['name']}" for kind in kinds for item in api.call("GET", kind)["items"]}
