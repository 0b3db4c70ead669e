"""The API server accepts every resource that a Markdown page shows."""

import copy

import pytest

from tests import markdown
from tests.apiserver import ApiServer
from tests.markdown import Example

PLURALS = {
    "IcebergTopic": "icebergtopics",
    "CompactionPolicy": "compactionpolicies",
    "RetentionPolicy": "retentionpolicies",
    "DeadLetterReplay": "deadletterreplays",
    "TopicSet": "topicsets",
    "TopicUser": "topicusers",
    "TopicGrant": "topicgrants",
}


@pytest.mark.parametrize("example", [pytest.param(example, id=example.place) for example in markdown.resources()])
def test_a_documented_resource_is_accepted(api: ApiServer, example: Example) -> None:
    manifest = copy.deepcopy(example.value)
    manifest["metadata"]["namespace"] = "demo"
    place = f"/apis/firn.dev/v1alpha1/namespaces/demo/{PLURALS[manifest['kind']]}"
    stored = api.call("POST", f"{place}?fieldValidation=Strict&dryRun=All", manifest)
    assert stored["kind"] == manifest["kind"]
