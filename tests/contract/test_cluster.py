"""Port `Cluster` against a real API server (no nodes, no controllers)."""

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config

from firn.model import names
from firn.model.errors import AccessDeniedError, CommitConflictError, NotReadyError, UnavailableError
from firn_operator.adapters.kube import lists
from firn_operator.adapters.kube.api_client import Api, ApiError, Manifest, RateLimit, path
from firn_operator.adapters.kube.cluster import KubeCluster
from firn_operator.adapters.kube.workloads import Workloads
from firn_operator.process import crd
from tests import apiserver
from tests.apiserver import SYSTEM, ApiServer
from tests.fakes.cluster import FakeCluster
from tests.servers.process import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
_numbers = itertools.count()


@pytest.fixture
def server(api_server: ApiServer) -> ApiServer:
    return api_server


@pytest_asyncio.fixture
async def configuration(server: ApiServer) -> Configuration:
    configuration = Configuration()
    await kube_config.load_kube_config(str(server.kubeconfig), client_configuration=configuration)
    return configuration


@pytest_asyncio.fixture
async def api(configuration: Configuration) -> AsyncIterator[Api]:
    client = Api(configuration, RateLimit(1000, 1000))
    yield client
    await client.close()


@pytest.fixture
def workloads() -> Workloads:
    return Workloads()


@pytest.fixture
def cluster(api: Api, workloads: Workloads) -> KubeCluster:
    return KubeCluster(api, SYSTEM, workloads)


@pytest.fixture
def name() -> str:
    return f"thing-{next(_numbers)}"


def config_map(name: str, hash_: str, **data: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": SYSTEM,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, "test": name},
            "annotations": {names.TEMPLATE_HASH: hash_},
        },
        "data": data,
    }


def stateful_set(name: str) -> Manifest:
    template = {
        "metadata": {"labels": {"app": name}, "annotations": {names.TEMPLATE_HASH: "pods"}},
        "spec": {"containers": [{"name": "main", "image": "example.com/none"}]},
    }
    manifest = {
        **config_map(name, "1"),
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "spec": {
            "serviceName": name,
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}},
        },
    }
    del manifest["data"]
    return manifest


async def topic(api: Api, name: str) -> Manifest:
    body = {"apiVersion": names.API_VERSION, "kind": "IcebergTopic", "metadata": {"name": name}, "spec": {}}
    return await api.call("POST", path(names.API_VERSION, "IcebergTopic", "demo"), body=body)


async def await_answer(read: Callable[[], object]) -> object:
    async with asyncio.timeout(60):
        while not (answer := await read()):  # type: ignore[misc]
            await asyncio.sleep(0.05)
        return answer


async def test_one_of_two_releases_manages_a_namespace(api: Api) -> None:
    def release(namespace: str) -> KubeCluster:
        return KubeCluster(api, namespace, Workloads())

    async def free() -> None:
        await release(SYSTEM).delete("coordination.k8s.io/v1", "Lease", "demo", names.CLAIM)

    await free()
    assert await release("firn-a").rival("demo") is None
    assert await release("firn-b").rival("demo") == "firn-a"
    assert await release("firn-a").rival("demo") is None, "after a restart"
    await free()
    assert await release("firn-b").rival("demo") is None
    assert await release("firn-a").rival("demo") == "firn-b"
    await free()


async def test_apply_creates_updates_and_skips_equal_objects(cluster: KubeCluster, name: str) -> None:
    assert await cluster.apply(config_map(name, "1", a="1", b="2"))
    assert not await cluster.apply(config_map(name, "1", a="1", b="2"))
    assert await cluster.apply(config_map(name, "2", a="changed"))
    live = await cluster.get("v1", "ConfigMap", SYSTEM, name)
    assert live is not None
    assert live["data"] == {"a": "changed"}


async def test_apply_after_a_restart_skips_equal_objects(api: Api, cluster: KubeCluster, name: str) -> None:
    await cluster.apply(config_map(name, "1", a="1"))
    before = await cluster.get("v1", "ConfigMap", SYSTEM, name)
    assert not await KubeCluster(api, SYSTEM, Workloads()).apply(config_map(name, "1", a="1"))
    assert await cluster.get("v1", "ConfigMap", SYSTEM, name) == before


@pytest.mark.parametrize("restarts", [False, True], ids=["same process", "restarted operator"])
async def test_apply_restores_an_edited_object(api: Api, server: ApiServer, name: str, restarts: bool) -> None:
    workloads = Workloads()
    cluster = KubeCluster(api, SYSTEM, workloads, resync=0.0)
    await cluster.apply(config_map(name, "1", a="1"))
    place = f"/api/v1/namespaces/{SYSTEM}/configmaps/{name}"
    server.call("PATCH", place, {"data": {"a": "edited"}}, "application/merge-patch+json")
    if restarts:
        cluster = KubeCluster(api, SYSTEM, Workloads(), resync=0.0)
    assert await cluster.apply(config_map(name, "1", a="1"))
    live = await cluster.get("v1", "ConfigMap", SYSTEM, name)
    assert live is not None
    assert live["data"] == {"a": "1"}
    assert not await cluster.apply(config_map(name, "1", a="1"))


async def test_apply_restores_a_scaled_stateful_set(
    api: Api, cluster: KubeCluster, workloads: Workloads, server: ApiServer, name: str
) -> None:
    manifest = stateful_set(name)
    assert await cluster.apply(manifest)
    assert not await cluster.apply(manifest)
    place = f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets/{name}"
    server.call("PATCH", f"{place}/scale", {"spec": {"replicas": 5}}, "application/merge-patch+json")
    edited = await cluster.get("apps/v1", "StatefulSet", SYSTEM, name)
    assert edited is not None
    workloads.seen({**edited, "kind": "StatefulSet"})  # as the watch shows it
    assert await cluster.apply(manifest)
    live = await cluster.get("apps/v1", "StatefulSet", SYSTEM, name)
    assert live is not None
    assert live["spec"]["replicas"] == manifest["spec"]["replicas"]


def service(name: str) -> Manifest:
    manifest = {
        **config_map(name, "1"),
        "kind": "Service",
        "spec": {"selector": {"app": name}, "ports": [{"name": "kafka", "port": 9092}]},
    }
    del manifest["data"]
    return manifest


ROOTS = {"StatefulSet": "apis/apps/v1", "Service": "api/v1"}
SIDECAR = {"name": "sidecar", "image": "example.com/none"}
ENVIRONMENT = {"name": "main", "env": [{"name": "A", "value": "b"}], "args": ["theirs"]}
ADDITIONS: list[tuple[Callable[[str], Manifest], Manifest]] = [
    (service, {"spec": {"ports": [{"name": "more", "port": 1}], "externalIPs": ["192.0.2.1"]}}),
    (service, {"spec": {"selector": {"more": "narrow"}}}),
    (stateful_set, {"spec": {"template": {"spec": {"containers": [SIDECAR]}}}}),
    (stateful_set, {"spec": {"template": {"spec": {"containers": [ENVIRONMENT]}}}}),
    (stateful_set, {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}, "hostNetwork": True}}}}),
    (stateful_set, {"spec": {"template": {"metadata": {"annotations": {"more": "theirs"}}}}}),
]


@pytest.mark.parametrize("restarts", [False, True], ids=["same process", "restarted operator"])
@pytest.mark.parametrize(("render", "addition"), ADDITIONS)
async def test_apply_removes_what_other_clients_added(
    api: Api, server: ApiServer, name: str, render: Callable[[str], Manifest], addition: Manifest, restarts: bool
) -> None:
    manifest, workloads = render(name), Workloads()
    cluster = KubeCluster(api, SYSTEM, workloads, resync=0.0)
    await cluster.apply(manifest)
    kind = (manifest["apiVersion"], manifest["kind"], SYSTEM, name)
    before = await cluster.get(*kind)
    place = f"/{ROOTS[kind[1]]}/namespaces/{SYSTEM}/{kind[1].lower()}s/{name}"
    edited = server.call(
        "PATCH", f"{place}?fieldManager=kubectl-edit", addition, "application/strategic-merge-patch+json"
    )
    assert before is not None
    assert edited["spec"] != before["spec"]
    if restarts:
        workloads = Workloads()
        cluster = KubeCluster(api, SYSTEM, workloads, resync=0.0)
    if kind[1] == "StatefulSet":
        workloads.seen({**edited, "kind": "StatefulSet"})
    assert await cluster.apply(manifest)
    after = await cluster.get(*kind)
    assert after is not None
    assert after["spec"] == before["spec"]
    assert not await cluster.apply(manifest)
    version = after["metadata"]["resourceVersion"]
    again = KubeCluster(api, SYSTEM, Workloads(), resync=0.0)
    await again.apply(manifest)
    after = await cluster.get(*kind)
    assert after is not None
    assert after["metadata"]["resourceVersion"] == version, "nothing is left to remove"


async def test_apply_keeps_the_mark_of_a_rollout_restart(
    cluster: KubeCluster, workloads: Workloads, server: ApiServer, name: str
) -> None:
    await cluster.apply(stateful_set(name))
    marks = {"kubectl.kubernetes.io/restartedAt": "2026-03-01T12:00:00Z", "more": "added"}
    edited = server.call(
        "PATCH",
        f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets/{name}?fieldManager=kubectl-rollout",
        {"spec": {"template": {"metadata": {"annotations": marks}}}},
        "application/strategic-merge-patch+json",
    )
    for _ in range(2):
        workloads.seen({**edited, "kind": "StatefulSet"})
        await cluster.apply(stateful_set(name), always=True)
        live = await cluster.get("apps/v1", "StatefulSet", SYSTEM, name)
        assert live is not None
        annotations = live["spec"]["template"]["metadata"]["annotations"]
        assert annotations.keys() == {names.TEMPLATE_HASH, "kubectl.kubernetes.io/restartedAt"}


@pytest.mark.parametrize("render", [service, stateful_set])
async def test_the_cluster_in_memory_removes_additions_too(name: str, render: Callable[[str], Manifest]) -> None:
    cluster = FakeCluster()
    manifest = render(name)
    place = (manifest["apiVersion"], manifest["kind"], SYSTEM, name)
    await cluster.apply(manifest)
    cluster.objects[place]["spec"]["theirs"] = {"a": "b"}
    assert await cluster.apply(manifest)
    assert cluster.objects[place]["spec"] == manifest["spec"]
    assert not await cluster.apply(manifest)


async def test_apply_always_sends_the_object(cluster: KubeCluster, server: ApiServer, name: str) -> None:
    await cluster.apply(config_map(name, "1", a="1"))
    place = f"/api/v1/namespaces/{SYSTEM}/configmaps/{name}"
    server.call("PATCH", place, {"data": {"a": "edited"}}, "application/merge-patch+json")
    assert await cluster.apply(config_map(name, "1", a="1"), always=True)
    live = await cluster.get("v1", "ConfigMap", SYSTEM, name)
    assert live is not None
    assert live["data"] == {"a": "1"}


async def test_apply_keeps_fields_of_other_managers(cluster: KubeCluster, server: ApiServer, name: str) -> None:
    await cluster.apply(config_map(name, "1", a="1"))
    server.call(
        "PATCH",
        f"/api/v1/namespaces/{SYSTEM}/configmaps/{name}",
        {"data": {"theirs": "kept"}},
        "application/merge-patch+json",
    )
    await cluster.apply(config_map(name, "2", a="2"))
    live = await cluster.get("v1", "ConfigMap", SYSTEM, name)
    assert live is not None
    assert live["data"] == {"a": "2", "theirs": "kept"}


async def test_a_missing_object_is_none_and_its_deletion_succeeds(cluster: KubeCluster) -> None:
    assert await cluster.get("v1", "ConfigMap", SYSTEM, "nobody-made-this") is None
    await cluster.delete("v1", "ConfigMap", SYSTEM, "nobody-made-this")


async def test_apply_restores_a_deleted_child(cluster: KubeCluster, name: str) -> None:
    await cluster.apply(config_map(name, "1", a="1"))
    await cluster.delete("v1", "ConfigMap", SYSTEM, name)
    assert await cluster.apply(config_map(name, "1", a="1"))
    assert await cluster.get("v1", "ConfigMap", SYSTEM, name) is not None


async def test_list_names_reads_all_pages_of_a_label(
    cluster: KubeCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "PAGE_OBJECTS", 2)
    for number in range(5):
        manifest = config_map(f"{name}-{number}", "1")
        manifest["metadata"]["labels"]["test"] = name
        await cluster.apply(manifest)
    assert sorted(await cluster.list_names("v1", "ConfigMap", {"test": name})) == [f"{name}-{n}" for n in range(5)]
    assert await cluster.list_names("v1", "ConfigMap", {"test": "nobody"}) == []


async def test_a_status_write_fails_if_the_object_has_changed(api: Api, cluster: KubeCluster, name: str) -> None:
    made = await topic(api, name)
    version = made["metadata"]["resourceVersion"]
    status = {"observedGeneration": 1, "conditions": []}
    updated = await cluster.patch_status("demo", name, status, version)
    assert updated is not None
    assert updated["status"] == status
    with pytest.raises(CommitConflictError):
        await cluster.patch_status("demo", name, {"observedGeneration": 2, "conditions": []}, version)
    live = await cluster.get(names.API_VERSION, "IcebergTopic", "demo", name)
    assert live is not None
    assert live["status"]["observedGeneration"] == 1
    assert await cluster.patch_status("demo", "nobody-made-this", status, "1") is None


async def test_a_status_that_the_schema_rejects_is_no_conflict(api: Api, cluster: KubeCluster, name: str) -> None:
    made = await topic(api, name)
    with pytest.raises(ApiError, match="is invalid"):
        await cluster.patch_status("demo", name, {"observedGeneration": "one"}, made["metadata"]["resourceVersion"])


async def test_finalizers_are_added_and_removed(api: Api, cluster: KubeCluster, name: str) -> None:
    made = await topic(api, name)
    held = await cluster.set_finalizers("demo", name, [names.FINALIZER], made["metadata"]["resourceVersion"])
    assert held is not None
    await cluster.delete(names.API_VERSION, "IcebergTopic", "demo", name)
    deleting = await cluster.get(names.API_VERSION, "IcebergTopic", "demo", name)
    assert deleting is not None
    assert "deletionTimestamp" in deleting["metadata"]
    with pytest.raises(CommitConflictError):
        await cluster.set_finalizers("demo", name, [], held["metadata"]["resourceVersion"])
    await cluster.set_finalizers("demo", name, [], deleting["metadata"]["resourceVersion"])
    assert await cluster.get(names.API_VERSION, "IcebergTopic", "demo", name) is None


async def test_a_repeated_event_raises_its_count(api: Api, cluster: KubeCluster, name: str) -> None:
    made = await topic(api, name)
    uid = made["metadata"]["uid"]
    sending = asyncio.create_task(cluster.run())

    async def recorded() -> list[Manifest]:
        events, _ = await lists.list_all(api, "v1", "Event", "demo", {})
        return [event for event in events if event["involvedObject"]["uid"] == uid]

    for reason in ("Created", "Created", "Changed", "Created"):
        await cluster.event("demo", name, uid, "IcebergTopic", "Normal", reason, "it happened")

    async def all_sent() -> bool:
        return sum(event["count"] for event in await recorded()) == 4

    await await_answer(all_sent)
    assert {event["reason"]: event["count"] for event in await recorded()} == {"Created": 3, "Changed": 1}
    sending.cancel()


async def test_stateful_sets_and_pods_are_read_from_the_watch_cache(
    cluster: KubeCluster, workloads: Workloads, name: str
) -> None:
    manifest = stateful_set(name)
    assert await cluster.apply(manifest)
    assert not await cluster.apply(manifest)
    state = await cluster.stateful_set(name)
    assert state is not None
    assert (state.template_hash, state.replicas, state.ready, state.partition) == ("pods", 2, 0, 1)
    assert not state.generation_observed
    assert await cluster.pods({"app": name}) == []


async def test_a_pod_that_does_not_exist_has_no_log(cluster: KubeCluster) -> None:
    for implementation in (cluster, FakeCluster()):
        with pytest.raises(UnavailableError, match="absent"):
            await implementation.pod_log("absent", 60)


async def test_the_keys_of_tokens_are_a_json_web_key_set(cluster: KubeCluster) -> None:
    for implementation in (cluster, FakeCluster()):
        keys = json.loads(await implementation.token_keys())["keys"]
        assert keys
        assert all({"kid", "kty"} <= key.keys() for key in keys)


async def test_an_api_server_without_keys_of_tokens_is_unavailable(
    cluster: KubeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firn_operator.adapters.kube.cluster.API_SERVER_KEYS", "/openid/v1/no-keys")
    with pytest.raises((UnavailableError, AccessDeniedError), match="no-keys"):
        await cluster.token_keys()


async def test_a_closed_port_is_unavailable(configuration: Configuration) -> None:
    configuration.host = f"https://127.0.0.1:{free_port()}"
    api = Api(configuration, RateLimit(1000, 1000))
    with pytest.raises(UnavailableError, match="Kubernetes API"):
        await api.call("GET", "/version")
    await api.close()


async def test_a_wrong_token_is_access_denied(configuration: Configuration) -> None:
    configuration.api_key["BearerToken"] = "Bearer nobody"
    api = Api(configuration, RateLimit(1000, 1000))
    with pytest.raises(AccessDeniedError):
        await api.call("GET", path("v1", "ConfigMap", SYSTEM))
    await api.close()


async def test_requests_use_a_rotated_token(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("old")
    kubeconfig = yaml.safe_load(server.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority.write_bytes(Path(kubeconfig["certificate-authority"]).read_bytes())
    host, _, port = kubeconfig["server"].removeprefix("https://").partition(":")
    loader = incluster_config.InClusterConfigLoader(
        str(token),
        str(authority),
        environ={**os.environ, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port},
    )
    configuration = Configuration()
    loader.load_and_set(configuration)
    api = Api(configuration, RateLimit(1000, 1000))
    with pytest.raises(AccessDeniedError):
        await api.call("GET", path("v1", "ConfigMap", SYSTEM))
    token.write_text(apiserver.TOKEN)
    loader.token_expires_at = loader.token_expires_at.min  # as if a minute had passed
    await api.call("GET", path("v1", "ConfigMap", SYSTEM))
    await api.close()


async def test_the_check_accepts_the_live_crd(api: Api, server: ApiServer) -> None:
    await crd.check(api)


@pytest.mark.parametrize(
    ("plural", "below", "field"),
    [
        ("icebergtopics", ("status",), "topicId"),
        ("compactionpolicies", ("spec", "run"), "maxCommits"),
        ("retentionpolicies", ("spec",), "orphanFiles"),
    ],
)
async def test_the_check_names_fields_that_a_crd_lacks(
    api: Api, server: ApiServer, plural: str, below: tuple[str, ...], field: str
) -> None:
    place = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{names.GROUP}"
    right = server.call("GET", place)
    older = server.call("GET", place)
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in below:
        schema = schema["properties"][name]
    del schema["properties"][field]
    schema.pop("x-kubernetes-validations", None)
    schema.pop("default", None)
    server.call("PUT", place, older)
    try:
        with pytest.raises(NotReadyError, match=rf"{plural}.*{below[-1]}\.{field}.*CRDs"):
            await crd.check(api)
    finally:
        right["metadata"]["resourceVersion"] = server.call("GET", place)["metadata"]["resourceVersion"]
        server.call("PUT", place, right)
