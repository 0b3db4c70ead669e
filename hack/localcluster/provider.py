"""The interface of a cluster provider, and the choice of the provider."""

from __future__ import annotations

import shutil
import subprocess
from typing import Protocol

from hack.localcluster.kind import Kind
from hack.localcluster.layout import Layout
from hack.localcluster.node.local import Local
from hack.support.progress import Failure


class Provider(Protocol):
    """A provider of a Kubernetes cluster on this machine."""

    def up(self) -> None:
        """Start the cluster, or continue an interrupted start, and wait until its node is Ready. Repeatable."""

    def down(self) -> None:
        """Delete the cluster and all of its traces on the machine. Repeatable."""

    def status(self) -> dict[str, object]:
        """Return the status of the cluster. The key `running` is a bool."""

    def load(self, reference: str) -> None:
        """Copy a built image into the node, unless the node has it. Raises `Failure` if the image has not been built."""


def container_engine() -> str | None:
    """Return `docker` or `podman` if that engine answers. A client without a daemon does not count."""
    for engine in ("docker", "podman"):
        if shutil.which(engine) and _answers([engine, "info"]):
            return engine
    return None


def _answers(words: list[str]) -> bool:
    try:
        return subprocess.run(words, capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def choose(name: str, layout: Layout) -> Provider:
    """Return the provider of a name. `auto` is the provider in use, else kind if a container engine answers, else local."""
    remembered = layout.directory / "provider"
    if name == "auto" and remembered.exists():
        name = remembered.read_text().strip()
    engine = container_engine() if name in ("auto", "kind") else None
    if name == "auto":
        name = "kind" if engine else "local"
    if remembered.exists() and remembered.read_text().strip() != name:
        raise Failure(
            f"this checkout already has a cluster of provider {remembered.read_text().strip()}; run `hack/cluster down` before `up --provider {name}`"
        )
    if name == "kind" and engine is None:
        raise Failure(
            "provider kind needs Docker or Podman, and neither answers: start one of them, or use --provider local"
        )
    layout.directory.mkdir(parents=True, exist_ok=True)
    return Kind(layout, engine or "docker") if name == "kind" else Local(layout)
