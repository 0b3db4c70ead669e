"""The policy that limits the pods of drivers with executors, enforced by a real API server."""

import copy
from collections.abc import Callable, Iterator

import pytest
import yaml

from firn.model import names
from firn.model.config import Config
from firn.model.jobs import GroupSettings
from firn_controllers.ingestion_group import settings
from tests.apiserver import ApiServer, Refused
from tests.chart import Manifest, find_object
from tests.pods import executor
from tests.servers.process import await_true

PODS = "/api/v1/namespaces/firn-system/pods"
SPARK = "system:serviceaccount:firn-system:spark"
MAINTAIN = "system:serviceaccount:firn-system:firn-maintain"
PATCH = "application/merge-patch+json"


@pytest.fixture(scope="module")
def group(chart: list[Manifest]) -> GroupSettings:
    document = find_object(chart, "ConfigMap", names.CONFIG_OBJECT)["data"]["config.yaml"]
    return settings.group_settings(Config.model_validate(yaml.safe_load(document)), "large")


@pytest.fixture(scope="module")
def pod(group: GroupSettings) -> Manifest:
    return executor(group)


@pytest.fixture(scope="module")
def policy(api: ApiServer, pod: Manifest) -> ApiServer:
    """Wait until the server enforces the policy, which it reads a moment after its creation."""
    other = copy.deepcopy(pod)
    other["spec"]["serviceAccountName"] = "firn-operator"

    def enforced() -> bool:
        try:
            create(api, other)
        except Refused:
            return True
        return False

    await_true("the policy is enforced", enforced)
    return api


@pytest.fixture
def operator_pod(policy: ApiServer) -> Iterator[str]:
    """Create a pod as the operator's Deployment does."""
    container = {"name": "operator", "image": "firn-operator:1"}
    labels = {"app.kubernetes.io/name": "firn", "app.kubernetes.io/component": "operator"}
    body = {
        "metadata": {"name": "firn-operator-1", "labels": labels},
        "spec": {"serviceAccountName": "firn-operator", "containers": [container]},
    }
    policy.call("POST", PODS, body)
    yield f"{PODS}/firn-operator-1"
    policy.call("DELETE", f"{PODS}/firn-operator-1?gracePeriodSeconds=0")


def create(api: ApiServer, pod: Manifest, user: str = SPARK) -> None:
    api.call("POST", f"{PODS}?dryRun=All&fieldValidation=Strict", pod, user=user)


def test_the_executors_of_a_group_are_accepted(policy: ApiServer, pod: Manifest) -> None:
    kinds = [next(iter(volume.keys() - {"name"})) for volume in pod["spec"]["volumes"]]
    assert sorted(kinds) == ["configMap", "emptyDir", "secret", "secret"], "the CAs of a catalog and of two stores"
    create(policy, pod)


def test_secrets_and_claims_of_the_groups_spark_conf_are_accepted(policy: ApiServer, pod: Manifest) -> None:
    changed = copy.deepcopy(pod)
    changed["spec"]["volumes"] += [
        {"name": "certificates-volume", "secret": {"secretName": "certificates"}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}},
    ]
    create(policy, changed)


def test_executors_of_runs_have_the_image_and_the_account_of_runs(policy: ApiServer, pod: Manifest) -> None:
    changed = copy.deepcopy(pod)
    changed["spec"]["serviceAccountName"] = "firn-maintain"
    with pytest.raises(Refused, match="may run only firn-spark:canary"):
        create(policy, changed, MAINTAIN)
    changed["spec"]["containers"][0]["image"] = "firn-spark:canary"
    with pytest.raises(Refused, match=r"have one label: firn.dev/group with one of the groups \[\], or firn.dev/run"):
        create(policy, changed, MAINTAIN)
    del changed["metadata"]["labels"][names.LABEL_GROUP]
    changed["metadata"]["labels"][names.LABEL_RUN] = "nightly-1"
    create(policy, changed, MAINTAIN)
    with pytest.raises(Refused, match="ServiceAccount spark may change only pods of this account"):
        create(policy, changed)


def _container(**fields: object) -> Callable[[Manifest], None]:
    return lambda pod: pod["spec"]["containers"][0].update(fields)


def _spec(**fields: object) -> Callable[[Manifest], None]:
    return lambda pod: pod["spec"].update(fields)


def _volume(**source: object) -> Callable[[Manifest], None]:
    return lambda pod: pod["spec"]["volumes"].append({"name": "more", **source})


def _second(key: str) -> Callable[[Manifest], None]:
    def change(pod: Manifest) -> None:
        (container,) = pod["spec"]["containers"]
        pod["spec"].setdefault(key, []).append({**container, "name": "more"})

    return change


def _label(key: str, value: str) -> Callable[[Manifest], None]:
    return lambda pod: pod["metadata"]["labels"].update({key: value})


def _security(**fields: object) -> Callable[[Manifest], None]:
    return lambda pod: pod["spec"]["containers"][0]["securityContext"].update(fields)


SECRET = {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "firn-postgres", "key": "password"}}}
TOKEN = {"serviceAccountToken": {"path": "token"}}
DEVIATIONS: dict[str, tuple[Callable[[Manifest], object], str]] = {
    "another account": (_spec(serviceAccountName="firn-operator"), "only pods of this account"),
    "the default account": (lambda pod: pod["spec"].pop("serviceAccountName"), "only pods of this account"),
    "another image": (_container(image="evil:1"), "may run only registry.example.com/data/firn-spark"),
    "the image of runs": (_container(image="firn-spark:canary"), "may run only registry.example.com"),
    "another container": (_second("containers"), "one container"),
    "an init container": (_second("initContainers"), "no init containers"),
    "a Secret": (_volume(secret={"secretName": "firn-postgres"}), "emptyDir and configMap only"),
    "all keys of a Secret with CA certificates": (_volume(secret={"secretName": "catalog-tls"}), "CA certificates"),
    "the key of a certificate": (
        _volume(secret={"secretName": "catalog-tls", "items": [{"key": "tls.key", "path": "tls.key"}]}),
        "CA certificates",
    ),
    "a directory of the node": (_volume(hostPath={"path": "/"}), "emptyDir and configMap only"),
    "a token": (_volume(projected={"sources": [TOKEN]}), "emptyDir and configMap only"),
    "a projected Secret": (
        _volume(projected={"sources": [{"secret": {"name": "firn-s3"}}]}),
        "emptyDir and configMap only",
    ),
    "a volume of a broker": (
        _volume(persistentVolumeClaim={"claimName": "data-firn-broker-classic-0"}),
        "emptyDir and configMap only",
    ),
    "a driver of volumes": (_volume(csi={"driver": "secrets-store.csi.k8s.io"}), "emptyDir and configMap only"),
    "a Secret in a variable": (_container(env=[SECRET]), "may not read Secrets"),
    "a Secret as variables": (_container(envFrom=[{"secretRef": {"name": "firn-s3"}}]), "may not read Secrets"),
    "the token of its account": (_spec(automountServiceAccountToken=True), "no token"),
    "the default of the token": (lambda pod: pod["spec"].pop("automountServiceAccountToken"), "no token"),
    "the node's network": (_spec(hostNetwork=True), "namespaces and no ports of its node"),
    "the node's processes": (_spec(hostPID=True), "namespaces and no ports of its node"),
    "the node's IPC": (_spec(hostIPC=True), "namespaces and no ports of its node"),
    "a port of the node": (_container(ports=[{"containerPort": 1, "hostPort": 1}]), "no ports of its node"),
    "privileges": (_security(privileged=True, allowPrivilegeEscalation=True), "without privileges"),
    "escalation": (_security(allowPrivilegeEscalation=True), "without privileges"),
    "root": (_security(runAsUser=0), "without privileges"),
    "root for the whole pod": (_spec(securityContext={"runAsUser": 0}), "without privileges"),
    "a capability": (_security(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}), "without privileges"),
    "all capabilities": (_security(capabilities={}), "without privileges"),
    "no seccomp profile": (_security(seccompProfile={"type": "Unconfined"}), "without privileges"),
    "no security context": (lambda pod: pod["spec"].pop("securityContext"), "without privileges"),
    "no role": (lambda pod: pod["metadata"]["labels"].pop("spark-role"), "only executors"),
    "no labels": (lambda pod: pod["metadata"].pop("labels"), "only executors"),
    "the label of another group": (_label(names.LABEL_GROUP, "default"), r"one of the groups \[large\]$"),
    "no group": (lambda pod: pod["metadata"]["labels"].pop(names.LABEL_GROUP), r"one of the groups \[large\]$"),
    "the label of runs": (_label(names.LABEL_RUN, "nightly-1"), r"one of the groups \[large\]$"),
    "the labels of a store": (
        lambda pod: pod["metadata"]["labels"].update({"app.kubernetes.io/component": "postgres"}),
        "only executors",
    ),
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_a_pod_that_is_no_executor_is_refused(policy: ApiServer, pod: Manifest, name: str) -> None:
    change, message = DEVIATIONS[name]
    changed = copy.deepcopy(pod)
    change(changed)
    with pytest.raises(Refused, match=message):
        create(policy, changed)
    create(policy, changed, user="")


def test_a_driver_changes_and_deletes_its_executors_only(
    policy: ApiServer, pod: Manifest, group: GroupSettings, operator_pod: str
) -> None:
    policy.call("POST", PODS, pod, user=SPARK)
    own = f"{PODS}/{pod['metadata']['name']}"
    inactive = {"metadata": {"labels": {"spark-exec-inactive": "true"}}}
    policy.call("PATCH", own, inactive, PATCH, user=SPARK)
    for path, image in ((operator_pod, "evil:1"), (own, "evil:1")):
        name = "operator" if path == operator_pod else "executor"
        changed = {"spec": {"containers": [{"name": name, "image": image}]}}
        with pytest.raises(Refused, match="may change only pods of this account|may run only"):
            policy.call("PATCH", path, changed, "application/strategic-merge-patch+json", user=SPARK)
    with pytest.raises(Refused, match="may change only pods of this account"):
        policy.call("DELETE", operator_pod, user=SPARK)
    with pytest.raises(Refused, match="may change only pods of this account"):
        policy.call("DELETE", PODS, user=SPARK)
    selected = ",".join(f"{key}%3D{value}" for key, value in group.executor_labels.items())
    policy.call("DELETE", f"{PODS}?labelSelector={selected}&gracePeriodSeconds=0", user=SPARK)
    assert [item["metadata"]["name"] for item in policy.call("GET", PODS)["items"]] == ["firn-operator-1"]
