"""franz-go against the broker. The Go program in tests/clients/franz runs the steps and exits at the first error."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.servers.firn_broker import FirnBroker

MODULE = Path(__file__).parents[2] / "clients" / "franz"


@pytest.fixture(scope="module")
def franz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the client with Go, which caches its results."""
    program = tmp_path_factory.mktemp("franz") / "franz"
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": os.environ.get("GOFLAGS", "") + " -mod=readonly"}
    built = subprocess.run(
        ["go", "build", "-o", program, "."], cwd=MODULE, env=environment, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return program


def test_franz_go_produces_consumes_and_administers(franz: Path, firn: FirnBroker, name: str) -> None:
    ended = subprocess.run([franz, firn.bootstrap, name], capture_output=True, text=True, timeout=90)
    assert (ended.returncode, ended.stdout) == (0, "proven\n"), ended.stderr
