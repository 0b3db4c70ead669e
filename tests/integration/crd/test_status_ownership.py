"""The owners of a status in the API server, after an upgrade of its CRD and after the way back."""

import copy
from collections.abc import Iterator

import pytest
import yaml

from tests.apiserver import ApiServer, Manifest
from tests.integration.crd.conftest import REPOSITORY
from tests.servers.process import await_true

GROUP = "ownership.test"
"""A group of its own, because other tests use the CRD at the same time."""
TOPIC = f"/apis/{GROUP}/v1alpha1/namespaces/demo/icebergtopics/live"
CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/icebergtopics.{GROUP}"


def crd(*, atomic: bool) -> Manifest:
    """Return the CRD of IcebergTopics, as it was before the status became atomic if not ``atomic``."""
    found: Manifest = yaml.safe_load((REPOSITORY / "crds/firn.dev_icebergtopics.yaml").read_text())
    found["metadata"]["name"], found["spec"]["group"] = f"icebergtopics.{GROUP}", GROUP
    if not atomic:
        del found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["x-kubernetes-map-type"]
    return found


@pytest.fixture
def live(api: ApiServer) -> Iterator[ApiServer]:
    """An IcebergTopic under the earlier CRD, with a status that the operator wrote."""
    api.install(crd(atomic=False))
    manifest = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "IcebergTopic",
        "metadata": {"name": "live", "namespace": "demo"},
        "spec": {},
    }
    api.call("POST", TOPIC.rpartition("/")[0], manifest)
    yield api
    api.call("DELETE", CRD)


def write(api: ApiServer, generation: int) -> object:
    """Write the status as the operator does, and return what the API server lists as the operator's fields."""
    found = api.call("GET", TOPIC)
    status = copy.deepcopy(found["status"]) | {"observedGeneration": generation}
    status["conditions"][0]["observedGeneration"] = generation
    operations = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]},
        {"op": "add", "path": "/status", "value": status},
    ]
    path = f"{TOPIC}/status?fieldManager=firn"
    written = api.call("PATCH", path, operations, "application/json-patch+json")
    assert written["status"] == status
    [owned] = [entry for entry in written["metadata"]["managedFields"] if entry.get("subresource") == "status"]
    return owned["fieldsV1"]["f:status"]


def test_a_status_is_written_under_the_next_crd_and_after_the_way_back(live: ApiServer) -> None:
    assert write(live, 1) != {}
    live.install(crd(atomic=True))
    # The API server uses a changed CRD a moment later. A write that changes nothing would keep the owners.
    await_true("the status has one owner", lambda: write(live, 2) == {} or write(live, 3) == {})
    definition = live.call("GET", CRD)
    del definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["x-kubernetes-map-type"]
    live.call("PUT", CRD, definition)
    await_true("each written field has an owner", lambda: write(live, 4) != {} or write(live, 5) != {})
