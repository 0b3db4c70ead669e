"""``firn dlq list`` and ``show`` name the right or the place that they need, and run in the operator's pod."""

import json
import os
import sys
from pathlib import Path

from firn.model import names
from tests import gen
from tests.integration.cli.conftest import Cluster, Person

PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
EXEC = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}
KUBECTL = "import json, sys; print(json.dumps(sys.argv[1:])); sys.exit('command terminated with exit code 1')"


def test_a_missing_right_to_the_topic_is_named(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create(cluster.topic("orders"))
    config = tmp_path / "config.yaml"
    config.write_text(gen.config().model_dump_json(by_alias=True, exclude_defaults=True))
    topic = f"{cluster.namespace}/orders"
    done = cluster.person("nobody").run("dlq", "list", topic, "--config", str(config))
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        f"you may not get icebergtopics.firn.dev in namespace {cluster.namespace}; ask an administrator" in done.stderr
    )
    done = cluster.administrator.run("dlq", "show", topic, "--config", str(config))
    assert f"IcebergTopic {topic} has no table yet" in done.stderr


def kubectl(tmp_path: Path) -> str:
    """Write a kubectl that prints its arguments, and return a PATH with it."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{KUBECTL}\n")
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def operator(cluster: Cluster) -> None:
    """Create a pod of the operator in the cluster's namespace, as a kubelet reports it."""
    place = f"/api/v1/namespaces/{cluster.namespace}/pods"
    labels = {"app.kubernetes.io/name": "firn", "app.kubernetes.io/component": "operator"}
    spec = {"containers": [{"name": "operator", "image": "x"}], "automountServiceAccountToken": False}
    cluster.api.call("POST", place, {"metadata": {"name": "firn-operator-1", "labels": labels}, "spec": spec})
    state = {"name": "operator", "ready": True, "restartCount": 0, "image": "x", "imageID": "x"}
    status = {"containerStatuses": [{**state, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}
    cluster.api.call("PATCH", f"{place}/firn-operator-1/status", {"status": status}, "application/merge-patch+json")


def test_the_command_runs_in_the_pod_with_the_rights_to_exec(cluster: Cluster, tmp_path: Path) -> None:
    api = cluster.api
    api.call("POST", f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    operator(cluster)
    path = kubectl(tmp_path)

    def run(person: Person) -> "tuple[int, str, str]":
        done = person.run("dlq", "list", "orders", f"--release-namespace={cluster.namespace}", PATH=path)
        return done.returncode, done.stdout, done.stderr

    asks = f"in namespace {cluster.namespace}; ask an administrator"
    code, shown, errors = run(cluster.person("nobody"))
    assert (code, shown) == (2, "")
    assert f"you may not list pods {asks}" in errors
    code, shown, errors = run(cluster.person("reader", PODS))
    assert (code, shown) == (2, "")
    assert f"firn dlq list runs in the operator's pod, and you may not create pods/exec {asks}" in errors
    code, shown, errors = run(cluster.person("executor", PODS, EXEC))
    assert (code, errors) == (1, "")
    command = ["firn", "dlq", "list", "--output=table", "--", f"{cluster.namespace}/orders"]
    place = [f"--namespace={cluster.namespace}", "exec", "--stdin", "--container=operator", "firn-operator-1"]
    assert json.loads(shown) == [*place, "--", "env", f"{names.CLI_ENDS_WITH_INPUT}=1", *command]


def test_without_an_operator_the_command_names_the_namespace(cluster: Cluster, tmp_path: Path) -> None:
    command = ("dlq", "list", f"{cluster.namespace}/orders", "--release-namespace=elsewhere")
    done = cluster.administrator.run(*command, PATH=kubectl(tmp_path))
    assert done.returncode == 2
    assert "firn: namespace elsewhere in the cluster of context" in done.stderr
    assert "has no pod of the operator; name the operator's namespace with --release-namespace" in done.stderr
