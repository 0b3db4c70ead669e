"""The API server decides which TopicSets the CRD accepts and rejects, and shows their defaults and columns."""

from typing import Any

import pytest
import yaml

from firn.api import crds
from firn.api.v1alpha1 import TopicSet
from tests.apiserver import ApiServer, Manifest, Refused
from tests.integration.crd.conftest import REPOSITORY

SETS = "/apis/firn.dev/v1alpha1/namespaces/demo/topicsets"
SAMPLES = sorted((REPOSITORY / "crds/samples/topic-sets").glob("*.yaml"))
TEMPLATE = {"metadata": {"name": "$name"}, "spec": {"table": {"name": "${name}_raw"}}}


def topic_set(name: str, **spec: Any) -> Manifest:
    whole = {"profile": "classic", "match": "^(?P<name>.+)$", "template": TEMPLATE, **spec}
    metadata = {"name": name, "namespace": "demo"}
    return {"apiVersion": "firn.dev/v1alpha1", "kind": "TopicSet", "metadata": metadata, "spec": whole}


def create(api: ApiServer, manifest: Manifest, *, dry: bool = True) -> Manifest:
    return api.call("POST", f"{SETS}?fieldValidation=Strict{'&dryRun=All' if dry else ''}", manifest)


def test_defaults_are_those_of_the_model_and_the_template_gets_none(api: ApiServer) -> None:
    stored = create(api, topic_set("defaults"))
    assert stored["spec"] == topic_set("x", limit=1000, removal="Keep")["spec"]
    assert stored["status"] == crds.DEFAULT_STATUS
    assert TopicSet.parse(stored).spec == TopicSet.parse(topic_set("defaults")).spec


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_api_server_accepts_the_samples(api: ApiServer, path: Any) -> None:
    for manifest in yaml.safe_load_all(path.read_text()):
        assert create(api, manifest)["kind"] == "TopicSet"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"match": ""}, "spec.match"),
        ({"limit": 0}, "spec.limit"),
        ({"limit": 10_001}, "spec.limit"),
        ({"removal": "Drop"}, "spec.removal"),
        ({"profile": "Upper"}, "spec.profile"),
        ({"template": {"spec": {}}}, "spec.template.metadata"),
        ({"template": {"metadata": {"name": "$name"}, "spec": {"topicName": "fixed"}}}, "a template has no topicName"),
        ({"template": {"metadata": {"name": "$name"}, "spec": {"profile": "big"}}}, "a template has no profile"),
        ({"template": {"metadata": {"name": "$name"}, "spec": {"route": {}}}}, "a template has no route"),
        ({"template": {"metadata": {"name": "$name"}, "spec": {"partitions": "$name"}}}, "must be of type integer"),
        ({"template": {"metadata": {"name": "$name"}, "spec": {"tabel": {}}}}, "tabel"),
        ({"template": {"metadata": {"name": "$name"}, "spec": {"partitions": 0}}}, "partitions"),
        ({"template": {"metadata": {"name": "$name"}, "spec": {"schema": {"format": "Xml"}}}}, "format"),
        ({"template": {"metadata": {"name": "$name", "labels": {"firn.dev/topic-set": "x"}}}}, "firn.dev/"),
    ],
)
def test_the_api_server_refuses(api: ApiServer, spec: Manifest, words: str) -> None:
    with pytest.raises(Refused, match=words):
        create(api, topic_set("refused", **spec))


def test_the_profile_is_immutable(api: ApiServer) -> None:
    create(api, topic_set("fixed"), dry=False)
    with pytest.raises(Refused, match="profile is immutable"):
        api.call("PATCH", f"{SETS}/fixed", {"spec": {"profile": "other"}}, "application/merge-patch+json")


def test_the_columns_show_the_numbers(api: ApiServer) -> None:
    create(api, topic_set("shown"), dry=False)
    status = {"matched": 3, "made": 2, "topicsRefused": 1, "conditions": crds.DEFAULT_STATUS["conditions"]}
    api.call("PATCH", f"{SETS}/shown/status", {"status": status}, "application/merge-patch+json")
    resources = api.call("GET", "/apis/firn.dev/v1alpha1")["resources"]
    assert next(each for each in resources if each["name"] == "topicsets")["shortNames"] == ["tset"]
    columns = crds.topic_sets()["spec"]["versions"][0]["additionalPrinterColumns"]
    narrow = [column["name"] for column in columns if "priority" not in column]
    assert narrow == ["Ready", "Matched", "Made", "Refused", "Age"]
