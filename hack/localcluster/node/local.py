"""Provider `local`: a real one-node Kubernetes of plain processes, for machines without a container engine."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from hack.localcluster.artifacts import packages, tools
from hack.localcluster.artifacts.store import Store
from hack.localcluster.kind import link
from hack.localcluster.layout import NODE, NODE_PORTS, PAUSE_IMAGE, Layout
from hack.localcluster.node.init import hierarchies
from hack.localcluster.node.objects import manifests
from hack.localcluster.node.settings import CONTAINERD_SOCKET, write_settings
from hack.support.command import run
from hack.support.content import locked
from hack.support.places import REPOSITORY
from hack.support.process import Process
from hack.support.progress import Failure, say, side_by_side, step

_DEFAULT_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"
_CNI_PLUGINS = Path("/usr/lib/cni")
_PATIENCE = 180.0
"""Seconds after which `up` gives up on a component that is not ready, and shows its log. A busy machine needs many."""


class Local:
    """The cluster of one directory. At most one `up` or `down` of it runs at a time. Others wait."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def up(self) -> None:
        """Start the node and wait until it is Ready. Leaves a running node alone, and first removes what is left of a dead one."""
        layout = self._layout
        with locked(layout.directory / "lock"):
            if self._healthy() and (layout.node / "complete").exists():
                say("cluster is up")
                return
            if os.geteuid() != 0:
                raise Failure(
                    "provider local needs root for namespaces and mounts: run it as root, or use --provider kind with Docker or Podman"
                )
            if hidden := [each for each in ("/run", "/var/lib", "/var/log") if layout.directory.is_relative_to(each)]:
                raise Failure(
                    f"the cluster's directory cannot be below {hidden[0]}, because the node mounts its own directory there;"
                    " set FIRN_CLUSTER to another directory"
                )
            names = list(tools.CLUSTER.programs)
            side_by_side(lambda: packages.ensure(packages.LOCAL_CLUSTER), lambda: tools.build_together(names))
            built = tools.build_together(names)
            if not self._alive():
                self._clear()
                self._start(built)
            layout.binaries.mkdir(exist_ok=True)
            link(layout.binaries / "kubectl", built["kube"])
            link(layout.binaries / "helm", built["helm"])
            (layout.directory / "provider").write_text("local")
            with step("waiting for the API server"):
                self._await(self._healthy, "kube-apiserver")
            self._apply()
            with step("waiting for containerd"):
                self._await(lambda: self._ctr("version").returncode == 0, "containerd")
            Store().add_program(PAUSE_IMAGE, built["pause"])
            self.load(PAUSE_IMAGE)
            with step("waiting for the node"):
                self._await(self._node_ready, "kubelet")
                # The API server refuses pods until the controller manager has created the ServiceAccount of their namespace.
                self._await(lambda: self._get(_DEFAULT_ACCOUNT) is not None, "kube-controller-manager")
            (layout.node / "complete").touch()
            say(f"cluster is up: export KUBECONFIG={layout.kubeconfig}")

    def down(self) -> None:
        """End the node's processes and remove every file and control group of it."""
        with locked(self._layout.directory / "lock"):
            self._clear()
            for name in ("provider", "kubeconfig"):
                (self._layout.directory / name).unlink(missing_ok=True)
            shutil.rmtree(self._layout.binaries, ignore_errors=True)
        say("cluster is down")

    def status(self) -> dict[str, object]:
        """Return the status of the node's processes and of the API server."""
        report: dict[str, object] = {"provider": "local", "running": self._alive(), "healthy": self._healthy()}
        if self._alive():
            report |= {
                "kubeconfig": str(self._layout.kubeconfig),
                "server": f"https://127.0.0.1:{self._port()}",
                "pid": self._first().pid,
            }
        return report

    def load(self, reference: str) -> None:
        """Import an image from the image store. Copies only the blobs that the node lacks."""
        if not self._alive():
            raise Failure("the cluster is not running; start it with `hack/cluster up`")
        listed = self._ctr("images", "list", "-q", f"name=={reference}")
        if reference in listed.stdout.decode().split():
            return
        store = Store()
        if reference not in store.images():
            raise Failure(f"image {reference} has not been built; build it with hack/images/build")
        blobs = self._layout.images / "io.containerd.content.v1.content" / "blobs" / "sha256"
        started = time.monotonic()
        with subprocess.Popen(
            self._inside("ctr", "images", "import", "-"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            size = _write_image(store, reference, process.stdin, lambda digest: (blobs / digest).exists())
            output = process.stdout.read().decode(errors="replace")
        if process.returncode:
            raise Failure(f"containerd did not import image {reference}: {output[-1500:]}")
        say(f"loaded {reference}: {size / 1e6:.0f} MB in {time.monotonic() - started:.1f}s")

    def enter(self, words: list[str]) -> int:
        """Run a command inside the node's namespaces (network, mounts and processes) and return its exit code."""
        if not self._alive():
            raise Failure("the cluster is not running; start it with `hack/cluster up`")
        return subprocess.run([*self._namespaces(), *words]).returncode

    def _start(self, built: dict[str, Path]) -> None:
        layout = self._layout
        layout.node.mkdir(parents=True, exist_ok=True)
        api = socket.create_server(("127.0.0.1", 0))
        listeners = {6443: api}
        for port in NODE_PORTS:
            try:
                listeners[port] = socket.create_server(("127.0.0.1", port))
            except OSError as error:
                say(
                    f"127.0.0.1:{port} is in use ({error.strerror}), so this NodePort cannot be reached from outside;"
                    " set FIRN_NODE_PORTS to another range"
                )
        write_settings(layout, api.getsockname()[1])
        _link_plugins(layout.plugins, built["policycni"])
        (layout.node / "api-port").write_text(str(api.getsockname()[1]))
        descriptors = {port: listener.fileno() for port, listener in listeners.items()}
        with self._node_lock() as held, (layout.logs / "components" / "node.log").open("ab") as log:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "hack.localcluster.node.init",
                    str(layout.directory),
                    *map(str, (built["kube"], built["coredns"])),
                    json.dumps(descriptors),
                ],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[*descriptors.values(), held.fileno()],
                start_new_session=True,
            )
        for listener in listeners.values():
            listener.close()
        self._await(self._alive, "node")

    def _clear(self) -> None:
        """End the node's processes that still run, and delete its control group and its files."""
        with self._node_lock() as held:
            self._await_end(held)
            for hierarchy in hierarchies():
                _remove_group(hierarchy / self._layout.control_group)
            shutil.rmtree(self._layout.node, ignore_errors=True)
            if self._layout.node.exists():
                shutil.rmtree(self._layout.node)

    def _node_lock(self) -> IO[str]:
        """Open the file that a node's outer process locks from its start to its end, also before it has recorded its number."""
        return (self._layout.directory / "node.lock").open("w")

    def _await_end(self, held: IO[str]) -> None:
        """Kill the node's processes as soon as they are recorded, until none holds the lock."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            for process in Process.read(self._layout.process):
                process.end()
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Failure(
                        f"{self._layout.directory / 'node.lock'} is still locked by a process that has not recorded its number;"
                        " end the process that `fuser` shows for the file"
                    ) from None
            time.sleep(0.05)

    def _apply(self) -> None:
        objects = {"apiVersion": "v1", "kind": "List", "items": manifests()}
        run([*self._kubectl(), "apply", "-f", "-"], stdin=json.dumps(objects))

    def _kubectl(self) -> list[str]:
        return [str(self._layout.binaries / "kubectl"), "--kubeconfig", str(self._layout.kubeconfig)]

    def _first(self) -> Process:
        """Return the first process of the node's PID namespace."""
        return Process.read(self._layout.process)[-1]

    def _alive(self) -> bool:
        remembered = Process.read(self._layout.process)
        return bool(remembered) and remembered[-1].alive

    def _port(self) -> int:
        return int((self._layout.node / "api-port").read_text())

    def _healthy(self) -> bool:
        return self._alive() and self._get("/readyz") is not None

    def _node_ready(self) -> bool:
        node = self._get(f"/api/v1/nodes/{NODE}")
        conditions = json.loads(node)["status"].get("conditions", []) if node else []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _get(self, path: str) -> bytes | None:
        """Return the body of a GET request to the API server as administrator, None without a successful answer."""
        keys = self._layout.keys
        try:
            context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
            context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
            connection = http.client.HTTPSConnection("127.0.0.1", self._port(), context=context, timeout=5)
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                body = response.read()
                return body if response.status == 200 else None
            finally:
                connection.close()
        except (OSError, http.client.HTTPException):
            return None

    def _await(self, condition: Callable[[], bool], component: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise Failure(
                    f"{component} was not ready after {_PATIENCE:.0f}s. End of its log:\n{self._log_tail(component)}"
                )
            if component != "node" and not self._alive():
                raise Failure(
                    f"the node ended while waiting for {component}. End of its log:\n{self._log_tail('node')}"
                )
            time.sleep(0.1)

    def _log_tail(self, component: str) -> str:
        path = self._layout.logs / "components" / f"{component}.log"
        return f"{path}:\n{path.read_text(errors='replace')[-3000:]}" if path.exists() else f"{path} does not exist"

    def _namespaces(self) -> list[str]:
        return ["nsenter", f"--target={self._first().pid}", "--mount", "--net", "--pid", "--"]

    def _inside(self, program: str, *words: str) -> list[str]:
        return [*self._namespaces(), program, "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io", *words]

    def _ctr(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self._inside("ctr", *words), capture_output=True)


def _write_image(store: Store, reference: str, output: IO[bytes], present: Callable[[str], bool]) -> int:
    """Write an image to the pipe and close it. A reader that has closed the pipe reports the cause with its exit code."""
    try:
        return store.stream(reference, output, present)
    except BrokenPipeError:
        return 0
    finally:
        with contextlib.suppress(BrokenPipeError):
            output.close()


def _link_plugins(directory: Path, own: Path) -> None:
    directory.mkdir(exist_ok=True)
    for plugin in [*_CNI_PLUGINS.iterdir(), own]:
        link(directory / plugin.name, plugin)


def _remove_group(group: Path) -> None:
    """Remove a control group and those below it. Their processes have ended, but the kernel may still count them for a moment."""
    if not group.exists():
        return
    for below in [each for each in group.iterdir() if each.is_dir()]:
        _remove_group(below)
    deadline = time.monotonic() + 10
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
