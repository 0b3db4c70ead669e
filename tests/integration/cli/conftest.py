"""The command line tool as a process of a person, against a real API server with RBAC. No operator runs."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from firn.model import names
from tests import gen
from tests.apiserver import SYSTEM, ApiServer, Manifest

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAM = "import sys; sys.argv[0] = 'firn'; from firn_operator.cli.main import main; sys.exit(main())"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
FIRN = {"apiGroups": [names.GROUP], "resources": ["*"]}
_numbers = itertools.count()


@dataclass(frozen=True)
class Person:
    """A user of the cluster, who runs the command line tool."""

    kubeconfig: Path

    def run(self, *arguments: str, text: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run ``firn`` with these arguments, and with ``text`` on standard input."""
        paths = os.pathsep.join(str(REPOSITORY / part) for part in (".", "operator", "controllers"))
        kept = {key: value for key, value in os.environ.items() if not key.startswith("KUBERNETES_")}
        settings = {"KUBECONFIG": str(self.kubeconfig), "PYTHONPATH": paths, "COLUMNS": "200", "HOME": "/nonexistent"}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            env=kept | settings | environment,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def document(self, *arguments: str, code: int, text: str = "") -> Any:
        """Run ``firn`` with the output JSON, and return the document."""
        done = self.run(*arguments, "-o", "json", text=text)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)


@dataclass(frozen=True)
class Cluster:
    """A namespace of its own in the API server, and persons with rights there."""

    api: ApiServer
    namespace: str
    directory: Path

    @property
    def administrator(self) -> Person:
        """A person with all rights, whose context names the namespace."""
        document = yaml.safe_load(self.api.kubeconfig.read_text())
        return self._person("administrator", document)

    def person(self, name: str, *rules: Manifest) -> Person:
        """Return a person with these rights in the namespace, and no other."""
        own = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        self.api.call("POST", own, {"metadata": {"name": name}})
        token = self.api.call("POST", f"{own}/{name}/token", {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        place = f"{RBAC}/namespaces/{self.namespace}"
        self.api.call("POST", f"{place}/roles", {"metadata": {"name": name}, "rules": list(rules)})
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.namespace}],
        }
        self.api.call("POST", f"{place}/rolebindings", binding)
        document = yaml.safe_load(self.api.kubeconfig.read_text())
        document["users"][0]["user"] = {"token": token}
        return self._person(name, document)

    def _person(self, name: str, document: Manifest) -> Person:
        document["contexts"][0]["context"]["namespace"] = self.namespace
        path = self.directory / f"kubeconfig-{name}"
        path.write_text(json.dumps(document))
        return Person(path)

    def path(self, plural: str = "icebergtopics", name: str = "") -> str:
        """Return the path of resources of Firn in the namespace."""
        return f"/apis/{names.API_VERSION}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def topic(self, name: str, **spec: Any) -> Manifest:
        """Return the manifest of a topic in the namespace."""
        return {
            "apiVersion": names.API_VERSION,
            "kind": "IcebergTopic",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec,
        }

    def create(self, manifest: Manifest, *, applied: bool = True) -> Manifest:
        """Create a topic as kubectl apply does, or without its annotation."""
        body = json.loads(json.dumps(manifest))
        if applied:
            key = "kubectl.kubernetes.io/last-applied-configuration"
            body["metadata"].setdefault("annotations", {})[key] = json.dumps(manifest)
        return self.api.call("POST", self.path(), body)

    def report(self, name: str, **status: Any) -> Manifest:
        """Write a status of a topic, as the operator does."""
        place = f"{self.path(name=name)}/status"
        return self.api.call("PATCH", place, {"status": status}, "application/merge-patch+json")

    def stored(self, name: str) -> Manifest:
        """Return the live topic."""
        return self.api.call("GET", self.path(name=name))


@pytest.fixture
def cluster(api_server: ApiServer, tmp_path: Path) -> Iterator[Cluster]:
    namespace = f"shop-{next(_numbers)}"
    api_server.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    cluster = Cluster(api_server, namespace, tmp_path)
    yield cluster
    for plural in (
        "icebergtopics",
        "compactionpolicies",
        "retentionpolicies",
        "deadletterreplays",
        "topicsets",
        "topicusers",
    ):
        api_server.call("DELETE", cluster.path(plural))


@pytest.fixture
def configured(cluster: Cluster) -> Iterator[Cluster]:
    """Give the operator's namespace the ConfigMap with the configuration, as the chart does."""
    document = json.loads(gen.config().model_dump_json(by_alias=True, exclude_none=True))
    place = f"/api/v1/namespaces/{SYSTEM}/configmaps"
    body = {"metadata": {"name": names.CONFIG_OBJECT}, "data": {"config.yaml": yaml.safe_dump(document)}}
    cluster.api.call("POST", place, body)
    yield cluster
    cluster.api.call("DELETE", f"{place}/{names.CONFIG_OBJECT}")
