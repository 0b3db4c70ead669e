"""`helm template`, and what it rendered."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest
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
    """Helm's binary: $FIRN_HELM, the one of the test cluster's tools, or the one on PATH."""
    for candidate in (os.environ.get("FIRN_HELM"), str(ROOT / ".cluster" / "bin" / "helm")):
        if candidate and Path(candidate).is_file():
            return candidate
    found = shutil.which("helm")
    if found is None:
        pytest.fail("no helm: `make test-fast` builds it, or say where it is in FIRN_HELM")
    return found


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
