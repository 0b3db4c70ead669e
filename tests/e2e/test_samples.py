"""The published samples work unchanged."""

from pathlib import Path

import pytest

from hack import quickstart
from hack.quickstart import ROOT, kubectl
from tests.e2e.topics import await_ready
from tests.servers.apicurio import Apicurio

SAMPLES = sorted(path.stem for path in (ROOT / "crds" / "samples").glob("*.yaml"))
NEEDS_A_TOPIC = {"existing-topic"}
"""Samples for a topic that exists already. Here the operator creates that topic."""


SHIPMENT = {
    "type": "record",
    "name": "Shipment",
    "fields": [{"name": "shipped_at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
}


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "registry"])
def test_a_sample_becomes_ready(release: None, name: str) -> None:
    apply_and_await(name)


def test_the_sample_with_a_schema_registry_becomes_ready(schemas: Apicurio) -> None:
    schemas.register("shipments-value", SHIPMENT)
    apply_and_await("registry")


def apply_and_await(name: str) -> None:
    quickstart.apply_sample(name)
    text = kubectl("get", "-f", str(Path(ROOT / "crds" / "samples" / f"{name}.yaml")), "-o", "name")
    for resource in text.split():
        await_ready(resource.partition("/")[2], "demo")
