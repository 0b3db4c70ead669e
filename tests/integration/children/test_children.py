"""A real API server accepts everything that the operator renders: valid, restricted, and unchanged when applied
again."""

import copy
from collections.abc import Iterator

import pytest
import yaml

from firn.model import names
from firn.model.config import Config
from firn.model.jobs import TableTarget
from firn_controllers.cache.policies import policy_entry as policy_entry
from firn_controllers.children import Owner
from firn_controllers.fleet import builders, kinds
from firn_controllers.fleet.kafka import metadata_version
from firn_controllers.fleet.kafka.layout import KafkaFleet
from firn_controllers.iceberg_topic import plan
from firn_controllers.ingestion_group import service, settings
from firn_controllers.ingestion_group import stateful_set as driver
from firn_controllers.ingestion_group.layout import group_labels
from firn_controllers.policies import plan as policy_plan
from firn_controllers.policies.due import Due
from firn_controllers.policies.plan import DueTable, PlannedRun
from firn_controllers.ports import Manifest
from firn_spark import session
from tests import apiserver, gen
from tests.apiserver import ApiServer

NAMESPACE = "firn-system"
OWNER = Owner(NAMESPACE, "3f0c1d0e-6f2b-4d5e-9c64-0123456789ab")
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


def config_with_options() -> Config:
    """Return a configuration with options that add fields to the rendered objects."""
    return gen.config(
        images={
            "spark": {"image": "firn-spark:1"},
            "kafka": {"image": "kafka:4.2", "pullPolicy": "Always"},
            "broker": {"image": "firn-broker:1"},
            "pullSecrets": ["registry"],
        },
        profiles={
            "classic": {
                "external": {"host": "h", "port": 30500},
                "config": {"num.io.threads": "9"},
                "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
                "storage": {"size": "1Gi", "storageClassName": "fast"},
                "metadataVersion": "4.2",
                "scheduling": {
                    "nodeSelector": {"disk": "fast"},
                    "tolerations": [{"key": "kafka", "operator": "Exists"}],
                    "priorityClassName": "system-cluster-critical",
                },
            },
            "waves": gen.diskless(
                external={"host": "h", "port": 30600},
                environment={"A": "b"},
                scheduling={"nodeSelector": {"disk": "none"}},
            ),
        },
        groups={"default": {"executors": {"instances": 1}, "environment": {"A": "b"}}},
        maintenance={
            "sizes": {"small": {}, "large": {"executors": {"instances": 2}}},
            "environment": {"A": "b"},
            "scheduling": {"nodeSelector": {"disk": "fast"}},
        },
    )


def children() -> list[Manifest]:
    """Render an object of each kind and purpose."""
    config = config_with_options()
    return [*children_of_fleets(config), *children_of_a_group(config), *children_of_jobs(config)]


def children_of_fleets(config: Config) -> list[Manifest]:
    fleet = kinds.managed_fleet(config, "classic", OWNER, None)
    assert isinstance(fleet, KafkaFleet)
    waves = kinds.managed_fleet(config, "waves", OWNER, None)
    return [
        kinds.config_map(fleet),
        builders.headless_service(fleet),
        builders.bootstrap_service(fleet),
        *builders.external_services(fleet),
        builders.disruption_budget(fleet),
        kinds.stateful_set(fleet, 3),
        metadata_version.build(fleet, "4.2"),
        kinds.config_map(waves),
        builders.headless_service(waves),
        builders.bootstrap_service(waves),
        *builders.external_services(waves),
        builders.disruption_budget(waves),
        kinds.stateful_set(waves, 3),
    ]


def children_of_a_group(config: Config) -> list[Manifest]:
    contents = settings.group_settings(config, "default")
    labels = group_labels("default")
    return [
        settings.build(contents, OWNER, labels),
        service.build("default", OWNER, labels),
        driver.build(config, contents, OWNER, labels, in_use=True),
    ]


def children_of_jobs(config: Config) -> list[Manifest]:
    """Render the contract of a topic, and the contract and Job of a maintenance run."""
    observed = gen.observed(gen.topic(config={"retention.ms": "1"}), config)
    assert isinstance(observed.target, TableTarget)
    maintained = policy_entry(gen.policy("nightly", run={"size": "large"}), config)
    due = Due(gen.NOW, "it was asked for", None, {"topic": "1"})
    batch = PlannedRun((DueTable(observed.entry, observed.target, "uuid", None, due, ""),), "large")
    run = policy_plan.contract(maintained, batch, config, gen.NOW)
    job = plan.contract(observed, "topic-id", table_agreed=True, topic_origin="Created", table_origin="Adopted")
    assert job is not None
    return [
        plan.config_map(job, OWNER),
        policy_plan.config_map(maintained, run, OWNER),
        policy_plan.job(maintained, batch, run, config, OWNER),
    ]


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
    """Return the driver's template with the fields that Spark adds in client mode."""
    pod = yaml.safe_load(session.EXECUTOR_TEMPLATE % {"pull_policy": "IfNotPresent"})
    pod["metadata"] = {"name": "firn-ingest-default-exec-1", "labels": {**names.EXECUTOR_ROLE, "spark-exec-id": "1"}}
    pod["spec"] |= {
        "hostname": "firn-ingest-default-exec-1",
        "restartPolicy": "Never",
        "serviceAccountName": "firn-ingest",
        "imagePullSecrets": [{"name": "registry"}],
        "terminationGracePeriodSeconds": 10,
    }
    (container,) = pod["spec"]["containers"]
    container |= {
        "image": "firn-spark:1",
        "args": ["executor"],
        "env": [{"name": "SPARK_EXECUTOR_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "blockmanager", "containerPort": session.BLOCK_MANAGER_PORT}],
        "resources": {"requests": {"cpu": "500m", "memory": "3Gi"}, "limits": {"memory": "3Gi"}},
    }
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
