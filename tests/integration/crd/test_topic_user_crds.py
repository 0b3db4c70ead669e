"""The API server decides which TopicUsers and TopicGrants the CRDs accept and reject, and which fields can change."""

from typing import Any

import pytest
import yaml

from firn.api import crds
from firn.api.v1alpha1 import TopicUser
from tests.apiserver import ApiServer, Manifest, Refused
from tests.integration.crd.conftest import REPOSITORY

NAMESPACE = "/apis/firn.dev/v1alpha1/namespaces/demo"
SAMPLES = sorted((REPOSITORY / "crds/samples/users").glob("*.yaml"))
MERGE = "application/merge-patch+json"
PLURALS = {"TopicUser": "topicusers", "TopicGrant": "topicgrants"}
GRANT = {"topics": [{"name": "orders"}], "to": [{"namespace": "shop", "users": ["*"]}], "roles": ["Consume"]}


def user(name: str, **spec: Any) -> Manifest:
    metadata = {"name": name, "namespace": "demo"}
    return {
        "apiVersion": "firn.dev/v1alpha1",
        "kind": "TopicUser",
        "metadata": metadata,
        "spec": {"profile": "p", **spec},
    }


def grant(name: str, **spec: Any) -> Manifest:
    return {**user(name), "kind": "TopicGrant", "spec": {**GRANT, **spec}}


def create(api: ApiServer, manifest: Manifest, *, dry: bool = True) -> Manifest:
    place = f"{NAMESPACE}/{PLURALS[manifest['kind']]}"
    return api.call("POST", f"{place}?fieldValidation=Strict{'&dryRun=All' if dry else ''}", manifest)


def granted(**topics: Any) -> list[Manifest]:
    return [{"topics": [topics], "roles": ["Consume"]}]


def test_defaults_are_those_of_the_model(api: ApiServer) -> None:
    stored = create(api, user("defaults", authentication={"rotation": {"every": "90d"}}))
    rotation = {"every": "90d", "overlap": "1d", "idle": "1h"}
    assert stored["spec"] == {"profile": "p", "authentication": {"type": "ScramSha512", "rotation": rotation}}
    assert stored["status"] == crds.DEFAULT_STATUS
    assert create(api, user("bare"))["spec"] == {"profile": "p", "authentication": {"type": "ScramSha512"}}
    assert TopicUser.model_validate(stored).spec.authentication.rotation is not None


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_api_server_accepts_the_samples(api: ApiServer, path: Any) -> None:
    for manifest in yaml.safe_load_all(path.read_text()):
        assert create(api, manifest)["kind"] in PLURALS


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (user("a.b"), "metadata.name must have no dot"),
        (user("n" * 53), "at most 52 characters"),
        (user("u", authentication={"type": "OAuth"}), "type OAuth needs serviceAccount"),
        (user("u", authentication={"serviceAccount": "web"}), "no other type has it"),
        (user("u", authentication={"type": "Certificate", "secretName": "x"}), "only type ScramSha512 has secretName"),
        (user("u", authentication={"type": "Certificate", "rotation": {}}), "only type ScramSha512 has secretName"),
        (user("u", authentication={"rotation": {"every": "soon"}}), "write a number and a unit"),
        (user("u", authentication={"type": "Kerberos"}), "authentication.type"),
        (user("u", grants=granted()), "write either name or selector"),
        (user("u", grants=granted(name="x", selector={})), "write either name or selector"),
        (user("u", grants=granted(namespace="x", selector={})), "only name can have a namespace"),
        (user("u", grants=[{"topics": [{"name": "x"}], "roles": []}]), "roles"),
        (user("u", grants=[{"topics": [{"name": "x"}], "roles": ["Own"]}]), "roles"),
        (user("u", grants=[{"topics": [{"name": "x"}], "roles": ["Consume"], "groups": ["a*b"]}]), "groups"),
        (
            user("u", grants=[{"topics": [{"name": "x"}], "roles": ["Consume"], "transactionalIds": ["demo.a"]}]),
            "only role Produce has transactional ids",
        ),
        (user("u", quotas={"producerBytesPerSecond": "fast"}), "write a whole number of bytes"),
        (user("u", quotas={"requestPercent": 0}), "requestPercent"),
        (grant("g", topics=[{}]), "write either name or selector"),
        (grant("g", to=[]), "spec.to"),
        (grant("g", to=[{"namespace": "shop", "users": []}]), "users"),
        (grant("g", roles=[]), "roles"),
    ],
)
def test_the_api_server_refuses(api: ApiServer, manifest: Manifest, words: str) -> None:
    with pytest.raises(Refused, match=words):
        create(api, manifest)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"profile": "other"}, "profile is immutable"),
        ({"authentication": {"type": "Certificate", "secretName": None}}, "authentication.type is immutable"),
        ({"authentication": {"secretName": "other"}}, "authentication.secretName is immutable"),
        ({"authentication": {"secretName": None}}, "authentication.secretName is immutable"),
    ],
)
def test_the_identity_of_a_user_is_immutable(api: ApiServer, spec: Manifest, words: str) -> None:
    name = f"fixed-{abs(hash(str(spec)))}"
    create(api, user(name, authentication={"secretName": "mine"}), dry=False)
    with pytest.raises(Refused, match=words):
        api.call("PATCH", f"{NAMESPACE}/topicusers/{name}", {"spec": spec}, MERGE)
    changed = {"spec": {"grants": granted(name="x"), "authentication": {"rotation": {"every": "7d"}}}}
    assert api.call("PATCH", f"{NAMESPACE}/topicusers/{name}", changed, MERGE)["spec"]["grants"]


def test_a_service_account_is_immutable(api: ApiServer) -> None:
    create(api, user("oauth", authentication={"type": "OAuth", "serviceAccount": "web"}), dry=False)
    change = {"spec": {"authentication": {"serviceAccount": "other"}}}
    with pytest.raises(Refused, match="authentication.serviceAccount is immutable"):
        api.call("PATCH", f"{NAMESPACE}/topicusers/oauth", change, MERGE)


def test_a_grant_has_no_status(api: ApiServer) -> None:
    create(api, grant("consent"), dry=False)
    with pytest.raises(Refused):
        api.call("PATCH", f"{NAMESPACE}/topicgrants/consent/status", {"status": {}}, MERGE)
    assert "status" not in api.call("GET", f"{NAMESPACE}/topicgrants/consent")


def test_the_whole_status_that_the_operator_writes_is_stored(api: ApiServer) -> None:
    create(api, user("status"), dry=False)
    credentials = {
        "secret": "status-kafka",
        "secretUid": "1",
        "current": "a",
        "revision": "r1",
        "connection": "c1",
        "issued": "2026-03-01T12:00:00Z",
        "expires": "2026-06-01T12:00:00Z",
        "previousUntil": "2026-03-02T12:00:00Z",
        "next": "b",
        "nextRevision": "r2",
        "request": "now",
    }
    refused = [{"topic": "demo/x", "role": "Consume", "why": "TopicNotFound", "message": "text"}]
    status = {
        "observedGeneration": 1,
        "conditions": crds.DEFAULT_STATUS["conditions"],
        "profile": "p",
        "principals": ["User:demo.status.a"],
        "credentials": credentials,
        "topics": 1,
        "grantsRefused": 1,
        "refused": refused,
    }
    api.call("PATCH", f"{NAMESPACE}/topicusers/status/status", {"status": status}, MERGE)
    assert api.call("GET", f"{NAMESPACE}/topicusers/status")["status"] == status
