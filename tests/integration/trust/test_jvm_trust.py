"""The JVM and the Python workers of a driver trust the CA that the configuration names, and no other certificate."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.trust.conftest import Private

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def outcomes(private: Private, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what one process has done with each catalog. Its start takes longer than the rest."""
    file = tmp_path_factory.mktemp("jvm") / "catalogs.json"
    catalogs = {
        "good": private.connection,
        "foreign": private.connection.model_copy(update={"ca_path": str(private.foreign)}),
        "named": private.connection.model_copy(
            update={"uri": private.connection.uri.replace("localhost", "127.0.0.1")}
        ),
        "odd": private.at(private.odd),
        "old": private.at(private.old),
        "rest": private.rest_catalog(private.rest),
        "rest_of_a_stranger": private.rest_catalog(private.stranger),
    }
    file.write_text(json.dumps({name: each.model_dump(mode="json") for name, each in catalogs.items()}))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "TMPDIR": str(file.parent)}
    command = [sys.executable, "-m", "tests.integration.trust.jvm", str(file)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(file.with_suffix(".out").read_text())
    return found


def test_the_jvm_and_its_workers_use_a_catalog_with_a_private_ca(outcomes: dict[str, Any]) -> None:
    assert outcomes["good"] == {"length": len("from a worker"), "worker": "from a worker"}
    assert outcomes["rest"] == {"namespaces": ["private"]}


@pytest.mark.parametrize(
    ("catalog", "cause"),
    [
        ("foreign", "put the CA of the server into tls.ca"),
        ("rest_of_a_stranger", "put the CA of the server into tls.ca"),
        ("named", "the name of the server is not in its certificate"),
        ("odd", "the name of the server is not in its certificate"),
        ("old", "the certificate of the server has expired"),
    ],
)
def test_the_jvm_rejects_other_certificates(outcomes: dict[str, Any], catalog: str, cause: str) -> None:
    message = outcomes[catalog].get("error", "the JVM accepts the server")
    assert message.startswith(f"catalog {catalog}: ")
    assert cause in message
