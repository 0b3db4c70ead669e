"""`helm template`, and what it rendered."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "firn"
Manifest = dict[str, Any]


class ChartError(Exception):
    """Helm refused the values; the message is Helm's."""


class Render(Protocol):
    def __call__(
        self, values: Mapping[str, Any] | None = None, *, files: tuple[str, ...] = (), namespace: str = "firn-system"
    ) -> str: ...


def find_helm() -> str:
    """Helm's binary: $FIRN_HELM, the one beside the test cluster, the one on PATH, or else built (a minute, once) from its Go module."""
    for candidate in (os.environ.get("FIRN_HELM"), str(ROOT / ".cluster" / "bin" / "helm"), shutil.which("helm")):
        if candidate and Path(candidate).is_file():
            return candidate
    build = "from localcluster import tools; print(tools.build('helm'))"
    return subprocess.run(
        [sys.executable, "-c", build], cwd=ROOT / "hack", check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()[-1]


def manifests(text: str) -> list[Manifest]:
    """The objects of a rendered chart."""
    return [document for document in yaml.safe_load_all(text) if document]


def one(objects: list[Manifest], kind: str, name: str, namespace: str | None = None) -> Manifest:
    """The only object of this kind and name."""
    [found] = [
        item
        for item in objects
        if item["kind"] == kind
        and item["metadata"]["name"] == name
        and (namespace is None or item["metadata"].get("namespace") == namespace)
    ]
    return found
