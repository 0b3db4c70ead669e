"""The published samples work unchanged."""

from pathlib import Path

import pytest

from hack import quickstart
from hack.quickstart import ROOT, kubectl
from tests.e2e.topics import await_ready

SAMPLES = sorted(path.stem for path in (ROOT / "crds" / "samples").glob("*.yaml"))
NEEDS_A_TOPIC = {"existing-topic"}
"""Samples for a topic that exists already. Here the operator creates that topic."""


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_becomes_ready(release: None, name: str) -> None:
    quickstart.apply_sample(name)
    text = kubectl("get", "-f", str(Path(ROOT / "crds" / "samples" / f"{name}.yaml")), "-o", "name")
    for resource in text.split():
        await_ready(resource.partition("/")[2], "demo")
