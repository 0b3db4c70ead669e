"""The addresses, names and files of the local provider's one node."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

NODE = "firn-node"
NODE_ADDRESS = "10.250.0.1"
API_SERVICE_ADDRESS = "10.96.0.1"
SERVICE_RANGE = "10.96.0.0/16"
POD_RANGE = "10.244.0.0/16"


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1)


NODE_PORTS = _range(os.environ.get("FIRN_NODE_PORTS", "30000-30031"))
"""NodePorts of Services. Each is also the same port of the machine's loopback address. `FIRN_NODE_PORTS`
sets another range, for a second cluster on one machine."""

PAUSE_IMAGE = "localhost/pause:1"
POLICY_SOCKET = "/run/policy-agent.sock"
"""Socket at which the CNI plugin announces new pods to the policy agent. Path inside the node, which has its own /run."""


@dataclass(frozen=True)
class Layout:
    """Files of one cluster. `directory` is the cluster's directory, `.cluster` of a checkout."""

    directory: Path

    @property
    def node(self) -> Path:
        """All files of the node. `down` deletes them."""
        return self.directory / "node"

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    @property
    def binaries(self) -> Path:
        return self.directory / "bin"

    @property
    def keys(self) -> Path:
        return self.node / "pki"

    @property
    def settings(self) -> Path:
        """Configuration files of the components."""
        return self.node / "config"

    @property
    def plugins(self) -> Path:
        """CNI plugins of the node, as links."""
        return self.node / "plugins"

    @property
    def logs(self) -> Path:
        """The node's /var/log. The logs of the components are in `components` below it."""
        return self.node / "log"

    @property
    def volumes(self) -> Path:
        return self.node / "volumes"

    @property
    def images(self) -> Path:
        """containerd's content and snapshots."""
        return self.node / "containerd"

    @property
    def process(self) -> Path:
        """The processes that hold the node's namespaces (JSON)."""
        return self.node / "process.json"

    @property
    def control_group(self) -> str:
        """Name of the control group, below every hierarchy's root, that holds all pods of this cluster, and no other."""
        return "firn-" + hashlib.sha256(str(self.directory).encode()).hexdigest()[:8]
