"""Run one API server with the chart's rights for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests import apiserver, gen
from tests.apiserver import ApiServer
from tests.chart import Manifest, manifests, render

NAMESPACES = ("firn-system", "watched", "elsewhere")
VALUES = {
    "images": {"registry": "registry.example.com/data"},
    "watchNamespaces": ["watched"],
    "users": {"enabled": True},
    "quickStart": {"diskless": {"enabled": True}},
    "profiles": {"waves": gen.diskless(access={"certificate": {"selfSigned": {}}})},
    "groups": {
        "large": {
            "executors": {"instances": 2},
            "serviceAccount": "spark",
            "sparkConf": {
                "spark.kubernetes.executor.secrets.certificates": "/etc/certificates",
                "spark.kubernetes.executor.volumes.persistentVolumeClaim.cache.options.claimName": "cache",
            },
        }
    },
    "catalogs": {
        "private": {
            "type": "rest",
            "uri": "https://catalog",
            "warehouse": "w",
            "tls": {"ca": {"secret": "catalog-tls"}},
            "objectStore": {"tls": {"ca": {"configMap": "store-ca"}}},
        }
    },
    "maintenance": {"sizes": {"large": {"executors": {"instances": 2}}}, "image": {"image": "firn-spark:canary"}},
}
RBAC = "rbac.authorization.k8s.io/v1"
ADMISSION = "admissionregistration.k8s.io/v1"


@pytest.fixture(scope="session")
def chart() -> list[Manifest]:
    return manifests(render(VALUES))


@pytest.fixture(scope="session")
def api(chart: list[Manifest]) -> Iterator[ApiServer]:
    with apiserver.running() as server:
        for namespace in NAMESPACES:
            server.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        for item in chart:
            if item["kind"] == "ServiceAccount":
                server.call("POST", f"/api/v1/namespaces/{item['metadata']['namespace']}/serviceaccounts", item)
            elif item["apiVersion"] == RBAC:
                namespace = item["metadata"].get("namespace")
                scope = f"namespaces/{namespace}/" if namespace else ""
                plural = item["kind"].lower() + "s"
                server.call("POST", f"/apis/{RBAC}/{scope}{plural}", item)
            elif item["apiVersion"] == ADMISSION:
                plural = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}.get(item["kind"])
                server.call("POST", f"/apis/{ADMISSION}/{plural or 'validatingadmissionpolicybindings'}", item)
        yield server
