"""The chart's TLSRoutes at an API server that has the CRD of a released Gateway API."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver import SYSTEM, ApiServer, Refused
from tests.chart import manifests, render

MODULE, VERSION = "sigs.k8s.io/gateway-api", "v1.5.1"
SUM = "h1:RqVRIlkhLhUO8wOHKTLnTJA6o/1un4po4/6M1nRzdd0="
ROUTE = {
    "parentRefs": [{"name": "lake", "namespace": "gateways", "sectionName": "kafka"}],
    "bootstrapHostname": "kafka.example.com",
    "brokerHostname": "kafka-{broker}.example.com",
}


def released_crd(directory: Path) -> dict[str, Any]:
    """Return the CRD of TLSRoutes in a release of the Gateway API, of its standard channel."""
    command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
    found = json.loads(subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout)
    assert found["Sum"] == SUM, found
    file = Path(found["Dir"]) / "config" / "crd" / "standard" / "gateway.networking.k8s.io_tlsroutes.yaml"
    crd: dict[str, Any] = yaml.safe_load(file.read_text())
    crd.pop("status", None)
    return crd


def test_the_api_server_accepts_the_routes(api_server: ApiServer, tmp_path: Path) -> None:
    api_server.install(released_crd(tmp_path))
    profile = {
        "access": {"certificate": {"secret": "tls"}},
        "external": {"type": "TLSRoute", "tlsRoute": ROUTE},
    }
    objects = manifests(render({"images": {"registry": "r.example.com"}, "profiles": {"events": profile}}))
    place = f"/apis/gateway.networking.k8s.io/v1/namespaces/{SYSTEM}/tlsroutes"
    found = {}
    for route in [item for item in objects if item["kind"] == "TLSRoute"]:
        path = f"{place}/{route['metadata']['name']}?fieldManager=helm"
        live = api_server.call("PATCH", path, route, "application/apply-patch+yaml")
        assert live["spec"]["parentRefs"][0]["kind"] == "Gateway"
        found[route["metadata"]["name"]] = live["spec"]["hostnames"]
        # The CRD is that of a release, so it refuses what is not a route.
        route["spec"]["hostnames"] = ["10.0.0.1"]
        with pytest.raises(Refused):
            api_server.call("PATCH", path, route, "application/apply-patch+yaml")
    assert len(found) == 4
    assert found["firn-broker-events-external-2"] == ["kafka-2.example.com"]
