"""Port `Cluster`: the IcebergTopics that TopicSets apply and delete, with the fake and with a real API server."""

import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration

from firn.model import names
from firn.model.errors import ConflictError, InvalidSpecError
from firn_controllers.ports import Cluster, Manifest
from firn_operator.adapters.kube.api_client import Api, RateLimit, path
from firn_operator.adapters.kube.cluster import KubeCluster
from firn_operator.adapters.kube.workloads import Workloads
from tests.apiserver import SYSTEM, ApiServer
from tests.fakes.cluster import FakeCluster

_numbers = itertools.count()


@dataclass(frozen=True)
class Subject:
    """A cluster, and a function that edits the spec of an IcebergTopic, as kubectl does."""

    cluster: Cluster
    edit: Callable[[str, Manifest], Any]


@pytest_asyncio.fixture(params=["fake", "kubernetes"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "fake":
        fake = FakeCluster()
        yield Subject(fake, lambda name, spec: fake.edit(name, lambda live: live["spec"].update(spec)))
        return
    server: ApiServer = request.getfixturevalue("api_server")
    configuration = Configuration()
    await kube_config.load_kube_config(str(server.kubeconfig), client_configuration=configuration)
    api = Api(configuration, RateLimit(1000, 1000))

    def edit(name: str, spec: Manifest) -> None:
        place = path(names.API_VERSION, "IcebergTopic", "demo", name)
        server.call("PATCH", f"{place}?fieldManager=kubectl-edit", {"spec": spec}, "application/merge-patch+json")

    yield Subject(KubeCluster(api, SYSTEM, Workloads()), edit)
    await api.close()


@pytest.fixture
def name() -> str:
    return f"made-{next(_numbers)}"


def wanted(name: str, uid: str | None = None, **spec: Any) -> Manifest:
    """Return an IcebergTopic as a TopicSet renders it."""
    metadata = {
        "name": name,
        "namespace": "demo",
        "labels": {names.LABEL_TOPIC_SET: "events"},
        "annotations": {names.TEMPLATE_HASH: str(spec)},
        **({"uid": uid} if uid else {}),
    }
    return {"apiVersion": names.API_VERSION, "kind": "IcebergTopic", "metadata": metadata, "spec": spec}


async def live(subject: Subject, name: str) -> Manifest:
    found = await subject.cluster.get(names.API_VERSION, "IcebergTopic", "demo", name)
    assert found is not None
    return found


async def test_an_iceberg_topic_is_created_once(subject: Subject, name: str) -> None:
    answer = await subject.cluster.apply_topic(wanted(name, topicName=name), create=True)
    assert answer["kind"] == "IcebergTopic"
    assert answer["metadata"]["labels"] == {names.LABEL_TOPIC_SET: "events"}
    assert answer["metadata"]["generation"] == 1
    assert answer["status"]["observedGeneration"] == -1
    with pytest.raises(ConflictError, match=name):
        await subject.cluster.apply_topic(wanted(name, topicName=name), create=True)


async def test_an_update_keeps_the_fields_of_others_and_removes_its_own(subject: Subject, name: str) -> None:
    first = await subject.cluster.apply_topic(
        wanted(name, topicName=name, suspend=True, config={"retention.ms": "1"}), create=True
    )
    subject.edit(name, {"ingestion": {"freshness": "30s"}, "suspend": False})
    second = await subject.cluster.apply_topic(
        wanted(name, first["metadata"]["uid"], topicName=name, suspend=True), create=False
    )
    assert second["spec"]["ingestion"]["freshness"] == "30s"
    assert second["spec"]["suspend"] is True
    assert not second["spec"].get("config")


async def test_an_update_of_another_object_is_a_conflict(subject: Subject, name: str) -> None:
    await subject.cluster.apply_topic(wanted(name, topicName=name), create=True)
    before = await live(subject, name)
    other = "3f0c1d0e-6f2b-4d5e-9c64-0123456789ab"
    with pytest.raises(ConflictError):
        await subject.cluster.apply_topic(wanted(name, other, topicName=name, suspend=True), create=False)
    with pytest.raises(ConflictError):
        await subject.cluster.apply_topic(wanted(f"{name}-gone", other, topicName=name), create=False)
    assert await live(subject, name) == before


@pytest.mark.parametrize("subject", ["kubernetes"], indirect=True)
@pytest.mark.parametrize(
    "spec",
    [
        {"table": {"name": "no-hyphens"}},
        {"schema": {"format": "Json"}},
        {"ingestion": {"freshness": "1s"}},
    ],
)
async def test_a_spec_that_the_rules_refuse_is_invalid(subject: Subject, name: str, spec: Manifest) -> None:
    with pytest.raises(InvalidSpecError, match=name):
        await subject.cluster.apply_topic(wanted(name, topicName=name, **spec), create=True)


@pytest.mark.parametrize("subject", ["kubernetes"], indirect=True)
async def test_a_change_of_an_immutable_field_is_invalid(subject: Subject, name: str) -> None:
    first = await subject.cluster.apply_topic(wanted(name, topicName=name, table={"name": "one"}), create=True)
    changed = wanted(name, first["metadata"]["uid"], topicName=name, table={"name": "two"})
    with pytest.raises(InvalidSpecError, match="immutable"):
        await subject.cluster.apply_topic(changed, create=False)


async def test_only_the_named_object_is_deleted(subject: Subject, name: str) -> None:
    first = await subject.cluster.apply_topic(wanted(name, topicName=name), create=True)
    await subject.cluster.delete_topic("demo", name, "3f0c1d0e-6f2b-4d5e-9c64-0123456789ab")
    assert await live(subject, name)
    for _ in range(2):
        await subject.cluster.delete_topic("demo", name, first["metadata"]["uid"])
    assert await subject.cluster.get(names.API_VERSION, "IcebergTopic", "demo", name) is None
