"""Provider `kind`: Kubernetes in a container of Docker or Podman, by means of kind."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from hack.localcluster.artifacts import tools
from hack.localcluster.layout import NODE_PORTS, Layout
from hack.support.command import run
from hack.support.progress import Failure, side_by_side, step


class Kind:
    """A kind cluster named after the checkout's cluster directory."""

    def __init__(self, layout: Layout, engine: str) -> None:
        self._layout = layout
        self.engine = engine
        self.name = layout.control_group

    def configuration(self) -> dict[str, Any]:
        """Return kind's configuration: one node of our Kubernetes version, with the NodePorts on the machine's loopback address."""
        mappings = [{"containerPort": port, "hostPort": port, "listenAddress": "127.0.0.1"} for port in NODE_PORTS]
        patch = {
            "kind": "ClusterConfiguration",
            "apiServer": {"extraArgs": {"service-node-port-range": f"{NODE_PORTS.start}-{NODE_PORTS.stop - 1}"}},
        }
        return {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "networking": {"apiServerAddress": "127.0.0.1"},
            "nodes": [
                {
                    "role": "control-plane",
                    "image": f"kindest/node:v{tools.KUBERNETES}",
                    "extraPortMappings": mappings,
                    "kubeadmConfigPatches": [json.dumps(patch)],
                }
            ],
        }

    def command(self, *words: str) -> list[str]:
        """Return the command line of a kind subcommand for this cluster."""
        return ["kind", *words, "--name", self.name]

    def environment(self) -> dict[str, str]:
        """Return the environment variables that select the engine for kind."""
        return {"KIND_EXPERIMENTAL_PROVIDER": self.engine}

    def up(self) -> None:
        """Create the cluster unless it exists, and its kubeconfig."""

        def command_line_tools() -> None:
            self._layout.binaries.mkdir(parents=True, exist_ok=True)
            built = tools.build_together(["kube", "helm"])
            link(self._layout.binaries / "kubectl", built["kube"])
            link(self._layout.binaries / "helm", built["helm"])

        side_by_side(command_line_tools, self._create)

    def _create(self) -> None:
        environment = self.environment()
        if self.name not in run(["kind", "get", "clusters"], environment=environment).split():
            with step(f"kind cluster {self.name}"):
                create = [
                    *self.command("create", "cluster"),
                    "--config",
                    "-",
                    "--wait",
                    "180s",
                    "--kubeconfig",
                    str(self._layout.kubeconfig),
                ]
                run(create, environment=environment, stdin=json.dumps(self.configuration()))
        (self._layout.directory / "provider").write_text("kind")
        run(
            [*self.command("export", "kubeconfig"), "--kubeconfig", str(self._layout.kubeconfig)],
            environment=environment,
        )

    def down(self) -> None:
        """Delete the cluster. kind removes its container and network."""
        run(
            [*self.command("delete", "cluster"), "--kubeconfig", str(self._layout.kubeconfig)],
            environment=self.environment(),
        )
        for name in ("provider", "kubeconfig"):
            (self._layout.directory / name).unlink(missing_ok=True)

    def status(self) -> dict[str, object]:
        """Return the status of the cluster. It runs if its container exists."""
        environment = {**os.environ, **self.environment()}
        listed = subprocess.run(["kind", "get", "clusters"], capture_output=True, text=True, env=environment)
        return {
            "provider": "kind",
            "running": self.name in listed.stdout.split(),
            "kubeconfig": str(self._layout.kubeconfig),
        }

    def load(self, reference: str) -> None:
        """Copy an image of the engine into the node. kind skips an image that the node has."""
        inspected = subprocess.run([self.engine, "image", "inspect", reference], capture_output=True)
        if inspected.returncode:
            raise Failure(f"{self.engine} does not have image {reference}; build it with hack/images/build")
        with step(f"loading {reference}"):
            run([*self.command("load", "docker-image"), reference], environment=self.environment())


def link(path: Path, target: Path) -> None:
    """Replace `path` with a symbolic link to `target`."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(target)
    unfinished.rename(path)
