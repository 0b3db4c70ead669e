"""Run a Kubernetes API server on loopback: etcd and kube-apiserver as child processes, without nodes and
controllers."""

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
import yaml

from hack.localcluster.artifacts import tools
from hack.support.places import REPOSITORY
from tests.servers.process import await_true

Manifest = dict[str, Any]
TOKEN = "test-administrator"


class Refused(AssertionError):
    """An error reply of the API server. ``code`` is the HTTP status, and the message is that of the server."""

    def __init__(self, code: int, status: Manifest) -> None:
        super().__init__(status.get("message", str(status)))
        self.code = code


@dataclass(frozen=True)
class ApiServer:
    """A running API server and an administrator's connection to it."""

    url: str
    http: urllib3.PoolManager
    kubeconfig: Path

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        content: str = "application/json",
        accept: str = "application/json",
        user: str = "",
    ) -> Manifest:
        """Send one request, as an administrator or as ``user``, and return the object. Raises Refused."""
        answer = self.http.request(
            method,
            self.url + path,
            body=None if body is None else json.dumps(body),
            headers={
                "Authorization": f"Bearer {TOKEN}",
                "Content-Type": content,
                "Accept": accept,
                **({"Impersonate-User": user} if user else {}),
            },
        )
        document = json.loads(answer.data)
        if answer.status >= 400:
            raise Refused(answer.status, document)
        return document

    def install(self, crd: Manifest) -> None:
        """Create the CRD, or update it, and wait until it is served."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        name = crd["metadata"]["name"]
        self.call("PATCH", f"{path}/{name}?fieldManager=test&force=true", crd, "application/apply-patch+yaml")
        spec = crd["spec"]
        served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        await_true(f"{name} is served", lambda: self._established(f"{path}/{name}") and self._answers(served))

    def _established(self, path: str) -> bool:
        listed = self.call("GET", path)["status"]["conditions"] or ()
        conditions = {each["type"]: each for each in listed}
        assert conditions.get("NonStructuralSchema", {}).get("status") != "True", conditions
        return conditions.get("Established", {}).get("status") == "True"

    def _answers(self, path: str) -> bool:
        try:
            self.call("GET", path)
        except Refused as refused:
            # 429: the API server reads the store of a newly defined resource for the first time.
            if refused.code in (404, 429):
                return False
            raise
        return True


SYSTEM, DEMO = "firn-system", "demo"
"""Namespaces that `prepared` creates: the operator's and a user's."""


@contextmanager
def prepared() -> Iterator[ApiServer]:
    """Start an API server with the project's CRDs and the namespaces `SYSTEM` and `DEMO`, and stop it afterwards."""
    with running() as server:
        install_crds(server)
        for namespace in (SYSTEM, DEMO):
            server.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        yield server


def install_crds(server: ApiServer) -> None:
    """Apply the CRDs of the repository."""
    for file in sorted((REPOSITORY / "crds").glob("*.yaml")):
        server.install(yaml.safe_load(file.read_text()))


@contextmanager
def running() -> Iterator[ApiServer]:
    """Start one in a temporary directory, and stop both processes afterwards."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="apiserver-")))
        etcd, peer, port = _free_ports(3)
        store = f"http://127.0.0.1:{etcd}"
        _start(
            stack,
            directory / "etcd.log",
            str(tools.build("kube")),
            "etcd",
            f"--data-dir={directory / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={store}",
            f"--advertise-client-urls={store}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
        )
        key = directory / "service-account.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens = directory / "tokens.csv"
        tokens.write_text(f'{TOKEN},administrator,administrator,"system:masters"\n')
        log = directory / "apiserver.log"
        server = _start(
            stack,
            log,
            str(tools.build("kube")),
            "kube-apiserver",
            f"--etcd-servers={store}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={directory}",
            f"--token-auth-file={tokens}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--allow-privileged=true",
        )
        url = f"https://127.0.0.1:{port}"
        authority = directory / "apiserver.crt"

        def ready() -> bool:
            if server.poll() is not None:
                raise AssertionError(f"kube-apiserver ended with {server.returncode}:\n{log.read_text()[-4000:]}")
            if not authority.exists():
                return False
            try:
                with urllib3.PoolManager(ca_certs=str(authority), retries=False, timeout=5) as http:
                    return http.request("GET", f"{url}/readyz").status == 200
            except (urllib3.exceptions.HTTPError, OSError):
                return False

        await_true("kube-apiserver is ready", ready)
        http = stack.enter_context(urllib3.PoolManager(ca_certs=str(authority), retries=False, timeout=30))
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(url, authority)))
        yield ApiServer(url, http, kubeconfig)


def _kubeconfig(url: str, authority: Path) -> Manifest:
    name = "test"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": name, "user": {"token": TOKEN}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _start(stack: ExitStack, log: Path, *command: str) -> subprocess.Popen[bytes]:
    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    stack.callback(_stop, process)
    return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        print(f"{process.args!r} did not end on SIGTERM", file=sys.stderr)
        process.kill()
        process.wait()
