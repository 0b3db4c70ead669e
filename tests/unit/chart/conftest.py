"""`helm template` as a fixture."""

import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.unit.chart.helm import CHART, ChartError, Render, find_helm


@pytest.fixture(scope="session")
def render() -> Render:
    helm = find_helm()

    def template(
        values: Mapping[str, Any] | None = None, *, files: tuple[str, ...] = (), namespace: str = "firn-system"
    ) -> str:
        command = [helm, "template", "firn", str(CHART), "--namespace", namespace, "--kube-version", "1.34.4"]
        for file in files:
            command += ["--values", str(CHART / file)]
        done = subprocess.run(
            [*command, "--values", "-"], input=yaml.safe_dump(dict(values or {})), capture_output=True, text=True
        )
        if done.returncode != 0:
            raise ChartError(done.stderr)
        return done.stdout

    return template
