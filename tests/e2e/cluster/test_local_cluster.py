"""Test the local provider: a second cluster beside the one of this checkout, with pods, and no process left after
`down`."""

import json
import os
import random
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.localcluster.layout import Layout
from hack.localcluster.node.footprint import Footprint, processes_of
from hack.support.process import Process
from tests.servers.process import await_true

ROOT = Path(__file__).resolve().parents[3]
SEED = 20261121
NODE_PORTS = range(31700, 31704)
"""Ports that the cluster of this checkout does not use."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the local provider needs root")


class Cluster:
    """A cluster in its own directory, used through its commands."""

    def __init__(self, directory: Path) -> None:
        self.layout = Layout(directory)
        self._environment = {
            **os.environ,
            "FIRN_CLUSTER": str(directory),
            "FIRN_NODE_PORTS": f"{NODE_PORTS.start}-{NODE_PORTS.stop - 1}",
            "KUBECONFIG": str(self.layout.kubeconfig),
        }

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """Start `hack/cluster WORDS` in its own process group."""
        command = [str(ROOT / "hack" / "cluster"), *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=self._environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    def run(self, *words: str) -> str:
        """Run `hack/cluster WORDS` to its end and return what it printed on stderr."""
        process = self.start(*words)
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        return errors

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl against this cluster and return its output."""
        command = [str(self.layout.binaries / "kubectl"), *words]
        done = subprocess.run(command, env=self._environment, input=stdin, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def processes(self) -> dict[int, str]:
        """Return process id and command line of each process of the cluster."""
        return processes_of(self.layout.control_group, str(self.layout.directory))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster")
    yield cluster
    cluster.run("down", "--provider", "local")


def test_pods_have_network_and_volumes_and_down_removes_all(cluster: Cluster) -> None:
    before = Footprint.now()
    cluster.run("up", "--provider", "local")
    node = Process.read(cluster.layout.process)[-1]
    cluster.run("up", "--provider", "local")
    assert Process.read(cluster.layout.process)[-1] == node, "a second `up` started another node"

    image = json.loads((ROOT / ".cluster" / "images.json").read_text())["firn-s3"]
    cluster.run("load", image)
    cluster.kubectl(
        "apply",
        "-f",
        "-",
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(image, NODE_PORTS.stop - 1)}),
    )
    cluster.kubectl("wait", "--for=condition=Ready", "pod/server", "--timeout=120s")
    script = "touch /data/file; stat -c %g /data/file; getent hosts server.default.svc.cluster.local; id -u"
    group, name, user = cluster.kubectl("exec", "server", "--", "sh", "-c", script).splitlines()
    assert group == "4711", "fsGroup does not reach the volume"
    assert name.split()[1] == "server.default.svc.cluster.local"
    assert user == "65532"
    # From the pod to its own Service and back: both directions are translated.
    request = "exec 3<>/dev/tcp/server/7070; printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3; head -1 <&3"
    assert "200 OK" in cluster.kubectl("exec", "server", "--", "bash", "-c", request)
    assert "/healthz" in cluster.kubectl("logs", "server")
    await_true("the NodePort answers at the loopback address", lambda: answers(NODE_PORTS.stop - 1))
    refused = subprocess.run(
        [str(cluster.layout.binaries / "kubectl"), "run", "root", "--image", image, "-n", "restricted"],
        env={**os.environ, "KUBECONFIG": str(cluster.layout.kubeconfig)},
        capture_output=True,
        text=True,
    )
    assert "violates PodSecurity" in refused.stderr

    assert_policies_are_enforced(cluster, image)

    directories = list(cluster.layout.volumes.iterdir())
    assert len(directories) == 1
    cluster.kubectl("delete", "pod/server", "--grace-period=1")
    cluster.kubectl("delete", "pvc/data")
    await_true("the directory of the volume is deleted", lambda: not directories[0].exists())

    assert cluster.processes()
    cluster.run("down")
    assert cluster.processes() == {}
    assert Footprint.now().beyond(before) == {}
    assert sorted(path.name for path in cluster.layout.directory.iterdir()) == ["lock", "node.lock"]


@pytest.mark.long  # `up` starts many times. The demo and all end-to-end tests need one start only.
def test_up_completes_the_cluster_after_killed_processes(cluster: Cluster) -> None:
    before = Footprint.now()
    moments = random.Random(SEED)
    for _ in range(6 if os.environ.get("FIRN_LONG") is None else 40):
        process = cluster.start("up", "--provider", "local")
        time.sleep(moments.uniform(0.05, 5.0))  # the time of the kill is the input of the test
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if moments.random() < 0.3:
            cluster.run("down", "--provider", "local")
            assert cluster.processes() == {}
    cluster.run("up", "--provider", "local")
    assert_one_ready_node(cluster)

    for part in Process.read(cluster.layout.process):
        part.end()
    cluster.run("up", "--provider", "local")
    assert_one_ready_node(cluster)

    cluster.run("down")
    assert cluster.processes() == {}
    assert Footprint.now().beyond(before) == {}


def assert_policies_are_enforced(cluster: Cluster, image: str) -> None:
    """Connect to the server from pods that a NetworkPolicy allows and denies, and also after a restart of the policy agent."""
    allowed = {"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}], "ports": [{"port": "http"}]}
    apply(cluster, policy("server", "server", {"ingress": [allowed]}))
    apply(cluster, *(client(name, image) for name in ("friend", "stranger")))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/friend", "pod/stranger", "--timeout=120s")
    # Both pods connect in their first moment, before the kubelet has reported their addresses.
    assert [first_attempt(cluster, name) for name in ("friend", "stranger")] == ["connected", "denied"]

    dns = {"ports": [{"port": 53, "protocol": "UDP"}]}
    apply(cluster, policy("server", "server", {"ingress": []}), policy("friend", "friend", {"egress": [dns]}))
    await_attempt(cluster, "friend", "denied")
    assert "server.default" in cluster.kubectl("exec", "friend", "--", "getent", "hosts", "server")

    [agent] = [pid for pid, command in cluster.processes().items() if " policy-agent " in command]
    os.kill(agent, signal.SIGKILL)
    assert attempt(cluster, "stranger") == "denied", "the rules must outlive the agent"
    cluster.kubectl("delete", "networkpolicy", "server", "friend")
    for name in ("friend", "stranger"):
        await_attempt(cluster, name, "connected")
    assert cluster.kubectl("get", "pod", "server", "-o", "jsonpath={.status.containerStatuses[0].ready}") == "true"
    cluster.kubectl("delete", "pod", "friend", "stranger", "--grace-period=0", "--force")


ATTEMPT = "if timeout 1 bash -c '</dev/tcp/server/7070' 2>/dev/null; then echo connected; else echo denied; fi"


def attempt(cluster: Cluster, pod: str) -> str:
    return cluster.kubectl("exec", pod, "--", "bash", "-c", ATTEMPT).strip()


def first_attempt(cluster: Cluster, pod: str) -> str:
    """Return what the pod printed about its attempt at its start, which takes up to a second."""

    def printed() -> str:
        return cluster.kubectl("logs", pod).strip()

    await_true(f"{pod} has tried to connect", lambda: printed() != "")
    return printed()


def await_attempt(cluster: Cluster, pod: str, result: str) -> None:
    await_true(f"{pod} is {result}", lambda: attempt(cluster, pod) == result)


def apply(cluster: Cluster, *documents: dict[str, Any]) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": documents}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(items))


def policy(name: str, app: str, rules: dict[str, Any]) -> dict[str, Any]:
    """Return a NetworkPolicy for the pods of an app, which isolates them in the directions that have rules."""
    directions = [each.title() for each in rules]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": directions, **rules},
    }


def client(name: str, image: str) -> dict[str, Any]:
    """Return a pod that connects to the server once at its start."""
    container = {"name": "client", "image": image, "command": ["bash", "-c", f"{ATTEMPT}; exec sleep 600"]}
    metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def assert_one_ready_node(cluster: Cluster) -> None:
    ready = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
    assert cluster.kubectl("get", "node", "-o", ready) == "True"
    firsts = [pid for pid, command in cluster.processes().items() if "localcluster.node" in command]
    assert len(firsts) == 2, "more than one node runs: its outer process and its first process were expected"


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def objects(image: str, node_port: int) -> list[dict[str, Any]]:
    """Return a server with a volume and a Service, under the restrictions of PodSecurity `restricted`."""
    security = {"runAsNonRoot": True, "runAsUser": 65532, "fsGroup": 4711, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {
        "name": "server",
        "image": image,
        "ports": [{"name": "http", "containerPort": 7070}],
        "args": ["--port", ":7070", "--health", "/healthz", "posix", "/data"],
        "env": [{"name": "ROOT_ACCESS_KEY", "value": "key"}, {"name": "ROOT_SECRET_KEY", "value": "secret-secret"}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 7070}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    port = {"port": 7070, "nodePort": node_port}
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "restricted", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "server", "namespace": "default", "labels": {"app": "server"}},
            "spec": {
                "securityContext": security,
                "containers": [container],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "server", "namespace": "default"},
            "spec": {"type": "NodePort", "selector": {"app": "server"}, "ports": [port]},
        },
    ]
