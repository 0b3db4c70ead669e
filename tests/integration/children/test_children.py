"""A real API server accepts everything that the operator renders: valid, restricted, and unchanged when applied
again."""

import copy
from collections.abc import Iterator

import pytest

from firn.model import names
from firn_controllers.children import Owner
from firn_controllers.fleet import kinds
from firn_controllers.ingestion_group import settings
from firn_controllers.ports import Manifest
from tests import apiserver, gen
from tests.apiserver import ApiServer
from tests.pods import NAMESPACE, OWNER, children, config_with_options, executor

RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}
PATHS = {
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
}


CHILDREN = children()
EACH = pytest.mark.parametrize(
    "manifest", CHILDREN, ids=[f"{child['kind']} {child['metadata']['name']}" for child in CHILDREN]
)


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with apiserver.running() as server:
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": RESTRICTED}})
        for account in ("firn-broker", "firn-ingest", "firn-maintain", "default"):
            server.call("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": account}})
        yield server


def applied(api: ApiServer, manifest: Manifest) -> Manifest:
    """Apply an object by server-side apply with strict field validation."""
    path = f"{PATHS[manifest['kind']].format(NAMESPACE)}/{manifest['metadata']['name']}"
    query = f"fieldManager={names.FIELD_MANAGER}&force=true&fieldValidation=Strict"
    return api.call("PATCH", f"{path}?{query}", manifest, "application/apply-patch+yaml")


@EACH
def test_the_api_server_accepts_each_child_and_keeps_it_on_reapply(api: ApiServer, manifest: Manifest) -> None:
    first = applied(api, manifest)
    second = applied(api, copy.deepcopy(manifest))
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
    assert (
        first["metadata"]["annotations"][names.TEMPLATE_HASH]
        == manifest["metadata"]["annotations"][names.TEMPLATE_HASH]
    )


@pytest.mark.parametrize(
    "manifest",
    [child for child in CHILDREN if child["kind"] in ("StatefulSet", "Job")],
    ids=lambda child: child["metadata"]["name"],
)
def test_pods_meet_the_restricted_standard(api: ApiServer, manifest: Manifest) -> None:
    template = copy.deepcopy(manifest["spec"]["template"])
    spec = template["spec"]
    spec.pop("priorityClassName", None)
    spec["automountServiceAccountToken"] = False
    claims = {claim["metadata"]["name"] for claim in manifest["spec"].get("volumeClaimTemplates", ())}
    spec["volumes"] += [{"name": name, "emptyDir": {}} for name in claims]
    pod = {**template, "apiVersion": "v1", "kind": "Pod"}
    pod["metadata"] = {**template["metadata"], "name": f"{manifest['metadata']['name']}-0"}
    api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All&fieldValidation=Strict", pod)


def test_executors_meet_the_restricted_standard(api: ApiServer) -> None:
    pod = executor(settings.group_settings(config_with_options(), "default"))
    api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All&fieldValidation=Strict", pod)


def test_the_namespace_rejects_a_pod_that_is_not_restricted(api: ApiServer) -> None:
    pod = {"metadata": {"name": "root"}, "spec": {"containers": [{"name": "a", "image": "i"}]}}
    with pytest.raises(apiserver.Refused, match="restricted"):
        api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod)


@pytest.mark.parametrize("partition", [0, 1])
def test_a_roll_changes_only_the_partition(api: ApiServer, partition: int) -> None:
    fleet = kinds.managed_fleet(gen.config(profiles={"classic": {}}), "classic", Owner(NAMESPACE, OWNER.uid), None)
    before = applied(api, {**kinds.stateful_set(fleet, 3), "metadata": _named(kinds.stateful_set(fleet, 3))})
    after = applied(
        api, {**kinds.stateful_set(fleet, partition), "metadata": _named(kinds.stateful_set(fleet, partition))}
    )
    assert after["spec"]["updateStrategy"]["rollingUpdate"]["partition"] == partition
    assert after["spec"]["template"] == before["spec"]["template"]


def _named(manifest: Manifest) -> Manifest:
    return {**manifest["metadata"], "name": "rolling"}
