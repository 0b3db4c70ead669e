"""Render the Helm chart for tests: `helm template` as a function, and the objects that it rendered."""

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hack.localcluster.artifacts import tools

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "firn"
Manifest = dict[str, Any]


class ChartError(Exception):
    """Helm rejected the values. The message is that of Helm."""


@functools.cache
def helm() -> str:
    """Return Helm's binary.

    The first of: $FIRN_HELM, the binary beside the test cluster, the one on PATH, or one that is built once from its
    Go module (about a minute)."""
    for candidate in (os.environ.get("FIRN_HELM"), str(ROOT / ".cluster" / "bin" / "helm"), shutil.which("helm")):
        if candidate and Path(candidate).is_file():
            return candidate
    return str(tools.build("helm"))


def render(
    values: Mapping[str, Any] | None = None, *, files: tuple[str, ...] = (), namespace: str = "firn-system"
) -> str:
    """Return the output of `helm template` for these values over those of the chart and its ``files``. Raises
    ChartError."""
    command = _template(CHART, namespace)
    for file in files:
        command += ["--values", str(CHART / file)]
    return printed((*command, "--values", "-"), json.dumps(dict(values or {}), ensure_ascii=False))


def notes(values: Mapping[str, Any], directory: Path) -> str:
    """Return what `helm install` prints for these values. `helm template` leaves it out, so a copy of the chart has it as a template."""
    copy = shutil.copytree(CHART, directory / "chart")
    text = (copy / "templates" / "NOTES.txt").read_text()
    (copy / "templates" / "notes.yaml").write_text(
        f'{{{{- define "notes" }}}}{text}{{{{ end -}}}}\nnotes: {{{{ include "notes" . | toJson }}}}\n'
    )
    command = (*_template(copy), "--show-only", "templates/notes.yaml")
    (document,) = manifests(printed((*command, "--values", "-"), json.dumps(dict(values))))
    return str(document["notes"])


def _template(chart: Path, namespace: str = "firn-system") -> list[str]:
    return [helm(), "template", "firn", str(chart), "--namespace", namespace, "--kube-version", "1.34.4"]


@functools.cache
def printed(command: tuple[str, ...], values: str) -> str:
    """Run Helm once for all tests that render the same values."""
    done = subprocess.run(command, input=values, capture_output=True, text=True)
    if done.returncode != 0:
        raise ChartError(done.stderr)
    return done.stdout


def manifests(text: str) -> list[Manifest]:
    """Return the objects of a rendered chart."""
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def find_object(objects: list[Manifest], kind: str, name: str, namespace: str | None = None) -> Manifest:
    """Return the only object of this kind and name."""
    [match] = [
        item
        for item in objects
        if item["kind"] == kind
        and item["metadata"]["name"] == name
        and (namespace is None or item["metadata"].get("namespace") == namespace)
    ]
    return match
